//! A sparse matrix on the device. Its indices were checked on the host, or were made by the library, and nobody
//! can write them afterwards: an index past the end would be a wild access of the GPU.

use gpu::{Buffer, Queue, Slice, SliceMut};

use crate::error::{Error, Result, ensure, int};
use crate::scalar::Scalar;

/// How the elements of a sparse matrix are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SparseFormat {
    /// Row and column of each element, sorted by row.
    Coo,
    /// Row after row: where each row starts, and each element's column.
    Csr,
    /// Column after column: where each column starts, and each element's row.
    Csc,
    /// Row after row of square blocks, each dense and by rows.
    Bsr {
        /// Rows and columns of a block.
        block: usize,
    },
}

/// A sparse matrix of one queue, with 32-bit indices from zero.
pub struct SparseMatrix<T: Scalar> {
    pub(super) format: SparseFormat,
    /// In elements, for blocks too.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Where rows (or columns) start; for `Coo` the row of each element.
    pub(super) outer: Buffer<i32>,
    /// The column of each element or block; for `Csc` its row.
    pub(super) inner: Buffer<i32>,
    pub(super) values: Buffer<T>,
}

impl<T: Scalar> SparseMatrix<T> {
    /// Row after row: row i has the elements `offsets[i]..offsets[i + 1]`.
    #[track_caller]
    pub fn csr(queue: &Queue, columns: usize, offsets: &[i32], indices: &[i32], values: &[T]) -> Result<Self> {
        compressed("csr", offsets, indices, values.len(), columns)?;
        Self::upload(queue, SparseFormat::Csr, [offsets.len() - 1, columns], [offsets, indices], values)
    }

    /// Column after column: column j has the elements `offsets[j]..offsets[j + 1]`.
    #[track_caller]
    pub fn csc(queue: &Queue, rows: usize, offsets: &[i32], indices: &[i32], values: &[T]) -> Result<Self> {
        compressed("csc", offsets, indices, values.len(), rows)?;
        Self::upload(queue, SparseFormat::Csc, [rows, offsets.len() - 1], [offsets, indices], values)
    }

    /// The row and the column of each element, sorted by row.
    #[track_caller]
    pub fn coo(
        queue: &Queue,
        [rows, columns]: [usize; 2],
        row_indices: &[i32],
        column_indices: &[i32],
        values: &[T],
    ) -> Result<Self> {
        ensure("coo", row_indices.len() == values.len(), || {
            format!("{} rows for {} values", row_indices.len(), values.len())
        })?;
        in_range("coo", row_indices, rows)?;
        ensure("coo", row_indices.is_sorted(), || "the rows are not sorted".into())?;
        in_range("coo", column_indices, columns)?;
        ensure("coo", column_indices.len() == values.len(), || {
            format!("{} columns for {} values", column_indices.len(), values.len())
        })?;
        Self::upload(queue, SparseFormat::Coo, [rows, columns], [row_indices, column_indices], values)
    }

    /// Row after row of square blocks: `offsets` and `indices` count blocks, `columns` counts elements.
    #[track_caller]
    pub fn bsr(
        queue: &Queue,
        columns: usize,
        block: usize,
        offsets: &[i32],
        indices: &[i32],
        values: &[T],
    ) -> Result<Self> {
        ensure("bsr", block > 0 && columns.is_multiple_of(block), || {
            format!("{columns} columns in blocks of {block}")
        })?;
        ensure("bsr", values.len() == indices.len() * block * block, || {
            format!("{} values for {} blocks of {block} x {block}", values.len(), indices.len())
        })?;
        compressed("bsr", offsets, indices, indices.len(), columns / block)?;
        let rows = (offsets.len() - 1) * block;
        Self::upload(queue, SparseFormat::Bsr { block }, [rows, columns], [offsets, indices], values)
    }

    #[track_caller]
    fn upload(
        queue: &Queue,
        format: SparseFormat,
        [rows, columns]: [usize; 2],
        [outer, inner]: [&[i32]; 2],
        values: &[T],
    ) -> Result<Self> {
        int("sparse matrix", "rows", rows)?;
        int("sparse matrix", "columns", columns)?;
        int("sparse matrix", "elements", values.len())?;
        let (outer, inner) = (queue.buffer_from(outer)?, queue.buffer_from(inner)?);
        Ok(Self { format, rows, columns, outer, inner, values: queue.buffer_from(values)? })
    }

    pub fn format(&self) -> SparseFormat {
        self.format
    }

    pub fn n_rows(&self) -> usize {
        self.rows
    }

    pub fn n_columns(&self) -> usize {
        self.columns
    }

    /// Values that are stored.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Where rows or columns start; for `SparseFormat::Coo` the row of each element.
    pub fn offsets(&self) -> Slice<'_, i32> {
        self.outer.all()
    }

    /// The column of each element or block; for `SparseFormat::Csc` its row.
    pub fn indices(&self) -> Slice<'_, i32> {
        self.inner.all()
    }

    pub fn values(&self) -> Slice<'_, T> {
        self.values.all()
    }

    /// Values may change; where they stand may not.
    pub fn values_mut(&mut self) -> SliceMut<'_, T> {
        self.values.all_mut()
    }
}

#[track_caller]
fn in_range(call: &'static str, indices: &[i32], n: usize) -> Result<()> {
    let wild = indices.iter().find(|i| !usize::try_from(**i).is_ok_and(|i| i < n));
    wild.map_or(Ok(()), |i| Err(Error::shape(call, format!("index {i} is not below {n}"))))
}

#[track_caller]
fn compressed(call: &'static str, offsets: &[i32], indices: &[i32], n_values: usize, n: usize) -> Result<()> {
    ensure(call, indices.len() == n_values, || format!("{} indices for {n_values} elements", indices.len()))?;
    let is_whole = offsets.first() == Some(&0) && offsets.last().map(|last| *last as usize) == Some(indices.len());
    ensure(call, is_whole && offsets.is_sorted(), || {
        format!("offsets must rise from 0 to the {} elements", indices.len())
    })?;
    in_range(call, indices, n)
}
