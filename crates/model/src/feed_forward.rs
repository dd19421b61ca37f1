//! The feed-forward block of a layer: a dense one, or a mixture of experts.

use ops::{
    Activation, Exec, ExpertLeft, ExpertMatrices, ExpertProduct, GroupProduct, Mode, Product, Routes, RowGroup, Tensor,
    View, ViewMut,
};

use crate::Error;
use crate::decoder::Context;
use crate::parts::{BesideNorms, Dense, ExpertParts, FfnParts, LayerParts, Linear, Norm};
use crate::scratch::{LayerScratch, Pairs};

/// `x += ffn(norm(x))`.
pub fn run(
    context: Context,
    layer_idx: usize,
    x: &mut ViewMut,
    work: &mut LayerScratch,
    routes: &mut Routes,
) -> Result<(), Error> {
    let (n, layer) = (x.shape[0], &context.weights.parts.layers[layer_idx]);
    match &layer.ffn {
        None => return Ok(()),
        Some(FfnParts::Dense(dense)) => {
            let sparsity = context.config.sparsity.get(layer_idx).copied().filter(|k| *k != 0.0);
            let activation = context.config.activation_of(layer_idx);
            dense_block(context, layer, dense, activation, sparsity, x, work)?;
        }
        Some(FfnParts::Experts(parts)) => {
            match layer.ffn_norm {
                Some(norm) => context.norm(norm, x.as_view(), &mut work.h.rows_mut(n))?,
                None => ops::take_columns(context.exec, x.as_view(), &mut work.h.rows_mut(n))?,
            }
            score(context, parts, n, work)?;
            if let Exec::Cpu(_) = context.exec {
                mixture(context, parts, n, work, routes)?;
            } else {
                device_mixture(context, parts, n, work)?;
                let is_plain = layer.post_ffn_norm.is_none() && context.config.residual_scale == 1.0;
                let (y, shares) = (&work.pairs.y, &work.pairs.weights);
                let n_pairs = n * context.config.experts.map_or(0, |experts| experts.routing.n_used);
                if is_plain && parts.shared.is_none() {
                    ops::sum_experts(context.exec, y.rows(n_pairs), shares.rows(n_pairs), Mode::Add, x)?;
                    return norm_sum(context, layer, x);
                }
                let mut out = work.branch.rows_mut(n);
                ops::sum_experts(context.exec, y.rows(n_pairs), shares.rows(n_pairs), Mode::Write, &mut out)?;
                shared_expert(context, parts, n, work)?;
            }
            if let (Some(scale), Some(_)) = (context.config.family.dense_beside_experts, &parts.shared) {
                ops::scale(context.exec, &mut work.branch.rows_mut(n), scale)?;
            }
            context.join_branch(layer.post_ffn_norm, x, &mut work.branch.rows_mut(n))?;
        }
        Some(FfnParts::Both(dense, parts, norms)) => {
            let activation = context.config.activation_of(layer_idx);
            both(context, layer, (dense, parts, norms), activation, x.as_view(), work, routes)?;
            context.join_branch(layer.post_ffn_norm, x, &mut work.branch.rows_mut(n))?;
        }
    }
    norm_sum(context, layer, x)
}

/// The norm behind the block, where a family has one.
fn norm_sum(context: Context, layer: &LayerParts, x: &mut ViewMut) -> Result<(), Error> {
    match layer.ffn_sum_norm {
        Some(norm) => context.norm_in_place(norm, x),
        None => Ok(()),
    }
}

