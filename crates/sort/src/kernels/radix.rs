//! LSD radix sort, 8 bits a pass, stable, for waves of 32 and 64. A pass is four launches:
//! `histogram` counts the digits of each tile of keys and of each group of 128 tiles; `scan_groups` sums the groups up;
//! `scan_tiles` turns the counts of a group's tiles into places; `scatter` ranks the keys of a tile and sends them there.

use kernel::*;

use super::scan::exclusive_scan;

pub const DIGITS: u32 = 256;
pub const DIGIT_BITS: u32 = 8;
/// A thread for each digit.
pub const THREADS: u32 = DIGITS;
pub const ITEMS: u32 = 16;
pub const TILE: u32 = THREADS * ITEMS;
pub const TILES_PER_GROUP: u32 = 128;

/// What a key's bits mean.
pub const SIGNED: u32 = 1;
pub const FLOAT: u32 = 2;
pub const DESCENDING: u32 = 4;

/// Waves of 32 are the most: 8 of them, each with its own count of every digit.
const MAX_WAVES: u32 = THREADS / 32;
/// Shared memory of a scatter beside its keys or values: counts by wave, one place a digit, and what a scan needs.
const SCATTER_WORDS: u32 = MAX_WAVES * DIGITS + DIGITS + MAX_WAVES;

/// Shared memory of a scatter: that, and a tile of keys, or of values after them.
const fn scatter_words<K, V>() -> u32 {
    let widest = if size_of::<K>() > size_of::<V>() { size_of::<K>() } else { size_of::<V>() };
    SCATTER_WORDS + TILE * widest as u32 / 4
}

/// How the bits of a key become a number that orders as its value does: some are turned over in every key, some more in
/// those whose top bit is set.
#[derive(Clone, Copy)]
struct Turn<B> {
    every: B,
    negative: B,
}

trait Key: Copy {
    fn turn(kind: u32) -> Turn<Self>;
    fn digit(self, turn: Turn<Self>, shift: u32) -> u32;
}

macro_rules! keys {
    ($($bits:ty as $signed:ty;)*) => {$(
        impl Key for $bits {
            #[inline(always)]
            fn turn(kind: u32) -> Turn<Self> {
                const TOP: $bits = 1 << (<$bits>::BITS - 1);
                let top = if kind & (SIGNED | FLOAT) != 0 { TOP } else { 0 };
                let all = if kind & DESCENDING != 0 { <$bits>::MAX } else { 0 };
                // A negative float has all its bits turned over; any other signed number only the top one.
                Turn { every: top ^ all, negative: if kind & FLOAT != 0 { !TOP } else { 0 } }
            }

            #[inline(always)]
            fn digit(self, turn: Turn<Self>, shift: u32) -> u32 {
                let sign = (self as $signed >> (<$bits>::BITS - 1)) as $bits;
                let ordered = self ^ turn.every ^ (sign & turn.negative);
                (ordered >> (shift & (<$bits>::BITS - 1))) as u32 % DIGITS
            }
        }
    )*};
}
keys! {
    u8 as i8;
    u16 as i16;
    u32 as i32;
    u64 as i64;
}

/// counts[tile][digit] and groups[group][digit], which starts as zeros.
#[inline(always)]
fn histogram<K: Key>(keys: View<K>, kind: u32, shift: u32, counts: ViewMut<u32>, groups: ViewMut<u32>) {
    let turn = K::turn(kind);
    let bins = shared::<u32>(DIGITS);
    let (t, tile) = (thread(), block());
    let first = tile * TILE + t;
    let mine: [K; ITEMS as usize] = keys.gather(first, THREADS);
    bins.set(t, 0);
    barrier();
    for item in 0..ITEMS as usize {
        if first + item as u32 * THREADS < keys.len() {
            bins.fetch_add(mine[item].digit(turn, shift), 1);
        }
    }
    barrier();
    let count = bins.get(t);
    counts.set(tile * DIGITS + t, count);
    groups.fetch_add(tile / TILES_PER_GROUP * DIGITS + t, count);
}

