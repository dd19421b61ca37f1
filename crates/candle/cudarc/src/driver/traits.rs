//! What a kernel can take, what can be copied, and the order between streams that a borrow keeps.

use std::sync::Arc;

use half::{bf16, f16};

use super::{CudaStream, sys};

/// A value that means the same on the device: plain bytes without padding.
///
/// # Safety
/// The type has no padding and no pointers into host memory, and the device reads it with the same layout.
pub unsafe trait DeviceRepr {}

/// A type for which all bits zero is a value.
///
/// # Safety
/// That is so.
pub unsafe trait ValidAsZeroBits {}

macro_rules! plain {
    ($($ty:ty),*) => {$(
        // SAFETY: a number of fixed size with the same layout on both sides of the bus; zero bits are a value.
        unsafe impl DeviceRepr for $ty {}
        // SAFETY: as above.
        unsafe impl ValidAsZeroBits for $ty {}
    )*};
}

plain!(bool, u8, i8, u16, i16, u32, i32, u64, i64, usize, isize, f32, f64, f16, bf16, float8::F8E4M3);

/// A range of device memory and the stream it belongs to.
pub trait DeviceSlice<T> {
    fn len(&self) -> usize;

    fn num_bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn stream(&self) -> &Arc<CudaStream>;
}

/// Memory to read on `stream`. What its own stream was given before comes first; what its own stream is
/// given after the guard is dropped comes later.
pub trait DevicePtr<T>: DeviceSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>);
}

/// As [`DevicePtr`], to write.
pub trait DevicePtrMut<T>: DeviceSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>);
}

/// Where memory of one stream is used by another, keeps both in order: at its making and at its end.
#[must_use = "dropping it early lets the owner overtake"]
pub struct SyncOnDrop<'a> {
    /// The owner waits for the user.
    between: Option<(&'a CudaStream, &'a CudaStream)>,
}

impl<'a> SyncOnDrop<'a> {
    pub(crate) fn new(owner: &'a CudaStream, user: &'a CudaStream) -> Self {
        if std::ptr::eq(owner, user) {
            return Self { between: None };
        }
        late(user, user.join(owner));
        Self { between: Some((owner, user)) }
    }
}

impl Drop for SyncOnDrop<'_> {
    fn drop(&mut self) {
        if let Some((owner, user)) = self.between {
            late(owner, owner.join(user));
        }
    }
}

/// A failed order is told by the stream that would have needed it.
fn late(stream: &CudaStream, result: Result<(), super::DriverError>) {
    if let Err(error) = result {
        stream.report_later("order between streams", &error);
    }
}

/// Host memory to copy from or to.
pub trait HostSlice<T> {
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// # Safety
    /// Used with `stream` only.
    unsafe fn stream_synced_slice<'a>(&'a self, stream: &'a CudaStream) -> (&'a [T], SyncOnDrop<'a>);

    /// # Safety
    /// Used with `stream` only.
    unsafe fn stream_synced_mut_slice<'a>(&'a mut self, stream: &'a CudaStream) -> (&'a mut [T], SyncOnDrop<'a>);
}

macro_rules! host_slice {
    ($($ty:ty $(, const $n:ident)?;)*) => {$(
        impl<T $(, const $n: usize)?> HostSlice<T> for $ty {
            fn len(&self) -> usize {
                <[T]>::len(self)
            }

            unsafe fn stream_synced_slice<'a>(&'a self, stream: &'a CudaStream) -> (&'a [T], SyncOnDrop<'a>) {
                (self, SyncOnDrop::new(stream, stream))
            }

            unsafe fn stream_synced_mut_slice<'a>(
                &'a mut self,
                stream: &'a CudaStream,
            ) -> (&'a mut [T], SyncOnDrop<'a>) {
                (self, SyncOnDrop::new(stream, stream))
            }
        }
    )*};
}

host_slice! {
    [T];
    Vec<T>;
    [T; N], const N;
}
