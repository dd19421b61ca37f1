//! Products with 8-bit activations for many rows, with AVX-512. Weights are small integers with one scale per 32; a
//! lane takes four products where 16 bits allow two. Activations that do not fit a byte are left out (`clipped`) and
//! multiplied in f32, one by one, with a second copy of the weights in 16 bits.
//!
//! A few strips of weights are unpacked once and stay in the second-level cache while every tile of rows passes by, as
//! in `unpacked`.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::clipped::{ByteTile, Clipped, WEIGHT_OFFSET};
use super::strip::{ROWS_512, StripTarget, put_512};
use crate::cpu::matmul::ProductJob;
use crate::formats::for_block;
use crate::matmul::Mode;
use crate::tiles::{GROUP, TILE_ROWS, TileFormat};

/// How much of `k` is unpacked at a time.
pub(crate) const K_CHUNK: usize = 2048;
/// Strips unpacked together.
const STRIPS: usize = 4;
/// Fours of a group.
const FOURS: usize = GROUP / 4;

/// A group of sixteen rows: the weights at `4 * i..4 * i + 4` of every row in one vector.
#[derive(Copy, Clone)]
#[repr(C, align(64))]
struct ByteGroup {
    fours: [[u8; 4 * TILE_ROWS]; FOURS],
    d: [f32; TILE_ROWS],
    m: [f32; TILE_ROWS],
}

/// The weights at one `k` of two strips, in units of 2^-16 of `units`: the first strip's as the whole word, the second's as
/// what a shift by 16 bits leaves of it. That is as quick to read as f32 and half as much.
#[derive(Copy, Clone)]
#[repr(C, align(64))]
struct Words([i32; TILE_ROWS]);

/// The largest weight of a row in units, below 2^15 by what the second strip adds.
const MOST_UNITS: f32 = 32_000.0;

/// Some strips of weights, unpacked.
struct UnpackedStrips {
    /// `[STRIPS, K_CHUNK / GROUP]`
    groups: Vec<ByteGroup>,
    /// `[K_CHUNK, n_strips / 2]`: what outliers are multiplied with.
    words: Vec<Words>,
    /// What a unit of 2^-16 is worth.
    units: [[f32; TILE_ROWS]; STRIPS],
    mins: [Mins; STRIPS],
}

/// The minima of a strip as integers, those of two groups in a word, for formats that have them.
struct Mins {
    /// `[K_CHUNK / GROUP / 2]`
    pairs: Vec<Words>,
    unit: [f32; TILE_ROWS],
}

/// The largest of a row's minima in units: times the largest sum of a group, over a chunk, that is less than 2^31.
const MOST_MIN_UNITS: f32 = 8_000.0;
const _: () = assert!(MOST_MIN_UNITS as usize * 127 * GROUP * (K_CHUNK / GROUP) < 1 << 31);

impl UnpackedStrips {
    const fn new() -> Self {
        const NONE: Mins = Mins { pairs: Vec::new(), unit: [0.0; TILE_ROWS] };
        Self { groups: Vec::new(), words: Vec::new(), units: [[0.0; TILE_ROWS]; STRIPS], mins: [NONE; STRIPS] }
    }
}

thread_local! {
    /// Each thread's unpacked strips; taken once.
    static UNPACKED: RefCell<UnpackedStrips> = const { RefCell::new(UnpackedStrips::new()) };
}

/// Some columns of a product with `[n_rows, n_in]` clipped activations.
pub(crate) fn cols(clipped: &Clipped, n_rows: usize, n_in: usize, job: &ProductJob, cols: Range<usize>) {
    UNPACKED.with_borrow_mut(|unpacked| {
        let zero = ByteGroup { fours: [[0; 4 * TILE_ROWS]; FOURS], d: [0.0; TILE_ROWS], m: [0.0; TILE_ROWS] };
        unpacked.groups.resize(STRIPS * K_CHUNK / GROUP, zero);
        unpacked.words.resize(STRIPS / 2 * K_CHUNK, Words([0; TILE_ROWS]));
        unpacked.mins.iter_mut().for_each(|mins| mins.pairs.resize(K_CHUNK / GROUP / 2, Words([0; TILE_ROWS])));
        for first_col in cols.clone().step_by(STRIPS * TILE_ROWS) {
            let cols = first_col..cols.end.min(first_col + STRIPS * TILE_ROWS);
            for_block!(job.dtype,
                P => some_cols::<P>(clipped, [n_rows, n_in], job, cols, unpacked),
                P => { let _: Option<P> = None; unreachable!("plain numbers have no tiles") }
            );
        }
    });
}

