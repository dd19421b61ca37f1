//! Products in f32 for many rows: a strip of weight rows is decoded once into a *panel*, where one vector holds the
//! same `k` of neighbouring rows, and stays in the cache while every activation row passes by.
//!
//! Plain numbers only; packed ones become integers in `unpacked`.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use crate::Isa;
use crate::cpu::matmul::{ProductInput, ProductJob, TASK_ROWS};
use crate::cpu::x86::tile;
use crate::formats::{Float, for_block};
use crate::matmul::Mode;

/// How much of `k` a panel holds: 32 rows of f32 in 128 KiB, a part of the second-level cache of any server or desktop.
const K_CHUNK: usize = 1024;

thread_local! {
    /// Each thread's panel, `[TASK_ROWS / width, k, width]`; taken once.
    static PANEL: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn cols(input: &ProductInput, job: &ProductJob, cols: Range<usize>) {
    PANEL.with_borrow_mut(|panel| {
        panel.resize(TASK_ROWS * K_CHUNK, 0.0);
        // SAFETY: `Isa` says what this CPU has; `matmul` checked every shape; `cols` are this task's alone.
        unsafe {
            if input.isa >= Isa::Avx512 {
                cols_of_width::<{ tile::WIDTH_512 }>(input, job, cols, panel);
            } else {
                cols_of_width::<{ tile::WIDTH_256 }>(input, job, cols, panel);
            }
        }
    });
}

/// # Safety
/// The CPU has AVX2, FMA and F16C, and AVX-512 for the greater width. `cols` starts at a multiple of `TASK_ROWS`, has
/// at most as many columns, and no other task writes them.
unsafe fn cols_of_width<const W: usize>(input: &ProductInput, job: &ProductJob, cols: Range<usize>, panel: &mut [f32]) {
    // SAFETY: the whole output; this task writes its own columns only.
    let out = unsafe { job.out.slice(0, input.n_rows * job.n_out) }.as_mut_ptr();
    for k0 in (0..input.n_in).step_by(K_CHUNK) {
        let n_k = (input.n_in - k0).min(K_CHUNK);
        for (part, first) in cols.clone().step_by(W).enumerate() {
            let panel = &mut panel[part * W * n_k..][..W * n_k];
            // SAFETY: the caller's promise; k0 is a multiple of every block length.
            unsafe { decode::<W>(job, first..cols.end.min(first + W), k0, n_k, panel) };
        }
        let adds = k0 > 0 || job.mode == Mode::Add;
        let max_rows = tile::max_rows::<W>();
        for first_row in (0..input.n_rows).step_by(max_rows) {
            for (part, first_col) in cols.clone().step_by(W).enumerate() {
                // SAFETY: rows and columns lie inside input and output.
                unsafe {
                    tile::product::<W>(&tile::PanelProduct {
                        n_rows: (input.n_rows - first_row).min(max_rows),
                        n_k,
                        x: input.x.as_ptr().add(first_row * input.n_in + k0),
                        x_stride: input.n_in,
                        panel: panel[part * W * n_k..].as_ptr(),
                        out: out.add(first_row * job.n_out + first_col),
                        out_stride: job.n_out,
                        n_cols: (cols.end - first_col).min(W),
                        adds,
                    });
                }
            }
        }
    }
}

/// Decodes `cols` x `k0..k0 + n_k` to `[n_k, W]`. Columns past the last repeat it; nobody stores their products.
///
/// # Safety
/// As [`cols_of_width`].
unsafe fn decode<const W: usize>(job: &ProductJob, cols: Range<usize>, k0: usize, n_k: usize, panel: &mut [f32]) {
    for eight in 0..W / 8 {
        let out = &mut panel[eight * 8..];
        let row = |i: usize| (cols.start + eight * 8 + i).min(cols.end - 1);
        let rows: [*const u8; 8] = std::array::from_fn(|i| job.weight[row(i) * job.stride..].as_ptr());
        for_block!(job.dtype,
            P => { let _: Option<P> = None; unreachable!("packed rows go to the portable kernel") },
            // SAFETY: each pointer starts a whole row.
            P => unsafe { decode_floats::<P, W>(rows, k0, n_k, out) }
        );
    }
}

/// # Safety
/// The CPU has AVX2 and F16C; the rows hold `k0 + n_k` weights.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode_floats<P: Float, const W: usize>(rows: [*const u8; 8], k0: usize, n_k: usize, out: &mut [f32]) {
    let n_whole = n_k / 8 * 8;
    for k in (0..n_whole).step_by(8) {
        let mut eight = [_mm256_setzero_ps(); 8];
        for r in 0..8 {
            // SAFETY: k0 + k + 8 weights lie inside each row.
            eight[r] = unsafe { P::load8(rows[r].add((k0 + k) * P::BYTES)) };
        }
        let columns = tile::transpose8(eight);
        let out = &mut out[k * W..][..7 * W + 8];
        for j in 0..8 {
            // SAFETY: column j starts at j * W and has eight numbers, inside `out`.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(j * W), columns[j]) };
        }
    }
    for k in n_whole..n_k {
        for (r, row) in rows.iter().enumerate() {
            // SAFETY: weight k0 + k lies inside the row.
            let bytes = unsafe { std::slice::from_raw_parts(row.add((k0 + k) * P::BYTES), P::BYTES) };
            out[k * W + r] = P::decode(bytes);
        }
    }
}
