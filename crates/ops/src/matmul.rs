//! Products of activations with weights: `out[r, o] = sum_k x[r, k] * weight[o, k]`.
//!
//! Few rows and many rows are different problems. Few rows (decode) are bound by reading the weights, many rows
//! (prompts) by arithmetic. Eight kernels share the work:
//! - `strip`: packed weights in tiles, unpacked in registers, 16-bit integers; some rows;
//! - `unpacked`: the same weights unpacked once into pairs of 16 bits, then used for every row; many rows;
//! - `crossed`: as `unpacked` with half the multiplications, on AMD's cores;
//! - `bytes`: packed weights of two types against bytes and outliers, with AVX-512; still more rows;
//! - `panel`: plain numbers as f32 in a layout for the registers, used for every row; many rows;
//! - `dot`: plain numbers (F32, F16, BF16), few rows;
//! - `neon`: all of these on 64-bit ARM, from rows;
//! - `plain`: portable Rust for everything else.
//!
//! Faithfulness decides the arithmetic: activations are rounded to 16 bits per 32 of them where integers are used (many
//! rows with AVX-512: 13 to 16 bits per up to 256 of them), never plainly to 8 (a model with outliers shows the difference
//! in its text): the types that 16 bits cannot serve fast enough get bytes for what is small and f32 for what is not
//! (`clipped`), where a product may be coarse. Weights are never rounded again, but for those that meet an outlier there:
//! to 15 bits of a row's largest.

use crate::cpu::left::{self, Left};
use crate::cpu::matmul::{check_weight, matmul_cpu};
use crate::gpu::matmul as launch;
use crate::{Error, Exec, View, ViewMut, observe, rmsnorm, swiglu};

pub(crate) const OP: &str = "matmul";

/// One weight matrix and where its product goes.
pub struct Product<'w, 'o> {
    /// `[n_out, n_in]`
    pub weight: View<'w>,
    /// `[n_rows, n_out]`, f32
    pub out: ViewMut<'o>,
    pub mode: Mode,
    /// Whether activations may go in bytes, outliers apart, where the type of the weights gains by it.
    pub may_be_coarse: bool,
}

impl<'w, 'o> Product<'w, 'o> {
    pub fn write(weight: View<'w>, out: ViewMut<'o>) -> Self {
        Self { weight, out, mode: Mode::Write, may_be_coarse: false }
    }

    pub fn add(weight: View<'w>, out: ViewMut<'o>) -> Self {
        Self { weight, out, mode: Mode::Add, may_be_coarse: false }
    }

    /// For products that are most of a prompt's work and little of its error: those of a feed-forward layer, which make 80 %
    /// of the one and half of the other.
    pub fn coarse(self) -> Self {
        Self { may_be_coarse: true, ..self }
    }
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Mode {
    Write,
    /// Add to what is there: the residual connection.
    Add,
}

/// Several products of the same `x` (`[n_rows, n_in]`, f32) in one parallel region.
pub fn matmul(exec: Exec, x: View, products: &mut [Product]) -> Result<(), Error> {
    let [n_rows, n_in] = x.shape;
    for product in products.iter_mut() {
        let n_out = product.weight.n_rows();
        product.weight.expect_shape(OP, "weight", [n_out, n_in])?;
        product.out.expect_shape(OP, "out", [n_rows, n_out])?;
        let Exec::Cpu(pool) = exec else { continue };
        check_weight(pool, &product.weight)?;
        product.out.f32s(OP, "out")?;
    }
    if n_rows == 0 || n_in == 0 {
        return Ok(());
    }
    match exec {
        Exec::Cpu(pool) => {
            let x = x.f32s(OP, "x")?;
            observe::see(x, n_in, products.iter().filter_map(|product| product.weight.host_bytes(OP, "weight").ok()));
            matmul_cpu(pool, Left::Plain(x), [n_rows, n_in], products)
        }
        Exec::Gpu(gpu) => {
            gpu.launcher.count(work(x.shape, products));
            launch::launch(gpu, x, products)
        }
    }
}

/// Products of `h = rmsnorm(x)`. Where `h` can be made on the way into the product it is not written at all: nobody else
/// may read it.
pub fn norm_matmul(
    exec: Exec,
    x: View,
    weight: View,
    eps: f32,
    h: &mut ViewMut,
    products: &mut [Product],
) -> Result<(), Error> {
    if let Exec::Gpu(gpu) = exec {
        let left = launch::Left::Norm(x, weight, eps);
        if launch::takes_left(gpu, left, products) {
            weight.expect_shape(OP, "weight", [1, x.n_cols()])?;
            check_shapes(x.shape, products)?;
            gpu.launcher.count(work(x.shape, products));
            if launch::fused(gpu, left, products)? {
                return Ok(());
            }
        }
    }
    if let Exec::Cpu(pool) = exec
        && left::fuses(x.shape, products)
        && !observe::is_on()
    {
        weight.expect_shape(OP, "weight", [1, x.n_cols()])?;
        check_shapes(x.shape, products)?;
        let left = Left::Norm { x: x.f32s(OP, "x")?, weight: weight.f32s(OP, "weight")?, eps };
        return matmul_cpu(pool, left, x.shape, products);
    }
    rmsnorm(exec, x, weight, eps, h)?;
    matmul(exec, h.as_view(), products)
}

/// Products of `gate = silu(gate) * up`; else as [`norm_matmul`].
pub fn swiglu_matmul(exec: Exec, gate: &mut ViewMut, up: View, products: &mut [Product]) -> Result<(), Error> {
    if let Exec::Gpu(gpu) = exec {
        let left = launch::Left::Gated(gate.as_view(), up);
        if launch::takes_left(gpu, left, products) {
            up.expect_shape(OP, "up", gate.shape)?;
            check_shapes(gate.shape, products)?;
            gpu.launcher.count(work(gate.shape, products));
            if launch::fused(gpu, left, products)? {
                return Ok(());
            }
        }
    }
    if let Exec::Cpu(pool) = exec
        && left::fuses(gate.shape, products)
        && !observe::is_on()
    {
        up.expect_shape(OP, "up", gate.shape)?;
        check_shapes(gate.shape, products)?;
        let shape = gate.shape;
        let left = Left::Gated { gate: gate.f32s(OP, "gate")?, up: up.f32s(OP, "up")? };
        return matmul_cpu(pool, left, shape, products);
    }
    swiglu(exec, gate, up)?;
    matmul(exec, gate.as_view(), products)
}

fn check_shapes([n_rows, n_in]: [usize; 2], products: &[Product]) -> Result<(), Error> {
    for product in products {
        let n_out = product.weight.n_rows();
        product.weight.expect_shape(OP, "weight", [n_out, n_in])?;
        product.out.expect_shape(OP, "out", [n_rows, n_out])?;
    }
    Ok(())
}

/// The weights once, what goes in and what comes out; two operations a weight and row.
fn work([n_rows, n_in]: [usize; 2], products: &[Product]) -> gpu::Work {
    let n_out: usize = products.iter().map(|product| product.weight.n_rows()).sum();
    let weights: u64 = products.iter().map(|product| product.weight.n_bytes()).sum();
    gpu::Work {
        bytes: weights + 4 * (n_rows * (n_in + n_out)) as u64,
        flops: 2 * n_rows as u64 * n_in as u64 * n_out as u64,
    }
}
