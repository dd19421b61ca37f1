//! Attention of few rows: a block computes the queries that share a KV head over a part of the context, and a second
//! kernel merges the parts.

use gpu::{Grid, Kernel, Slice, SliceMut};

use super::Operands;
use super::plan::{AttentionKernel, AttentionPlan, MAX_SHARED_DIM, MAX_SPLITS};
use crate::attention::{Heads, OP};
use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::{Error, Gpu};

const THREADS: u32 = 128;
const MERGE_THREADS: u32 = 512;

gpu::args! {
    pub(crate) struct AttentionVector<'a> {
        q: Slice<'a, f32>,
        k_pool: Slice<'a, u8>,
        v_pool: Slice<'a, u8>,
        tiles: Slice<'a, u32>,
        spans: Slice<'a, u32>,
        tables: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        parts: SliceMut<'a, f32>,
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        scale: f32,
        n_splits: u32,
        part_blocks: u32,
        window: u32,
        cap: f32,
        sinks: Option<Slice<'a, f32>>,
        slopes: Option<Slice<'a, f32>>,
        chosen: Option<Slice<'a, u32>>,
        chosen_words: u32,
    }
}

gpu::args! {
    pub(crate) struct FlashFew<'a> {
        q: Slice<'a, f32>,
        k_pool: Slice<'a, u8>,
        v_pool: Slice<'a, u8>,
        tiles: Slice<'a, u32>,
        spans: Slice<'a, u32>,
        tables: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        parts: SliceMut<'a, f32>,
        n_heads: u32,
        n_kv_heads: u32,
        scale: f32,
        n_splits: u32,
        part_blocks: u32,
        window: u32,
        cap: f32,
        sinks: Option<Slice<'a, f32>>,
    }
}

gpu::args! {
    pub(crate) struct AttentionMerge<'a> {
        tiles: Slice<'a, u32>,
        spans: Slice<'a, u32>,
        parts: Slice<'a, f32>,
        out: SliceMut<'a, f32>,
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        n_q: u32,
        n_splits: u32,
        sinks: Option<Slice<'a, f32>>,
    }
}

