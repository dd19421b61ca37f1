//! A branch joins the stream: `x += factor * y`. Families that norm or scale what a block gives cannot add in the product.

use crate::view::SharedPtr;
use crate::{Error, Exec, View, ViewMut, numbers};

const OP: &str = "add_scaled";

/// Both `[n_rows, n_cols]`, f32.
pub fn add_scaled(exec: Exec, x: &mut ViewMut, y: View, factor: f32) -> Result<(), Error> {
    y.expect_shape(OP, "y", x.shape)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return numbers::add_scaled(gpu, OP, x, y, factor),
    };
    let y = y.f32s(OP, "y")?;
    let x = SharedPtr::new(x.f32s(OP, "x")?);
    pool.run_ranges(y.len(), 1 << 14, |range, _| {
        // SAFETY: ranges do not overlap and lie inside `x`.
        let x = unsafe { x.slice(range.start, range.len()) };
        x.iter_mut().zip(&y[range]).for_each(|(x, y)| *x += factor * y);
    });
    Ok(())
}
