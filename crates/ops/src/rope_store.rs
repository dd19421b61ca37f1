//! What happens between the projections and attention: queries and keys are rotated, keys and values go to the KV pool.
//! On a GPU one launch where keys and values are plain numbers; elsewhere the ops it is made of.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::kv_format::KvFormat;
use crate::{Error, Exec, Gpu, Indices, Pairing, View, ViewMut, kv_store, rope};

const OP: &str = "rope_store";
const THREADS: u32 = 256;

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

kernels! {
    pub(crate) struct RopeStoreKernels in "rope_store", overlapping; defines { KV: DefineValues::Numbers(&[0, 1]) } {
        rope_store: Kernel<RopeStore<'static>> = ["rope_store"],
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
    match exec {
        // A scale depends on 32 turned numbers, which several threads of this kernel have.
        Exec::Gpu(gpu) if rows.head_dim.is_multiple_of(2) && k_pool.dtype.block_len() == 1 => {
            launch(gpu, &mut rows, slots, k_pool, v_pool)
        }
        _ => {
            let Projected { q, k, v, angles, head_dim, pairing } = &mut rows;
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
    let Projected { q, k, v, angles, head_dim, pairing } = rows;
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
    let args = RopeStore {
        q: q.device_f32s(OP, "q")?,
        k: k.as_view().device_f32s(OP, "k")?,
        v: v.device_f32s(OP, "v")?,
        angles: angles.device_f32s(OP, "angles")?,
        slots: slots.on_device(OP, "slots")?,
        k_pool: k_pool.device_bytes(OP, "k_pool")?,
        v_pool: v_pool.device_bytes(OP, "v_pool")?,
        n_heads: count(OP, "heads", n_heads)?,
        n_kv_heads: count(OP, "heads", n_kv_heads)?,
        head_dim: count(OP, "head size", head_dim)?,
        n_rot: count(OP, "turned numbers", n_rot)?,
        is_halves: u32::from(*pairing == Pairing::Halves),
    };
    let n_items = count(OP, "numbers", (n_heads + 2 * n_kv_heads) * (head_dim / 2))?;
    let grid = Grid::plane(count(OP, "rows", n_rows)?, n_items.div_ceil(THREADS), THREADS);
    Ok(gpu.launcher.launch(&kernels.rope_store, grid, &args)?)
}
