//! An arena: one allocation, carved into typed, aligned, disjoint buffers. Memory is planned, then
//! taken once; nothing is given back until the whole arena is gone.

use std::marker::PhantomData;
use std::mem::size_of;
use std::sync::Arc;

use crate::buffer::{Allocation, Buffer, Element};
use crate::error::{Error, Result};
use crate::shared::QueueShared;

/// Every carved buffer starts on this many bytes: wide enough for any vector load and for a cache line.
pub const ALIGNMENT: usize = 256;

/// One allocation that many buffers are cut from.
pub struct MemoryPool {
    allocation: Arc<Allocation>,
    used: usize,
}

impl MemoryPool {
    /// Bytes that carving `len` elements takes, rounding included: what a plan adds up.
    pub const fn room_for<T: Element>(len: usize) -> Option<usize> {
        match len.checked_mul(size_of::<T>()) {
            Some(bytes) => bytes.checked_next_multiple_of(ALIGNMENT),
            None => None,
        }
    }

    #[track_caller]
    pub(crate) fn new(shared: &Arc<QueueShared>, bytes: usize) -> Result<Self> {
        Ok(Self { allocation: Arc::new(Allocation::new(shared, bytes)?), used: 0 })
    }

    /// The next `len` elements. The contents are whatever was there.
    #[track_caller]
    pub fn carve<T: Element>(&mut self, len: usize) -> Result<Buffer<T>> {
        let end = Self::room_for::<T>(len).and_then(|bytes| self.used.checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= self.allocation.bytes) else {
            let (room, whole) = (self.remaining(), self.allocation.bytes);
            let why = format!("{len} elements of {} bytes do not fit: {room} of {whole} bytes left", size_of::<T>());
            return Err(Error::bounds("pool", why));
        };
        let start = std::mem::replace(&mut self.used, end);
        Ok(Buffer { allocation: self.allocation.clone(), start, len, element: PhantomData })
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.allocation.bytes
    }

    /// What was given out, padding included.
    pub fn used(&self) -> usize {
        self.used
    }

    /// What is left.
    pub fn remaining(&self) -> usize {
        self.allocation.bytes - self.used
    }
}