/// `work.branch = norm(dense(norm(x))) + norm(experts(norm(x)))`, each norm another.
fn both(
    context: Context,
    layer: &LayerParts,
    (dense, parts, norms): (&Dense, &ExpertParts, &BesideNorms),
    activation: Activation,
    x: View,
    work: &mut LayerScratch,
    routes: &mut Routes,
) -> Result<(), Error> {
    let (n, weights) = (x.n_rows(), context.weights);
    let router = Norm { weight: norms.router, bias: None };
    context.norm(router, x, &mut work.h.rows_mut(n))?;
    score(context, parts, n, work)?;
    context.norm(norms.experts, x, &mut work.h.rows_mut(n))?;
    if let Exec::Cpu(_) = context.exec {
        mixture(context, parts, n, work, routes)?;
    } else {
        device_mixture(context, parts, n, work)?;
        let n_pairs = n * context.config.experts.map_or(0, |experts| experts.routing.n_used);
        let (y, shares) = (work.pairs.y.rows(n_pairs), work.pairs.weights.rows(n_pairs));
        ops::sum_experts(context.exec, y, shares, Mode::Write, &mut work.branch.rows_mut(n))?;
    }
    context.norm_in_place(norms.experts_out, &mut work.branch.rows_mut(n))?;

    let LayerScratch { h, gate, up, branch, .. } = work;
    let width = weights.view(dense.up.weight).n_rows();
    let (mut h, mut gate_rows, mut up_rows) = (h.rows_mut(n), gate.narrow_mut([n, width]), up.narrow_mut([n, width]));
    let gate = dense.gate.unwrap_or(dense.up);
    let products = &mut [
        Product::write(weights.view(gate.weight), gate_rows.reborrow()).coarse(),
        Product::write(weights.view(dense.up.weight), up_rows.reborrow()).coarse(),
    ];
    context.norm_products(layer.ffn_norm, x, &mut h, products)?;
    ops::glu(context.exec, activation, &mut gate_rows, up_rows.as_view())?;
    let down = Product::write(weights.view(dense.down.weight), h.reborrow());
    ops::matmul(context.exec, gate_rows.as_view(), &mut [down])?;
    context.norm_in_place(norms.dense_out, &mut h)?;
    Ok(ops::add_scaled(context.exec, &mut branch.rows_mut(n), h.as_view(), 1.0)?)
}

/// `work.router`, from what the router sees in `work.h`.
fn score(context: Context, parts: &ExpertParts, n: usize, work: &mut LayerScratch) -> Result<(), Error> {
    let LayerScratch { h, router, .. } = work;
    let product = Product::write(context.weights.view(parts.router.weight), router.rows_mut(n));
    ops::matmul(context.exec, h.rows(n), &mut [product])?;
    context.add_bias(&parts.router, &mut router.rows_mut(n))
}

fn dense_block(
    context: Context,
    layer: &LayerParts,
    dense: &Dense,
    activation: Activation,
    sparsity: Option<f32>,
    x: &mut ViewMut,
    work: &mut LayerScratch,
) -> Result<(), Error> {
    let Context { exec, weights, .. } = context;
    let LayerScratch { h, gate: gate_out, up: up_out, branch, .. } = work;
    let n = x.shape[0];
    let (mut h, mut branch) = (h.rows_mut(n), branch.rows_mut(n));
    let Dense { gate, up, down } = dense;
    let shape = [n, weights.view(up.weight).n_rows()];
    let (mut gate_rows, mut up_rows) = (gate_out.narrow_mut(shape), up_out.narrow_mut(shape));
    let Some(gate) = gate else {
        let product = &mut [Product::write(weights.view(up.weight), up_rows.reborrow()).coarse()];
        context.norm_products(layer.ffn_norm, x.as_view(), &mut h, product)?;
        let input = if layer.ffn_norm.is_some() { h.as_view() } else { x.as_view() };
        context.adapt(up, input, &mut up_rows)?;
        context.add_bias(up, &mut up_rows)?;
        ops::activate(exec, activation, &mut up_rows)?;
        return context.join(up_rows.as_view(), down, layer.post_ffn_norm, x, &mut branch);
    };
    let products = &mut [
        Product::write(weights.view(gate.weight), gate_rows.reborrow()).coarse(),
        Product::write(weights.view(up.weight), up_rows.reborrow()).coarse(),
    ];
    context.norm_products(layer.ffn_norm, x.as_view(), &mut h, products)?;
    let input = if layer.ffn_norm.is_some() { h.as_view() } else { x.as_view() };
    context.adapt_all(input, &mut [(gate.weight, gate_rows.reborrow()), (up.weight, up_rows.reborrow())])?;
    context.add_bias(gate, &mut gate_rows)?;
    context.add_bias(up, &mut up_rows)?;
    let up_rows = up_rows.as_view();
    if let Some(k) = sparsity {
        ops::sparsify(exec, &mut gate_rows, k)?;
    }
    if layer.ffn_sub_norm.is_none() && !context.is_adapted(down) {
        let sides = (&mut gate_rows, up_rows);
        return context.join_gated(activation, sides, down, layer.post_ffn_norm, x, &mut branch);
    }
    ops::glu(exec, activation, &mut gate_rows, up_rows)?;
    if let Some(norm) = layer.ffn_sub_norm {
        context.norm_in_place(norm, &mut gate_rows)?;
    }
    context.join(gate_rows.as_view(), down, layer.post_ffn_norm, x, &mut branch)
}

