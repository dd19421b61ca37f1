//! Attention on a GPU: how a batch becomes tiles, and the launch (kernels/attention.hip says what a tile is).

use gpu::{Grid, Kernel, Slice, SliceMut};

#[cfg(test)]
use super::unit::{Define, KernelFile, Values};
use super::{PARTS_BYTES, count};
use crate::attention::{Heads, Kv, OP, QuerySpan, Shaping};
use crate::kv_store::{KV_BLOCK, is_kept_f16, kv_program};
use crate::{Error, Gpu, View, ViewMut};

const THREADS: u32 = 128;
const MERGE_THREADS: u32 = 512;
/// Query vectors of the largest tile: eight spill registers on RDNA.
const MAX_QUERIES: usize = 4;
/// A part of a split context is at least this many keys.
const MIN_PART: usize = 32;
/// As many as the merging kernel has room for.
const MAX_SPLITS: usize = 256;
/// Blocks a multiprocessor should get before splitting stops.
const BLOCKS_PER_MULTIPROCESSOR: usize = 4;
/// Blocks of flash_few.hip that a multiprocessor gets: as many as its registers hold with two blocks of keys and values
/// under way in each wave. H200, llama-8b at depth 4096, tokens/s with that and with one under way: Q4_0 488 and 476, Q8_0
/// 357 and 350.
const FEW_BLOCKS: usize = 2;
/// Words of a span on the device.
const SPAN_WORDS: usize = 8;

/// How a batch is cut; pure, and all that a launch depends on besides addresses.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct AttentionPlan {
    /// Query vectors of a tile.
    pub n_queries: usize,
    pub n_tiles: usize,
    pub n_splits: usize,
    /// Blocks of keys of each split, from the start of the context on; 0 splits a context evenly.
    pub part_blocks: usize,
    pub kernel: AttentionKernel,
}

/// Which kernel attends.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum AttentionKernel {
    /// attention.hip: any chip, head size and type of keys and values.
    Vector,
    /// flash_few.hip: few query vectors on the matrix units.
    Few,
    /// flash.hip: many rows on the matrix units; a tile is 64 rows, of one head.
    Flash,
    /// flash_units.hip: the same for chips whose units take whole tiles.
    Units,
    /// flash_wgmma.hip: the same for chips whose units work for groups of four waves; a tile is 128 rows.
    Wgmma,
}

impl AttentionKernel {
    /// Whether a tile is rows of one head, not of all that share keys.
    fn is_by_head(self) -> bool {
        matches!(self, Self::Flash | Self::Units | Self::Wgmma)
    }
}

/// Query rows of a tile of the matrix units, and rows in the longest span from which on they are used.
const FLASH_ROWS: usize = 64;
const MIN_FLASH_ROWS: usize = 16;
/// Query rows of a tile of flash_wgmma.hip, and head sizes that it takes.
const WGMMA_ROWS: usize = 128;
const WGMMA_HEAD_DIMS: [usize; 3] = [64, 128, 256];
/// Head sizes that flash_few.hip takes, the largest of them with tiles of eight queries only.
const FEW_HEAD_DIMS: [usize; 3] = [64, 128, 256];
/// Waves of a block of flash.hip and flash_units.hip, sixteen rows each.
const FLASH_WAVES: u32 = 4;
/// A part of a context that is split for it: a block of keys a wave.
const MIN_FEW_PART: usize = 4 * KV_BLOCK;
/// Keys of the shortest part where rows must not matter.
const INVARIANT_PART: usize = 256;

/// What a plan needs to know of the chip and of the KV pool.
#[derive(Copy, Clone, Debug)]
pub struct AttentionChip {
    pub n_multiprocessors: usize,
    /// Whether attention can use the matrix units here: they need keys and values in f16.
    pub has_matrix_units: bool,
    /// As above, by whole tiles.
    pub has_tiles: bool,
    /// As above, by groups of four waves.
    pub has_wgmma: bool,
    /// Whether any layer has a window, a cap or sinks: few query vectors then go without the units.
    pub is_shaped: bool,
    /// Where rows must not matter: the keys of each part of every context.
    pub part_keys: Option<usize>,
}

impl AttentionChip {
    /// `is_shaped`: whether any layer has a window, a cap or sinks.
    pub fn of(device: &gpu::Device, kv: weights::Dtype, is_shaped: bool) -> Self {
        let n_multiprocessors = device.properties().n_multiprocessors as usize;
        let is_f16 = kv == weights::Dtype::F16;
        let has_matrix_units = device.has_mma() && is_f16;
        let has_tiles = device.has_matrix_units() && !device.has_mma() && is_f16;
        let has_wgmma = device.has_wgmma() && is_f16;
        Self { n_multiprocessors, has_matrix_units, has_tiles, has_wgmma, is_shaped, part_keys: None }
    }

