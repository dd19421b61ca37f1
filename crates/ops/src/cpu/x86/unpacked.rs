//! Integer products for many rows: a few strips of weights are unpacked once into pairs of 16 bits, which stay in the
//! second-level cache while every tile of activation rows passes by. One kernel serves every format, and an expensive
//! unpacking costs little.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::strip::{ROWS_512, StripTarget, add_pair_512, put_256, put_512};
use super::winograd;
use crate::Isa;
use crate::cpu::activations::ActivationTile;
use crate::cpu::matmul::{ProductInput, ProductJob};
use crate::formats::for_block;
use crate::matmul::Mode;
use crate::tiles::{GROUP, TILE_ROWS, TileFormat};

/// How much of `k` is unpacked at a time: the longer, the less often sums are put away. Zen 4, 512 rows, 8192 to 2048, a
/// sketch of the loop in C: 205 GMAC/s with 1024, 212 with 2048.
pub(crate) const K_CHUNK: usize = 2048;
/// Strips unpacked together: so often are activations used that were read from afar. With what they are unpacked from,
/// four fit the second-level cache.
const STRIPS: usize = 4;
/// Pairs of a group.
const PAIRS: usize = GROUP / 2;

/// A group of sixteen rows: the pair at `2 * p` of every row in one vector.
#[derive(Copy, Clone)]
#[repr(C, align(64))]
pub(crate) struct PairGroup {
    pub(crate) pairs: [[i32; TILE_ROWS]; PAIRS],
    /// Of the group, or of its halves.
    pub(crate) d: [[f32; TILE_ROWS]; 2],
    pub(crate) m: [[f32; TILE_ROWS]; 2],
    /// What sums that begin with this group start from. Winograd only.
    pub(crate) start: [i32; TILE_ROWS],
}

