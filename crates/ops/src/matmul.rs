//! Products of activations with weights: `out[r, o] = sum_k x[r, k] * weight[o, k]`.
//!
//! Few rows and many rows are different problems. Few rows (decode) are limited by reading the weights, many rows
//! (prompts) by arithmetic. `plan.rs` decides which kernel multiplies; the kernels are in `cpu/` and `gpu/`.
//!
//! The arithmetic is chosen for faithfulness. Where integers are used, activations are rounded to 16 bits with a scale
//! per 32 of them (with AVX-512 and many rows: 13 to 16 bits with a scale for up to 256), but never simply to 8 bits,
//! which changes the text of models with outliers. For weight types that are too slow with 16 bits, products that may
//! be coarse use bytes for small activations and f32 for outliers (`clipped`). Weights are not rounded again, except
//! those that are multiplied by an outlier there: to 15 bits of a row's largest.

use crate::cpu::left::HostLeft;
use crate::cpu::matmul::{check_weight, matmul_cpu};
use crate::embed::expect_device_layout;
use crate::gpu::left::DeviceLeft;
use crate::gpu::{blas, float_tiles, matrix_tiles, matvec, mma, wide};
use crate::plan::{self, BlasTypes, Machine, ProductChip, ProductKernel, ProductPlan, ProductShape, Weight};
use crate::{Activation, Error, Exec, Gpu, View, ViewMut, glu, observe, rmsnorm, swiglu};

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
    check_shapes(x.shape, products)?;
    for product in products.iter_mut() {
        let Exec::Cpu(pool) = exec else { continue };
        check_weight(pool, &product.weight)?;
        product.out.f32s(OP, "out")?;
    }
    let [n_rows, n_in] = x.shape;
    if n_rows == 0 || n_in == 0 {
        return Ok(());
    }
    let plan = plan_of(exec, x.shape, products);
    match exec {
        Exec::Cpu(pool) => {
            let x = x.f32s(OP, "x")?;
            observe::see(x, n_in, products.iter().filter_map(|product| product.weight.host_bytes(OP, "weight").ok()));
            matmul_cpu(pool, HostLeft::Rows(x), [n_rows, n_in], products, &plan)
        }
        Exec::Gpu(gpu) => {
            gpu.launcher.count(work(x.shape, products));
            launch_gpu(gpu, DeviceLeft::Rows(x), products, &plan).map(|_| ())
        }
    }
}

/// Products of `h = rmsnorm(x)`. Where `h` can be computed on the way into the product it is not written at all: nobody
/// else may read it.
pub fn norm_matmul(
    exec: Exec,
    x: View,
    weight: View,
    eps: f32,
    h: &mut ViewMut,
    products: &mut [Product],
) -> Result<(), Error> {
    let plan = plan_of(exec, x.shape, products);
    if fuses(exec, &plan) {
        weight.expect_shape(OP, "weight", [1, x.n_cols()])?;
        check_shapes(x.shape, products)?;
        match exec {
            Exec::Cpu(pool) => {
                let left = HostLeft::Norm { x: x.f32s(OP, "x")?, weight: weight.f32s(OP, "weight")?, eps };
                return matmul_cpu(pool, left, x.shape, products, &plan);
            }
            Exec::Gpu(gpu) => {
                gpu.launcher.count(work(x.shape, products));
                if launch_gpu(gpu, DeviceLeft::Norm { x, weight, eps }, products, &plan)? {
                    return Ok(());
                }
            }
        }
    }
    rmsnorm(exec, x, weight, eps, h)?;
    matmul(exec, h.as_view(), products)
}

/// Products of `gate = silu(gate) * up`; otherwise as [`norm_matmul`].
pub fn swiglu_matmul(exec: Exec, gate: &mut ViewMut, up: View, products: &mut [Product]) -> Result<(), Error> {
    let shape = gate.shape;
    let plan = plan_of(exec, shape, products);
    if fuses(exec, &plan) {
        up.expect_shape(OP, "up", shape)?;
        check_shapes(shape, products)?;
        match exec {
            Exec::Cpu(pool) => {
                let left = HostLeft::Gated { gate: gate.f32s(OP, "gate")?, up: up.f32s(OP, "up")? };
                return matmul_cpu(pool, left, shape, products, &plan);
            }
            Exec::Gpu(gpu) => {
                gpu.launcher.count(work(shape, products));
                let left = DeviceLeft::Gated { activation: Activation::Silu, gate: gate.as_view(), up };
                if launch_gpu(gpu, left, products, &plan)? {
                    return Ok(());
                }
            }
        }
    }
    swiglu(exec, gate, up)?;
    matmul(exec, gate.as_view(), products)
}

