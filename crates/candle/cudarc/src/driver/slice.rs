//! Device memory that is owned (`CudaSlice`) or borrowed (`CudaView`, `CudaViewMut`).

use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use super::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, DriverError, SyncOnDrop, sys};

/// `len` elements in memory of a stream's pool, which gets them back when this is dropped.
#[derive(Debug)]
pub struct CudaSlice<T> {
    pub(crate) address: sys::CUdeviceptr,
    pub(crate) len: usize,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) element: PhantomData<T>,
}

// SAFETY: the owner of device memory; its elements move between threads with it.
unsafe impl<T: Send> Send for CudaSlice<T> {}
// SAFETY: shared access reads device memory through a stream, which any thread may use.
unsafe impl<T: Sync> Sync for CudaSlice<T> {}

#[derive(Debug)]
pub struct CudaView<'a, T> {
    pub(crate) address: sys::CUdeviceptr,
    len: usize,
    pub(crate) stream: &'a Arc<CudaStream>,
    element: PhantomData<&'a T>,
}

#[derive(Debug)]
pub struct CudaViewMut<'a, T> {
    pub(crate) address: sys::CUdeviceptr,
    len: usize,
    pub(crate) stream: &'a Arc<CudaStream>,
    element: PhantomData<&'a mut T>,
}

impl<T> Clone for CudaView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for CudaView<'_, T> {}

/// The elements a range names, if they are there.
fn resolve(range: impl RangeBounds<usize>, len: usize) -> Option<Range<usize>> {
    let first = match range.start_bound() {
        Bound::Included(&first) => first,
        Bound::Excluded(&before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1)?,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    (first <= end && end <= len).then_some(first..end)
}

fn out_of_range(len: usize) -> ! {
    panic!("the range does not lie in a slice of {len} elements")
}

impl<T> CudaSlice<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn num_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    pub fn ordinal(&self) -> usize {
        self.context().ordinal()
    }

    pub fn as_view(&self) -> CudaView<'_, T> {
        CudaView { address: self.address, len: self.len, stream: &self.stream, element: PhantomData }
    }

    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        CudaViewMut { address: self.address, len: self.len, stream: &self.stream, element: PhantomData }
    }

    /// # Panics
    /// Where the range does not lie inside, as a slice of the host does.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> CudaView<'_, T> {
        self.as_view().slice(range)
    }

    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<CudaView<'_, T>> {
        self.as_view().try_slice(range)
    }

    /// # Panics
    /// Where the range does not lie inside.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> CudaViewMut<'_, T> {
        let len = self.len;
        self.try_slice_mut(range).unwrap_or_else(|| out_of_range(len))
    }

    pub fn try_slice_mut(&mut self, range: impl RangeBounds<usize>) -> Option<CudaViewMut<'_, T>> {
        let range = resolve(range, self.len)?;
        let address = self.address + (range.start * size_of::<T>()) as u64;
        Some(CudaViewMut { address, len: range.len(), stream: &self.stream, element: PhantomData })
    }
}

impl<T: DeviceRepr> CudaSlice<T> {
    pub fn try_clone(&self) -> Result<Self, DriverError> {
        self.stream.clone_dtod(self)
    }
}

impl<T: DeviceRepr> Clone for CudaSlice<T> {
    /// # Panics
    /// Where the copy fails: a clone has no other way to say so. `try_clone` returns the error.
    fn clone(&self) -> Self {
        self.try_clone().unwrap_or_else(|error| panic!("cloning device memory: {error}"))
    }
}

impl<T> Drop for CudaSlice<T> {
    fn drop(&mut self) {
        self.stream.give_back(self.address, self.len * size_of::<T>());
    }
}

impl<'a, T> CudaView<'a, T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// # Panics
    /// Where the range does not lie inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        self.try_slice(range).unwrap_or_else(|| out_of_range(self.len))
    }

    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<Self> {
        let range = resolve(range, self.len)?;
        Some(Self { address: self.address + (range.start * size_of::<T>()) as u64, len: range.len(), ..*self })
    }
}

impl<T> CudaViewMut<'_, T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn as_view(&self) -> CudaView<'_, T> {
        CudaView { address: self.address, len: self.len, stream: self.stream, element: PhantomData }
    }

    /// # Panics
    /// Where the range does not lie inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> CudaView<'_, T> {
        self.as_view().slice(range)
    }

    /// # Panics
    /// Where the range does not lie inside.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> CudaViewMut<'_, T> {
        let range = resolve(range, self.len).unwrap_or_else(|| out_of_range(self.len));
        let address = self.address + (range.start * size_of::<T>()) as u64;
        CudaViewMut { address, len: range.len(), stream: self.stream, element: PhantomData }
    }
}

macro_rules! device_slices {
    ($($ty:ty),*) => {$(
        impl<T> DeviceSlice<T> for $ty {
            fn len(&self) -> usize {
                self.len
            }

            fn stream(&self) -> &Arc<CudaStream> {
                &self.stream
            }
        }

        impl<T> DevicePtr<T> for $ty {
            fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
                (self.address, SyncOnDrop::new(&self.stream, stream))
            }
        }
    )*};
}

device_slices!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>);

macro_rules! device_slices_mut {
    ($($ty:ty),*) => {$(
        impl<T> DevicePtrMut<T> for $ty {
            fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
                (self.address, SyncOnDrop::new(&self.stream, stream))
            }
        }
    )*};
}

device_slices_mut!(CudaSlice<T>, CudaViewMut<'_, T>);
