//! Adds the same row to every row: biases of products, and the one embedding that all tokens of an encoder share.

use crate::view::SharedPtr;
use crate::{Error, Exec, View, ViewMut, numbers};

const OP: &str = "add_bias";

/// `x[r, c] += bias[c]`; `x` is `[n_rows, n_cols]`, `bias` `[1, n_cols]`, both f32.
pub fn add_bias(exec: Exec, x: &mut ViewMut, bias: View) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    bias.expect_shape(OP, "bias", [1, n_cols])?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return numbers::add_bias(gpu, OP, x, bias),
    };
    let bias = bias.f32s(OP, "bias")?;
    let x = SharedPtr::new(x.f32s(OP, "x")?);
    pool.run_ranges(n_rows, 32, |rows, _| {
        for row in rows {
            // SAFETY: each row belongs to one range and lies inside `x`.
            let x = unsafe { x.slice(row * n_cols, n_cols) };
            x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
    });
    Ok(())
}
