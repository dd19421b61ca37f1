//! What a crate that wraps a vendor's library needs of a queue: the stream, addresses that were shown to
//! belong to it, and the right current device around every call.
//!
//! A [`Binding`] is made by a queue and keeps its stream alive. It works outside captures only: a graph
//! would have to keep memory that the library took for itself. The safety of a call stays with the crate
//! that makes it; what is checked here is whose memory it is.

use std::ffi::c_void;
use std::panic::Location;
use std::sync::Arc;

use crate::buffer::{Allocation, Buffer, Element, Slice, SliceMut};
use crate::device::Device;
use crate::driver::open_first;
use crate::error::{Error, Result};
use crate::queue::{Queue, QueueId};
use crate::shared::QueueShared;
use crate::vendor::Vendor;

pub use crate::raw::Address;

/// A queue as a vendor's library sees it.
#[derive(Clone)]
pub struct Binding {
    shared: Arc<QueueShared>,
}

impl Binding {
    /// Binds a library's handle to this queue.
    #[track_caller]
    pub fn new(queue: &Queue) -> Result<Self> {
        let binding = Self { shared: queue.shared().clone() };
        binding.enter()?;
        Ok(binding)
    }

    /// For `unchecked::Stream`, whose memory no binding can check.
    pub(crate) fn of_shared(shared: Arc<QueueShared>) -> Self {
        Self { shared }
    }

    /// The queue's device.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// The device's vendor.
    pub fn vendor(&self) -> Vendor {
        self.device().vendor()
    }

    /// The queue that memory must belong to.
    pub fn queue_id(&self) -> QueueId {
        self.shared.id
    }

    /// The vendor's own handle (`hipStream_t` or `CUstream`), alive as long as any clone of this.
    pub fn stream(&self) -> *mut c_void {
        self.shared.stream.0
    }

    /// Before every call into a library: the queue is alive and not capturing, its device is the thread's current one.
    #[track_caller]
    pub fn enter(&self) -> Result<()> {
        self.shared.ready_outside_capture("a library's call").map(drop)
    }

    /// The address of memory that the library reads, if it belongs to this queue.
    #[track_caller]
    pub fn input<T: Element>(&self, slice: &Slice<'_, T>) -> Result<Address> {
        self.own(slice.queue_id())?;
        Ok(slice.address())
    }

    /// The address of memory that the library writes, if it belongs to this queue.
    #[track_caller]
    pub fn output<T: Element>(&self, slice: &SliceMut<'_, T>) -> Result<Address> {
        self.own(slice.queue_id())?;
        Ok(slice.address())
    }

    /// `len` elements of this queue's memory. Dropping them waits for what was enqueued with them.
    #[track_caller]
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| Error::bounds("alloc", "too many elements"))?;
        Ok(Buffer::whole(Allocation::new(&self.shared, bytes)?, len))
    }

    /// A buffer with these contents. Waits for the copy.
    #[track_caller]
    pub fn upload<T: Element>(&self, contents: &[T]) -> Result<Buffer<T>> {
        let buffer = self.alloc::<T>(contents.len())?;
        if !contents.is_empty() {
            let driver = self.shared.ready()?;
            // SAFETY: both ranges are alive and of that length, and the host's outlives the wait below.
            self.shared.judge(unsafe {
                driver.copy_to_device(
                    buffer.all().address(),
                    contents.as_ptr().cast(),
                    buffer.bytes(),
                    self.shared.stream,
                )
            })?;
            self.wait()?;
        }
        Ok(buffer)
    }

    /// Copies a slice's contents to the host and waits.
    #[track_caller]
    pub fn read<T: Element>(&self, slice: &Slice<'_, T>) -> Result<Vec<T>> {
        let mut contents = vec![T::default(); slice.len()];
        let address = self.input(slice)?;
        if !contents.is_empty() {
            let driver = self.shared.ready()?;
            let to = contents.as_mut_ptr().cast();
            // SAFETY: both ranges are alive and of that length; nobody looks at the host's before the wait.
            self.shared.judge(unsafe { driver.copy_to_host(to, address, slice.bytes(), self.shared.stream) })?;
            self.wait()?;
        }
        Ok(contents)
    }

    /// Copy between two ranges of the same length.
    #[track_caller]
    pub fn copy<T: Element>(&self, from: Slice<'_, T>, to: SliceMut<'_, T>) -> Result<()> {
        let (source, target) = (self.input(&from)?, self.output(&to)?);
        if from.len() != to.len() {
            return Err(Error::bounds("copy", format!("{} elements into {}", from.len(), to.len())));
        }
        if from.is_empty() {
            return Ok(());
        }
        self.enter()?;
        // SAFETY: both ranges lie in live allocations of this queue, and the target is borrowed uniquely, so they do
        // not overlap.
        self.shared
            .judge(unsafe { self.shared.driver().copy_on_device(target, source, from.bytes(), self.shared.stream) })
    }

    /// Set every byte to zero.
    #[track_caller]
    pub fn zero<T: Element>(&self, to: SliceMut<'_, T>) -> Result<()> {
        let address = self.output(&to)?;
        if to.is_empty() {
            return Ok(());
        }
        self.enter()?;
        // SAFETY: the range lies in a live allocation of this queue and is borrowed uniquely; all bytes zero is a value
        // of every element.
        self.shared.judge(unsafe { self.shared.driver().fill_u8(address, 0, to.bytes(), self.shared.stream) })
    }

    /// Block until everything enqueued so far is done.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.shared.wait_so_far("a library's work")
    }

    /// Keep an error of a call that cannot report it; the queue's next call does.
    pub fn report_later(&self, error: Error) {
        self.shared.keep_late(error);
    }

    #[track_caller]
    fn own(&self, owner: QueueId) -> Result<()> {
        if owner == self.shared.id {
            return Ok(());
        }
        Err(Error::Foreign { what: "a buffer", owner: owner.0, user: self.shared.id.0, at: Location::caller() })
    }
}

/// A vendor's library, loaded by its soname and never unloaded.
#[derive(Clone)]
pub struct Library {
    library: &'static libloading::Library,
    path: String,
}

impl Library {
    /// The first soname that loads, in the vendor's usual folders and then on the loader's own path.
    pub fn open(vendor: Vendor, role: &'static str, sonames: &[&str]) -> Result<Self> {
        let (library, path) = open_first(vendor, role, &vendor.candidates(sonames))?;
        Ok(Self { library, path })
    }

    /// The file the loader took.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A function's address, where the library has it.
    pub fn symbol(&self, name: &str) -> Option<*const c_void> {
        // SAFETY: an address is only read; its caller answers for the signature.
        let found = unsafe { self.library.get::<*const c_void>(name.as_bytes()) };
        found.ok().map(|symbol| *symbol).filter(|address| !address.is_null())
    }
}