fn some_cols<P: TileFormat>(
    clipped: &Clipped,
    [n_rows, n_in]: [usize; 2],
    job: &ProductJob,
    cols: Range<usize>,
    unpacked: &mut UnpackedStrips,
) {
    let n_strips = cols.len().div_ceil(TILE_ROWS);
    let UnpackedStrips { groups, words, units, mins } = unpacked;
    let n_pairs = n_strips.div_ceil(2);
    for (chunk, first_k) in (0..n_in).step_by(K_CHUNK).enumerate() {
        let n_groups = (n_in - first_k).min(K_CHUNK) / GROUP;
        // The second of two strips before the first, which takes it into account.
        for i in (0..n_pairs).flat_map(|pair| [2 * pair + 1, 2 * pair]).filter(|i| *i < n_strips) {
            let strip = &job.weight[(cols.start / TILE_ROWS + i) * job.stride..][..job.stride];
            let tiles = &strip[first_k / P::LEN * P::TILE_BYTES..];
            let groups = &mut groups[i * n_groups..][..n_groups];
            let has_second = i + 1 < n_strips;
            // SAFETY: this kernel is called where the CPU has AVX-512; a chunk starts at a block.
            unsafe {
                let inverse = unpack::<P>(tiles, groups, &mut units[i]);
                if P::HAS_MIN {
                    pair_mins(groups, &mut mins[i]);
                }
                let words = words[i / 2..].iter_mut().step_by(n_pairs);
                match (i % 2, has_second) {
                    (1, _) => widen::<P, SECOND>(tiles, groups, inverse, words),
                    (_, true) => widen::<P, FIRST>(tiles, groups, inverse, words),
                    (_, false) => widen::<P, ALONE>(tiles, groups, inverse, words),
                }
            }
        }
        for (tile_idx, first_row) in (0..n_rows).step_by(ROWS_512).enumerate() {
            let tile = clipped.tile(tile_idx, first_k / GROUP);
            let n_rows = (n_rows - first_row).min(ROWS_512);
            let adds = job.mode == Mode::Add || first_k > 0;
            let strips = groups.chunks_exact(n_groups).zip(&*mins);
            for (first_col, (groups, mins)) in cols.clone().step_by(TILE_ROWS).zip(strips) {
                let target = StripTarget { first_row, n_rows, first_col, adds };
                // SAFETY: the CPU has AVX-512; the tile holds these groups; columns are this task's.
                unsafe {
                    if P::HAS_MIN {
                        rows::<true>(groups, mins, tile, job, &target);
                    } else {
                        rows::<false>(groups, mins, tile, job, &target);
                    }
                }
            }
            for row in first_row..first_row + n_rows {
                let (values, places) = clipped.outliers(row, chunk);
                // SAFETY: as above; places lie in this chunk, whose weights are there as numbers.
                unsafe {
                    let out = job.out.slice(row * job.n_out + cols.start, cols.len());
                    match n_pairs {
                        1 => add_outliers::<1>(values, places, first_k, words, units, out),
                        _ => add_outliers::<{ STRIPS / 2 }>(values, places, first_k, words, units, out),
                    }
                }
            }
        }
    }
}

