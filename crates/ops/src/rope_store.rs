//! What happens between the projections and attention: queries and keys are normed, where a family does that, and rotated;
//! keys and values go to the KV pool.
//! On a GPU one launch where keys and values are plain numbers; elsewhere the ops it is made of.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::kv_format::KvFormat;
use crate::{Error, Exec, Gpu, Indices, NormKind, Pairing, View, ViewMut, kv_store, norm_both_heads, rope};

const OP: &str = "rope_store";
const THREADS: u32 = 256;
/// Threads of a block that norms a head: one a pair of numbers.
const HEAD_THREADS: u32 = 128;

gpu::args! {
    pub(crate) struct RopeStore<'a> {
        q: SliceMut<'a, f32>,
        k: Slice<'a, f32>,
        v: Slice<'a, f32>,
        angles: Slice<'a, f32>,
        slots: Slice<'a, u32>,
        k_pool: SliceMut<'a, u8>,
        v_pool: SliceMut<'a, u8>,
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        n_rot: u32,
        is_halves: u32,
    }
}

gpu::args! {
    pub(crate) struct NormRopeStore<'a> {
        q: SliceMut<'a, f32>,
        k: Slice<'a, f32>,
        v: Slice<'a, f32>,
        angles: Slice<'a, f32>,
        slots: Slice<'a, u32>,
        k_pool: SliceMut<'a, u8>,
        v_pool: SliceMut<'a, u8>,
        q_norm: Slice<'a, f32>,
        k_norm: Slice<'a, f32>,
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        n_rot: u32,
        is_halves: u32,
        n_q_norms: u32,
        n_k_norms: u32,
        eps: f32,
    }
}

kernels! {
    pub(crate) struct RopeStoreKernels in "rope_store", overlapping; defines { KV: DefineValues::Numbers(&[0, 1]) } {
        rope_store: Kernel<RopeStore<'static>> = ["rope_store"],
        normed: Kernel<NormRopeStore<'static>> = ["norm_rope_store"],
    }
}

/// The rows of a step between the projections and attention.
pub struct Projected<'a> {
    pub q: ViewMut<'a>,
    pub k: ViewMut<'a>,
    pub v: View<'a>,
    pub angles: View<'a>,
    pub head_dim: usize,
    pub pairing: Pairing,
    /// What comes before the rotation.
    pub norms: Option<HeadNorms<'a>>,
}

/// Norms of queries and keys by the root of the mean square. Weights are `[n_weights, group]` as [`norm_heads`] takes them.
///
/// [`norm_heads`]: crate::norm_heads
#[derive(Copy, Clone)]
pub struct HeadNorms<'a> {
    pub q: View<'a>,
    pub k: View<'a>,
    pub eps: f32,
}

impl HeadNorms<'_> {
    /// Whether each head is normed by itself, and a block has a thread for each of its pairs.
    fn fit(&self, head_dim: usize) -> bool {
        let is_fit = |weight: View| weight.shape[0] > 0 && weight.shape[1] == head_dim;
        is_fit(self.q) && is_fit(self.k) && head_dim <= 2 * HEAD_THREADS as usize
    }
}

/// Turns `q`, and stores turned `k` and `v` at `slots`; whether `k` is turned in place is not said.
pub fn rope_store<'s>(
    exec: Exec,
    mut rows: Projected,
    slots: impl Into<Indices<'s>>,
    k_pool: &mut ViewMut,
    v_pool: &mut ViewMut,
) -> Result<(), Error> {
    let slots = slots.into();
    let (is_gpu, head_dim) = (matches!(exec, Exec::Gpu(_)), rows.head_dim);
    let fits = is_gpu && head_dim.is_multiple_of(2) && k_pool.dtype.block_len() == 1;
    if let Some(HeadNorms { q, k, eps }) = rows.norms.take_if(|norms| !fits || !norms.fit(head_dim)) {
        norm_both_heads(exec, [&mut rows.q, &mut rows.k], [q, k], NormKind::Rms, eps)?;
    }
    match exec {
        // A scale depends on 32 turned numbers, which several threads of this kernel have.
        Exec::Gpu(gpu) if fits => launch(gpu, &mut rows, slots, k_pool, v_pool),
        _ => {
            let Projected { q, k, v, angles, head_dim, pairing, .. } = &mut rows;
            rope(exec, q, *angles, *head_dim, *pairing)?;
            rope(exec, k, *angles, *head_dim, *pairing)?;
            kv_store(exec, k.as_view(), *v, slots, *head_dim, k_pool, v_pool)
        }
    }
}