    /// The same without matrix units: only the vector kernel lowers scores with the distance (`Shaping::slopes`).
    pub fn without_units(self) -> Self {
        Self { has_matrix_units: false, has_tiles: false, has_wgmma: false, ..self }
    }

    /// The same where rows must not matter, for contexts of up to `n_ctx` tokens: parts are as short as the merging
    /// kernel and the room for one tile's parts allow.
    pub fn with_parts(self, heads: &Heads, n_ctx: usize) -> Self {
        let (_, n_queries) = self.few_queries(heads, 1);
        let part_bytes = heads.n_kv_heads.max(1) * n_queries * (heads.head_dim + 2) * 4;
        let most = (PARTS_BYTES / part_bytes).clamp(1, MAX_SPLITS);
        let shortest = n_ctx.next_power_of_two().div_ceil(most).next_power_of_two();
        Self { part_keys: Some(shortest.max(INVARIANT_PART)), ..self }
    }

    /// The kernel for few rows of each sequence, and how many query vectors its tiles have.
    fn few_queries(&self, heads: &Heads, n_rows: usize) -> (AttentionKernel, usize) {
        let most = n_rows.max(1) * (heads.n_heads / heads.n_kv_heads.max(1)).max(1);
        let is_few = self.has_matrix_units && !self.is_shaped && FEW_HEAD_DIMS.contains(&heads.head_dim);
        match is_few {
            true if most > 8 && heads.head_dim <= 128 => (AttentionKernel::Few, 16),
            true => (AttentionKernel::Few, 8),
            false => (AttentionKernel::Vector, most.next_power_of_two().min(MAX_QUERIES)),
        }
    }
}

/// The spans of a batch where a GPU reads them, written by [`AttentionPlan::write`].
#[derive(Copy, Clone)]
pub struct DeviceSpans<'a> {
    pub plan: AttentionPlan,
    /// Tiles, then spans, then block tables.
    pub words: Slice<'a, u32>,
}

impl AttentionPlan {
    /// For spans of these many rows; `n_context` is the longest context that the launch must be good for.
    pub fn new(span_rows: &[usize], heads: &Heads, n_context: usize, chip: &AttentionChip) -> Self {
        let longest = span_rows.iter().max().copied().unwrap_or(0);
        let group = (heads.n_heads / heads.n_kv_heads).max(1);
        if let Some(part_keys) = chip.part_keys {
            // The tiles of a sequence that decodes, however many rows there are.
            let (kernel, n_queries) = chip.few_queries(heads, 1);
            let n_tiles = span_rows.iter().map(|rows| (rows * group).div_ceil(n_queries)).sum();
            let (n_splits, part_blocks) = (n_context.div_ceil(part_keys).max(1), part_keys / KV_BLOCK);
            return Self { n_queries, n_tiles, n_splits, part_blocks, kernel };
        }
        if chip.has_wgmma && WGMMA_HEAD_DIMS.contains(&heads.head_dim) && longest >= MIN_FLASH_ROWS {
            let n_tiles = span_rows.iter().map(|rows| rows.div_ceil(WGMMA_ROWS)).sum();
            return Self {
                n_queries: WGMMA_ROWS,
                n_tiles,
                n_splits: 1,
                part_blocks: 0,
                kernel: AttentionKernel::Wgmma,
            };
        }
        let is_fit = heads.head_dim.is_multiple_of(16) && heads.head_dim <= 128;
        if (chip.has_matrix_units || chip.has_tiles) && is_fit && longest >= MIN_FLASH_ROWS {
            let n_tiles = span_rows.iter().map(|rows| rows.div_ceil(FLASH_ROWS)).sum();
            let kernel = if chip.has_matrix_units { AttentionKernel::Flash } else { AttentionKernel::Units };
            return Self { n_queries: FLASH_ROWS, n_tiles, n_splits: 1, part_blocks: 0, kernel };
        }
        let (kernel, n_queries) = chip.few_queries(heads, longest);
        let min_part = if kernel == AttentionKernel::Few { MIN_FEW_PART } else { MIN_PART };
        let n_tiles: usize = span_rows.iter().map(|rows| (rows * group).div_ceil(n_queries)).sum();
        let n_units = (n_tiles * heads.n_kv_heads).max(1);
        let unit_bytes = n_units * n_queries * (heads.head_dim + 2) * 4;
        let wanted = match kernel {
            // As many as run at once: one more part would wait for all the others.
            AttentionKernel::Few => chip.n_multiprocessors * FEW_BLOCKS / n_units,
            _ => (chip.n_multiprocessors * BLOCKS_PER_MULTIPROCESSOR).div_ceil(n_units),
        };
        let most = n_context.div_ceil(min_part).min(PARTS_BYTES / unit_bytes).min(MAX_SPLITS);
        let n_splits = wanted.min(most).max(1);
        Self { n_queries, n_tiles, n_splits, part_blocks: 0, kernel }
    }

