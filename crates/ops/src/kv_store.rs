//! Writes the keys and values of new tokens into the KV pool.
//!
//! One layer's pool is two matrices with a row per (head, block): a head's blocks lie side by side, so that a long
//! context is read as one stream. A block of 16 tokens keeps its keys transposed,
//! `[head_dim, 16]`, so that one vector holds the same number of sixteen tokens and a score needs no sum across lanes;
//! its values lie as `[16, head_dim]`. On a GPU both lie as `[16, head_dim]`. How quantized ones lie: `kv_format.rs`.

use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::kv_format::{KvFormat, KvPart};
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, Indices, Pool, View, ViewMut};
use gpu::{Grid, Kernel, Slice, SliceMut};
use half::f16;
use half::slice::HalfFloatSliceExt;

const OP: &str = "kv_store";
const THREADS: u32 = 256;

gpu::args! {
    pub(crate) struct KvStore<'a> {
        k: Slice<'a, f32>,
        v: Slice<'a, f32>,
        slots: Slice<'a, u32>,
        k_pool: SliceMut<'a, u8>,
        v_pool: SliceMut<'a, u8>,
        n_heads: u32,
        head_dim: u32,
    }
}

kernels! {
    pub(crate) struct KvStoreKernels in "kv_store"; defines { KV: DefineValues::Numbers(&[0, 1, 2, 3]) } {
        kv_store: Kernel<KvStore<'static>> = ["kv_store"],
    }
}

/// Tokens of a block.
pub const KV_BLOCK: usize = 16;

/// The largest head this crate handles: compressed keys with their rope part.
pub const MAX_HEAD_DIM: usize = 576;

/// Where a token's keys and values go.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct KvSlot {
    pub block: u32,
    /// Below [`KV_BLOCK`].
    pub token: u32,
}

impl KvSlot {
    /// As one number, which is what ops take.
    pub fn index(self) -> u32 {
        self.block * KV_BLOCK as u32 + self.token
    }

    fn of(index: u32) -> Self {
        Self { block: index / KV_BLOCK as u32, token: index % KV_BLOCK as u32 }
    }
}

/// `slots` are [`KvSlot::index`]es. `k` and `v` are `[n_rows, n_kv_heads * head_dim]` f32, one slot a row; the pools
/// `[n_kv_heads * n_blocks, 16 * head_dim]`, f32, f16, Q8_0 or Q4_0: on a CPU head by head, on a GPU block by block.
pub fn kv_store<'s>(
    exec: Exec,
    k: View,
    v: View,
    slots: impl Into<Indices<'s>>,
    head_dim: usize,
    k_pool: &mut ViewMut,
    v_pool: &mut ViewMut,
) -> Result<(), Error> {
    let slots = slots.into();
    let [n_rows, n_cols] = k.shape;
    v.expect_shape(OP, "v", k.shape)?;
    if slots.len() != n_rows || head_dim == 0 || head_dim > MAX_HEAD_DIM || !n_cols.is_multiple_of(head_dim) {
        let what = format!("{n_rows} rows of {n_cols} for {} slots and heads of {head_dim}", slots.len());
        return Err(Error::Argument { op: OP, what });
    }
    let n_heads = n_cols / head_dim;
    k_pool.expect_shape(OP, "k_pool", [k_pool.shape[0], KV_BLOCK * head_dim])?;
    v_pool.expect_shape(OP, "v_pool", k_pool.shape)?;
    let n_blocks = k_pool.shape[0] / n_heads.max(1);
    if let Some(slot) = slots.host.iter().map(|index| KvSlot::of(*index)).find(|s| s.block as usize >= n_blocks) {
        let what = format!("slot {slot:?} of {n_blocks} blocks of {KV_BLOCK}");
        return Err(Error::Argument { op: OP, what });
    }
    if k_pool.dtype != v_pool.dtype {
        return Err(Error::Type { op: OP, what: "v_pool", found: v_pool.dtype, expected: "the type of k_pool" });
    }
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, k, v, slots, head_dim, k_pool, v_pool),
    };
    let new_tokens =
        NewTokens { k: k.f32s(OP, "k")?, v: v.f32s(OP, "v")?, slots: slots.host, n_heads, n_blocks, head_dim };
    match KvFormat::of(OP, k_pool.dtype, head_dim)? {
        KvFormat::F32 => {
            let (k_pool, v_pool) = (k_pool.f32s(OP, "k_pool")?, v_pool.f32s(OP, "v_pool")?);
            new_tokens.store(pool, k_pool, v_pool, |from, to| to.copy_from_slice(from));
        }
        KvFormat::F16 => {
            let k_pool: &mut [f16] = bytemuck::cast_slice_mut(k_pool.host_bytes(OP, "k_pool")?);
            let v_pool: &mut [f16] = bytemuck::cast_slice_mut(v_pool.host_bytes(OP, "v_pool")?);
            new_tokens.store(pool, k_pool, v_pool, |from, to| to.convert_from_f32_slice(from));
        }
        format => {
            let (k_pool, v_pool) = (k_pool.host_bytes(OP, "k_pool")?, v_pool.host_bytes(OP, "v_pool")?);
            new_tokens.store_quantized(pool, format, k_pool, v_pool);
        }
    }
    Ok(())
}

