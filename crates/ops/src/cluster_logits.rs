//! Logits of few tokens of a large vocabulary: its tokens belong to clusters of equal size, a product tells which clusters
//! suit a row, and only the tokens of the best ones are scored (the drafters of Gemma 4 E2B and E4B). All others get one
//! less than the worst of these. The best clusters are chosen here, too: on a device nobody else knows them.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::embed::{Embed, EmbedKernels, embed, expect_device_layout};
use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::{Error, Exec, Gpu, Pool, View, ViewMut};

const OP: &str = "cluster_logits";
const THREADS: u32 = 256;
/// Blocks that fill a row of logits.
const FILL_BLOCKS: u32 = 64;

/// What a block of the kernel has room for.
pub const MAX_CLUSTERS: usize = 8192;

gpu::args! {
    pub(crate) struct ChooseClusters<'a> {
        scores: Slice<'a, f32>,
        ordering: Slice<'a, f32>,
        tokens: SliceMut<'a, u32>,
        n_clusters: u32,
        n_used: u32,
        n_each: u32,
    }
}

gpu::args! {
    pub(crate) struct ClusterProducts<'a> {
        row: Slice<'a, f32>,
        rows: Slice<'a, f32>,
        products: SliceMut<'a, f32>,
        n_rows: u32,
        n_cols: u32,
    }
}

gpu::args! {
    pub(crate) struct FillLogits<'a> {
        products: Slice<'a, f32>,
        logits: SliceMut<'a, f32>,
        n_products: u32,
        n_vocab: u32,
        n_blocks: u32,
    }
}

gpu::args! {
    pub(crate) struct SpreadLogits<'a> {
        products: Slice<'a, f32>,
        tokens: Slice<'a, u32>,
        logits: SliceMut<'a, f32>,
        n_products: u32,
    }
}

kernels! {
    pub(crate) struct ClusterKernels in "cluster_logits", overlapping {
        choose: Kernel<ChooseClusters<'static>> = ["choose_clusters"],
        products: Kernel<ClusterProducts<'static>> = ["cluster_products"],
        fill: Kernel<FillLogits<'static>> = ["fill_logits"],
        spread: Kernel<SpreadLogits<'static>> = ["spread_logits"],
    }
}

/// A vocabulary in clusters.
#[derive(Copy, Clone)]
pub struct Clusters<'a> {
    /// How well each cluster suits each row, `[n_rows, n_clusters]`.
    pub scores: View<'a>,
    /// The tokens of the first cluster, then those of the second and so on, as f32: `[1, n_vocab]`, each below `n_vocab`.
    pub ordering: View<'a>,
    /// The output layer, `[n_vocab, n_cols]` in any type and layout.
    pub table: View<'a>,
    /// Clusters whose tokens are scored.
    pub n_used: usize,
}

/// What the op works in, for as many tokens as a row's clusters have.
pub struct ClusterRoom<'a> {
    /// `[1, n_tokens]`: the tokens, as bits.
    pub tokens: ViewMut<'a>,
    /// `[n_tokens, n_cols]`: their rows of the table.
    pub rows: ViewMut<'a>,
    /// `[1, n_tokens]`
    pub products: ViewMut<'a>,
}

impl Clusters<'_> {
    fn n_each(&self) -> usize {
        self.table.n_rows() / self.scores.n_cols().max(1)
    }

    /// Tokens that are scored of each row.
    fn n_tokens(&self) -> usize {
        self.n_used * self.n_each()
    }
}

/// Fills `logits`, `[n_rows, n_vocab]`, for the rows of `x`, `[n_rows, n_cols]`, both f32.
pub fn cluster_logits(
    exec: Exec,
    x: View,
    clusters: Clusters,
    room: &mut ClusterRoom,
    logits: &mut ViewMut,
) -> Result<(), Error> {
    check(x, &clusters, room, logits)?;
    if x.n_rows() == 0 {
        return Ok(());
    }
    let pool = match exec {
        Exec::Gpu(gpu) => return launch(gpu, x, &clusters, room, logits),
        Exec::Cpu(pool) => pool,
    };
    let (n_vocab, n_cols) = (clusters.table.n_rows(), x.n_cols());
    let scores = clusters.scores.f32s(OP, "scores")?.chunks_exact(clusters.scores.n_cols());
    let ordering = clusters.ordering.f32s(OP, "ordering")?;
    let logits = logits.f32s(OP, "logits")?.chunks_exact_mut(n_vocab);
    for ((x, scores), logits) in x.f32s(OP, "x")?.chunks_exact(n_cols).zip(scores).zip(logits) {
        let tokens = tokens_of_best(scores, ordering, clusters.n_used, clusters.n_each());
        if let Some(token) = tokens.iter().find(|token| **token as usize >= n_vocab) {
            return Err(Error::Argument { op: OP, what: format!("token {token} of {n_vocab}") });
        }
        embed(exec, clusters.table, &tokens, &mut room.rows.reborrow())?;
        let products = room.products.f32s(OP, "products")?;
        multiply(pool, x, room.rows.f32s(OP, "rows")?, products);
        let least = products.iter().copied().fold(f32::INFINITY, f32::min) - 1.0;
        logits.fill(least);
        tokens.iter().zip(products).for_each(|(token, product)| logits[*token as usize] = *product);
    }
    Ok(())
}

