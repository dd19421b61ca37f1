//! A stream: memory from its pool, copies through its staging, and the order between streams.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use gpu::unchecked::Stream;

use super::pool::Pool;
use super::staging::Staging;
use super::{
    CudaContext, CudaFunction, CudaSlice, DevicePtr, DevicePtrMut, DeviceRepr, DriverError, HostSlice, LaunchArgs,
    ValidAsZeroBits, sys,
};

pub struct CudaStream {
    context: Arc<CudaContext>,
    /// Or why there is none.
    stream: Result<Stream, DriverError>,
    pool: Pool,
    staging: Mutex<Staging>,
}

/// Streams by their vendor's handle, for launchers that are given nothing else.
fn known() -> &'static Mutex<HashMap<usize, Weak<CudaStream>>> {
    static KNOWN: OnceLock<Mutex<HashMap<usize, Weak<CudaStream>>>> = OnceLock::new();
    KNOWN.get_or_init(Mutex::default)
}

impl CudaStream {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Arc<Self>, DriverError> {
        let stream = Stream::new(context.device())?;
        let handle = stream.handle() as usize;
        let made = Arc::new(Self::over(context, Ok(stream)));
        known().lock().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::downgrade(&made));
        Ok(made)
    }

    /// A stream that answers every use with `error`.
    pub(crate) fn failed(context: &Arc<CudaContext>, error: DriverError) -> Arc<Self> {
        Arc::new(Self::over(context, Err(error)))
    }

    fn over(context: &Arc<CudaContext>, stream: Result<Stream, DriverError>) -> Self {
        Self { context: context.clone(), stream, pool: Pool::new(), staging: Mutex::default() }
    }

    /// The stream with this handle, while it is alive.
    pub fn from_handle(handle: sys::CUstream) -> Option<Arc<Self>> {
        known().lock().unwrap_or_else(PoisonError::into_inner).get(&(handle as usize)).and_then(Weak::upgrade)
    }

    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The vendor's handle; null where the stream could not be made.
    pub fn cu_stream(&self) -> sys::CUstream {
        self.stream.as_ref().map_or(std::ptr::null_mut(), Stream::handle)
    }

    /// The device layer's stream.
    pub fn inner(&self) -> Result<&Stream, DriverError> {
        self.stream.as_ref().map_err(Clone::clone)
    }

    /// Keep an error that has nobody to go to; the next call on this stream reports it.
    pub fn report_later(&self, what: &str, error: &DriverError) {
        if let Ok(stream) = &self.stream {
            stream.report_later(gpu::Error::Late { what: what.to_owned(), why: error.to_string() });
        }
    }

    pub fn synchronize(&self) -> Result<(), DriverError> {
        Ok(self.inner()?.wait()?)
    }

    /// Whatever is enqueued here from now on comes after everything `other` has been given so far.
    pub fn join(&self, other: &CudaStream) -> Result<(), DriverError> {
        if std::ptr::eq(self, other) {
            return Ok(());
        }
        Ok(self.inner()?.wait_for(other.inner()?)?)
    }

    /// A new stream that starts after what this one has been given so far.
    pub fn fork(&self) -> Result<Arc<Self>, DriverError> {
        let stream = Self::new(&self.context)?;
        stream.join(self)?;
        Ok(stream)
    }

    /// Never capturing: this crate records no graphs.
    pub fn capture_status(&self) -> Result<sys::CUstreamCaptureStatus, DriverError> {
        Ok(sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    pub fn launch_builder<'a>(&'a self, function: &'a CudaFunction) -> LaunchArgs<'a> {
        LaunchArgs::new(self, function)
    }

    /// Memory whose contents are whatever was there.
    ///
    /// # Safety
    /// It is written before it is read as `T`.
    pub unsafe fn alloc<T: DeviceRepr>(self: &Arc<Self>, len: usize) -> Result<CudaSlice<T>, DriverError> {
        let too_many = || DriverError::new(format!("{len} elements of {} bytes", size_of::<T>()));
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(too_many)?;
        let address = self.pool.take(self.inner()?, bytes)?;
        Ok(CudaSlice { address, len, stream: self.clone(), element: PhantomData })
    }

    pub fn alloc_zeros<T: DeviceRepr + ValidAsZeroBits>(
        self: &Arc<Self>,
        len: usize,
    ) -> Result<CudaSlice<T>, DriverError> {
        // SAFETY: zeroed on the next line.
        let mut slice = unsafe { self.alloc(len)? };
        self.memset_zeros(&mut slice)?;
        Ok(slice)
    }

    pub fn memset_zeros<T: DeviceRepr + ValidAsZeroBits, Dst: DevicePtrMut<T>>(
        &self,
        to: &mut Dst,
    ) -> Result<(), DriverError> {
        let bytes = to.num_bytes();
        let (address, _order) = to.device_ptr_mut(self);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the slice borrows its memory for the call, and later work on it is enqueued behind this.
        unsafe { self.inner()?.zero(address, bytes)? };
        Ok(())
    }

    pub fn clone_htod<T: DeviceRepr, Src: HostSlice<T> + ?Sized>(
        self: &Arc<Self>,
        from: &Src,
    ) -> Result<CudaSlice<T>, DriverError> {
        // SAFETY: written on the next line.
        let mut slice = unsafe { self.alloc(from.len())? };
        self.memcpy_htod(from, &mut slice)?;
        Ok(slice)
    }

    /// Copies `from` to the front of `to`, and returns when `from` may be changed again.
    pub fn memcpy_htod<T: DeviceRepr, Src: HostSlice<T> + ?Sized, Dst: DevicePtrMut<T>>(
        &self,
        from: &Src,
        to: &mut Dst,
    ) -> Result<(), DriverError> {
        room("memcpy_htod", from.len(), to.len())?;
        let (address, _order) = to.device_ptr_mut(self);
        // SAFETY: used for this stream only.
        let (from, _) = unsafe { from.stream_synced_slice(self) };
        // SAFETY: elements of a `DeviceRepr` are plain bytes.
        let bytes = unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<u8>(), size_of_val(from)) };
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the target was checked to have room and is borrowed.
        unsafe { staging.upload(self.inner()?, bytes, address)? };
        Ok(())
    }

    pub fn clone_dtoh<T: DeviceRepr, Src: DevicePtr<T>>(&self, from: &Src) -> Result<Vec<T>, DriverError> {
        let len = from.len();
        let mut to = Vec::with_capacity(len);
        // SAFETY: room for `len` elements.
        unsafe { self.download(from, to.as_mut_ptr())? };
        // SAFETY: all of them were written: the download has waited.
        unsafe { to.set_len(len) };
        Ok(to)
    }

    /// Copies all of `from` to the front of `to`, and waits for it.
    pub fn memcpy_dtoh<T: DeviceRepr, Src: DevicePtr<T>, Dst: HostSlice<T> + ?Sized>(
        &self,
        from: &Src,
        to: &mut Dst,
    ) -> Result<(), DriverError> {
        room("memcpy_dtoh", from.len(), to.len())?;
        // SAFETY: used for this stream only.
        let (to, _) = unsafe { to.stream_synced_mut_slice(self) };
        // SAFETY: room was checked.
        unsafe { self.download(from, to.as_mut_ptr()) }
    }

    /// # Safety
    /// `to` has room for all of `from`.
    unsafe fn download<T: DeviceRepr, Src: DevicePtr<T>>(&self, from: &Src, to: *mut T) -> Result<(), DriverError> {
        let bytes = from.num_bytes();
        let (address, _order) = from.device_ptr(self);
        // SAFETY: the caller's room; bytes need no initial value to be written.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes) };
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the source is borrowed and as long as it says.
        unsafe { staging.download(self.inner()?, address, to)? };
        Ok(())
    }

    /// Copies all of `from` to the front of `to`.
    pub fn memcpy_dtod<T, Src: DevicePtr<T>, Dst: DevicePtrMut<T>>(
        &self,
        from: &Src,
        to: &mut Dst,
    ) -> Result<(), DriverError> {
        room("memcpy_dtod", from.len(), to.len())?;
        let bytes = from.num_bytes();
        if from.stream().context() != to.stream().context() {
            return self.between_devices(from, to, bytes);
        }
        let (from, _order) = from.device_ptr(self);
        let (to, _order) = to.device_ptr_mut(self);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both are borrowed, the target uniquely, so they do not overlap; the length was checked.
        unsafe { self.inner()?.copy_on_device(to, from, bytes)? };
        Ok(())
    }

    /// Through the host: no peer access is asked for.
    fn between_devices<T, Src: DevicePtr<T>, Dst: DevicePtrMut<T>>(
        &self,
        from: &Src,
        to: &mut Dst,
        bytes: usize,
    ) -> Result<(), DriverError> {
        let mut host = vec![0u8; bytes];
        let (source, target) = (from.stream().clone(), to.stream().clone());
        let (address, _order) = from.device_ptr(&source);
        let mut staging = source.staging.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the source is borrowed and as long as it says.
        unsafe { staging.download(source.inner()?, address, &mut host)? };
        drop(staging);
        let (address, _order) = to.device_ptr_mut(&target);
        let mut staging = target.staging.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the target is borrowed uniquely and has room.
        unsafe { staging.upload(target.inner()?, &host, address)? };
        Ok(())
    }

    /// A copy of `from` that belongs to this stream.
    pub fn clone_dtod<T: DeviceRepr, Src: DevicePtr<T>>(
        self: &Arc<Self>,
        from: &Src,
    ) -> Result<CudaSlice<T>, DriverError> {
        // SAFETY: written on the next line.
        let mut slice = unsafe { self.alloc(from.len())? };
        self.memcpy_dtod(from, &mut slice)?;
        Ok(slice)
    }

    /// A slice's memory comes back: work enqueued before may still use it.
    pub(crate) fn give_back(&self, address: u64, bytes: usize) {
        // A stream that could not be made has handed nothing out.
        if let Ok(stream) = &self.stream {
            self.pool.give(stream, address, bytes);
        }
    }
}

fn room(call: &str, from: usize, to: usize) -> Result<(), DriverError> {
    if from <= to {
        return Ok(());
    }
    Err(DriverError::new(format!("{call}: {from} elements do not fit into {to}")))
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let Ok(stream) = &self.stream else { return };
        known().lock().unwrap_or_else(PoisonError::into_inner).remove(&(stream.handle() as usize));
        // SAFETY: slices hold their stream, so there are none left.
        unsafe { self.pool.close(stream) };
    }
}

impl PartialEq for CudaStream {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaStream({:?} of {:?})", self.cu_stream(), self.context)
    }
}