fn launch(
    gpu: &Gpu,
    rows: &mut Projected,
    slots: Indices,
    k_pool: &mut ViewMut,
    v_pool: &mut ViewMut,
) -> Result<(), Error> {
    let Projected { q, k, v, angles, head_dim, pairing, norms } = rows;
    let (head_dim, n_rot, [n_rows, n_cols], kv_cols) = (*head_dim, angles.n_cols(), q.shape, k.shape[1]);
    let is_whole = |n: usize| head_dim > 0 && n.is_multiple_of(head_dim);
    if !is_whole(n_cols) || !is_whole(kv_cols) || n_rot > head_dim || !n_rot.is_multiple_of(2) || slots.len() != n_rows
    {
        let what = format!("{n_rows} rows of {n_cols} and {kv_cols} in heads of {head_dim}, {} slots", slots.len());
        return Err(Error::Argument { op: OP, what });
    }
    let (n_heads, n_kv_heads) = (n_cols / head_dim, kv_cols / head_dim);
    k.expect_shape(OP, "k", [n_rows, kv_cols])?;
    v.expect_shape(OP, "v", k.shape)?;
    angles.expect_shape(OP, "angles", [n_rows, n_rot])?;
    k_pool.expect_shape(OP, "k_pool", [k_pool.shape[0], crate::KV_BLOCK * head_dim])?;
    v_pool.expect_shape(OP, "v_pool", k_pool.shape)?;
    let n_slots = k_pool.shape[0] / n_kv_heads.max(1) * crate::KV_BLOCK;
    if let Some(slot) = slots.host.iter().find(|slot| **slot as usize >= n_slots) {
        return Err(Error::Argument { op: OP, what: format!("slot {slot} of {n_slots}") });
    }
    if n_rows == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 8 * (n_rows * (n_cols + 2 * kv_cols)) as u64, flops: 0 });
    let format = KvFormat::of(OP, k_pool.dtype, head_dim)?;
    let kernels = RopeStoreKernels::get(gpu.kernels, &[format.define()])?;
    let (q, k, v) = (q.device_f32s(OP, "q")?, k.as_view().device_f32s(OP, "k")?, v.device_f32s(OP, "v")?);
    let (angles, slots) = (angles.device_f32s(OP, "angles")?, slots.on_device(OP, "slots")?);
    let (k_pool, v_pool) = (k_pool.device_bytes(OP, "k_pool")?, v_pool.device_bytes(OP, "v_pool")?);
    count(OP, "numbers", (n_heads + 2 * n_kv_heads) * head_dim)?;
    let [n_heads, n_kv_heads, pairs] = [n_heads, n_kv_heads, head_dim / 2].map(|n| n as u32);
    let (head_dim, n_rot) = (2 * pairs, count(OP, "turned numbers", n_rot)?);
    let (is_halves, n_rows) = (u32::from(*pairing == Pairing::Halves), count(OP, "rows", n_rows)?);
    if let Some(norms) = norms {
        let [n_q_norms, n_k_norms] = [norms.q, norms.k].map(|weight| weight.shape[0] as u32);
        let (q_norm, k_norm) = (norms.q.device_f32s(OP, "q_norm")?, norms.k.device_f32s(OP, "k_norm")?);
        let eps = norms.eps;
        #[rustfmt::skip]
        let args = NormRopeStore {
            q, k, v, angles, slots, k_pool, v_pool, q_norm, k_norm, n_heads, n_kv_heads, head_dim, n_rot, is_halves,
            n_q_norms, n_k_norms, eps,
        };
        let grid = Grid::plane(n_rows, n_heads + 2 * n_kv_heads, HEAD_THREADS);
        return Ok(gpu.launcher.launch(&kernels.normed, grid, &args)?);
    }
    #[rustfmt::skip]
    let args = RopeStore {
        q, k, v, angles, slots, k_pool, v_pool, n_heads, n_kv_heads, head_dim, n_rot, is_halves,
    };
    let grid = Grid::plane(n_rows, ((n_heads + 2 * n_kv_heads) * pairs).div_ceil(THREADS), THREADS);
    Ok(gpu.launcher.launch(&kernels.rope_store, grid, &args)?)
}
