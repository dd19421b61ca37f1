//! The kernels: for the host, functions that give typed calls; for a GPU, the root of what `roci-kernel-build` compiles.

use kernel::*;

kernel::kernels! {
    /// C = A B on the matrix units: each wave computes tiles of 16 by 16. A (`m` x `k`) and B (`k` x `n`) lie row after
    /// row.
    #[launch(threads = 128)]
    fn gemm(a: &[f16], b: &[f16], c: &mut [f32], m: u32, n: u32, k: u32) {
        each_tile(m, n, |row, column| {
            let mut sum = TileSum::zero();
            let mut step = 0;
            while step < k {
                let is_inside = row + 16 <= m && column + 16 <= n && step + 16 <= k;
                let of_b = if is_inside {
                    TileB::load_rows(b, step * n + column, n)
                } else {
                    let at = |r, c| (step + r) * n + column + c;
                    TileB::new(|r, c| if step + r < k && column + c < n { b.get(at(r, c)) } else { to_f16(0.0) })
                };
                sum = sum.plus(left(a, row, step, m, k, is_inside), of_b);
                step += 16;
            }
            write(sum, c, row, column, m, n);
        });
    }

    /// The same with a B that lies column after column, as the weights of networks do.
    #[launch(threads = 128)]
    fn gemm_of_columns(a: &[f16], b: &[f16], c: &mut [f32], m: u32, n: u32, k: u32) {
        each_tile(m, n, |row, column| {
            let mut sum = TileSum::zero();
            let mut step = 0;
            while step < k {
                let is_inside = row + 16 <= m && column + 16 <= n && step + 16 <= k;
                let of_b = if is_inside {
                    TileB::load_columns(b, column * k + step, k)
                } else {
                    let at = |r, c| (column + c) * k + step + r;
                    TileB::new(|r, c| if step + r < k && column + c < n { b.get(at(r, c)) } else { to_f16(0.0) })
                };
                sum = sum.plus(left(a, row, step, m, k, is_inside), of_b);
                step += 16;
            }
            write(sum, c, row, column, m, n);
        });
    }

    /// The sum of all values, in one launch: the block that comes last adds up what the others have left in `parts`, one
    /// number for each block. `done` begins as zero.
    #[launch(threads = 256, shared = 256 * 8)]
    fn sum(values: &[u32], parts: &mut [u64], done: &mut [u32], total: &mut [u64]) {
        let part = block_sum(values.len(), |i| values.get(i) as u64);
        if thread() == 0 {
            parts.set(block(), part);
            device_fence();
        }
        let is_last = is_true_for_first(|| done.fetch_add(0, 1) == blocks() - 1);
        if is_last {
            device_fence();
            // Of one block, but of as many values as there are parts.
            let sum = sum_of_block(strided(thread(), block_size(), parts.len(), |i| parts.get(i)));
            if thread() == 0 {
                total.set(0, sum);
            }
        }
    }

    /// The same for memory that other devices and the host read while this runs.
    #[launch(threads = 256, shared = 256 * 8)]
    fn sum_for_all(values: &[u32], parts: &mut [u64], done: &mut [u32], total: &mut [u64]) {
        let part = block_sum(values.len(), |i| values.get(i) as u64);
        if thread() == 0 {
            parts.set(block(), part);
            system_fence();
            let before = done.system().fetch_add(0, 1);
            if before == blocks() - 1 {
                system_fence();
                total.set(0, strided(0, 1, parts.len(), |i| parts.get(i)));
            }
        }
    }

    /// Every atomic on 64 bits: `found` gets a sum, the largest, the smallest, all bits, a count by compare-and-swap, and
    /// the sum of what swaps found.
    #[launch(threads = 128)]
    fn atomics_on_words(values: &[u64], found: &mut [u64]) {
        let i = global_id();
        if i < values.len() {
            let value = values.get(i);
            found.fetch_add(0, value);
            found.fetch_max(1, value);
            found.fetch_min(2, value);
            found.fetch_or(3, value);
            count(found, 4);
            let before = found.swap(5, value);
            found.fetch_add(6, before);
        }
    }

    /// The same with system scope.
    #[launch(threads = 128)]
    fn atomics_of_the_system(values: &[u64], found: &mut [u64]) {
        let i = global_id();
        if i < values.len() {
            let value = values.get(i);
            let found = found.system();
            found.fetch_add(0, value);
            found.fetch_max(1, value);
            found.fetch_min(2, value);
            found.fetch_or(3, value);
            count(found, 4);
            let before = found.swap(5, value);
            found.fetch_add(6, before);
        }
    }

    /// The same in the block's own memory.
    #[launch(threads = 128, shared = 64)]
    fn atomics_of_a_block(values: &[u64], found: &mut [u64]) {
        let own = shared::<u64>(8);
        if thread() < 8 {
            own.set(thread(), if thread() == 2 { !0 } else { 0 });
        }
        barrier();
        let mut i = thread();
        while i < values.len() {
            let value = values.get(i);
            own.fetch_add(0, value);
            own.fetch_max(1, value);
            own.fetch_min(2, value);
            own.fetch_or(3, value);
            count(own, 4);
            let before = own.swap(5, value);
            own.fetch_add(6, before);
            i += block_size();
        }
        barrier();
        if thread() < 7 {
            found.set(thread(), own.get(thread()));
        }
    }

    /// Sums of floats: in the block's memory, then of all blocks, with device scope and with system scope.
    #[launch(threads = 128, shared = 4)]
    fn float_sums(values: &[f32], sums: &mut [f32]) {
        let own = shared::<f32>(1);
        if thread() == 0 {
            own.set(0, 0.0);
        }
        barrier();
        let i = global_id();
        if i < values.len() {
            own.fetch_add(0, values.get(i));
        }
        barrier();
        if thread() == 0 {
            sums.fetch_add(0, own.get(0));
            sums.system().fetch_add(1, own.get(0));
        }
    }
}