    /// Words that [`AttentionPlan::write`] appends.
    pub fn n_words(&self, spans: &[QuerySpan]) -> usize {
        2 * self.n_tiles + spans.iter().map(|span| SPAN_WORDS + span.n_table()).sum::<usize>()
    }

    pub fn write(&self, spans: &[QuerySpan], heads: &Heads, words: &mut Vec<u32>) {
        let group = if self.kernel.is_by_head() { 1 } else { (heads.n_heads / heads.n_kv_heads).max(1) };
        for (i, span) in spans.iter().enumerate() {
            for first in (0..span.n_rows * group).step_by(self.n_queries) {
                words.extend([i as u32, first as u32]);
            }
        }
        let mut table = 0;
        for span in spans {
            let numbers =
                [span.first_row, span.n_rows, span.first_position, table, usize::from(span.is_causal), 0, 0, 0];
            words.extend(numbers.map(|n| n as u32));
            table += span.n_table();
        }
        for span in spans {
            words.extend(&span.blocks[..span.n_table()]);
        }
    }
}

impl QuerySpan<'_> {
    /// Entries of the block table that the span's context needs.
    fn n_table(&self) -> usize {
        (self.first_position + self.n_rows).div_ceil(KV_BLOCK).min(self.blocks.len())
    }
}

gpu::args! {
    struct Attention<'a> {
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
    }
}

gpu::args! {
    struct FlashFew<'a> {
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
    }
}

