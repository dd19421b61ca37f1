//! Products of short numbers with wide sums: f16, bf16 and i8 factors.

use gpu::{Element, Vendor};
use half::{bf16, f16};

use super::{Algorithm, Blas, Compute, DataType, Operation, host, same};
use crate::error::{Error, Result, int};
use crate::view::{MatrixBatch, MatrixBatchMut, MatrixOrder};

/// What can be multiplied.
pub trait Factor: Element {
    const TYPE: DataType;
}

/// What a product of `F`s can be written as, and what its sums are kept in.
pub trait Product<F: Factor>: Element {
    /// The type of alpha, beta and the sums.
    type Sum: Element;
    const TYPE: DataType;
}

macro_rules! mixed {
    ($($factor:ty = $name:ident -> $($product:ty = $product_name:ident in $sum:ty),*;)*) => {$(
        impl Factor for $factor { const TYPE: DataType = DataType::$name; }
        $(impl Product<$factor> for $product { type Sum = $sum; const TYPE: DataType = DataType::$product_name; })*
    )*};
}

mixed! {
    f16 = F16 -> f16 = F16 in f32, f32 = F32 in f32;
    bf16 = BF16 -> bf16 = BF16 in f32, f32 = F32 in f32;
    f32 = F32 -> f32 = F32 in f32;
    i8 = I8 -> i32 = I32 in i32;
}

impl Blas {
    /// C = alpha A B + beta C for short factors, for every member of the batches; sums in f32, or i32 for i8.
    #[track_caller]
    pub fn gemm_mixed<F: Factor, P: Product<F>>(
        &self,
        alpha: P::Sum,
        a: MatrixBatch<'_, F>,
        b: MatrixBatch<'_, F>,
        beta: P::Sum,
        c: MatrixBatchMut<'_, P>,
    ) -> Result<()> {
        const CALL: &str = "gemm_mixed";
        same(CALL, "matrices in A and C", a.n, c.n)?;
        same(CALL, "matrices in B and C", b.n, c.n)?;
        let (a, b, c) = if c.first.shape.order == MatrixOrder::Rows { (b.t(), a.t(), c.t()) } else { (a, b, c) };
        let (shape_a, shape_b, shape_c) = (a.first.shape, b.first.shape, c.first.shape);
        same(CALL, "inner sizes", shape_a.columns, shape_b.rows)?;
        same(CALL, "outer sizes", shape_a.rows, shape_c.rows)?;
        same(CALL, "outer sizes", shape_b.columns, shape_c.columns)?;
        let (m, n) = (int(CALL, "a size", shape_c.rows)?, int(CALL, "a size", shape_c.columns)?);
        let (k, batch) = (int(CALL, "a size", shape_a.columns)?, int(CALL, "the batch", c.n)?);
        let step = |value: usize| int(CALL, "a matrix's step", value);
        let (lda, ldb, ldc) = (step(shape_a.step)?, step(shape_b.step)?, step(shape_c.step)?);
        let op =
            |order| self.choice(if order == MatrixOrder::Columns { Operation::None } else { Operation::Transpose });
        let (op_a, op_b) = (op(shape_a.order), op(shape_b.order));
        let at_a = self.binding.input(&a.first.data)?;
        let at_b = self.binding.input(&b.first.data)?;
        let at_c = self.binding.output(&c.first.data)?;
        let (stride_a, stride_b, stride_c) = (a.stride as i64, b.stride as i64, c.stride as i64);
        let vendor = self.binding.vendor();
        let (factor, product) = (F::TYPE.number(vendor), P::TYPE.number(vendor));
        let compute = if P::TYPE == DataType::I32 { Compute::I32 } else { Compute::F32 }.number(vendor);
        let algorithm = Algorithm::Default.number(vendor);
        let (alpha, beta, handle) = (host(&alpha), host(&beta), self.handle);
        self.enter()?;
        // SAFETY: views checked against memory of this queue, shapes against each other; scalars outlive the call.
        let done = unsafe {
            match vendor {
                Vendor::Amd => self.calls.gemm_mixed_amd(
                    handle, op_a, op_b, m, n, k, alpha, at_a, factor, lda, stride_a, at_b, factor, ldb, stride_b, beta,
                    at_c, product, ldc, stride_c, at_c, product, ldc, stride_c, batch, compute, algorithm, 0, 0,
                ),
                Vendor::Nvidia => self.calls.gemm_mixed_nvidia(
                    handle, op_a, op_b, m, n, k, alpha, at_a, factor, lda, stride_a, at_b, factor, ldb, stride_b, beta,
                    at_c, product, ldc, stride_c, batch, compute, algorithm,
                ),
            }
        };
        done.map_err(|error| match error {
            Error::Call { library, name, .. }
                if name.ends_with("NOT_SUPPORTED") || name.ends_with("not_implemented") =>
            {
                let what = format!("product of {:?} into {:?} for {m} x {n} x {k} on this device", F::TYPE, P::TYPE);
                Error::Unsupported { library, what }
            }
            other => other,
        })
    }
}