/// `work.branch = experts(work.h)`, for the first `n` rows, by the scores in `work.router`.
fn mixture(
    context: Context,
    parts: &ExpertParts,
    n: usize,
    work: &mut LayerScratch,
    routes: &mut Routes,
) -> Result<(), Error> {
    let Context { exec, config, weights, .. } = context;
    let experts = config.experts.expect("a mixture has its numbers");
    let LayerScratch { h, branch, router, pairs, .. } = &mut *work;
    let h = h.rows(n);
    let bias = parts.choice_bias.map(|bias| weights.view(bias));
    ops::route(exec, router.rows(n), bias, &experts.routing, routes)?;
    if let Some(factors) = parts.shares {
        routes.scale_shares(weights.view(factors))?;
    }

    let n_pairs = routes.n_pairs();
    ops::take_rows(exec, h, &routes.rows, &mut pairs.x.rows_mut(n_pairs))?;
    let all = |of: fn(&Dense) -> Linear| -> ExpertGroups {
        let groups = parts.experts.iter().enumerate().map(|(i, expert)| (routes.of(i), of(expert)));
        groups.filter(|(rows, _)| !rows.is_empty()).collect()
    };
    let activation = config.activation;
    let Pairs { x, gate, up, y, .. } = pairs;
    let ups = all(up_of);
    if parts.experts.iter().all(|expert| expert.gate.is_some()) {
        let gates = all(gate_of);
        products(context, x.rows(n_pairs), &mut [(&gates, gate), (&ups, up)])?;
        let adapt = |of: fn(&Dense) -> Linear, out: &mut Tensor| adapt_routed(context, parts, of, routes, x, out);
        adapt(gate_of, gate)?;
        adapt(up_of, up)?;
        if config.family.weighs_inputs {
            // The same as weighing the input: the weight of `up` comes in with the sum.
            ops::scale_rows(exec, &mut gate.rows_mut(n_pairs), View::of_f32(&routes.weights, 1))?;
        }
        ops::glu(exec, activation, &mut gate.rows_mut(n_pairs), up.rows(n_pairs))?;
    } else {
        products(context, x.rows(n_pairs), &mut [(&ups, gate)])?;
        adapt_routed(context, parts, up_of, routes, x, gate)?;
        ops::activate(exec, activation, &mut gate.rows_mut(n_pairs))?;
    }
    products(context, gate.rows(n_pairs), &mut [(&all(down_of), y)])?;
    adapt_routed(context, parts, down_of, routes, gate, y)?;

    let mut out = branch.rows_mut(n);
    ops::scale(exec, &mut out, 0.0)?;
    ops::add_rows(exec, y.rows(n_pairs), &routes.rows, &routes.weights, &mut out)?;
    shared_expert(context, parts, n, work)
}

/// What adapters make of the pairs' products with a matrix of each expert.
fn adapt_routed(
    context: Context,
    parts: &ExpertParts,
    of: fn(&Dense) -> Linear,
    routes: &Routes,
    x: &Tensor,
    out: &mut Tensor,
) -> Result<(), Error> {
    let (Some(adapters), Some(first)) = (&context.adapters, parts.experts.first()) else { return Ok(()) };
    let (n, first) = (routes.n_pairs(), of(first).weight);
    adapters.apply_routed(context.exec, first, routes, x.rows(n), &mut out.rows_mut(n))
}

