//! How a batch's attention is cut into tiles, and which kernel computes them: decided once per step, from shapes and the
//! chip alone. [`super::launch`] carries the plan out; kernels/attention.hip says what a tile is.

use gpu::Slice;

use crate::Kernels;
use crate::attention::{Heads, QuerySpan};
use crate::gpu::PARTS_BYTES;
use crate::kv_store::KV_BLOCK;

/// Query vectors of the largest tile: eight spill registers on RDNA.
const MAX_QUERIES: usize = 4;
/// The same of heads wider than this, which take a whole wave: four spill a hundred registers on RDNA.
const MAX_WIDE_QUERIES: usize = 2;
pub(super) const MAX_SHARED_DIM: usize = 256;
/// A part of a split context is at least this many keys.
const MIN_PART: usize = 32;
/// As many as the merging kernel has room for.
pub(super) const MAX_SPLITS: usize = 256;
/// Blocks a multiprocessor should get before splitting stops.
const BLOCKS_PER_MULTIPROCESSOR: usize = 4;
/// Blocks of flash_few.hip that a multiprocessor gets: as many as its registers hold with two blocks of keys and values
/// under way in each wave. H200, llama-8b at depth 4096, tokens/s with that and with one under way: Q4_0 488 and 476, Q8_0
/// 357 and 350.
const FEW_BLOCKS: usize = 2;
/// Words of a span on the device.
pub(crate) const SPAN_WORDS: usize = 8;
/// Query rows of a tile of the matrix units, and rows in the longest span from which on they are used.
const FLASH_ROWS: usize = 64;
const MIN_FLASH_ROWS: usize = 16;
/// Query rows of a tile of flash_wgmma.hip, and head sizes that it takes.
pub(super) const WGMMA_ROWS: usize = 128;
const WGMMA_HEAD_DIMS: [usize; 3] = [64, 128, 256];
/// Head sizes that flash_few.hip takes, the largest of them with tiles of eight queries only.
const FEW_HEAD_DIMS: [usize; 3] = [64, 128, 256];
/// The same of flash_few_units.hip, and query vectors of its tiles.
const FEW_UNITS_HEAD_DIMS: [usize; 4] = [64, 96, 128, 256];
const FEW_UNITS_QUERIES: usize = 16;
/// A part of a context that is split for it: a block of keys a wave.
const MIN_FEW_PART: usize = 4 * KV_BLOCK;
/// Keys of the shortest part where rows must not matter.
const INVARIANT_PART: usize = 256;

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
    /// flash_few_units.hip: the same for chips whose units take whole tiles.
    FewUnits,
    /// flash.hip: many rows on the matrix units; a tile is 64 rows, of one head.
    Flash,
    /// flash_units.hip: the same for chips whose units take whole tiles.
    Units,
    /// flash_wgmma.hip: the same for chips whose units work for groups of four waves; a tile is 128 rows.
    Wgmma,
}

impl AttentionKernel {
    /// Whether a tile is rows of one head, not of all that share keys.
    pub(super) fn is_by_head(self) -> bool {
        matches!(self, Self::Flash | Self::Units | Self::Wgmma)
    }
}

/// What a plan needs to know of the chip and of the KV pool.
#[derive(Copy, Clone, Debug)]
pub struct AttentionChip {
    pub n_multiprocessors: usize,
    /// Whether attention of many rows can use the matrix units here: they need keys and values in f16.
    pub has_matrix_units: bool,
    /// Whether attention of few rows can, by flash_few.hip.
    pub has_few: bool,
    /// As above, by groups of four waves.
    pub has_wgmma: bool,
    /// As above, by whole tiles, which keys and values of any type but f32 are brought into.
    pub has_tiles: bool,
    /// By whole tiles: from how many query vectors that share keys on.
    pub few_queries_from: usize,
    /// Whether keys and values are quantized.
    pub is_quantized: bool,
    /// Where rows must not matter: the keys of each part of every context.
    pub part_keys: Option<usize>,
}

