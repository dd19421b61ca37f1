//! The work: a tensor's numbers out of its type and into another, rows side by side on all threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use weights::{Bytes, Checkpoint, Dtype, Tensor};

use super::{Importance, TypePlan};
use crate::Result;

/// Rows a thread takes at a time: small enough to balance, large enough to be worth taking.
const NUMBERS_EACH: usize = 1 << 16;

/// A tensor's bytes in another type. `tick` is called with the bytes done.
pub fn tensor(
    from: &Tensor,
    dtype: Dtype,
    importance: Option<&Importance>,
    n_threads: usize,
    tick: impl Fn(u64) + Sync,
) -> Vec<u8> {
    let (n_rows, n_cols) = (from.n_rows(), from.n_cols());
    let row_bytes = dtype.row_bytes(n_cols).expect("the plan chose a type that fits");
    let from_bytes = from.dtype.row_bytes(n_cols).expect("a tensor holds whole rows");
    let n_matrices: usize = from.shape.iter().rev().skip(2).product();
    let means = importance.and_then(|importance| importance.means(&from.name, n_matrices, n_cols));
    let rows_each_matrix = n_rows.checked_div(n_matrices).unwrap_or(0).max(1);
    let mut out = vec![0; n_rows * row_bytes];
    if out.is_empty() {
        return out;
    }
    let rows_each = (NUMBERS_EACH / n_cols.max(1)).max(1);
    let parts: Vec<std::sync::Mutex<Option<&mut [u8]>>> =
        out.chunks_mut(rows_each * row_bytes).map(|part| std::sync::Mutex::new(Some(part))).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..n_threads.clamp(1, parts.len()) {
            scope.spawn(|| {
                let mut numbers = vec![0.0; n_cols];
                loop {
                    let part_idx = next.fetch_add(1, Ordering::Relaxed);
                    let Some(part) = parts.get(part_idx) else { break };
                    let part = part.lock().expect("no thread panicked").take().expect("each part is taken once");
                    for (i, to) in part.chunks_exact_mut(row_bytes).enumerate() {
                        let row = part_idx * rows_each + i;
                        ops::quant::dequantize(from.dtype, &from.bytes[row * from_bytes..][..from_bytes], &mut numbers);
                        let matrix = row / rows_each_matrix;
                        let means = means.as_ref().map(|means| &means[matrix * n_cols..][..n_cols]);
                        ops::quant::quantize_for(dtype, &numbers, means, to);
                    }
                    tick(part.len() as u64);
                }
            });
        }
    });
    out
}

/// The same checkpoint in memory with its tensors in the plan's types.
pub fn checkpoint(from: &Checkpoint, plan: &TypePlan, n_threads: usize) -> Result<Checkpoint> {
    let mut tensors = Vec::with_capacity(from.tensors().len());
    for (old, &dtype) in from.tensors().iter().zip(&plan.types) {
        if dtype == old.dtype {
            tensors.push(old.clone());
            continue;
        }
        let bytes = tensor(old, dtype, None, n_threads, |_| ());
        old.bytes.release_pages();
        tensors.push(Tensor::new(old.name.clone(), dtype, old.shape.clone(), Bytes::from_vec(bytes))?);
    }
    Ok(from.with_tensors(tensors)?)
}