/// `work.branch += the expert that every row goes to`, weighed by a gate of its own where there is one.
fn shared_expert(context: Context, parts: &ExpertParts, n: usize, work: &mut LayerScratch) -> Result<(), Error> {
    let Context { exec, config, weights, .. } = context;
    let Some(shared) = &parts.shared else { return Ok(()) };
    let LayerScratch { h, shared_gate: gate, shared_up: up, branch, router, pairs, .. } = work;
    let (h, mut out) = (h.rows(n), branch.rows_mut(n));
    if let Some(shared_gate) = shared.gate {
        let widths = &mut [
            Product::write(weights.view(shared_gate.weight), gate.rows_mut(n)),
            Product::write(weights.view(shared.up.weight), up.rows_mut(n)),
        ];
        ops::matmul(exec, h, widths)?;
        context.adapt(&shared_gate, h, &mut gate.rows_mut(n))?;
        context.adapt(&shared.up, h, &mut up.rows_mut(n))?;
        ops::glu(exec, config.activation, &mut gate.rows_mut(n), up.rows(n))?;
    } else {
        ops::matmul(exec, h, &mut [Product::write(weights.view(shared.up.weight), gate.rows_mut(n))])?;
        context.adapt(&shared.up, h, &mut gate.rows_mut(n))?;
        ops::activate(exec, config.activation, &mut gate.rows_mut(n))?;
    }
    let is_multiplied = context.adapters.is_some_and(|adapters| adapters.multiply(shared.down.weight));
    let Some(weight) = parts.shared_gate else {
        let down = weights.view(shared.down.weight);
        if !is_multiplied {
            ops::matmul(exec, gate.rows(n), &mut [Product::add(down, out.reborrow())])?;
            return context.adapt(&shared.down, gate.rows(n), &mut out);
        }
        ops::matmul(exec, gate.rows(n), &mut [Product::write(down, pairs.y.rows_mut(n))])?;
        context.adapt(&shared.down, gate.rows(n), &mut pairs.y.rows_mut(n))?;
        return Ok(ops::add_scaled(exec, &mut out, pairs.y.rows(n), 1.0)?);
    };
    // The scores of the choice are used; their memory serves once more.
    ops::matmul(exec, h, &mut [Product::write(weights.view(weight), router.column_mut(n))])?;
    ops::matmul(exec, gate.rows(n), &mut [Product::write(weights.view(shared.down.weight), pairs.y.rows_mut(n))])?;
    context.adapt(&shared.down, gate.rows(n), &mut pairs.y.rows_mut(n))?;
    Ok(ops::add_gated(exec, pairs.y.rows(n), router.column_mut(n).as_view(), &mut out)?)
}

/// `work.pairs.y`, the output of each chosen expert, and `work.pairs.weights`, its share of the sum. The choice stays on
/// the device, so that no step waits for it.
fn device_mixture(context: Context, parts: &ExpertParts, n: usize, work: &mut LayerScratch) -> Result<(), Error> {
    let Context { exec, config, weights, .. } = context;
    let experts = config.experts.expect("a mixture has its numbers");
    let LayerScratch { h, router, pairs, .. } = work;
    let bias = parts.choice_bias.map(|bias| weights.view(bias));
    let n_pairs = n * experts.routing.n_used;
    let Pairs { gate, up, y, chosen, weights: shares, .. } = pairs;
    let (mut chosen_rows, mut share_rows) = (chosen.rows_mut(n_pairs), shares.rows_mut(n_pairs));
    ops::choose_experts(exec, router.rows(n), bias, &experts.routing, &mut chosen_rows, &mut share_rows)?;
    if let Some(factors) = parts.shares {
        ops::scale_shares(exec, chosen_rows.as_view(), weights.view(factors), &mut share_rows)?;
    }

    let experts = DeviceExperts { context, parts, chosen: chosen_rows.as_view() };
    let (mut gate, mut y) = (gate.rows_mut(n_pairs), y.rows_mut(n_pairs));
    if parts.experts.iter().any(|expert| expert.gate.is_none()) {
        experts.ungated(h.rows(n), &mut gate, &mut y)
    } else {
        experts.gated(h.rows(n), share_rows.as_view(), gate, &mut up.rows_mut(n_pairs), &mut y)
    }
}

/// The experts of a layer on a device, and which of them each row goes to.
struct DeviceExperts<'a> {
    context: Context<'a>,
    parts: &'a ExpertParts,
    /// The expert of each pair, row by row. `[n_pairs, 1]`, as bits
    chosen: View<'a>,
}