thread_local! {
    /// Each thread's unpacked strips, `[STRIPS, K_CHUNK / GROUP]`; taken once.
    static GROUPS: RefCell<Vec<PairGroup>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn cols(input: &ProductInput, job: &ProductJob, cols: Range<usize>) {
    GROUPS.with_borrow_mut(|groups| {
        let zeros = [[0.0; TILE_ROWS]; 2];
        let zero = PairGroup { pairs: [[0; TILE_ROWS]; PAIRS], d: zeros, m: zeros, start: [0; TILE_ROWS] };
        groups.resize(STRIPS * K_CHUNK / GROUP, zero);
        for first_col in cols.clone().step_by(STRIPS * TILE_ROWS) {
            let cols = first_col..cols.end.min(first_col + STRIPS * TILE_ROWS);
            for_block!(job.dtype,
                P => some_cols::<P>(input, job, cols, groups),
                P => { let _: Option<P> = None; unreachable!("plain numbers have no tiles") }
            );
        }
    });
}

fn some_cols<P: TileFormat>(input: &ProductInput, job: &ProductJob, cols: Range<usize>, groups: &mut [PairGroup]) {
    let tile_rows = input.rounded.tile_rows();
    for first_k in (0..input.n_in).step_by(K_CHUNK) {
        let n_groups = (input.n_in - first_k).min(K_CHUNK) / GROUP;
        for (first_col, groups) in cols.clone().step_by(TILE_ROWS).zip(groups.chunks_exact_mut(n_groups)) {
            let strip = &job.weight[first_col / TILE_ROWS * job.stride..][..job.stride];
            let tiles = &strip[first_k / P::LEN * P::TILE_BYTES..];
            // SAFETY: `Isa` says what this CPU has.
            unsafe {
                if input.isa >= Isa::Avx512 {
                    unpack_512::<P>(tiles, groups);
                } else {
                    unpack_256::<P>(tiles, groups);
                }
                if let Some(pair_sum) = input.rounded.pair_sum() {
                    winograd::prepare_weights(groups, input.rounded.together(), pair_sum);
                }
            }
        }
        for (tile_idx, first_row) in (0..input.n_rows).step_by(tile_rows).enumerate() {
            let tile = input.rounded.tile(tile_idx, first_k / GROUP);
            let n_rows = (input.n_rows - first_row).min(tile_rows);
            let adds = job.mode == Mode::Add || first_k > 0;
            for (first_col, groups) in cols.clone().step_by(TILE_ROWS).zip(groups.chunks_exact(n_groups)) {
                let target = StripTarget { first_row, n_rows, first_col, adds };
                // SAFETY: `Isa` says what this CPU has; the tile holds these groups; columns are this task's.
                unsafe { rows::<P>(input, groups, tile, job, &target) };
            }
        }
    }
}

/// # Safety
/// The CPU has AVX-512 F, BW and F16C; `tiles` starts at a block.
#[target_feature(enable = "avx512f,avx512bw,avx2,f16c")]
unsafe fn unpack_512<P: TileFormat>(tiles: &[u8], groups: &mut [PairGroup]) {
    for (groups, tile) in groups.chunks_exact_mut(P::LEN / GROUP).zip(tiles.chunks_exact(P::TILE_BYTES)) {
        for (g, group) in groups.iter_mut().enumerate() {
            // SAFETY: inside the tile; the group's vectors hold sixteen numbers each.
            unsafe {
                for eighth in 0..4 {
                    let pairs = P::folded_512(tile.as_ptr(), g, eighth);
                    for p in 0..4 {
                        _mm512_store_si512(group.pairs[4 * eighth + p].as_mut_ptr().cast(), pairs[p]);
                    }
                }
                for i in 0..GROUP / P::SPAN {
                    let (d, m) = P::folded_scales_512(tile.as_ptr(), g * GROUP / P::SPAN + i);
                    _mm512_store_ps(group.d[i].as_mut_ptr(), d);
                    if P::HAS_MIN {
                        _mm512_store_ps(group.m[i].as_mut_ptr(), m);
                    }
                }
            }
        }
    }
}

/// # Safety
/// The CPU has AVX2 and F16C; `tiles` starts at a block.
#[target_feature(enable = "avx2,f16c")]
unsafe fn unpack_256<P: TileFormat>(tiles: &[u8], groups: &mut [PairGroup]) {
    for (groups, tile) in groups.chunks_exact_mut(P::LEN / GROUP).zip(tiles.chunks_exact(P::TILE_BYTES)) {
        for (g, group) in groups.iter_mut().enumerate() {
            for half in 0..2 {
                // SAFETY: inside the tile; half of a vector is eight numbers.
                unsafe {
                    for eighth in 0..4 {
                        let pairs = P::pairs_256(tile.as_ptr(), g, eighth, half);
                        for p in 0..4 {
                            let to = group.pairs[4 * eighth + p].as_mut_ptr().add(8 * half);
                            _mm256_store_si256(to.cast(), pairs[p]);
                        }
                    }
                    for i in 0..GROUP / P::SPAN {
                        let (d, m) = P::scales_256(tile.as_ptr(), g * GROUP / P::SPAN + i, half);
                        _mm256_store_ps(group.d[i].as_mut_ptr().add(8 * half), d);
                        _mm256_store_ps(group.m[i].as_mut_ptr().add(8 * half), m);
                    }
                }
            }
        }
    }
}

/// How often sums of integers are turned into numbers: after half of a group, or after so many groups.
const EVERY_HALF: usize = 0;

/// # Safety
/// As [`rows_512`] or [`rows_256`], whichever the instruction set asks for, for the tile's rows.
unsafe fn rows<P: TileFormat>(
    input: &ProductInput,
    groups: &[PairGroup],
    x: ActivationTile,
    job: &ProductJob,
    target: &StripTarget,
) {
    let every = if P::SPAN == GROUP { input.rounded.together() } else { EVERY_HALF };
    // SAFETY: the caller's promise.
    unsafe {
        match (P::HAS_MIN, every) {
            (false, EVERY_HALF) => rows_of::<false, EVERY_HALF>(input, groups, x, job, target),
            (false, 1) => rows_of::<false, 1>(input, groups, x, job, target),
            (false, 2) => rows_of::<false, 2>(input, groups, x, job, target),
            (false, 4) => rows_of::<false, 4>(input, groups, x, job, target),
            (false, _) => rows_of::<false, 8>(input, groups, x, job, target),
            (true, EVERY_HALF) => rows_of::<true, EVERY_HALF>(input, groups, x, job, target),
            (true, 1) => rows_of::<true, 1>(input, groups, x, job, target),
            (true, 2) => rows_of::<true, 2>(input, groups, x, job, target),
            (true, _) => rows_of::<true, 4>(input, groups, x, job, target),
        }
    }
}

/// # Safety
/// As [`rows`].
unsafe fn rows_of<const HAS_MIN: bool, const EVERY: usize>(
    input: &ProductInput,
    groups: &[PairGroup],
    x: ActivationTile,
    job: &ProductJob,
    target: &StripTarget,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if EVERY != EVERY_HALF
            && let Some(pair_sum) = input.rounded.pair_sum()
        {
            return winograd::rows::<HAS_MIN, EVERY>(pair_sum, groups, x, job, target);
        }
        match (input.isa, input.rounded.tile_rows()) {
            (Isa::Avx512 | Isa::Zen4, _) => match target.n_rows {
                1..=4 => rows_512::<4, HAS_MIN, EVERY>(groups, x, job, target),
                5..=8 => rows_512::<8, HAS_MIN, EVERY>(groups, x, job, target),
                _ => rows_512::<ROWS_512, HAS_MIN, EVERY>(groups, x, job, target),
            },
            (_, 3) => rows_256::<3, HAS_MIN, EVERY>(groups, x, job, target),
            (_, _) => rows_256::<4, HAS_MIN, EVERY>(groups, x, job, target),
        }
    }
}