/// Where the keys of tile `block()` go, `payload` with them. The order within a wave is (item, lane), so that reads are
/// coalesced and equal keys keep their order.
#[inline(always)]
fn scatter<K: Key, V: Copy>(
    keys: View<K>,
    kind: u32,
    shift: u32,
    places: View<u32>,
    out: ViewMut<K>,
    payload: Option<(View<V>, ViewMut<V>)>,
) {
    let turn = K::turn(kind);
    let words = shared::<u32>(scatter_words::<K, V>());
    let counts = words.part(0, MAX_WAVES * DIGITS);
    let bases = words.part(MAX_WAVES * DIGITS, DIGITS);
    let scratch = words.part(MAX_WAVES * DIGITS + DIGITS, MAX_WAVES);
    let staged = words.part(SCATTER_WORDS, scatter_words::<K, V>() - SCATTER_WORDS);
    let (t, n) = (thread(), keys.len());
    let wave = t / wave_size();
    let n_waves = THREADS / wave_size();
    let tile = block() * TILE;
    let first = tile + wave * wave_size() * ITEMS + lane();

    let mine: [K; ITEMS as usize] = keys.gather(first, wave_size());
    let mut w = 0;
    while w < n_waves {
        counts.set(w * DIGITS + t, 0);
        w += 1;
    }
    barrier();

    // Each key's rank among the equal digits of its wave, with the digit above it in one register. What is beyond the end
    // counts as the last digit, comes after all keys and is left there. Remainders of powers of two spare bounds checks.
    let mut ranks = [0; ITEMS as usize];
    for item in 0..ITEMS as usize {
        let i = first + item as u32 * wave_size();
        let digit = if i < n { mine[item].digit(turn, shift) } else { DIGITS - 1 };
        let same = match_any(digit, DIGIT_BITS);
        let leader = same.trailing_zeros();
        let mut before = 0;
        if lane() == leader {
            before = counts.fetch_add((wave * DIGITS + digit) % counts.len(), same.count_ones());
        }
        ranks[item] = digit << 16 | (shuffle(before, leader) + (same & lanes_below()).count_ones());
    }
    barrier();

    // Thread t sums digit t up over the waves, then the digits before it.
    let mut sum = 0;
    let mut w = 0;
    while w < n_waves {
        let count = counts.get(w * DIGITS + t);
        counts.set(w * DIGITS + t, sum);
        sum += count;
        w += 1;
    }
    let (start, _) = exclusive_scan(scratch, sum);
    let mut w = 0;
    while w < n_waves {
        counts.set(w * DIGITS + t, counts.get(w * DIGITS + t) + start);
        w += 1;
    }
    bases.set(t, places.get(block() * DIGITS + t).wrapping_sub(start));
    barrier();

    // Through shared memory, so that neighbours in the tile's order are written by neighbours.
    let staged_keys = staged.cast::<K>().part(0, TILE);
    for item in 0..ITEMS as usize {
        let (digit, rank) = (ranks[item] >> 16, ranks[item] & 0xffff);
        ranks[item] = (rank + counts.get((wave * DIGITS + digit) % counts.len())) % TILE;
        staged_keys.set(ranks[item], mine[item]);
    }
    barrier();
    let sorted: [K; ITEMS as usize] = staged_keys.gather(t, THREADS);
    let to: [u32; ITEMS as usize] =
        core::array::from_fn(|item| bases.get(sorted[item].digit(turn, shift)).wrapping_add(item as u32 * THREADS + t));
    let in_tile = (n - tile).min(TILE);
    put(out, in_tile, to, sorted);
    if let Some((values, out)) = payload {
        let mine: [V; ITEMS as usize] = values.gather(first, wave_size());
        let staged = staged.cast::<V>().part(0, TILE);
        barrier();
        for item in 0..ITEMS as usize {
            staged.set(ranks[item], mine[item]);
        }
        barrier();
        put(out, in_tile, to, staged.gather(t, THREADS));
    }
}

/// Values to their places, without those beyond the tile's end.
#[inline(always)]
fn put<T: Copy>(out: ViewMut<T>, in_tile: u32, to: [u32; ITEMS as usize], values: [T; ITEMS as usize]) {
    for item in 0..ITEMS as usize {
        if item as u32 * THREADS + thread() < in_tile {
            out.set(to[item], values[item]);
        }
    }
}