gpu::args! {
    struct Merge<'a> {
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

gpu::args! {
    struct Flash<'a> {
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

/// The files of attention; which of them a batch takes is [`AttentionPlan::kernel`].
#[cfg(test)]
pub(crate) const ATTENTION: KernelFile = KernelFile {
    name: "attention",
    source: include_str!("../../kernels/attention.hip"),
    overlaps: true,
    defines: &[
        Define { name: "HEAD_LANES", values: Values::Numbers(&[8, 16, 32]) },
        Define { name: "KV_F16", values: Values::Flag },
        Define { name: "SHAPED", values: Values::Flag },
    ],
};
#[cfg(test)]
pub(crate) const FLASH: KernelFile = KernelFile {
    name: "flash",
    source: include_str!("../../kernels/flash.hip"),
    overlaps: true,
    defines: &[
        Define { name: "HEAD_DIM", values: Values::Numbers(&[64, 128]) },
        Define { name: "KV_F16", values: Values::Numbers(&[1]) },
        Define { name: "SHAPED", values: Values::Flag },
    ],
};
#[cfg(test)]
pub(crate) const FLASH_FEW: KernelFile = KernelFile {
    name: "flash_few",
    source: include_str!("../../kernels/flash_few.hip"),
    overlaps: true,
    defines: &[Define { name: "HEAD_DIM", values: Values::Numbers(&[64, 128, 256]) }],
};
#[cfg(test)]
pub(crate) const FLASH_UNITS: KernelFile = KernelFile {
    name: "flash_units",
    source: include_str!("../../kernels/flash_units.hip"),
    overlaps: false,
    defines: &[
        Define { name: "HEAD_DIM", values: Values::Numbers(&[64, 96, 128]) },
        Define { name: "SHAPED", values: Values::Flag },
    ],
};

#[cfg(test)]
pub(crate) const FLASH_WGMMA: KernelFile = KernelFile {
    name: "flash_wgmma",
    source: include_str!("../../kernels/flash_wgmma.hip"),
    overlaps: true,
    defines: &[
        Define { name: "HEAD_DIM", values: Values::Numbers(&[64, 128, 256]) },
        Define { name: "SHAPED", values: Values::Flag },
    ],
};

#[derive(Clone)]
struct VectorKernels {
    attention: [Kernel<Attention<'static>>; 3],
    merge: Kernel<Merge<'static>>,
}

fn unit(gpu: &Gpu, is_f16: bool, head_dim: usize, is_shaped: bool) -> Result<VectorKernels, Error> {
    const VARIANTS: [&str; 3] = ["attention_1", "attention_2", "attention_4"];
    // Lanes that share a token, eight numbers each.
    let head_lanes = head_dim.div_ceil(8).next_power_of_two() as u32;
    let program = || {
        let program = kv_program(OP, include_str!("../../kernels/attention.hip"), is_f16).overlapping();
        let program = program.define("HEAD_LANES", head_lanes).kernel::<Merge>("attention_merge");
        let program = if is_shaped { program.define("SHAPED", 1) } else { program };
        VARIANTS.iter().fold(program, |program, name| program.kernel::<Attention>(name))
    };
    gpu.kernels.get((OP, [u32::from(is_f16), head_lanes, u32::from(is_shaped)]), program, |module| {
        let [a, b, c] = VARIANTS.map(|name| module.kernel::<Attention>(name));
        Ok(VectorKernels { attention: [a?, b?, c?], merge: module.kernel::<Merge>("attention_merge")? })
    })
}

fn flash_kernel(
    gpu: &Gpu,
    kernel: AttentionKernel,
    head_dim: usize,
    is_shaped: bool,
) -> Result<Kernel<Flash<'static>>, Error> {
    let (name, source) = match kernel {
        AttentionKernel::Units => ("flash_units", include_str!("../../kernels/flash_units.hip")),
        AttentionKernel::Wgmma => ("flash_wgmma", include_str!("../../kernels/flash_wgmma.hip")),
        _ => ("flash", include_str!("../../kernels/flash.hip")),
    };
    let program = || {
        let program = kv_program(name, source, true).define("HEAD_DIM", head_dim).kernel::<Flash>(name);
        let program = if is_shaped { program.define("SHAPED", 1) } else { program };
        if kernel == AttentionKernel::Units { program } else { program.overlapping() }
    };
    let key = (name, [head_dim as u32, u32::from(is_shaped), 0]);
    gpu.kernels.get(key, program, |module| module.kernel::<Flash>(name))
}

/// Shared memory of a block of flash_wgmma.hip: queries, and two tiles each of keys and of values.
fn wgmma_bytes(head_dim: usize) -> u32 {
    let n_keys = if head_dim > 128 { 64 } else { 128 };
    ((WGMMA_ROWS + 4 * n_keys) * head_dim * 2) as u32
}

fn few_kernel(gpu: &Gpu, head_dim: usize, n_queries: usize) -> Result<Kernel<FlashFew<'static>>, Error> {
    let name = if n_queries == 8 { "flash_few_8" } else { "flash_few_16" };
    let program = || {
        let program = kv_program("flash_few", include_str!("../../kernels/flash_few.hip"), true).overlapping();
        program.define("HEAD_DIM", head_dim).kernel::<FlashFew>(name)
    };
    let key = ("flash_few", [head_dim as u32, n_queries as u32, 0]);
    gpu.kernels.get(key, program, |module| module.kernel::<FlashFew>(name))
}

pub(crate) fn launch(
    gpu: &Gpu,
    q: View,
    kv: Kv,
    heads: Heads,
    (spans, DeviceSpans { plan, words }): (&[QuerySpan], DeviceSpans),
    shaping: Shaping,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let is_vector = plan.kernel == AttentionKernel::Vector;
    if (plan.kernel == AttentionKernel::Few && shaping.is_any()) || (!is_vector && shaping.slopes.is_some()) {
        let what =
            format!("{:?} does not shape scores; a plan for shaped scores goes without the matrix units", plan.kernel);
        return Err(Error::Argument { op: OP, what });
    }
    if spans.is_empty() {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    let (n_tile_words, n_span_words) = (2 * plan.n_tiles, SPAN_WORDS * spans.len());
    let (tiles, spans) = (words.slice(..n_tile_words)?, words.slice(n_tile_words..n_tile_words + n_span_words)?);
    let tables = words.slice(n_tile_words + n_span_words..)?;
    let sinks = shaping.sinks.map(|sinks| sinks.device_f32s(OP, "sinks")).transpose()?;
    let window = count(OP, "window", shaping.window.unwrap_or(0))?;
    let cap = shaping.softcap.unwrap_or(0.0);
    if plan.kernel.is_by_head() {
        let args = Flash {
            q: q.device_f32s(OP, "q")?,
            k_pool: kv.k.device_bytes(OP, "k")?,
            v_pool: kv.v.device_bytes(OP, "v")?,
            tiles,
            spans,
            tables,
            out: out.device_f32s(OP, "out")?,
            n_heads: heads.n_heads as u32,
            n_kv_heads: heads.n_kv_heads as u32,
            scale: heads.scale,
            window,
            cap,
            sinks,
        };
        let wave = gpu.kernels.device().properties().wave_width;
        let blocks = [count(OP, "tiles", plan.n_tiles)?, heads.n_heads as u32, 1];
        let grid = match plan.kernel {
            AttentionKernel::Wgmma => {
                Grid { blocks, threads: [2 * WGMMA_ROWS as u32, 1, 1], shared_bytes: wgmma_bytes(heads.head_dim) }
            }
            _ => Grid { blocks, threads: [FLASH_WAVES * wave, 1, 1], shared_bytes: 0 },
        };
        let kernel = flash_kernel(gpu, plan.kernel, heads.head_dim, shaping.is_any())?;
        return Ok(gpu.launcher.launch(&kernel, grid, &args)?);
    }
    let unit = unit(gpu, is_kept_f16(OP, kv.k.dtype)?, heads.head_dim, shaping.is_any())?;
    let mut workspace = gpu.workspace.borrow_mut();
    let mut parts = workspace.parts.all_mut().cast::<f32>()?;
    let n_parts = heads.n_kv_heads * plan.n_splits * plan.n_queries * (heads.head_dim + 2);
    if plan.n_splits > MAX_SPLITS || (plan.n_splits > 1 && n_parts > parts.len()) {
        let what = format!("{} parts of {n_parts} numbers, room for {}", plan.n_splits, parts.len());
        return Err(Error::Argument { op: OP, what });
    }
    // All tiles at once, unless their parts would take too much room.
    let run_tiles = if plan.n_splits > 1 { parts.len() / n_parts } else { plan.n_tiles }.max(1);
    let mut out = out.device_f32s(OP, "out")?;
    let [n_heads, n_kv_heads] = [heads.n_heads, heads.n_kv_heads].map(|n| n as u32);
    let (head_dim, n_splits) = (heads.head_dim as u32, count(OP, "splits", plan.n_splits)?);
    let part_blocks = count(OP, "blocks", plan.part_blocks)?;
    let (q, k_pool, v_pool) = (q.device_f32s(OP, "q")?, kv.k.device_bytes(OP, "k")?, kv.v.device_bytes(OP, "v")?);
    for first in (0..plan.n_tiles).step_by(run_tiles) {
        let run = first..plan.n_tiles.min(first + run_tiles);
        let n_tiles = count(OP, "tiles", run.len())?;
        let tiles = tiles.slice(2 * run.start..2 * run.end)?;
        let grid = Grid { blocks: [n_tiles, n_kv_heads, n_splits], threads: [THREADS, 1, 1], shared_bytes: 0 };
        if plan.kernel == AttentionKernel::Few {
            let args = FlashFew {
                q,
                k_pool,
                v_pool,
                tiles,
                spans,
                tables,
                out: out.reborrow(),
                parts: parts.reborrow(),
                n_heads,
                n_kv_heads,
                scale: heads.scale,
                n_splits,
                part_blocks,
            };
            gpu.launcher.launch(&few_kernel(gpu, heads.head_dim, plan.n_queries)?, grid, &args)?;
        } else {
            let args = Attention {
                q,
                k_pool,
                v_pool,
                tiles,
                spans,
                tables,
                out: out.reborrow(),
                parts: parts.reborrow(),
                n_heads,
                n_kv_heads,
                head_dim,
                scale: heads.scale,
                n_splits,
                part_blocks,
                window,
                cap,
                sinks,
                slopes: shaping.slopes.map(|slopes| slopes.device_f32s(OP, "slopes")).transpose()?,
            };
            gpu.launcher.launch(&unit.attention[plan.n_queries.trailing_zeros() as usize], grid, &args)?;
        }
        if plan.n_splits > 1 {
            let n_q = plan.n_queries as u32;
            let (parts, out) = (parts.as_slice(), out.reborrow());
            let args = Merge { tiles, spans, parts, out, n_heads, n_kv_heads, head_dim, n_q, n_splits, sinks };
            let grid = Grid { blocks: [n_tiles, n_kv_heads, n_q], threads: [MERGE_THREADS, 1, 1], shared_bytes: 0 };
            gpu.launcher.launch(&unit.merge, grid, &args)?;
        }
    }
    Ok(())
}
