//! Logits of the tokens in the best clusters, against f64.

use ops::quant::dequantize;
use ops::{ClusterRoom, Clusters, Error, Exec, Isa, View, ViewMut, cluster_logits};
use weights::Dtype;

use crate::card::cards;
use crate::support::{Random, assert_close, pools};

/// What a call reads; the table is in a type of its own.
pub struct ClusterCase {
    pub x: Vec<f32>,
    pub scores: Vec<f32>,
    /// The tokens of the clusters, one after the other.
    pub ordering: Vec<f32>,
    pub table: Vec<u8>,
    pub dtype: Dtype,
    pub n_vocab: usize,
    pub n_cols: usize,
    pub n_clusters: usize,
    pub n_used: usize,
}

impl ClusterCase {
    fn new(dtype: Dtype, [n_rows, n_cols, n_clusters, n_each, n_used]: [usize; 5]) -> Self {
        let (mut random, n_vocab) = (Random::new((n_cols + n_each) as u64), n_clusters * n_each);
        let mut left: Vec<f32> = (0..n_vocab).map(|token| token as f32).collect();
        let ordering = (0..n_vocab).map(|_| left.swap_remove(random.bits() as usize % left.len())).collect();
        let mut scores = random.numbers(n_rows * n_clusters);
        // Of equal clusters the first, also where one has no score.
        scores[n_clusters - 1] = scores[0];
        scores[1] = f32::NEG_INFINITY;
        let (x, table) = (random.numbers(n_rows * n_cols), random.weights(dtype, n_vocab * n_cols));
        Self { x, scores, ordering, table, dtype, n_vocab, n_cols, n_clusters, n_used }
    }

    pub fn n_tokens(&self) -> usize {
        self.n_used * (self.n_vocab / self.n_clusters)
    }

    fn truth(&self) -> Vec<f64> {
        let mut table = vec![0.0; self.n_vocab * self.n_cols];
        dequantize(self.dtype, &self.table, &mut table);
        let n_each = self.n_vocab / self.n_clusters;
        let mut logits = Vec::new();
        for (x, scores) in self.x.chunks(self.n_cols).zip(self.scores.chunks(self.n_clusters)) {
            let mut order: Vec<usize> = (0..self.n_clusters).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
            let dot = |token: usize| -> f64 {
                let row = &table[token * self.n_cols..][..self.n_cols];
                x.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            let best = order[..self.n_used].iter().flat_map(|cluster| &self.ordering[cluster * n_each..][..n_each]);
            let found: Vec<(usize, f64)> = best.map(|token| (*token as usize, dot(*token as usize))).collect();
            let least = found.iter().map(|(_, product)| *product).fold(f64::INFINITY, f64::min) - 1.0;
            let mut row = vec![least; self.n_vocab];
            found.iter().for_each(|(token, product)| row[*token] = *product);
            logits.extend(row);
        }
        logits
    }

    fn on(&self, exec: Exec) -> Result<Vec<f32>, Error> {
        let n = self.n_tokens();
        let (mut tokens, mut rows, mut products) = (vec![0.0; n], vec![f32::NAN; n * self.n_cols], vec![0.0; n]);
        let mut logits = vec![f32::NAN; self.x.len() / self.n_cols * self.n_vocab];
        let clusters = Clusters {
            scores: View::of_f32(&self.scores, self.n_clusters),
            ordering: View::of_f32(&self.ordering, self.n_vocab),
            table: View::host(self.dtype, [self.n_vocab, self.n_cols], &self.table),
            n_used: self.n_used,
        };
        let mut room = ClusterRoom {
            tokens: ViewMut::of_f32(&mut tokens, n),
            rows: ViewMut::of_f32(&mut rows, self.n_cols),
            products: ViewMut::of_f32(&mut products, n),
        };
        let out = &mut ViewMut::of_f32(&mut logits, self.n_vocab);
        cluster_logits(exec, View::of_f32(&self.x, self.n_cols), clusters, &mut room, out)?;
        Ok(logits)
    }
}

#[test]
fn the_best_clusters_are_scored() {
    for pool in pools() {
        for dtype in [Dtype::BF16, Dtype::Q6K] {
            for sizes in [[1, 256, 40, 16, 5], [3, 512, 7, 33, 1], [2, 256, 2, 5, 2], [1, 256, 300, 2, 100]] {
                let case = ClusterCase::new(dtype, sizes);
                let truth = case.truth();
                assert_close(&format!("{dtype} {sizes:?}"), &case.on(Exec::Cpu(&pool)).unwrap(), &truth, 1e-6);
                for card in cards().iter().filter(|_| pool.isa() == Isa::detect()) {
                    let found = card.cluster_logits(&case);
                    assert_close(&format!("{dtype} {sizes:?} {}", card.name()), &found, &truth, 1e-6);
                }
            }
        }
    }
}

#[test]
fn clusters_that_cannot_be_are_refused() {
    let pool = &pools()[0];
    let case = || ClusterCase::new(Dtype::F32, [1, 8, 6, 4, 2]);
    let refused = |case: ClusterCase| case.on(Exec::Cpu(pool)).unwrap_err().to_string();
    case().on(Exec::Cpu(pool)).unwrap();
    assert!(refused(ClusterCase { n_used: 0, ..case() }).contains("0 of 6 clusters"));
    assert!(refused(ClusterCase { n_used: 7, ..case() }).contains("7 of 6 clusters"));
    assert!(refused(ClusterCase { scores: vec![0.0; 5], n_clusters: 5, ..case() }).contains("of 5 clusters of 24"));
    assert!(refused(ClusterCase { ordering: vec![24.0; 24], ..case() }).contains("token 24 of 24"));
}
