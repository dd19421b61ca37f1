//! Which experts a token goes to, and with which weights: the best of the router's scores.
//!
//! The result is a plain list in the order of experts, so that each expert's rows are adjacent in its products.

use crate::{Error, Exec, View};

const OP: &str = "route";

/// How scores become weights.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Gating {
    /// Softmax over all experts, then the best.
    Softmax,
    /// A sigmoid of each score, then the best.
    Sigmoid,
    /// The best scores, then a softmax over those.
    SoftmaxOfBest,
    /// Of each chosen expert its share among those that were not chosen before it and come near it (SparseMixer).
    NearBest,
}

/// How far below the best a score still comes near it, of the larger of both.
const NEAR: f32 = 0.02;

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Routing {
    /// Experts of a token.
    pub n_used: usize,
    pub gating: Gating,
    /// Whether the weights of a token are made to sum up to one.
    pub is_normalized: bool,
    /// What the weights are multiplied with at last.
    pub scale: f32,
    /// Groups of experts, of which only the best are looked at; 1 means no groups.
    pub n_groups: usize,
    pub n_groups_used: usize,
}

impl Routing {
    /// Whether the groups are of one size, and those that are looked at have experts enough.
    pub(crate) fn are_groups_good(&self, n_experts: usize) -> bool {
        let Self { n_used, n_groups, n_groups_used, .. } = *self;
        n_groups == 1
            || n_groups > 0
                && n_experts.is_multiple_of(n_groups)
                && (1..=n_groups).contains(&n_groups_used)
                && n_used <= n_experts / n_groups * n_groups_used
    }
}

/// Pairs of (row, expert), sorted by expert and then by row.
#[derive(Clone, Default, Debug)]
pub struct Routes {
    pub rows: Vec<u32>,
    pub weights: Vec<f32>,
    /// Of each expert: where its pairs start; one more at the end.
    pub starts: Vec<u32>,
}

impl Routes {
    pub fn n_pairs(&self) -> usize {
        self.rows.len()
    }

    /// Multiplies the weight of each pair by the factor of its expert; `factors` is `[1, n_experts]`.
    pub fn scale_shares(&mut self, factors: View) -> Result<(), Error> {
        factors.expect_shape(OP, "factors", [1, self.starts.len().saturating_sub(1)])?;
        for (expert, factor) in factors.f32s(OP, "factors")?.iter().enumerate() {
            let pairs = self.of(expert);
            self.weights[pairs].iter_mut().for_each(|weight| *weight *= factor);
        }
        Ok(())
    }

    /// The pairs of one expert.
    pub fn of(&self, expert: usize) -> std::ops::Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }
}

/// `scores` is `[n_rows, n_experts]` f32; `bias` is added for choosing only, `[1, n_experts]`.
pub fn route(
    exec: Exec,
    scores: View,
    bias: Option<View>,
    routing: &Routing,
    routes: &mut Routes,
) -> Result<(), Error> {
    let [n_rows, n_experts] = scores.shape;
    let Routing { n_used, n_groups, n_groups_used, .. } = *routing;
    if n_used == 0 || n_used > n_experts || !routing.are_groups_good(n_experts) {
        let what = format!("{n_used} of {n_experts} experts, {n_groups_used} of {n_groups} groups");
        return Err(Error::Argument { op: OP, what });
    }
    if let Some(bias) = bias {
        bias.expect_shape(OP, "bias", [1, n_experts])?;
    }
    exec.cpu_only(OP)?;
    let scores = scores.f32s(OP, "scores")?;
    let bias = bias.map(|bias| bias.f32s(OP, "bias")).transpose()?;
    let mut pairs = Vec::with_capacity(n_rows * n_used);
    let mut row = RowRoute::default();
    for (row_idx, scores) in scores.chunks_exact(n_experts).enumerate() {
        row.choose(scores, bias, routing);
        pairs.extend(row.chosen.iter().map(|&(expert, weight)| (expert, row_idx as u32, weight)));
    }
    pairs.sort_unstable_by_key(|&(expert, row, _)| (expert, row));
    routes.rows.clear();
    routes.rows.extend(pairs.iter().map(|pair| pair.1));
    routes.weights.clear();
    routes.weights.extend(pairs.iter().map(|pair| pair.2));
    routes.starts.clear();
    routes.starts.extend((0..=n_experts).map(|expert| pairs.partition_point(|pair| pair.0 < expert) as u32));
    Ok(())
}

