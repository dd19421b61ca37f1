//! Small products of f32 matrices in a cache, for the chunked forms of recurrences: one function that the compiler turns
//! into register tiles where it is inlined into code with FMA. Plain CPUs walk recurrences token by token instead.

/// Columns of a register tile: two vectors of eight.
const COLS: usize = 16;
/// Rows of one: with two vectors of the other factor and one number, twelve sums fill AVX2's registers.
const ROWS: usize = 6;

/// A matrix in row order; rows begin `stride` numbers apart.
#[derive(Copy, Clone)]
pub(crate) struct Rows<'a> {
    pub numbers: &'a [f32],
    pub stride: usize,
    pub n_rows: usize,
    pub n_cols: usize,
}

impl<'a> Rows<'a> {
    /// Rows without gaps.
    #[inline(always)]
    pub fn dense(numbers: &'a [f32], n_cols: usize) -> Self {
        Self { numbers, stride: n_cols, n_rows: numbers.len() / n_cols, n_cols }
    }
}

/// `out = scale * out + x * s` (0: whatever was there), row by row: `x` is `[n, depth]`, `s` `[depth, n_cols]`, `out` `[n, n_cols]` without gaps.
#[inline(always)]
pub(crate) fn add_product(x: Rows, s: Rows, scale: f32, out: &mut [f32]) {
    let n_cols = s.n_cols;
    debug_assert_eq!(x.n_cols, s.n_rows, "factors fit");
    let whole_cols = n_cols / COLS * COLS;
    let mut row = 0;
    while row + ROWS <= x.n_rows {
        for col in (0..whole_cols).step_by(COLS) {
            tile::<ROWS>(x, s, scale, (row, col), out);
        }
        row += ROWS;
    }
    while row < x.n_rows {
        for col in (0..whole_cols).step_by(COLS) {
            tile::<1>(x, s, scale, (row, col), out);
        }
        row += 1;
    }
    if whole_cols == n_cols {
        return;
    }
    for row in 0..x.n_rows {
        for col in whole_cols..n_cols {
            let x = &x.numbers[row * x.stride..][..x.n_cols];
            let sum: f32 = x.iter().enumerate().map(|(d, x)| x * s.numbers[d * s.stride + col]).sum();
            let out = &mut out[row * n_cols + col];
            *out = if scale == 0.0 { sum } else { scale * *out + sum };
        }
    }
}

#[inline(always)]
fn tile<const N: usize>(x: Rows, s: Rows, scale: f32, (row, col): (usize, usize), out: &mut [f32]) {
    let mut sums = [[0.0_f32; COLS]; N];
    let of_rows: [&[f32]; N] = std::array::from_fn(|i| &x.numbers[(row + i) * x.stride..][..x.n_cols]);
    for d in 0..x.n_cols {
        let s: &[f32; COLS] = s.numbers[d * s.stride + col..][..COLS].try_into().expect("a whole tile");
        for i in 0..N {
            let x = of_rows[i][d];
            for j in 0..COLS {
                sums[i][j] = x.mul_add(s[j], sums[i][j]);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        let out = &mut out[(row + i) * s.n_cols + col..][..COLS];
        match scale {
            0.0 => out.copy_from_slice(sums),
            _ => out.iter_mut().zip(sums).for_each(|(out, sum)| *out = scale.mul_add(*out, *sum)),
        }
    }
}
