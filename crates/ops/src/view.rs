//! What an op is handed: a typed, shaped look at memory that lies somewhere.
//!
//! `View` and `ViewMut` are, besides plain numbers, the only arguments of an op, so that a signature says nothing
//! about where the bytes live. Everything here is a matrix of rows: `[n_rows, n_cols]`, row-major, packed.

use weights::Dtype;

use crate::Error;
use crate::formats::{Float, for_block};
use crate::plan::Weight;
use crate::tiles::{TILE_ROWS, TileFormat};

#[derive(Copy, Clone)]
pub struct View<'a> {
    pub dtype: Dtype,
    /// `[n_rows, n_cols]`
    pub shape: [usize; 2],
    pub layout: Layout,
    pub place: Place<'a>,
}

/// How the rows lie.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Layout {
    /// One after another, as in a file.
    Rows,
    /// Sixteen interleaved, as [`pack`](crate::pack()) leaves weights for the CPU.
    Tiles,
    /// Quants and scales apart, as [`pack`](crate::pack()) leaves packed weights for a GPU.
    Planes,
}

/// Where the bytes of a [`View`] lie.
#[derive(Copy, Clone)]
pub enum Place<'a> {
    Host(&'a [u8]),
    Device(gpu::Slice<'a, u8>),
}

pub struct ViewMut<'a> {
    pub dtype: Dtype,
    pub shape: [usize; 2],
    pub layout: Layout,
    pub place: PlaceMut<'a>,
}

/// Where the bytes of a [`ViewMut`] lie.
pub enum PlaceMut<'a> {
    Host(&'a mut [u8]),
    Device(gpu::SliceMut<'a, u8>),
}

impl<'a> View<'a> {
    pub fn host(dtype: Dtype, shape: [usize; 2], bytes: &'a [u8]) -> Self {
        Self { dtype, shape, layout: Layout::Rows, place: Place::Host(bytes) }
    }

    /// A matrix of f32 numbers that the host holds.
    pub fn of_f32(numbers: &'a [f32], n_cols: usize) -> Self {
        let shape = [numbers.len().checked_div(n_cols).unwrap_or(0), n_cols];
        Self::host(Dtype::F32, shape, bytemuck::cast_slice(numbers))
    }

    pub fn n_rows(&self) -> usize {
        self.shape[0]
    }

    pub fn n_cols(&self) -> usize {
        self.shape[1]
    }

    /// Type and layout, which is what a product's kernel depends on.
    pub(crate) fn kind(&self) -> Weight {
        Weight { dtype: self.dtype, layout: self.layout }
    }

    /// Bytes it covers.
    pub(crate) fn n_bytes(&self) -> u64 {
        match self.place {
            Place::Host(bytes) => bytes.len() as u64,
            Place::Device(bytes) => bytes.len() as u64,
        }
    }

    /// The bytes, after checking that they are as many as type and shape say.
    pub(crate) fn host_bytes(&self, op: &'static str, what: &'static str) -> Result<&'a [u8], Error> {
        let Place::Host(bytes) = self.place else { return Err(Error::Place { op, what, expected: "host memory" }) };
        check_bytes(op, what, self.layout, self.dtype, self.shape, bytes.len())?;
        Ok(bytes)
    }

    pub(crate) fn f32s(&self, op: &'static str, what: &'static str) -> Result<&'a [f32], Error> {
        expect_f32(op, what, self.dtype)?;
        bytemuck::try_cast_slice(self.host_bytes(op, what)?).map_err(|e| unaligned(op, what, e))
    }

    /// As [`View::host_bytes`], on a device.
    pub(crate) fn device_bytes(&self, op: &'static str, what: &'static str) -> Result<gpu::Slice<'a, u8>, Error> {
        let Place::Device(bytes) = self.place else { return Err(Error::Place { op, what, expected: "device memory" }) };
        check_bytes(op, what, self.layout, self.dtype, self.shape, bytes.len())?;
        Ok(bytes)
    }

    pub(crate) fn device_f32s(&self, op: &'static str, what: &'static str) -> Result<gpu::Slice<'a, f32>, Error> {
        expect_f32(op, what, self.dtype)?;
        Ok(self.device_bytes(op, what)?.cast()?)
    }

    pub(crate) fn expect_shape(&self, op: &'static str, what: &'static str, expected: [usize; 2]) -> Result<(), Error> {
        if self.shape == expected { Ok(()) } else { Err(Error::Shape { op, what, found: self.shape, expected }) }
    }
}

impl<'a> ViewMut<'a> {
    pub fn host(dtype: Dtype, shape: [usize; 2], bytes: &'a mut [u8]) -> Self {
        Self { dtype, shape, layout: Layout::Rows, place: PlaceMut::Host(bytes) }
    }

    pub fn of_f32(numbers: &'a mut [f32], n_cols: usize) -> Self {
        let shape = [numbers.len().checked_div(n_cols).unwrap_or(0), n_cols];
        Self::host(Dtype::F32, shape, bytemuck::cast_slice_mut(numbers))
    }

