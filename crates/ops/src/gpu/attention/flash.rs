//! Attention of many rows on the matrix units: a block computes a tile of one head over its whole context.

use gpu::{Grid, Kernel, Slice, SliceMut};

use super::Operands;
use super::plan::{AttentionKernel, WGMMA_ROWS};
use crate::attention::OP;
use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::{Error, Gpu};

/// Waves of a block of flash.hip and flash_units.hip, sixteen rows each.
const FLASH_WAVES: u32 = 4;

gpu::args! {
    pub(crate) struct Flash<'a> {
        q: Slice<'a, f32>,
        k_pool: Slice<'a, u8>,
        v_pool: Slice<'a, u8>,
        tiles: Slice<'a, u32>,
        spans: Slice<'a, u32>,
        tables: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        n_heads: u32,
        n_kv_heads: u32,
        scale: f32,
        window: u32,
        cap: f32,
        sinks: Option<Slice<'a, f32>>,
    }
}

kernels! {
    /// NVIDIA's, by single instructions of the matrix units.
    pub(crate) struct FlashKernels in "flash", overlapping; defines {
        HEAD_DIM: DefineValues::Numbers(&[64, 128]),
        SHAPED: DefineValues::Flag
    } {
        flash: Kernel<Flash<'static>> = ["flash"],
    }
}

kernels! {
    /// Those of chips whose units take whole tiles.
    pub(crate) struct FlashUnitsKernels in "flash_units"; defines {
        HEAD_DIM: DefineValues::Numbers(&[64, 96, 128]),
        KV: DefineValues::Numbers(&[1, 2, 3]),
        SHAPED: DefineValues::Flag
    } {
        flash: Kernel<Flash<'static>> = ["flash_units"],
    }
}

kernels! {
    /// Those of chips whose units work for groups of four waves.
    pub(crate) struct FlashWgmmaKernels in "flash_wgmma", overlapping; defines {
        HEAD_DIM: DefineValues::Numbers(&[64, 128, 256]),
        SHAPED: DefineValues::Flag
    } {
        flash: Kernel<Flash<'static>> = ["flash_wgmma"],
    }
}

pub(super) fn launch(gpu: &Gpu, operands: &Operands, out: SliceMut<f32>) -> Result<(), Error> {
    let &Operands { q, k_pool, v_pool, tiles, spans, tables, sinks, heads, plan, window, cap, .. } = operands;
    let (n_heads, n_kv_heads, scale) = (heads.n_heads as u32, heads.n_kv_heads as u32, heads.scale);
    let (head_dim, is_shaped) = (heads.head_dim as u32, u32::from(operands.is_shaped));
    let values = [head_dim, is_shaped];
    let kernel = match plan.kernel {
        AttentionKernel::Units => {
            FlashUnitsKernels::get(gpu.kernels, &[head_dim, operands.format.define(), is_shaped])?.flash
        }
        AttentionKernel::Wgmma => FlashWgmmaKernels::get(gpu.kernels, &values)?.flash,
        _ => FlashKernels::get(gpu.kernels, &values)?.flash,
    };
    let (n_threads, shared_bytes) = match plan.kernel {
        AttentionKernel::Wgmma => (2 * WGMMA_ROWS as u32, wgmma_bytes(heads.head_dim)),
        _ => (FLASH_WAVES * gpu.kernels.device().properties().wave_width, 0),
    };
    let blocks = [count(OP, "tiles", plan.n_tiles)?, n_heads, 1];
    let grid = Grid { blocks, threads: [n_threads, 1, 1], shared_bytes };
    let args = Flash { q, k_pool, v_pool, tiles, spans, tables, out, n_heads, n_kv_heads, scale, window, cap, sinks };
    Ok(gpu.launcher.launch(&kernel, grid, &args)?)
}

/// Shared memory of a block of flash_wgmma.hip: queries, and two tiles each of keys and of values.
fn wgmma_bytes(head_dim: usize) -> u32 {
    let n_keys = if head_dim > 128 { 64 } else { 128 };
    ((WGMMA_ROWS + 4 * n_keys) * head_dim * 2) as u32
}