/// Rows a thread loads at once.
const BATCH: u32 = 16;

/// Replaces this thread's column of `table`, in the rows from `first` to `end`, by `sum` and what comes before each; gives
/// the sum of all.
#[inline(always)]
fn scan_column(table: ViewMut<u32>, first: u32, end: u32, mut sum: u32) -> u32 {
    let mut row = first;
    while row < end {
        let counts: [u32; BATCH as usize] = table.gather(row * DIGITS + thread(), DIGITS);
        for k in 0..BATCH {
            if row + k < end {
                table.set((row + k) * DIGITS + thread(), sum);
                sum += counts[k as usize];
            }
        }
        row += BATCH;
    }
    sum
}

kernel::kernels! {
    /// groups[group][digit] becomes the number of keys that come before the group's keys of that digit. One block.
    #[launch(threads = THREADS, shared = MAX_WAVES * 4)]
    fn scan_groups(groups: &mut [u32]) {
        let digit = thread();
        let n_groups = groups.len() / DIGITS;
        let total = scan_column(groups, 0, n_groups, 0);
        let (before, _) = exclusive_scan(shared(MAX_WAVES), total);
        let mut group = 0;
        while group < n_groups {
            let sums: [u32; BATCH as usize] = groups.gather(group * DIGITS + digit, DIGITS);
            for k in 0..BATCH {
                if group + k < n_groups {
                    groups.set((group + k) * DIGITS + digit, sums[k as usize] + before);
                }
            }
            group += BATCH;
        }
    }

    /// counts[tile][digit] becomes the place of the tile's first key of that digit. A block for each group.
    #[launch(threads = THREADS)]
    fn scan_tiles(groups: &[u32], counts: &mut [u32]) {
        let first = block() * TILES_PER_GROUP;
        let end = (first + TILES_PER_GROUP).min(counts.len() / DIGITS);
        scan_column(counts, first, end, groups.get(block() * DIGITS + thread()));
    }

    /// values[i] = i
    #[launch(threads = 256)]
    fn iota(values: &mut [u32]) {
        let i = global_id();
        if i < values.len() {
            values.set(i, i);
        }
    }
}

macro_rules! passes {
    ($($key:ty, $histogram:ident $scatter:ident $with_u32:ident $with_u64:ident;)*) => {
        kernel::kernels! {$(
            #[launch(threads = THREADS, shared = DIGITS * 4)]
            fn $histogram(keys: &[$key], kind: u32, shift: u32, counts: &mut [u32], groups: &mut [u32]) {
                histogram(keys, kind, shift, counts, groups)
            }

            #[launch(threads = THREADS, shared = scatter_words::<$key, u8>() * 4)]
            fn $scatter(keys: &[$key], kind: u32, shift: u32, places: &[u32], out: &mut [$key]) {
                scatter::<$key, u8>(keys, kind, shift, places, out, None)
            }

            #[launch(threads = THREADS, shared = scatter_words::<$key, u32>() * 4)]
            fn $with_u32(
                keys: &[$key], kind: u32, shift: u32, places: &[u32], out: &mut [$key], values: &[u32], to: &mut [u32],
            ) {
                scatter(keys, kind, shift, places, out, Some((values, to)))
            }

            #[launch(threads = THREADS, shared = scatter_words::<$key, u64>() * 4)]
            fn $with_u64(
                keys: &[$key], kind: u32, shift: u32, places: &[u32], out: &mut [$key], values: &[u64], to: &mut [u64],
            ) {
                scatter(keys, kind, shift, places, out, Some((values, to)))
            }
        )*}
    };
}
passes! {
    u8, histogram_u8 scatter_u8 scatter_u8_with_u32 scatter_u8_with_u64;
    u16, histogram_u16 scatter_u16 scatter_u16_with_u32 scatter_u16_with_u64;
    u32, histogram_u32 scatter_u32 scatter_u32_with_u32 scatter_u32_with_u64;
    u64, histogram_u64 scatter_u64 scatter_u64_with_u32 scatter_u64_with_u64;
}