fn launch(
    gpu: &Gpu,
    k: View,
    v: View,
    slots: Indices,
    head_dim: usize,
    k_pool: &mut ViewMut,
    v_pool: &mut ViewMut,
) -> Result<(), Error> {
    let [n_rows, n_cols] = k.shape;
    if n_rows == 0 || n_cols == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 12 * (n_rows * n_cols) as u64, flops: 0 });
    let format = KvFormat::of(OP, k_pool.dtype, head_dim)?;
    let kernels = KvStoreKernels::get(gpu.kernels, &[format.define()])?;
    let args = KvStore {
        k: k.device_f32s(OP, "k")?,
        v: v.device_f32s(OP, "v")?,
        slots: slots.on_device(OP, "slots")?,
        k_pool: k_pool.device_bytes(OP, "k_pool")?,
        v_pool: v_pool.device_bytes(OP, "v_pool")?,
        n_heads: count(OP, "heads", n_cols / head_dim)?,
        head_dim: count(OP, "head size", head_dim)?,
    };
    Ok(gpu.launcher.launch(&kernels.kv_store, Grid::line(count(OP, "rows", n_rows)?, THREADS), &args)?)
}

struct NewTokens<'a> {
    k: &'a [f32],
    v: &'a [f32],
    slots: &'a [u32],
    n_heads: usize,
    n_blocks: usize,
    head_dim: usize,
}

impl NewTokens<'_> {
    fn store<T: Copy + Default + Send>(
        &self,
        pool: &Pool,
        k_pool: &mut [T],
        v_pool: &mut [T],
        convert: impl Fn(&[f32], &mut [T]) + Sync,
    ) {
        let &Self { slots, n_heads, n_blocks, head_dim, .. } = self;
        let block_len = KV_BLOCK * head_dim;
        let (k_pool, v_pool) = (SharedPtr::new(k_pool), SharedPtr::new(v_pool));
        let store_head = |head: usize| {
            let mut turned = [T::default(); MAX_HEAD_DIM];
            for (row, slot) in slots.iter().map(|index| KvSlot::of(*index)).enumerate() {
                let source = row * n_heads * head_dim + head * head_dim;
                let start = (head * n_blocks + slot.block as usize) * block_len;
                // SAFETY: a block's part of one head, inside the pools; each head belongs to one task.
                let (keys, values) = unsafe { (k_pool.slice(start, block_len), v_pool.slice(start, block_len)) };
                let token = slot.token as usize;
                convert(&self.k[source..][..head_dim], &mut turned[..head_dim]);
                for (i, &x) in turned[..head_dim].iter().enumerate() {
                    keys[i * KV_BLOCK + token] = x;
                }
                convert(&self.v[source..][..head_dim], &mut values[token * head_dim..][..head_dim]);
            }
        };
        self.each_head(pool, store_head);
    }

    fn store_quantized(&self, pool: &Pool, format: KvFormat, k_pool: &mut [u8], v_pool: &mut [u8]) {
        let &Self { slots, n_heads, n_blocks, head_dim, .. } = self;
        let row_bytes = format.row_bytes(head_dim);
        let (k_pool, v_pool) = (SharedPtr::new(k_pool), SharedPtr::new(v_pool));
        self.each_head(pool, |head| {
            for (row, slot) in slots.iter().map(|index| KvSlot::of(*index)).enumerate() {
                let source = row * n_heads * head_dim + head * head_dim;
                let start = (head * n_blocks + slot.block as usize) * row_bytes;
                // SAFETY: a block's part of one head, inside the pools; each head belongs to one task.
                let (keys, values) = unsafe { (k_pool.slice(start, row_bytes), v_pool.slice(start, row_bytes)) };
                format.put(&self.k[source..][..head_dim], slot.token as usize, KvPart::Keys, keys);
                format.put(&self.v[source..][..head_dim], slot.token as usize, KvPart::Values, values);
            }
        });
    }

    fn each_head(&self, pool: &Pool, store_head: impl Fn(usize) + Sync) {
        if self.slots.len() < 8 {
            (0..self.n_heads).for_each(store_head);
        } else {
            pool.run(self.n_heads, |head, _| store_head(head));
        }
    }
}
