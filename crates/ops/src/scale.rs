//! `x *= factor`: some families scale their embeddings or their logits.

use crate::view::SharedPtr;
use crate::{Error, Exec, ViewMut, numbers};

const OP: &str = "scale";

/// `x` is `[n_rows, n_cols]`, f32. A factor of zero clears, whatever was there.
pub fn scale(exec: Exec, x: &mut ViewMut, factor: f32) -> Result<(), Error> {
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return numbers::scale(gpu, OP, x, factor),
    };
    let x = x.f32s(OP, "x")?;
    let n = x.len();
    let x = SharedPtr::new(x);
    pool.run_ranges(n, 1 << 14, |range, _| {
        // SAFETY: ranges do not overlap and lie inside `x`.
        let x = unsafe { x.slice(range.start, range.len()) };
        if factor == 0.0 {
            x.fill(0.0);
        } else {
            x.iter_mut().for_each(|x| *x *= factor);
        }
    });
    Ok(())
}
