//! Vectors and matrices as views of device memory, with shapes and strides checked when they are made.
//!
//! A matrix says which way it lies in memory; transposing it changes the view and moves nothing. So a
//! product of row-major and column-major matrices needs neither copies nor flags.

use gpu::{Element, Slice, SliceMut};

use crate::error::{Result, ensure};

/// Which elements of a matrix are neighbours in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatrixOrder {
    /// Those of a row, as in C and Rust.
    Rows,
    /// Those of a column, as in Fortran and BLAS.
    Columns,
}

impl MatrixOrder {
    /// The order of the transposed matrix.
    pub fn flipped(self) -> Self {
        match self {
            MatrixOrder::Rows => MatrixOrder::Columns,
            MatrixOrder::Columns => MatrixOrder::Rows,
        }
    }
}

/// `len` elements, `step` apart.
#[derive(Clone, Copy, Debug)]
pub struct Vector<'a, T: Element> {
    pub(crate) data: Slice<'a, T>,
    pub(crate) len: usize,
    pub(crate) step: usize,
}

/// A vector that is written.
#[derive(Debug)]
pub struct VectorMut<'a, T: Element> {
    pub(crate) data: SliceMut<'a, T>,
    pub(crate) len: usize,
    pub(crate) step: usize,
}

#[track_caller]
fn strided(elements: usize, len: usize, step: usize) -> Result<()> {
    let last = len.saturating_sub(1).checked_mul(step).and_then(|n| n.checked_add(len.min(1)));
    ensure("vector", step > 0 && last.is_some_and(|last| last <= elements), || {
        format!("{len} elements, {step} apart, in {elements}")
    })
}

macro_rules! vector_functions {
    ($vector:ident, $slice:ident) => {
        impl<'a, T: Element> $vector<'a, T> {
            /// All elements of a slice.
            pub fn new(data: $slice<'a, T>) -> Self {
                Self { len: data.len(), data, step: 1 }
            }

            /// Every `step`-th element of a slice, `len` of them.
            #[track_caller]
            pub fn strided(data: $slice<'a, T>, len: usize, step: usize) -> Result<Self> {
                strided(data.len(), len, step)?;
                Ok(Self { data, len, step })
            }

            pub fn len(&self) -> usize {
                self.len
            }

            pub fn is_empty(&self) -> bool {
                self.len == 0
            }
        }

        impl<'a, T: Element> From<$slice<'a, T>> for $vector<'a, T> {
            fn from(data: $slice<'a, T>) -> Self {
                Self::new(data)
            }
        }
    };
}

vector_functions!(Vector, Slice);
vector_functions!(VectorMut, SliceMut);

/// What both kinds of matrix say about their memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MatrixShape {
    pub rows: usize,
    pub columns: usize,
    /// From one row (or column) to the next.
    pub step: usize,
    pub order: MatrixOrder,
}

impl MatrixShape {
    fn dense(rows: usize, columns: usize, order: MatrixOrder) -> Self {
        let inner = if order == MatrixOrder::Rows { columns } else { rows };
        Self { rows, columns, step: inner.max(1), order }
    }

    #[track_caller]
    fn check(self, elements: usize) -> Result<Self> {
        let MatrixShape { rows, columns, step, order } = self;
        let (outer, inner) = if order == MatrixOrder::Rows { (rows, columns) } else { (columns, rows) };
        let needed = outer.saturating_sub(1).checked_mul(step).and_then(|n| n.checked_add(inner));
        ensure("matrix", step >= inner.max(1), || {
            format!("{order:?} of {inner} elements cannot be {step} elements apart")
        })?;
        ensure("matrix", needed.is_some_and(|needed| needed <= elements), || {
            format!("{rows} x {columns}, {order:?} {step} apart, does not fit into {elements} elements")
        })?;
        Ok(self)
    }

    fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, step: self.step, order: self.order.flipped() }
    }
}

/// A matrix that is read.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T: Element> {
    pub(crate) data: Slice<'a, T>,
    pub(crate) shape: MatrixShape,
    pub(crate) is_conjugate: bool,
}

/// A matrix that is written.
#[derive(Debug)]
pub struct MatrixMut<'a, T: Element> {
    pub(crate) data: SliceMut<'a, T>,
    pub(crate) shape: MatrixShape,
}

impl<'a, T: Element> Matrix<'a, T> {
    /// Row after row.
    #[track_caller]
    pub fn rows(data: Slice<'a, T>, rows: usize, columns: usize) -> Result<Self> {
        let shape = MatrixShape::dense(rows, columns, MatrixOrder::Rows).check(data.len())?;
        Ok(Self { data, shape, is_conjugate: false })
    }

    /// Column after column.
    #[track_caller]
    pub fn columns(data: Slice<'a, T>, rows: usize, columns: usize) -> Result<Self> {
        let shape = MatrixShape::dense(rows, columns, MatrixOrder::Columns).check(data.len())?;
        Ok(Self { data, shape, is_conjugate: false })
    }

