//! A hard bound: every number is brought within `-limit` and `limit`.

use crate::view::SharedPtr;
use crate::{Error, Exec, ViewMut, numbers};

const OP: &str = "clamp";

/// `x` is `[n_rows, n_cols]`, f32; `limit` is above zero.
pub fn clamp(exec: Exec, x: &mut ViewMut, limit: f32) -> Result<(), Error> {
    if limit.is_nan() || limit <= 0.0 {
        return Err(Error::Argument { op: OP, what: format!("a limit of {limit}") });
    }
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return numbers::clamp(gpu, OP, x, limit),
    };
    let x = x.f32s(OP, "x")?;
    let n = x.len();
    let x = SharedPtr::new(x);
    pool.run_ranges(n, 1 << 14, |range, _| {
        // SAFETY: ranges do not overlap and lie inside `x`.
        let x = unsafe { x.slice(range.start, range.len()) };
        x.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
    });
    Ok(())
}