    /// Some rows of a matrix of plain numbers that the host holds.
    pub fn range(self, rows: std::ops::Range<usize>) -> Result<Self, Error> {
        let PlaceMut::Host(bytes) = self.place else {
            return Err(Error::Place { op: "range", what: "rows", expected: "host memory" });
        };
        let row_bytes = bytes.len().checked_div(self.shape[0]).unwrap_or(0);
        if self.layout != Layout::Rows || rows.end > self.shape[0] || rows.start > rows.end {
            return Err(Error::Argument { op: "range", what: format!("rows {rows:?} of {:?}", self.shape) });
        }
        let shape = [rows.len(), self.shape[1]];
        let place = PlaceMut::Host(&mut bytes[rows.start * row_bytes..rows.end * row_bytes]);
        Ok(Self { shape, place, ..self })
    }

    /// The same view for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        let place = match &mut self.place {
            PlaceMut::Host(bytes) => PlaceMut::Host(bytes),
            PlaceMut::Device(bytes) => PlaceMut::Device(bytes.reborrow()),
        };
        ViewMut { dtype: self.dtype, shape: self.shape, layout: self.layout, place }
    }

    pub fn as_view(&self) -> View<'_> {
        let place = match &self.place {
            PlaceMut::Host(bytes) => Place::Host(bytes),
            PlaceMut::Device(bytes) => Place::Device(bytes.as_slice()),
        };
        View { dtype: self.dtype, shape: self.shape, layout: self.layout, place }
    }

    pub(crate) fn host_bytes(&mut self, op: &'static str, what: &'static str) -> Result<&mut [u8], Error> {
        let PlaceMut::Host(bytes) = &mut self.place else {
            return Err(Error::Place { op, what, expected: "host memory" });
        };
        check_bytes(op, what, self.layout, self.dtype, self.shape, bytes.len())?;
        Ok(bytes)
    }

    /// As [`ViewMut::host_bytes`], on a device.
    pub(crate) fn device_bytes(
        &mut self,
        op: &'static str,
        what: &'static str,
    ) -> Result<gpu::SliceMut<'_, u8>, Error> {
        let PlaceMut::Device(bytes) = &mut self.place else {
            return Err(Error::Place { op, what, expected: "device memory" });
        };
        check_bytes(op, what, self.layout, self.dtype, self.shape, bytes.len())?;
        Ok(bytes.reborrow())
    }

    pub(crate) fn device_f32s(
        &mut self,
        op: &'static str,
        what: &'static str,
    ) -> Result<gpu::SliceMut<'_, f32>, Error> {
        expect_f32(op, what, self.dtype)?;
        Ok(self.device_bytes(op, what)?.cast()?)
    }

    pub(crate) fn f32s(&mut self, op: &'static str, what: &'static str) -> Result<&mut [f32], Error> {
        expect_f32(op, what, self.dtype)?;
        bytemuck::try_cast_slice_mut(self.host_bytes(op, what)?).map_err(|e| unaligned(op, what, e))
    }

    pub(crate) fn expect_shape(&self, op: &'static str, what: &'static str, expected: [usize; 2]) -> Result<(), Error> {
        if self.shape == expected { Ok(()) } else { Err(Error::Shape { op, what, found: self.shape, expected }) }
    }
}

/// Bytes of a matrix, or `None` if its rows do not fill whole blocks or the size overflows.
pub(crate) fn matrix_bytes(layout: Layout, dtype: Dtype, shape: [usize; 2]) -> Option<usize> {
    let row_bytes = dtype.row_bytes(shape[1])?;
    match layout {
        Layout::Rows => row_bytes.checked_mul(shape[0]),
        // The same bits in another order; plain numbers stay in rows.
        Layout::Planes if dtype.block_len() > 1 => row_bytes.checked_mul(shape[0]),
        Layout::Planes => None,
        Layout::Tiles => {
            let tile_bytes = for_block!(dtype, P => P::TILE_BYTES, P => return P::NO_TILES);
            (shape[1] / dtype.block_len()).checked_mul(tile_bytes)?.checked_mul(shape[0].div_ceil(TILE_ROWS))
        }
    }
}

fn check_bytes(
    op: &'static str,
    what: &'static str,
    layout: Layout,
    dtype: Dtype,
    shape: [usize; 2],
    found: usize,
) -> Result<(), Error> {
    match matrix_bytes(layout, dtype, shape) {
        Some(needed) if needed == found => Ok(()),
        Some(needed) => Err(Error::Bytes { op, what, found, needed }),
        None => {
            let what = format!("{what}: {} columns of {dtype} cannot lie in {layout:?}", shape[1]);
            Err(Error::Argument { op, what })
        }
    }
}

fn expect_f32(op: &'static str, what: &'static str, found: Dtype) -> Result<(), Error> {
    if found == Dtype::F32 { Ok(()) } else { Err(Error::Type { op, what, found, expected: "F32" }) }
}

fn unaligned(op: &'static str, what: &'static str, e: bytemuck::PodCastError) -> Error {
    Error::Argument { op, what: format!("{what}: {e}") }
}

/// A raw pointer that tasks of one region may share: each writes rows that no other task touches.
#[derive(Copy, Clone)]
pub(crate) struct SharedPtr<T>(*mut T);

// SAFETY: a `Shared` is made from an exclusive slice that outlives the region; who uses it states why its part is
// disjoint from every other task's.
unsafe impl<T> Sync for SharedPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Send for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    /// # Safety
    /// `start..start + len` lies inside the slice and no other task uses any of it during this region.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise, stated at each call")]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller's promise above.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}