/// Products of `gate = activation(gate) * up`; otherwise as [`norm_matmul`].
pub fn glu_matmul(
    exec: Exec,
    activation: Activation,
    gate: &mut ViewMut,
    up: View,
    products: &mut [Product],
) -> Result<(), Error> {
    if activation == Activation::Silu {
        return swiglu_matmul(exec, gate, up, products);
    }
    let shape = gate.shape;
    let plan = plan_of(exec, shape, products);
    let kernels = [ProductKernel::Matvec, ProductKernel::Mma, ProductKernel::Wide];
    if let Exec::Gpu(gpu) = exec
        && plan.fuses_left
        && kernels.into_iter().any(|kernel| plan.is(kernel))
        && !matches!(activation, Activation::Xielu(_))
    {
        up.expect_shape(OP, "up", shape)?;
        check_shapes(shape, products)?;
        gpu.launcher.count(work(shape, products));
        return launch_gpu(gpu, DeviceLeft::Gated { activation, gate: gate.as_view(), up }, products, &plan)
            .map(|_| ());
    }
    glu(exec, activation, gate, up)?;
    matmul(exec, gate.as_view(), products)
}

/// Hands the products to the planned kernels of a GPU. `false` if the vendor's library failed on a left side that is not
/// plain rows: the products are still to be computed.
fn launch_gpu(gpu: &Gpu, left: DeviceLeft, products: &mut [Product], plan: &ProductPlan) -> Result<bool, Error> {
    for product in products.iter() {
        expect_device_layout(OP, &product.weight)?;
    }
    if left.shape().contains(&0) {
        return Ok(true);
    }
    if let Some(refused) = plan.refused {
        gpu.kernels.refuse(refused.to_string());
    }
    let _op = gpu.launcher.op(OP);
    if plan.is(ProductKernel::Mma) {
        return mma::launch(gpu, left, products).map(|()| true);
    }
    if plan.is(ProductKernel::Wide) {
        return wide::launch(gpu, left, products).map(|()| true);
    }
    if plan.is(ProductKernel::Matvec) {
        return matvec::launch(gpu, left, products).map(|()| true);
    }
    let mut made = blas::LeftInF16::default();
    for (product, kernel) in products.iter_mut().zip(&plan.kernels) {
        if product.weight.n_rows() == 0 {
            continue;
        }
        match (kernel, left) {
            (ProductKernel::Blas, _) => {
                let is_done = blas::launch(gpu, left, &mut made, product)?;
                let DeviceLeft::Rows(x) = left else {
                    if is_done {
                        continue;
                    }
                    return Ok(false);
                };
                if !is_done {
                    many_rows(gpu, x, product, without_blas(gpu, x.shape, product))?;
                }
            }
            (_, DeviceLeft::Rows(x)) => many_rows(gpu, x, product, *kernel)?,
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// The kernel for a product that the library was meant for and failed on.
fn without_blas(gpu: &Gpu, [n_rows, n_in]: [usize; 2], product: &Product) -> ProductKernel {
    let chip = ProductChip { blas: BlasTypes::default(), ..chip(gpu) };
    let weights = [product.weight.kind()];
    let shape = ProductShape { n_rows, n_in, weights: &weights, may_be_coarse: false };
    plan::plan(Machine::Gpu(chip), gpu.kernels.numerics(), &shape).kernels[0]
}

fn many_rows(gpu: &Gpu, x: View, product: &mut Product, kernel: ProductKernel) -> Result<(), Error> {
    match kernel {
        ProductKernel::MatrixTiles => matrix_tiles::launch(gpu, x, product),
        ProductKernel::Mma => mma::launch(gpu, DeviceLeft::Rows(x), std::slice::from_mut(product)),
        ProductKernel::Wide => wide::launch(gpu, DeviceLeft::Rows(x), std::slice::from_mut(product)),
        ProductKernel::Matvec => matvec::launch(gpu, DeviceLeft::Rows(x), std::slice::from_mut(product)),
        _ => float_tiles::launch(gpu, x, product),
    }
}

/// What a plan has to know of this device.
fn chip(gpu: &Gpu) -> ProductChip {
    let device = gpu.kernels.device();
    let can = |kinds| gpu.blas.is_some_and(|blas| blas.can(kinds));
    ProductChip {
        tuning: gpu.kernels.tuning,
        has_matrix_units: device.has_matrix_units(),
        has_wgmma: device.has_wgmma(),
        blas: BlasTypes { is_there: gpu.blas.is_some(), halves: can(blas::HALVES), floats: can(blas::FLOATS) },
        activation_bytes: gpu.workspace.borrow().activations.len(),
    }
}

/// What each product's kernel depends on.
pub(crate) fn weights_of(products: &[Product]) -> Vec<Weight> {
    products.iter().map(|product| product.weight.kind()).collect()
}

fn plan_of(exec: Exec, [n_rows, n_in]: [usize; 2], products: &[Product]) -> ProductPlan {
    let weights = weights_of(products);
    let may_be_coarse = products.iter().all(|product| product.may_be_coarse);
    let machine = match exec {
        Exec::Cpu(pool) => Machine::Cpu(pool.isa()),
        Exec::Gpu(gpu) => Machine::Gpu(chip(gpu)),
    };
    plan::plan(machine, exec.numerics(), &ProductShape { n_rows, n_in, weights: &weights, may_be_coarse })
}

/// A norm that is computed on the way is never written, so observers of activations on a CPU do not see it.
fn fuses(exec: Exec, plan: &ProductPlan) -> bool {
    plan.fuses_left && !(matches!(exec, Exec::Cpu(_)) && observe::is_on())
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
