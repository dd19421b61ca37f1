//! Page-locked host memory and copies in flight.
//!
//! A copy takes its host memory by value and gives a `Pending`; only a completed event gives the
//! memory back. There is no way to look at bytes that are still in flight. Dropping a `Pending` waits,
//! unless its queue is dead or past its deadline: then the memory is leaked, and that is recorded.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, size_of};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::buffer::Element;
use crate::error::{Error, Result};
use crate::event::{Event, Untimed};
use crate::shared::{Block, QueueShared};
use crate::vendor::HOST_ALLOC_PORTABLE;

/// Host memory the device can copy from and to at full speed.
pub struct Pinned<T: Element> {
    shared: Arc<QueueShared>,
    at: *mut T,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: the sole owner of plain elements.
unsafe impl<T: Element> Send for Pinned<T> {}
// SAFETY: shared access only reads plain elements.
unsafe impl<T: Element> Sync for Pinned<T> {}

impl<T: Element> Pinned<T> {
    #[track_caller]
    pub(crate) fn new(shared: &Arc<QueueShared>, len: usize) -> Result<Self> {
        let driver = shared.ready_outside_capture("an allocation")?;
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| Error::bounds("pinned", "too many elements"))?;
        let mut at: *mut c_void = std::ptr::null_mut();
        // SAFETY: a valid out pointer; never zero bytes, so never a null block.
        shared.judge(unsafe { driver.host_alloc(&mut at, bytes.max(1), HOST_ALLOC_PORTABLE) })?;
        // SAFETY: the driver just gave `bytes` bytes, page-aligned; zero is a value of every element.
        unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0, bytes) };
        Ok(Self { shared: shared.clone(), at: at.cast(), len, element: PhantomData })
    }

    pub(crate) fn shared(&self) -> &Arc<QueueShared> {
        &self.shared
    }

    pub(crate) fn as_device_source(&self) -> *const c_void {
        self.at.cast_const().cast()
    }

    pub(crate) fn as_device_target(&mut self) -> *mut c_void {
        self.at.cast()
    }
}

impl<T: Element> Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements owned by `self`; no copy is in flight, because a copy
        // takes the `Pinned` by value.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<T: Element> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl<T: Element> Drop for Pinned<T> {
    fn drop(&mut self) {
        self.shared.release(Block::Host { at: self.at.cast(), bytes: self.len * size_of::<T>() });
    }
}

/// Host memory that a copy is using. `wait` gives it back.
#[must_use = "dropping a copy in flight waits for it"]
pub struct Pending<T: Element> {
    /// Taken out once, by `wait` or by `Drop`.
    memory: ManuallyDrop<Pinned<T>>,
    event: Event<Untimed>,
    is_settled: bool,
}

impl<T: Element> Pending<T> {
    #[track_caller]
    pub(crate) fn new(memory: Pinned<T>) -> Result<Self> {
        let shared = memory.shared.clone();
        let memory = ManuallyDrop::new(memory);
        match Event::record(&shared) {
            Ok(event) => Ok(Self { memory, event, is_settled: false }),
            Err(error) => {
                // The copy was enqueued, and nothing will tell when it is over.
                shared.leak("pinned host memory of a copy without an event", memory.len * size_of::<T>());
                Err(error)
            }
        }
    }

    /// Whether the copy is done. Does not wait.
    #[track_caller]
    pub fn is_done(&self) -> Result<bool> {
        self.event.is_done()
    }

    /// Block until the copy is done. On an error the memory is leaked: the device may still write it.
    #[track_caller]
    pub fn wait(mut self) -> Result<Pinned<T>> {
        self.event.wait()?;
        self.is_settled = true;
        // SAFETY: taken once; `is_settled` keeps `drop` from taking it again.
        Ok(unsafe { ManuallyDrop::take(&mut self.memory) })
    }
}

impl<T: Element> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        if self.event.wait().is_ok() {
            // SAFETY: the copy is over, and this is the only other place that takes the memory.
            drop(unsafe { ManuallyDrop::take(&mut self.memory) });
        } else {
            self.memory.shared.leak("pinned host memory in flight", self.memory.len * size_of::<T>());
        }
    }
}