kernels! {
    /// Any chip, any head size, for 1, 2 and 4 queries of a tile; and what merges the parts of a context.
    pub(crate) struct VectorKernels in "attention", overlapping; defines {
        HEAD_LANES: DefineValues::Numbers(&[8, 16, 32]),
        KV: DefineValues::Numbers(&[0, 1, 2, 3]),
        SHAPED: DefineValues::Flag
    } {
        attention: [Kernel<AttentionVector<'static>>; 3] = ["attention_1", "attention_2", "attention_4"],
        merge: Kernel<AttentionMerge<'static>> = ["attention_merge"],
    }
}

kernels! {
    /// The same for heads wider than 256, a multiple of 64: a wave shares a token.
    pub(crate) struct WideVectorKernels in "attention", overlapping; defines {
        WIDE_DIM: DefineValues::Numbers(&[320, 576]),
        KV: DefineValues::Numbers(&[0, 1, 2, 3]),
        SHAPED: DefineValues::Flag
    } {
        attention: [Kernel<AttentionVector<'static>>; 2] = ["attention_1", "attention_2"],
        merge: Kernel<AttentionMerge<'static>> = ["attention_merge"],
    }
}

kernels! {
    /// On the matrix units.
    pub(crate) struct FlashFewKernels in "flash_few", overlapping; defines {
        HEAD_DIM: DefineValues::Numbers(&[64, 128]),
        KV: DefineValues::Numbers(&[1, 2, 3]),
        SHAPED: DefineValues::Flag
    } {
        eight: Kernel<FlashFew<'static>> = ["flash_few_8"],
        sixteen: Kernel<FlashFew<'static>> = ["flash_few_16"],
    }
}

kernels! {
    /// The same for heads of 256: sixteen queries of them do not fit into shared memory.
    pub(crate) struct WideFewKernels in "flash_few", overlapping; defines {
        HEAD_DIM: DefineValues::Numbers(&[256]),
        KV: DefineValues::Numbers(&[1, 2, 3]),
        SHAPED: DefineValues::Flag
    } {
        eight: Kernel<FlashFew<'static>> = ["flash_few_8"],
    }
}

kernels! {
    /// On the matrix units of chips whose units take whole tiles, for every type of keys but f32.
    pub(crate) struct FewUnitsKernels in "flash_few_units"; defines {
        HEAD_DIM: DefineValues::Numbers(&[64, 128, 256]),
        KV: DefineValues::Numbers(&[1, 2, 3]),
        SHAPED: DefineValues::Flag
    } {
        attention: Kernel<FlashFew<'static>> = ["flash_few_units"],
    }
}

kernels! {
    /// The same for heads of 96, for f16 only: a value's run of numbers would not lie in one group.
    pub(crate) struct OddFewUnitsKernels in "flash_few_units"; defines {
        HEAD_DIM: DefineValues::Numbers(&[96]),
        KV: DefineValues::Numbers(&[1]),
        SHAPED: DefineValues::Flag
    } {
        attention: Kernel<FlashFew<'static>> = ["flash_few_units"],
    }
}

/// Tiles whose parts fit into the workspace together.
struct TileRun<'a> {
    tiles: Slice<'a, u32>,
    n_tiles: u32,
}

pub(super) fn launch(gpu: &Gpu, operands: &Operands, mut out: SliceMut<f32>) -> Result<(), Error> {
    let Operands { tiles, heads, plan, .. } = operands;
    let kernels = SplitKernels::of(gpu, operands)?;
    let mut workspace = gpu.workspace.borrow_mut();
    let mut parts = workspace.parts.all_mut().cast::<f32>()?;
    let tile_len = heads.n_kv_heads * plan.n_splits * plan.n_queries * (heads.head_dim + 2);
    if plan.n_splits > MAX_SPLITS || (plan.n_splits > 1 && tile_len > parts.len()) {
        let what = format!("{} parts of {tile_len} numbers, room for {}", plan.n_splits, parts.len());
        return Err(Error::Argument { op: OP, what });
    }
    // All tiles at once, unless their parts would take too much room.
    let run_tiles = if plan.n_splits > 1 { parts.len() / tile_len } else { plan.n_tiles }.max(1);
    for first in (0..plan.n_tiles).step_by(run_tiles) {
        let end = plan.n_tiles.min(first + run_tiles);
        let run = TileRun { tiles: tiles.slice(2 * first..2 * end)?, n_tiles: count(OP, "tiles", end - first)? };
        kernels.attend(gpu, operands, &run, out.reborrow(), parts.reborrow())?;
        if plan.n_splits > 1 {
            kernels.merge(gpu, operands, &run, parts.as_slice(), out.reborrow())?;
        }
    }
    Ok(())
}

/// The kernels of one launch.
struct SplitKernels {
    /// For 1, 2 and, unless heads are wide, 4 queries of a tile.
    attention: Vec<Kernel<AttentionVector<'static>>>,
    merge: Kernel<AttentionMerge<'static>>,
    /// Takes the place of the vector kernel where the plan says so.
    few: Option<Kernel<FlashFew<'static>>>,
}

impl SplitKernels {
    fn of(gpu: &Gpu, operands: &Operands) -> Result<Self, Error> {
        let Operands { heads, plan, .. } = operands;
        let (kv, is_shaped) = (operands.format.define(), u32::from(operands.is_shaped));
        let (attention, merge) = if heads.head_dim > MAX_SHARED_DIM {
            if !heads.head_dim.is_multiple_of(2) {
                let what = format!("heads of {} numbers, above {MAX_SHARED_DIM} an even number fits", heads.head_dim);
                return Err(Error::Argument { op: OP, what });
            }
            let dim = count(OP, "columns", heads.head_dim)?.next_multiple_of(64);
            let WideVectorKernels { attention, merge } = WideVectorKernels::get(gpu.kernels, &[dim, kv, is_shaped])?;
            (attention.to_vec(), merge)
        } else {
            // Lanes that share a token, eight numbers each.
            let head_lanes = heads.head_dim.div_ceil(8).next_power_of_two() as u32;
            let VectorKernels { attention, merge } = VectorKernels::get(gpu.kernels, &[head_lanes, kv, is_shaped])?;
            (attention.to_vec(), merge)
        };
        let values = [heads.head_dim as u32, kv, is_shaped];
        let few = match plan.kernel {
            AttentionKernel::Few => Some(few_kernel(gpu, plan, &values)?),
            AttentionKernel::FewUnits => Some(few_units_kernel(gpu, &values)?),
            _ => None,
        };
        Ok(Self { attention, merge, few })
    }

    fn attend(
        &self,
        gpu: &Gpu,
        operands: &Operands,
        run: &TileRun,
        out: SliceMut<f32>,
        parts: SliceMut<f32>,
    ) -> Result<(), Error> {
        let &Operands { q, k_pool, v_pool, spans, tables, sinks, slopes, chosen, .. } = operands;
        let &Operands { heads, plan, window, cap, .. } = operands;
        let (chosen, chosen_words) = chosen.unzip();
        let Heads { scale, .. } = heads;
        let [n_heads, n_kv_heads, head_dim] = [heads.n_heads, heads.n_kv_heads, heads.head_dim].map(|n| n as u32);
        let (n_splits, part_blocks) = (count(OP, "splits", plan.n_splits)?, count(OP, "blocks", plan.part_blocks)?);
        let grid = Grid { blocks: [run.n_tiles, n_kv_heads, n_splits], threads: [THREADS, 1, 1], shared_bytes: 0 };
        let tiles = run.tiles;
        if let Some(kernel) = &self.few {
            #[rustfmt::skip]
            let args = FlashFew {
                q, k_pool, v_pool, tiles, spans, tables, out, parts, n_heads, n_kv_heads, scale, n_splits, part_blocks,
                window, cap, sinks,
            };
            return Ok(gpu.launcher.launch(kernel, grid, &args)?);
        }
        #[rustfmt::skip]
        let args = AttentionVector {
            q, k_pool, v_pool, tiles, spans, tables, out, parts, n_heads, n_kv_heads, head_dim, scale, n_splits,
            part_blocks, window, cap, sinks, slopes, chosen, chosen_words: chosen_words.unwrap_or(0),
        };
        Ok(gpu.launcher.launch(&self.attention[plan.n_queries.trailing_zeros() as usize], grid, &args)?)
    }

    fn merge(
        &self,
        gpu: &Gpu,
        operands: &Operands,
        run: &TileRun,
        parts: Slice<f32>,
        out: SliceMut<f32>,
    ) -> Result<(), Error> {
        let &Operands { spans, sinks, heads, plan, most_queries, .. } = operands;
        let [n_heads, n_kv_heads, head_dim] = [heads.n_heads, heads.n_kv_heads, heads.head_dim].map(|n| n as u32);
        let (tiles, n_q, n_splits) = (run.tiles, plan.n_queries as u32, count(OP, "splits", plan.n_splits)?);
        let blocks = [run.n_tiles, n_kv_heads, most_queries as u32];
        let grid = Grid { blocks, threads: [MERGE_THREADS, 1, 1], shared_bytes: 0 };
        let args = AttentionMerge { tiles, spans, parts, out, n_heads, n_kv_heads, head_dim, n_q, n_splits, sinks };
        Ok(gpu.launcher.launch(&self.merge, grid, &args)?)
    }
}

/// `values`: the head's size, the type of keys and values, and whether scores are shaped.
fn few_units_kernel(gpu: &Gpu, values: &[u32; 3]) -> Result<Kernel<FlashFew<'static>>, Error> {
    if values[0].is_multiple_of(64) {
        return Ok(FewUnitsKernels::get(gpu.kernels, values)?.attention);
    }
    Ok(OddFewUnitsKernels::get(gpu.kernels, values)?.attention)
}

/// `values` as above.
fn few_kernel(gpu: &Gpu, plan: &AttentionPlan, values: &[u32; 3]) -> Result<Kernel<FlashFew<'static>>, Error> {
    if values[0] > 128 {
        return Ok(WideFewKernels::get(gpu.kernels, values)?.eight);
    }
    let FlashFewKernels { eight, sixteen } = FlashFewKernels::get(gpu.kernels, values)?;
    Ok(if plan.n_queries == 8 { eight } else { sixteen })
}