/// One row's choice; the vectors are kept between rows.
#[derive(Default)]
struct RowRoute {
    weights: Vec<f32>,
    /// What is compared: the weights with the bias.
    keys: Vec<f32>,
    order: Vec<usize>,
    chosen: Vec<(usize, f32)>,
}

impl RowRoute {
    fn choose(&mut self, scores: &[f32], bias: Option<&[f32]>, routing: &Routing) {
        self.weights.clear();
        match routing.gating {
            Gating::Softmax => {
                self.weights.extend_from_slice(scores);
                softmax(&mut self.weights);
            }
            Gating::Sigmoid => self.weights.extend(scores.iter().map(|x| 1.0 / (1.0 + (-x).exp()))),
            Gating::SoftmaxOfBest | Gating::NearBest => self.weights.extend_from_slice(scores),
        }
        self.keys.clear();
        self.keys.extend(self.weights.iter().enumerate().map(|(i, w)| w + bias.map_or(0.0, |bias| bias[i])));
        if routing.n_groups > 1 {
            self.close_groups(routing, bias.is_some());
        }
        self.order.clear();
        self.order.extend(0..scores.len());
        let keys = &self.keys;
        // Ties go to the first: the same choice on every machine.
        self.order.sort_unstable_by(|&a, &b| keys[b].total_cmp(&keys[a]).then(a.cmp(&b)));
        self.chosen.clear();
        self.chosen.extend(self.order[..routing.n_used].iter().map(|&expert| (expert, self.weights[expert])));
        if routing.gating == Gating::SoftmaxOfBest {
            let mut best: Vec<f32> = self.chosen.iter().map(|pair| pair.1).collect();
            softmax(&mut best);
            self.chosen.iter_mut().zip(best).for_each(|(pair, weight)| pair.1 = weight);
        }
        if routing.gating == Gating::NearBest {
            let order = &self.order;
            self.chosen.iter_mut().enumerate().for_each(|(i, pair)| pair.1 = near_share(scores, &order[i..]));
        }
        let sum: f32 = self.chosen.iter().map(|pair| pair.1).sum();
        let factor = if routing.is_normalized { routing.scale / sum.max(1e-20) } else { routing.scale };
        self.chosen.iter_mut().for_each(|pair| pair.1 *= factor);
    }

    /// Takes the experts of all but the best groups out of the choice. A group is worth its best expert, or its best
    /// two where a bias steers the choice.
    fn close_groups(&mut self, routing: &Routing, has_bias: bool) {
        let size = self.keys.len() / routing.n_groups;
        let worth: Vec<f32> = self
            .keys
            .chunks_exact(size)
            .map(|group| {
                let mut best = group.to_vec();
                best.sort_unstable_by(|a, b| b.total_cmp(a));
                best[..size.min(if has_bias { 2 } else { 1 })].iter().sum()
            })
            .collect();
        let mut order: Vec<usize> = (0..routing.n_groups).collect();
        order.sort_unstable_by(|&a, &b| worth[b].total_cmp(&worth[a]).then(a.cmp(&b)));
        for &group in &order[routing.n_groups_used..] {
            self.keys[group * size..][..size].fill(f32::NEG_INFINITY);
        }
    }
}

/// The share of the first of these experts among those that come near it.
fn near_share(scores: &[f32], experts: &[usize]) -> f32 {
    let best = scores[experts[0]];
    let near = experts.iter().map(|expert| scores[*expert]).filter(|x| (best - x) / x.abs().max(best) <= NEAR);
    1.0 / near.map(|x| (x - best).exp()).sum::<f32>().max(1.0)
}

fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}