/// The first `N` rows of a tile. Scales are powers of two here: the port that adds applies them, and those that multiply
/// have one thing less to do.
///
/// # Safety
/// The CPU has AVX-512 F and VNNI; the tile holds as many groups of `ROWS_512` rows, with shifts; the target's columns are
/// this task's, and at most `N` of its rows exist. Where sums run over several groups, these have the same `d` and the
/// same shifts.
// Longer than other functions: one loop over the weights whose sums stay in registers.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn rows_512<const N: usize, const HAS_MIN: bool, const EVERY: usize>(
    groups: &[PairGroup],
    x: ActivationTile,
    job: &ProductJob,
    target: &StripTarget,
) {
    let mut acc = [_mm512_setzero_ps(); N];
    let ActivationTile { mut q, mut shifts, mut sums, mut halves, .. } = x;
    target.prefetch(job);
    macro_rules! add_pairs {
        ($ints:ident, $group:expr, $q:expr, $($p:literal $at:literal)*) => {
            $({
                let pair = _mm512_load_si512($group.pairs[$p].as_ptr().cast());
                add_pair_512!($ints, pair, $q, $at);
            })*
        };
    }
    macro_rules! flush {
        ($ints:ident, $group:expr, $span:literal) => {
            let d = _mm512_load_ps($group.d[$span].as_ptr());
            for n in 0..N {
                // A zero becomes a number too small to be seen: shifts are never below zero.
                let bits = _mm512_castps_si512(_mm512_cvtepi32_ps($ints[n]));
                let units = _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(*shifts.add(n))));
                acc[n] = _mm512_fmadd_ps(units, d, acc[n]);
            }
        };
    }
    macro_rules! add_mins {
        ($group:expr, $span:literal, $sums:expr) => {
            if HAS_MIN {
                let m = _mm512_load_ps($group.m[$span].as_ptr());
                for n in 0..N {
                    acc[n] = _mm512_fmadd_ps(m, _mm512_set1_ps(*$sums.add(n)), acc[n]);
                }
            }
        };
    }
    for groups in groups.chunks_exact(EVERY.max(1)) {
        let mut ints = [_mm512_setzero_si512(); N];
        for group in groups {
            // SAFETY: a group of activation rows is ROWS_512 lines; shifts and sums hold one number a row and group.
            unsafe {
                add_pairs!(ints, group, q, 0 0 1 4 2 8 3 12 4 16 5 20 6 24 7 28);
                if EVERY == EVERY_HALF {
                    flush!(ints, group, 0);
                    add_mins!(group, 0, halves);
                    ints = [_mm512_setzero_si512(); N];
                }
                add_pairs!(ints, group, q, 8 32 9 36 10 40 11 44 12 48 13 52 14 56 15 60);
            }
            q = q.wrapping_add(ROWS_512 * GROUP);
        }
        // SAFETY: as above.
        unsafe {
            if EVERY == EVERY_HALF {
                flush!(ints, groups[0], 1);
                add_mins!(groups[0], 1, halves.add(ROWS_512));
            } else {
                flush!(ints, groups[0], 0);
                for group in groups {
                    add_mins!(group, 0, sums);
                    sums = sums.wrapping_add(ROWS_512);
                }
            }
        }
        shifts = shifts.wrapping_add(groups.len() * ROWS_512);
        halves = halves.wrapping_add(2 * ROWS_512);
    }
    for n in 0..N {
        // SAFETY: one base a row of the tile.
        acc[n] = _mm512_mul_ps(acc[n], _mm512_set1_ps(unsafe { *x.bases.add(n) }));
    }
    // SAFETY: the caller's promise.
    unsafe { put_512(&acc, job, target) };
}