impl DeviceExperts<'_> {
    /// `y = down(activate(up(h)))`, through `inner`. Rows are not grouped by expert: the kernels for that make a gate.
    fn ungated(&self, h: View, inner: &mut ViewMut, y: &mut ViewMut) -> Result<(), Error> {
        let exec = self.context.exec;
        let up = &mut [ExpertProduct { matrices: &self.matrices(up_of), out: inner.reborrow() }];
        ops::expert_matmul(exec, ExpertLeft::Rows(h), up, self.chosen)?;
        self.adapt(up_of, h, inner)?;
        ops::activate(exec, self.context.config.activation, inner)?;
        let down = &mut [ExpertProduct { matrices: &self.matrices(down_of), out: y.reborrow() }];
        ops::expert_matmul(exec, ExpertLeft::Rows(inner.as_view()), down, self.chosen)?;
        self.adapt(down_of, inner.as_view(), y)
    }

    /// `y = down(activate(gate(h)) * up(h))`.
    fn gated(
        &self,
        h: View,
        shares: View,
        mut gate_rows: ViewMut,
        up_rows: &mut ViewMut,
        y: &mut ViewMut,
    ) -> Result<(), Error> {
        let (Context { exec, config, .. }, chosen) = (self.context, self.chosen);
        let (activation, weighs_inputs) = (config.activation, config.family.weighs_inputs);
        let (gate, up, down) = (self.matrices(gate_of), self.matrices(up_of), self.matrices(down_of));
        let is_adapted = self.is_adapted();
        if !weighs_inputs
            && !is_adapted
            && ops::grouped_experts(exec, h, [&gate, &up, &down], activation, chosen, &mut gate_rows, y)?
        {
            return Ok(());
        }
        let mut products = [
            ExpertProduct { matrices: &gate, out: gate_rows.reborrow() },
            ExpertProduct { matrices: &up, out: up_rows.reborrow() },
        ];
        // One launch for both, where they are of one type.
        let n_together = if gate.weights[0].dtype == up.weights[0].dtype { 2 } else { 1 };
        for products in products.chunks_mut(n_together) {
            ops::expert_matmul(exec, ExpertLeft::Rows(h), products, chosen)?;
        }
        self.adapt(gate_of, h, &mut gate_rows)?;
        self.adapt(up_of, h, up_rows)?;
        if weighs_inputs {
            ops::scale_rows(exec, &mut gate_rows, shares)?;
        }
        let down = &mut [ExpertProduct { matrices: &down, out: y.reborrow() }];
        if !is_adapted && down[0].matrices.weights[0].dtype.block_len() > 1 {
            let left = ExpertLeft::Gated { activation, gate: gate_rows.as_view(), up: up_rows.as_view() };
            return Ok(ops::expert_matmul(exec, left, down, chosen)?);
        }
        ops::glu(exec, activation, &mut gate_rows, up_rows.as_view())?;
        ops::expert_matmul(exec, ExpertLeft::Rows(gate_rows.as_view()), down, chosen)?;
        self.adapt(down_of, gate_rows.as_view(), y)
    }

    /// One matrix of every expert.
    fn matrices(&self, of: fn(&Dense) -> Linear) -> ExpertMatrices<'_> {
        let linears = self.parts.experts.iter().map(of);
        let weights = linears.clone().map(|linear| self.context.weights.view(linear.weight)).collect();
        let biases = linears.filter_map(|linear| linear.bias).map(|bias| self.context.weights.view(bias)).collect();
        ExpertMatrices { weights, biases }
    }

    /// Adds what adapters make of the pairs' products with a matrix of each expert.
    fn adapt(&self, of: fn(&Dense) -> Linear, x: View, out: &mut ViewMut) -> Result<(), Error> {
        let experts = &self.parts.experts;
        let (Some(adapters), Some(first)) = (&self.context.adapters, experts.first()) else { return Ok(()) };
        adapters.apply_chosen(self.context.exec, of(first).weight, experts.len(), x, self.chosen, out)
    }

    /// Whether an adapter of this step changes any of the experts' matrices.
    fn is_adapted(&self) -> bool {
        let experts = &self.parts.experts;
        let (Some(adapters), Some(first)) = (&self.context.adapters, experts.first()) else { return false };
        let matrices = [gate_of, up_of, down_of].map(|of: fn(&Dense) -> Linear| of(first).weight);
        matrices.iter().any(|weight| adapters.change_experts(*weight, experts.len()))
    }
}

/// The gate of an expert that has one.
fn gate_of(expert: &Dense) -> Linear {
    expert.gate.unwrap_or(expert.up)
}

fn up_of(expert: &Dense) -> Linear {
    expert.up
}

fn down_of(expert: &Dense) -> Linear {
    expert.down
}

/// The rows of each expert that has any, and one of its matrices.
type ExpertGroups = Vec<(std::ops::Range<usize>, Linear)>;

/// Each expert's rows through its matrices, with their biases.
fn products(context: Context, x: View, sets: &mut [(&ExpertGroups, &mut Tensor)]) -> Result<(), Error> {
    let n = x.n_rows();
    let group = |(rows, linear): &(std::ops::Range<usize>, Linear)| RowGroup {
        rows: rows.clone(),
        weight: context.weights.view(linear.weight),
    };
    let mut all: Vec<GroupProduct> = sets
        .iter_mut()
        .map(|(chosen, out)| GroupProduct { groups: chosen.iter().map(group).collect(), out: out.rows_mut(n) })
        .collect();
    ops::group_matmul(context.exec, x, &mut all)?;
    for (chosen, out) in sets {
        for (rows, linear) in chosen.iter().filter(|(_, linear)| linear.bias.is_some()) {
            context.add_bias(linear, &mut out.rows_mut(n).range(rows.clone())?)?;
        }
    }
    Ok(())
}