/// Gives each wave of the grid the first row and column of its tiles, one after the other.
#[inline(always)]
fn each_tile(m: u32, n: u32, with: impl Fn(u32, u32)) {
    let (rows, columns) = (m.div_ceil(16), n.div_ceil(16));
    let waves = blocks() * block_size() / wave_size();
    let mut tile = global_id() / wave_size();
    while tile < rows * columns {
        with(tile / columns * 16, tile % columns * 16);
        tile += waves;
    }
}

/// A tile of A from `row` and `column` on, zero outside of the matrix.
#[inline(always)]
fn left(a: View<f16>, row: u32, column: u32, m: u32, k: u32, is_inside: bool) -> TileA {
    if is_inside {
        return TileA::load(a, row * k + column, k);
    }
    TileA::new(|r, c| if row + r < m && column + c < k { a.get((row + r) * k + column + c) } else { to_f16(0.0) })
}

#[inline(always)]
fn write(sum: TileSum, c: ViewMut<f32>, row: u32, column: u32, m: u32, n: u32) {
    sum.each(|r, at, value| {
        if row + r < m && column + at < n {
            c.set((row + r) * n + column + at, value);
        }
    });
}

/// The sum of every `stride`th value from `first` on.
#[inline(always)]
fn strided(first: u32, stride: u32, len: u32, value: impl Fn(u32) -> u64) -> u64 {
    let (mut i, mut sum) = (first, 0);
    while i < len {
        sum += value(i);
        i += stride;
    }
    sum
}

/// The block's share of the values: every `blocks()`th run of a block's length.
#[inline(always)]
fn block_sum(len: u32, value: impl Fn(u32) -> u64) -> u64 {
    sum_of_block(strided(global_id(), blocks() * block_size(), len, value))
}

/// The sum of every thread's number, for all of them.
#[inline(always)]
fn sum_of_block(mine: u64) -> u64 {
    let all = shared::<u64>(256);
    all.set(thread(), mine);
    barrier();
    let mut half = block_size() / 2;
    while half > 0 {
        if thread() < half {
            all.set(thread(), all.get(thread()) + all.get(thread() + half));
        }
        barrier();
        half /= 2;
    }
    let sum = all.get(0);
    barrier();
    sum
}

/// What the block's first thread says, for all of them.
#[inline(always)]
fn is_true_for_first(say: impl Fn() -> bool) -> bool {
    let said = shared::<u32>(1);
    if thread() == 0 {
        said.set(0, say() as u32);
    }
    barrier();
    let answer = said.get(0) == 1;
    barrier();
    answer
}

/// Adds one by comparing and swapping.
#[inline(always)]
fn count(words: impl AtomicView<Value = u64>, i: u32) {
    let mut seen = 0;
    loop {
        let found = words.compare_swap(i, seen, seen + 1);
        if found == seen {
            return;
        }
        seen = found;
    }
}