/// Unpacks a strip into bytes. Its units go to `units`; what turns a weight into units comes back.
///
/// # Safety
/// The CPU has AVX-512 F, BW and F16C; `tiles` starts at a block.
#[target_feature(enable = "avx512f,avx512bw,avx2,f16c")]
unsafe fn unpack<P: TileFormat>(tiles: &[u8], groups: &mut [ByteGroup], units: &mut [f32; TILE_ROWS]) -> __m512 {
    // Bytes of two pairs, as the pack leaves them in every quarter, to four bytes a row.
    let order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    let offset = _mm512_set1_epi8(WEIGHT_OFFSET as i8);
    let mut largest = _mm512_setzero_ps();
    for (groups, tile) in groups.chunks_exact_mut(P::LEN / GROUP).zip(tiles.chunks_exact(P::TILE_BYTES)) {
        let tile = tile.as_ptr();
        for (g, group) in groups.iter_mut().enumerate() {
            // SAFETY: inside the tile; the group's vectors hold sixteen numbers each.
            unsafe {
                let (d, m) = P::small_scales_512(tile, g);
                _mm512_store_ps(group.d.as_mut_ptr(), d);
                _mm512_store_ps(group.m.as_mut_ptr(), m);
                let most = _mm512_set1_ps(P::SMALL_LARGEST as f32);
                largest = _mm512_max_ps(largest, _mm512_fmadd_ps(_mm512_abs_ps(d), most, _mm512_abs_ps(m)));
                for eighth in 0..4 {
                    let pairs = P::small_512(tile, g, eighth);
                    for i in 0..2 {
                        let bytes = _mm512_packs_epi16(pairs[2 * i], pairs[2 * i + 1]);
                        let fours = _mm512_xor_si512(_mm512_shuffle_epi8(bytes, order), offset);
                        _mm512_store_si512(group.fours[2 * eighth + i].as_mut_ptr().cast(), fours);
                    }
                }
            }
        }
    }
    let unit = _mm512_mul_ps(largest, _mm512_set1_ps(1.0 / (65536.0 * MOST_UNITS)));
    // SAFETY: sixteen numbers.
    unsafe { _mm512_storeu_ps(units.as_mut_ptr(), unit) };
    let is_something = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(unit, _mm512_set1_ps(f32::MIN_POSITIVE));
    _mm512_maskz_div_ps(is_something, _mm512_set1_ps(1.0), unit)
}

/// Turns the minima of a strip into integers.
///
/// # Safety
/// The CPU has AVX-512 F; there is a word for every two groups.
#[target_feature(enable = "avx512f")]
unsafe fn pair_mins(groups: &[ByteGroup], mins: &mut Mins) {
    let mut largest = _mm512_setzero_ps();
    for group in groups {
        // SAFETY: sixteen numbers.
        largest = _mm512_max_ps(largest, _mm512_abs_ps(unsafe { _mm512_load_ps(group.m.as_ptr()) }));
    }
    let unit = _mm512_mul_ps(largest, _mm512_set1_ps(1.0 / MOST_MIN_UNITS));
    let is_something = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(unit, _mm512_set1_ps(f32::MIN_POSITIVE));
    let inverse = _mm512_maskz_div_ps(is_something, _mm512_set1_ps(1.0), unit);
    for (two, pair) in groups.chunks_exact(2).zip(&mut mins.pairs) {
        // SAFETY: sixteen numbers.
        unsafe {
            let units = |group: &ByteGroup| _mm512_mul_ps(_mm512_load_ps(group.m.as_ptr()), inverse);
            let low = _mm512_and_si512(_mm512_cvtps_epi32(units(&two[0])), _mm512_set1_epi32(0xFFFF));
            let high = _mm512_slli_epi32::<16>(_mm512_cvtps_epi32(units(&two[1])));
            _mm512_store_si512(pair.0.as_mut_ptr().cast(), _mm512_or_si512(low, high));
        }
    }
    // SAFETY: sixteen numbers.
    unsafe { _mm512_storeu_ps(mins.unit.as_mut_ptr(), unit) };
}

/// Which of two strips that share words.
const SECOND: u8 = 0;
const FIRST: u8 = 1;
/// A first one without a second.
const ALONE: u8 = 2;