/// # Safety
/// The CPU has AVX2 and FMA; else as [`rows_512`].
#[target_feature(enable = "avx2,fma")]
unsafe fn rows_256<const N: usize, const HAS_MIN: bool, const EVERY: usize>(
    groups: &[PairGroup],
    x: ActivationTile,
    job: &ProductJob,
    target: &StripTarget,
) {
    let mut acc = [[_mm256_setzero_ps(); N]; 2];
    let ActivationTile { mut q, mut scales, mut sums, mut halves, .. } = x;
    target.prefetch(job);
    let n_spans = if EVERY == EVERY_HALF { 2 } else { 1 };
    for group in groups {
        for (span, pairs) in group.pairs.chunks_exact(PAIRS / n_spans).enumerate() {
            let mut ints = [[_mm256_setzero_si256(); N]; 2];
            // SAFETY: a group of N activation rows is N lines; scales and sums hold one number a row and span.
            unsafe {
                let q = q.add(span * GROUP / n_spans);
                let sums = if EVERY == EVERY_HALF { halves.wrapping_add(span * N) } else { sums };
                for (p, pairs) in pairs.iter().enumerate() {
                    let w = [_mm256_load_si256(pairs.as_ptr().cast()), _mm256_load_si256(pairs.as_ptr().add(8).cast())];
                    for n in 0..N {
                        let x = _mm256_set1_epi32(q.add(n * GROUP + 2 * p).cast::<i32>().read());
                        ints[0][n] = _mm256_add_epi32(ints[0][n], _mm256_madd_epi16(w[0], x));
                        ints[1][n] = _mm256_add_epi32(ints[1][n], _mm256_madd_epi16(w[1], x));
                    }
                }
                for half in 0..2 {
                    let d = _mm256_load_ps(group.d[span].as_ptr().add(8 * half));
                    let m = _mm256_load_ps(group.m[span].as_ptr().add(8 * half));
                    for n in 0..N {
                        let scale = _mm256_mul_ps(d, _mm256_set1_ps(*scales.add(n)));
                        acc[half][n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(ints[half][n]), scale, acc[half][n]);
                        if HAS_MIN {
                            acc[half][n] = _mm256_fmadd_ps(m, _mm256_set1_ps(*sums.add(n)), acc[half][n]);
                        }
                    }
                }
            }
        }
        (q, scales) = (q.wrapping_add(N * GROUP), scales.wrapping_add(N));
        (sums, halves) = (sums.wrapping_add(N), halves.wrapping_add(2 * N));
    }
    // SAFETY: the caller's promise.
    unsafe { put_256(&acc, job, target) };
}