fn check(x: View, clusters: &Clusters, room: &ClusterRoom, logits: &ViewMut) -> Result<(), Error> {
    let &Clusters { scores, ordering, table, n_used } = clusters;
    let ([n_rows, n_cols], n_vocab, n_clusters) = (x.shape, table.n_rows(), scores.n_cols());
    let is_divided = n_clusters > 0 && n_vocab.is_multiple_of(n_clusters);
    if !is_divided || n_clusters > MAX_CLUSTERS || n_used == 0 || n_used > n_clusters || n_cols == 0 {
        let what = format!("{n_used} of {n_clusters} clusters of {n_vocab} tokens");
        return Err(Error::Argument { op: OP, what });
    }
    scores.expect_shape(OP, "scores", [n_rows, n_clusters])?;
    ordering.expect_shape(OP, "ordering", [1, n_vocab])?;
    table.expect_shape(OP, "table", [n_vocab, n_cols])?;
    logits.expect_shape(OP, "logits", [n_rows, n_vocab])?;
    let n_tokens = clusters.n_tokens();
    room.tokens.expect_shape(OP, "tokens", [1, n_tokens])?;
    room.rows.expect_shape(OP, "rows", [n_tokens, n_cols])?;
    room.products.expect_shape(OP, "products", [1, n_tokens])
}

/// Of equal clusters the first.
fn tokens_of_best(scores: &[f32], ordering: &[f32], n_used: usize, n_each: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let (before, last, _) =
        order.select_nth_unstable_by(n_used - 1, |a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let best = before.iter().chain([&*last]);
    best.flat_map(|cluster| &ordering[cluster * n_each..][..n_each]).map(|token| *token as u32).collect()
}

fn multiply(pool: &Pool, x: &[f32], rows: &[f32], products: &mut [f32]) {
    // Fewer rows are not worth waking anybody.
    const MIN_ROWS: usize = 256;
    let out = crate::view::SharedPtr::new(products);
    pool.run_ranges(rows.len() / x.len(), MIN_ROWS, |range, _| {
        // SAFETY: the ranges do not overlap, and there is a product for each row.
        let products = unsafe { out.slice(range.start, range.len()) };
        for (product, row) in products.iter_mut().zip(rows[range.start * x.len()..].chunks_exact(x.len())) {
            *product = dot(x, row);
        }
    });
}

/// In eight sums, which fit a vector.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0f32; 8];
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

fn launch(gpu: &Gpu, x: View, clusters: &Clusters, room: &mut ClusterRoom, logits: &mut ViewMut) -> Result<(), Error> {
    let &Clusters { scores, ordering, table, n_used } = clusters;
    let ([n_rows, n_cols], n_vocab, n_tokens) = (x.shape, table.n_rows(), clusters.n_tokens());
    let _op = gpu.launcher.op(OP);
    let n_read = n_rows * n_tokens * n_cols;
    gpu.launcher.count(gpu::Work { bytes: 8 * n_read as u64, flops: 2 * n_read as u64 });
    expect_device_layout(OP, &table)?;
    let (kernels, embed) = (ClusterKernels::get(gpu.kernels, &[])?, EmbedKernels::of(gpu.kernels, table.dtype)?.embed);
    let [n_clusters, n_used, n_each] = [scores.n_cols(), n_used, clusters.n_each()].map(|n| n as u32);
    let (n_cols_word, n_vocab_word) = (count(OP, "columns", n_cols)?, count(OP, "tokens", n_vocab)?);
    let n = count(OP, "tokens", n_tokens)?;
    let (x, scores) = (x.device_f32s(OP, "x")?, scores.device_f32s(OP, "scores")?);
    let (ordering, table) = (ordering.device_f32s(OP, "ordering")?, table.device_bytes(OP, "table")?);
    let mut logits = logits.device_f32s(OP, "logits")?;
    let mut tokens = room.tokens.device_f32s(OP, "tokens")?.cast::<u32>()?;
    let (mut rows, mut products) = (room.rows.device_f32s(OP, "rows")?, room.products.device_f32s(OP, "products")?);
    for i in 0..n_rows {
        let scores = scores.slice(i * n_clusters as usize..(i + 1) * n_clusters as usize)?;
        let args = ChooseClusters { scores, ordering, tokens: tokens.reborrow(), n_clusters, n_used, n_each };
        gpu.launcher.launch(&kernels.choose, Grid::line(1, THREADS), &args)?;
        let tokens = tokens.as_slice();
        let args = Embed { table, tokens, out: rows.reborrow(), n_vocab: n_vocab_word, n_cols: n_cols_word };
        gpu.launcher.launch(&embed, Grid::line(n, THREADS), &args)?;
        let (row, n_blocks) = (x.slice(i * n_cols..(i + 1) * n_cols)?, n.div_ceil(THREADS / 64));
        let (rows, out) = (rows.as_slice(), products.reborrow());
        let args = ClusterProducts { row, rows, products: out, n_rows: n, n_cols: n_cols_word };
        gpu.launcher.launch(&kernels.products, Grid::line(n_blocks, THREADS), &args)?;
        let (products, mut logits) =
            (products.as_slice(), logits.reborrow().into_slice(i * n_vocab..(i + 1) * n_vocab)?);
        let n_blocks = FILL_BLOCKS.min(n_vocab_word.div_ceil(THREADS));
        let filled = logits.reborrow();
        let args = FillLogits { products, logits: filled, n_products: n, n_vocab: n_vocab_word, n_blocks };
        gpu.launcher.launch(&kernels.fill, Grid::line(n_blocks, THREADS), &args)?;
        let args = SpreadLogits { products, tokens, logits, n_products: n };
        gpu.launcher.launch(&kernels.spread, Grid::line(n.div_ceil(THREADS), THREADS), &args)?;
    }
    Ok(())
}