impl AttentionChip {
    /// `is_shaped`: whether any layer has a window, a cap or sinks.
    pub fn of(kernels: &Kernels, kv: weights::Dtype, is_shaped: bool) -> Self {
        let device = kernels.device();
        let n_multiprocessors = device.properties().n_multiprocessors as usize;
        let is_f16 = kv == weights::Dtype::F16;
        let has_matrix_units = device.has_mma() && is_f16;
        let has_wgmma = device.has_wgmma() && is_f16;
        let has_tiles = device.has_matrix_units() && !device.has_mma() && kv != weights::Dtype::F32;
        let (tuning, is_quantized) = (kernels.tuning(), kv.block_len() > 1);
        let is_fit = if is_quantized { tuning.few_quantized } else { is_f16 };
        let has_few = device.has_mma() && is_fit && (!is_shaped || tuning.few_shaped);
        Self {
            n_multiprocessors,
            has_matrix_units,
            has_wgmma,
            has_few,
            has_tiles,
            few_queries_from: tuning.few_queries_from,
            is_quantized,
            part_keys: None,
        }
    }

    /// The same without matrix units: only the vector kernel lowers scores with the distance (`Shaping::slopes`).
    pub fn without_units(self) -> Self {
        Self { has_matrix_units: false, has_few: false, has_tiles: false, has_wgmma: false, ..self }
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
        let is_few = self.has_few && FEW_HEAD_DIMS.contains(&heads.head_dim);
        // A value's run of numbers must lie in one group.
        let fits_units =
            FEW_UNITS_HEAD_DIMS.contains(&heads.head_dim) && (!self.is_quantized || heads.head_dim.is_multiple_of(64));
        if self.has_tiles && fits_units && most >= self.few_queries_from {
            return (AttentionKernel::FewUnits, FEW_UNITS_QUERIES);
        }
        match is_few {
            true if most > 8 && heads.head_dim <= 128 => (AttentionKernel::Few, 16),
            true => (AttentionKernel::Few, 8),
            false if heads.head_dim > MAX_SHARED_DIM => (AttentionKernel::Vector, most.min(MAX_WIDE_QUERIES)),
            false => (AttentionKernel::Vector, most.next_power_of_two().min(MAX_QUERIES)),
        }
    }
}

/// The spans of a batch where a GPU reads them, written by an [`AttentionPlan`].
#[derive(Copy, Clone)]
pub struct DeviceSpans<'a> {
    pub plan: AttentionPlan,
    /// What [`AttentionPlan::write_tiles`] wrote.
    pub tiles: Slice<'a, u32>,
    /// Spans, then block tables, by [`AttentionPlan::write_spans`].
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
        let min_part = match kernel {
            AttentionKernel::Few | AttentionKernel::FewUnits => MIN_FEW_PART,
            _ => MIN_PART,
        };
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

    pub fn write_tiles(&self, spans: &[QuerySpan], heads: &Heads, words: &mut Vec<u32>) {
        let group = if self.kernel.is_by_head() { 1 } else { (heads.n_heads / heads.n_kv_heads).max(1) };
        for (i, span) in spans.iter().enumerate() {
            for first in (0..span.n_rows * group).step_by(self.n_queries) {
                words.extend([i as u32, first as u32]);
            }
        }
    }

    /// Spans and block tables: the same for all plans of a step.
    pub fn write_spans(spans: &[QuerySpan], words: &mut Vec<u32>) {
        let mut tables = Vec::new();
        words.extend(Self::span_words(spans, 0, &mut tables));
        words.extend(tables);
    }

    /// Words of so many spans, without their block tables.
    pub fn n_span_words(n_spans: usize) -> usize {
        SPAN_WORDS * n_spans
    }

    /// The spans alone. Their block tables, which go into `tables`, will begin `n_between` words behind them.
    pub fn span_words(spans: &[QuerySpan], n_between: usize, tables: &mut Vec<u32>) -> Vec<u32> {
        let mut words = Vec::with_capacity(Self::n_span_words(spans.len()));
        for span in spans {
            let table = n_between + tables.len();
            let numbers =
                [span.first_row, span.n_rows, span.first_position, table, usize::from(span.is_causal), 0, 0, 0];
            words.extend(numbers.map(|n| n as u32));
            tables.extend(&span.blocks[..span.n_table()]);
        }
        words
    }
}

impl QuerySpan<'_> {
    /// Entries of the block table that the span's context needs.
    fn n_table(&self) -> usize {
        (self.first_position + self.n_rows).div_ceil(KV_BLOCK).min(self.blocks.len())
    }
}