/// Puts the weights of a strip into words, `inverse` units each.
///
/// # Safety
/// As [`unpack`], which made `groups`; there are as many words as weights in a row.
#[target_feature(enable = "avx512f,avx512bw,avx2,f16c")]
unsafe fn widen<'a, P: TileFormat, const WHICH: u8>(
    tiles: &[u8],
    groups: &[ByteGroup],
    inverse: __m512,
    mut words: impl Iterator<Item = &'a mut Words>,
) {
    let (low, high) = (_mm512_set1_epi32(0xFFFF), _mm512_set1_epi32(0xFFFF_0000_u32 as i32));
    for (groups, tile) in groups.chunks_exact(P::LEN / GROUP).zip(tiles.chunks_exact(P::TILE_BYTES)) {
        for (g, group) in groups.iter().enumerate() {
            for eighth in 0..4 {
                // SAFETY: inside the tile; vectors of sixteen numbers.
                unsafe {
                    let d = _mm512_mul_ps(_mm512_load_ps(group.d.as_ptr()), inverse);
                    let m = _mm512_mul_ps(_mm512_load_ps(group.m.as_ptr()), inverse);
                    for pair in P::small_512(tile.as_ptr(), g, eighth) {
                        let first = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pair));
                        for q in [first, _mm512_srai_epi32::<16>(pair)] {
                            let weight = _mm512_cvtps_epi32(_mm512_fmadd_ps(_mm512_cvtepi32_ps(q), d, m));
                            let rounded = _mm512_add_epi32(weight, _mm512_set1_epi32(0x8000));
                            let Some(Words(word)) = words.next() else { return };
                            let word = word.as_mut_ptr();
                            let value = match WHICH {
                                SECOND => _mm512_srli_epi32::<16>(rounded),
                                ALONE => _mm512_and_si512(rounded, high),
                                _ => {
                                    let second = _mm512_and_si512(_mm512_load_si512(word.cast()), low);
                                    let whole = _mm512_and_si512(_mm512_sub_epi32(rounded, second), high);
                                    _mm512_or_si512(whole, second)
                                }
                            };
                            _mm512_store_si512(word.cast(), value);
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// As [`rows_512`].
unsafe fn rows<const HAS_MIN: bool>(
    groups: &[ByteGroup],
    mins: &Mins,
    x: ByteTile,
    job: &ProductJob,
    target: &StripTarget,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match target.n_rows {
            1..=4 => rows_512::<4, HAS_MIN>(groups, mins, x, job, target),
            5..=8 => rows_512::<8, HAS_MIN>(groups, mins, x, job, target),
            _ => rows_512::<ROWS_512, HAS_MIN>(groups, mins, x, job, target),
        }
    }
}

/// Four weights of sixteen rows against the fours at byte `$at` of up to twelve lines from `$q` on. Assembly for the same
/// reasons as `add_pair_512`.
macro_rules! add_four_512 {
    ($sums:ident, $four:expr, $q:expr, $at:literal) => {
        add_four_512!(@rows $sums, $four, $q, $at, 0 1 2 3 4 5 6 7 8 9 10 11);
    };
    (@rows $sums:ident, $four:expr, $q:expr, $at:literal, $($n:literal)*) => {
        $(if let Some(sum) = $sums.get_mut($n) {
            std::arch::asm!(
                "vpdpbusd {sum}, {four}, dword ptr [{q} + {at}]{{1to16}}",
                sum = inout(zmm_reg) *sum, four = in(zmm_reg) $four, q = in(reg) $q, at = const 32 * $n + $at,
                options(pure, readonly, nostack, preserves_flags)
            );
        })*
    };
}

/// The first `N` rows of a tile.
///
/// # Safety
/// The CPU has AVX-512 F and VNNI; the tile holds as many groups; the target's columns are this task's, and of its rows
/// at most `N` exist.
// Longer than other functions: one loop over the weights whose sums stay in registers.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn rows_512<const N: usize, const HAS_MIN: bool>(
    groups: &[ByteGroup],
    mins: &Mins,
    x: ByteTile,
    job: &ProductJob,
    target: &StripTarget,
) {
    let mut acc = [_mm512_setzero_ps(); N];
    let mut ints = [_mm512_setzero_si512(); N];
    let ByteTile { mut q, mut wholes, .. } = x;
    target.prefetch(job);
    // Assembly that stays in its order: the compiler would begin the next sums before it ends these, with registers that
    // there are not.
    macro_rules! add_fours {
        ($group:expr, $($i:literal $at:literal)*) => {
            $({
                let four = _mm512_load_si512($group.fours[$i].as_ptr().cast());
                add_four_512!(ints, four, q, $at);
            })*
        };
    }
    for group in groups {
        // SAFETY: a group of activation rows is ROWS_512 lines, and as many sums of it.
        unsafe {
            for n in 0..N {
                std::arch::asm!(
                    "vpbroadcastd {sum}, dword ptr [{from}]",
                    sum = out(zmm_reg) ints[n], from = in(reg) wholes.add(n), options(readonly, nostack, preserves_flags)
                );
            }
            add_fours!(group, 0 0 1 4 2 8 3 12 4 16 5 20 6 24 7 28);
            let d = _mm512_load_ps(group.d.as_ptr());
            for n in 0..N {
                std::arch::asm!(
                    "vcvtdq2ps {sum}, {sum}",
                    "vfmadd231ps {acc}, {sum}, {d}",
                    sum = inout(zmm_reg) ints[n] => _, acc = inout(zmm_reg) acc[n], d = in(zmm_reg) d,
                    options(nomem, nostack, preserves_flags)
                );
            }
        }
        q = q.wrapping_add(ROWS_512 * GROUP);
        wholes = wholes.wrapping_add(ROWS_512);
    }
    if HAS_MIN {
        let mut sums = x.sums;
        ints = [_mm512_setzero_si512(); N];
        for pair in &mins.pairs[..groups.len() / 2] {
            // SAFETY: a word a row for every two groups; sixteen numbers.
            unsafe {
                let pair = _mm512_load_si512(pair.0.as_ptr().cast());
                for n in 0..N {
                    std::arch::asm!(
                        "vpdpwssd {sum}, {pair}, dword ptr [{from}]{{1to16}}",
                        sum = inout(zmm_reg) ints[n], pair = in(zmm_reg) pair, from = in(reg) sums.add(n),
                        options(pure, readonly, nostack, preserves_flags)
                    );
                }
            }
            sums = sums.wrapping_add(ROWS_512);
        }
        // SAFETY: sixteen numbers.
        let unit = unsafe { _mm512_loadu_ps(mins.unit.as_ptr()) };
        for n in 0..N {
            acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(ints[n]), unit, acc[n]);
        }
    }
    for n in 0..N {
        // SAFETY: one step a row of the tile.
        acc[n] = _mm512_mul_ps(acc[n], _mm512_set1_ps(unsafe { *x.steps.add(n) }));
    }
    // SAFETY: the caller's promise.
    unsafe { put_512(&acc, job, target) };
}

/// Adds what a row's outliers make with `PAIRS` times two strips of weights.
///
/// # Safety
/// The CPU has AVX-512 F; places lie at `first_k` or after it, and the words of those weights are there.
#[target_feature(enable = "avx512f")]
unsafe fn add_outliers<const PAIRS: usize>(
    values: &[f32],
    places: &[u32],
    first_k: usize,
    words: &[Words],
    units: &[[f32; TILE_ROWS]; STRIPS],
    out: &mut [f32],
) {
    let mut acc = [[_mm512_setzero_ps(); 2]; PAIRS];
    for (value, place) in values.iter().zip(places) {
        let x = _mm512_set1_ps(*value);
        // SAFETY: the caller's promise.
        let column = unsafe { words.as_ptr().add((*place as usize - first_k) * PAIRS) };
        for p in 0..PAIRS {
            // SAFETY: one of `PAIRS` words.
            let word = unsafe { _mm512_load_si512(column.add(p).cast()) };
            acc[p][0] = _mm512_fmadd_ps(x, _mm512_cvtepi32_ps(word), acc[p][0]);
            acc[p][1] = _mm512_fmadd_ps(x, _mm512_cvtepi32_ps(_mm512_slli_epi32::<16>(word)), acc[p][1]);
        }
    }
    for ((acc, units), out) in acc.as_flattened().iter().zip(units).zip(out.chunks_mut(TILE_ROWS)) {
        let mask = (u32::MAX >> (32 - out.len())) as u16;
        // SAFETY: sixteen numbers; the mask leaves out columns past the last.
        unsafe {
            let old = _mm512_maskz_loadu_ps(mask, out.as_ptr());
            let new = _mm512_fmadd_ps(*acc, _mm512_loadu_ps(units.as_ptr()), old);
            _mm512_mask_storeu_ps(out.as_mut_ptr(), mask, new);
        }
    }
}