    /// Rows (or columns) that lie `step` elements apart, as those of a part of a larger matrix do.
    #[track_caller]
    pub fn with_step(self, step: usize) -> Result<Self> {
        let shape = MatrixShape { step, ..self.shape }.check(self.data.len())?;
        Ok(Self { shape, ..self })
    }

    /// The transposed matrix: the same memory, seen the other way.
    #[must_use]
    pub fn t(self) -> Self {
        Self { shape: self.shape.transposed(), ..self }
    }

    /// The conjugate transpose.
    #[must_use]
    pub fn h(self) -> Self {
        Self { shape: self.shape.transposed(), is_conjugate: !self.is_conjugate, ..self }
    }

    pub fn n_rows(&self) -> usize {
        self.shape.rows
    }

    pub fn n_columns(&self) -> usize {
        self.shape.columns
    }
}

impl<'a, T: Element> MatrixMut<'a, T> {
    /// Row after row.
    #[track_caller]
    pub fn rows(data: SliceMut<'a, T>, rows: usize, columns: usize) -> Result<Self> {
        let shape = MatrixShape::dense(rows, columns, MatrixOrder::Rows).check(data.len())?;
        Ok(Self { data, shape })
    }

    /// Column after column.
    #[track_caller]
    pub fn columns(data: SliceMut<'a, T>, rows: usize, columns: usize) -> Result<Self> {
        let shape = MatrixShape::dense(rows, columns, MatrixOrder::Columns).check(data.len())?;
        Ok(Self { data, shape })
    }

    /// Rows (or columns) that lie `step` elements apart.
    #[track_caller]
    pub fn with_step(self, step: usize) -> Result<Self> {
        let shape = MatrixShape { step, ..self.shape }.check(self.data.len())?;
        Ok(Self { shape, ..self })
    }

    /// The transposed matrix: the same memory, seen the other way.
    #[must_use]
    pub fn t(self) -> Self {
        Self { shape: self.shape.transposed(), ..self }
    }

    pub fn n_rows(&self) -> usize {
        self.shape.rows
    }

    pub fn n_columns(&self) -> usize {
        self.shape.columns
    }
}

/// `n` matrices of one shape, `stride` elements apart (0: the same one again).
#[derive(Clone, Copy, Debug)]
pub struct MatrixBatch<'a, T: Element> {
    pub(crate) first: Matrix<'a, T>,
    pub(crate) n: usize,
    pub(crate) stride: usize,
}

/// Matrices that are written, which may not overlap.
#[derive(Debug)]
pub struct MatrixBatchMut<'a, T: Element> {
    pub(crate) first: MatrixMut<'a, T>,
    pub(crate) n: usize,
    pub(crate) stride: usize,
}

impl MatrixShape {
    /// Elements from the first to the last.
    pub(crate) fn span(self) -> usize {
        let (outer, inner) =
            if self.order == MatrixOrder::Rows { (self.rows, self.columns) } else { (self.columns, self.rows) };
        outer.saturating_sub(1) * self.step + inner
    }

    #[track_caller]
    fn check_batch(self, n: usize, stride: usize, elements: usize) -> Result<()> {
        let last = n.saturating_sub(1).checked_mul(stride).and_then(|start| start.checked_add(self.span()));
        ensure("batch", last.is_some_and(|last| last <= elements), || {
            format!("{n} matrices of {} elements, {stride} apart, in {elements}", self.span())
        })
    }
}

impl<'a, T: Element> MatrixBatch<'a, T> {
    /// `first`, and `n - 1` more of its shape behind it in the same slice.
    #[track_caller]
    pub fn new(first: Matrix<'a, T>, n: usize, stride: usize) -> Result<Self> {
        first.shape.check_batch(n, stride, first.data.len())?;
        Ok(Self { first, n, stride })
    }

    /// The transposed matrices.
    #[must_use]
    pub fn t(self) -> Self {
        Self { first: self.first.t(), ..self }
    }

    /// The conjugate transposes.
    #[must_use]
    pub fn h(self) -> Self {
        Self { first: self.first.h(), ..self }
    }
}

impl<'a, T: Element> MatrixBatchMut<'a, T> {
    /// `first`, and `n - 1` more of its shape behind it in the same slice.
    #[track_caller]
    pub fn new(first: MatrixMut<'a, T>, n: usize, stride: usize) -> Result<Self> {
        first.shape.check_batch(n, stride, first.data.len())?;
        ensure("batch", n <= 1 || stride >= first.shape.span(), || {
            format!("matrices of {} elements, {stride} apart, would overlap", first.shape.span())
        })?;
        Ok(Self { first, n, stride })
    }

    /// The transposed matrices.
    #[must_use]
    pub fn t(self) -> Self {
        Self { first: self.first.t(), ..self }
    }
}
