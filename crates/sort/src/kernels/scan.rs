//! Prefix sums. Three launches: `scan_tiles` scans each tile and notes its sum, `scan_sums` scans those in one block,
//! `add_sums` adds to each tile what came before it.

use kernel::*;

pub const THREADS: u32 = 256;
pub const ITEMS: u32 = 8;
pub const TILE: u32 = THREADS * ITEMS;

/// The sum of `value` over the threads before this one, and over the whole block of 256. `scratch` has one entry a wave.
#[inline(always)]
pub fn exclusive_scan(scratch: Shared<u32>, value: u32) -> (u32, u32) {
    let mut sum = value;
    let mut step = 1;
    while step < wave_size() {
        let other = shuffle(sum, lane().wrapping_sub(step) % wave_size());
        if lane() >= step {
            sum += other;
        }
        step *= 2;
    }
    let wave = thread() / wave_size();
    if lane() == wave_size() - 1 {
        scratch.set(wave, sum);
    }
    barrier();
    let (mut before, mut all) = (0, 0);
    let mut w = 0;
    while w < block_size() / wave_size() {
        if w == wave {
            before = all;
        }
        all += scratch.get(w);
        w += 1;
    }
    barrier();
    (before + sum - value, all)
}

trait Sum: Copy {
    const ZERO: Self;
    fn plus(self, other: Self) -> Self;
}

macro_rules! sums {
    ($($ty:ty = $zero:expr, |$a:ident, $b:ident| $sum:expr;)*) => {$(
        impl Sum for $ty {
            const ZERO: Self = $zero;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $sum
            }
        }
    )*};
}
sums! {
    u32 = 0, |a, b| a.wrapping_add(b);
    u64 = 0, |a, b| a.wrapping_add(b);
    f32 = 0.0, |a, b| a + b;
    f64 = 0.0, |a, b| a + b;
}

/// The sum over the threads before this one and over the block, for any type. `scratch` has one entry a thread.
#[inline(always)]
fn block_scan<T: Sum>(scratch: Shared<T>, value: T) -> (T, T) {
    let t = thread();
    scratch.set(t, value);
    barrier();
    let mut step = 1;
    while step < THREADS {
        let before = if t >= step { scratch.get(t - step) } else { T::ZERO };
        barrier();
        scratch.set(t, before.plus(scratch.get(t)));
        barrier();
        step *= 2;
    }
    let before = if t > 0 { scratch.get(t - 1) } else { T::ZERO };
    let all = scratch.get(THREADS - 1);
    barrier();
    (before, all)
}

/// Each thread has 8 neighbouring values. With `inclusive` = 1 a value counts itself.
#[inline(always)]
fn scan_tile<T: Sum>(values: ViewMut<T>, inclusive: u32, sums: ViewMut<T>) {
    let first = block() * TILE + thread() * ITEMS;
    let mut own = T::ZERO;
    for i in first..values.len().min(first + ITEMS) {
        own = own.plus(values.get(i));
    }
    let (mut before, all) = block_scan(shared(THREADS), own);
    for i in first..values.len().min(first + ITEMS) {
        let value = values.get(i);
        let after = before.plus(value);
        values.set(i, if inclusive == 1 { after } else { before });
        before = after;
    }
    if thread() == 0 {
        sums.set(block(), all);
    }
}

#[inline(always)]
fn scan_all<T: Sum>(sums: ViewMut<T>) {
    let (mut first, mut carry) = (0, T::ZERO);
    while first < sums.len() {
        let i = first + thread();
        let value = if i < sums.len() { sums.get(i) } else { T::ZERO };
        let (before, all) = block_scan(shared(THREADS), value);
        if i < sums.len() {
            sums.set(i, carry.plus(before));
        }
        carry = carry.plus(all);
        first += THREADS;
    }
}

#[inline(always)]
fn add<T: Sum>(values: ViewMut<T>, sums: View<T>) {
    let before = sums.get(block());
    let first = block() * TILE + thread();
    for item in 0..ITEMS {
        let i = first + item * THREADS;
        if i < values.len() {
            values.set(i, before.plus(values.get(i)));
        }
    }
}

macro_rules! scans {
    ($($ty:ty, $tiles:ident $sums:ident $add:ident;)*) => {
        kernel::kernels! {$(
            #[launch(threads = THREADS, shared = THREADS * 8)]
            fn $tiles(values: &mut [$ty], inclusive: u32, sums: &mut [$ty]) {
                scan_tile(values, inclusive, sums)
            }

            #[launch(threads = THREADS, shared = THREADS * 8)]
            fn $sums(sums: &mut [$ty]) {
                scan_all(sums)
            }

            #[launch(threads = THREADS)]
            fn $add(values: &mut [$ty], sums: &[$ty]) {
                add(values, sums)
            }
        )*}
    };
}
scans! {
    u32, scan_tiles_u32 scan_sums_u32 add_sums_u32;
    u64, scan_tiles_u64 scan_sums_u64 add_sums_u64;
    f32, scan_tiles_f32 scan_sums_f32 add_sums_f32;
    f64, scan_tiles_f64 scan_sums_f64 add_sums_f64;
}
