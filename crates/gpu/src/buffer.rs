//! Device memory: `Buffer` owns a range of an allocation, `Slice` and `SliceMut` borrow from it.
//!
//! All three carry the queue they belong to, so that a foreign buffer is a deterministic error and
//! never a race. They are typed over plain elements, and every sub-range is checked. There is no way
//! to look at device memory from here: reading back goes through a `Queue`.

use std::fmt;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

use crate::counters::{self, Meter};
use crate::error::{Error, Result};
use crate::queue::QueueId;
use crate::raw::Address;
use crate::shared::{Block, QueueShared};
use crate::vendor::STATUS_OUT_OF_MEMORY;

/// A plain number that means the same on both sides of the bus.
///
/// # Safety
/// Every bit pattern must be a value, there must be no padding, and `C_NAME` must be a C++ type of the
/// same size and meaning (`f16` and `bf16` come from the kernels' prelude).
pub unsafe trait Element: Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// As C++ calls the type.
    const C_NAME: &'static str;
}

macro_rules! elements {
    ($($rust:ty = $c:literal),* $(,)?) => {$(
        // SAFETY: a primitive number, half's transparent u16, or a `repr(C)` pair of floats: no padding, no invalid bits, and the
        // C++ type named has that size on both vendors' 64-bit compilers.
        unsafe impl Element for $rust { const C_NAME: &'static str = $c; }
    )*};
}

elements! {
    u8 = "unsigned char", i8 = "signed char", u16 = "unsigned short", i16 = "short",
    u32 = "unsigned int", i32 = "int", u64 = "unsigned long long", i64 = "long long",
    f32 = "float", f64 = "double", f16 = "f16", bf16 = "bf16",
    Complex32 = "float2", Complex64 = "double2",
}

/// One allocation of device memory, freed when the last range in it is gone.
pub(crate) struct Allocation {
    pub shared: Arc<QueueShared>,
    pub address: Address,
    pub bytes: usize,
}

impl Allocation {
    #[track_caller]
    pub fn new(shared: &Arc<QueueShared>, bytes: usize) -> Result<Self> {
        let driver = shared.ready_outside_capture("an allocation")?;
        let mut address: Address = 0;
        // SAFETY: a valid out pointer. Zero bytes would give a null pointer: ask for one at least.
        let reply = unsafe { driver.alloc(&mut address, bytes.max(1)) };
        if reply.value == STATUS_OUT_OF_MEMORY {
            let memory = shared.device.memory()?;
            return Err(Error::OutOfMemory {
                device: shared.device.label().to_owned(),
                wanted_bytes: bytes,
                free_bytes: memory.free_bytes,
                total_bytes: memory.total_bytes,
                at: std::panic::Location::caller(),
            });
        }
        shared.judge(reply)?;
        counters::add(&Meter::of(shared.device.vendor()).bytes_allocated, bytes);
        Ok(Self { shared: shared.clone(), address, bytes })
    }

    /// The address alone: the caller frees it.
    pub fn into_address(self) -> Address {
        let allocation = std::mem::ManuallyDrop::new(self);
        // SAFETY: read once, from a value that is not dropped: the queue's count goes down as it should.
        drop(unsafe { std::ptr::read(&allocation.shared) });
        allocation.address
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.shared.release(Block::Device { address: self.address, bytes: self.bytes });
    }
}

/// `len` elements of device memory that belong to one queue.
pub struct Buffer<T: Element> {
    pub(crate) allocation: Arc<Allocation>,
    /// In bytes, from the start of the allocation.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) element: PhantomData<T>,
}

/// A shared borrow of device memory.
pub struct Slice<'a, T: Element> {
    allocation: &'a Arc<Allocation>,
    start: usize,
    len: usize,
    element: PhantomData<&'a T>,
}

/// A unique borrow of device memory.
pub struct SliceMut<'a, T: Element> {
    allocation: &'a Arc<Allocation>,
    start: usize,
    len: usize,
    element: PhantomData<&'a mut T>,
}

impl<T: Element> Clone for Slice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element> Copy for Slice<'_, T> {}

/// The elements a range names, as (first, count).
#[track_caller]
fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let first = match range.start_bound() {
        Bound::Included(&first) => first,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    if first > end || end > len {
        return Err(Error::bounds("slice", format!("{first}..{end} does not fit into {len} elements")));
    }
    Ok((first, end - first))
}

/// The length in `U`s of a range of bytes, if it starts on their alignment and divides evenly.
#[track_caller]
fn recast<U: Element>(address: Address, bytes: usize) -> Result<usize> {
    // C++ aligns every element to its size, pairs of floats included.
    if !(address as usize).is_multiple_of(size_of::<U>()) || !bytes.is_multiple_of(size_of::<U>()) {
        let why = format!("{bytes} bytes at {address:#x} are not a whole, aligned number of `{}`", U::C_NAME);
        return Err(Error::bounds("cast", why));
    }
    Ok(bytes / size_of::<U>())
}

/// What a buffer and its slices say about themselves.
macro_rules! size_functions {
    () => {
        /// In elements.
        pub fn len(&self) -> usize {
            self.len
        }

        /// Whether it has no elements.
        pub fn is_empty(&self) -> bool {
            self.len == 0
        }

        /// In bytes.
        pub fn bytes(&self) -> usize {
            self.len * size_of::<T>()
        }

        /// The queue whose work may use it.
        pub fn queue_id(&self) -> QueueId {
            self.allocation.shared.id
        }
    };
}

impl<T: Element> Buffer<T> {
    pub(crate) fn whole(allocation: Allocation, len: usize) -> Self {
        Self { allocation: Arc::new(allocation), start: 0, len, element: PhantomData }
    }

    size_functions!();

    /// The whole buffer, to read.
    pub fn all(&self) -> Slice<'_, T> {
        Slice { allocation: &self.allocation, start: self.start, len: self.len, element: PhantomData }
    }

    /// The whole buffer, to write.
    pub fn all_mut(&mut self) -> SliceMut<'_, T> {
        SliceMut { allocation: &self.allocation, start: self.start, len: self.len, element: PhantomData }
    }

    /// A part of it, to read; a range in elements.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T>> {
        self.all().slice(range)
    }

    /// A part of it, to write; a range in elements.
    #[track_caller]
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<SliceMut<'_, T>> {
        self.all_mut().into_slice(range)
    }
}

impl<'a, T: Element> Slice<'a, T> {
    size_functions!();

    /// A part of it; a range in elements.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'a, T>> {
        let (first, len) = resolve(range, self.len)?;
        Ok(Slice { start: self.start + first * size_of::<T>(), len, ..*self })
    }

    /// The same bytes as another element type.
    #[track_caller]
    pub fn cast<U: Element>(&self) -> Result<Slice<'a, U>> {
        let len = recast::<U>(self.address(), self.bytes())?;
        Ok(Slice { allocation: self.allocation, start: self.start, len, element: PhantomData })
    }

    /// Parts of one allocation that are alike and lie evenly spaced, as one range, and the bytes from each to the next.
    /// `None` where they are not.
    pub fn evenly(parts: &[Slice<'a, T>]) -> Option<(Slice<'a, T>, usize)> {
        let (first, last) = (parts.first()?, parts.last()?);
        let step = match parts.get(1) {
            Some(second) => second.start.checked_sub(first.start)?,
            None => first.bytes(),
        };
        let is_even = |(i, part): (usize, &Slice<T>)| {
            let is_same = Arc::ptr_eq(part.allocation, first.allocation) && part.len == first.len;
            is_same && part.start == first.start + i * step
        };
        if step < first.bytes() || !step.is_multiple_of(size_of::<T>()) || !parts.iter().enumerate().all(is_even) {
            return None;
        }
        let len = (last.start - first.start) / size_of::<T>() + last.len;
        Some((Slice { len, ..*first }, step))
    }

    pub(crate) fn address(&self) -> Address {
        self.allocation.address + self.start as Address
    }

    pub(crate) fn allocation(&self) -> &'a Arc<Allocation> {
        self.allocation
    }
}

impl<'a> SliceMut<'a, u8> {
    /// A unique view of bytes of a buffer that is only borrowed shared. For memory the crate keeps to
    /// itself: the caller sees to it that no other view of these bytes is used at the same time.
    #[track_caller]
    pub(crate) fn over(buffer: &'a Buffer<u8>, bytes: std::ops::Range<usize>) -> Result<Self> {
        let part = buffer.slice(bytes)?;
        Ok(Self { allocation: part.allocation, start: part.start, len: part.len, element: PhantomData })
    }
}

impl<'a, T: Element> SliceMut<'a, T> {
    size_functions!();

    /// The same memory, to read.
    pub fn as_slice(&self) -> Slice<'_, T> {
        Slice { allocation: self.allocation, start: self.start, len: self.len, element: PhantomData }
    }

    /// A shorter unique borrow of the same memory.
    pub fn reborrow(&mut self) -> SliceMut<'_, T> {
        SliceMut { allocation: self.allocation, start: self.start, len: self.len, element: PhantomData }
    }

    /// A part of it; a range in elements.
    #[track_caller]
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<SliceMut<'_, T>> {
        self.reborrow().into_slice(range)
    }

    /// Narrow to a sub-range for the whole of the borrow.
    #[track_caller]
    pub fn into_slice(self, range: impl RangeBounds<usize>) -> Result<SliceMut<'a, T>> {
        let (first, len) = resolve(range, self.len)?;
        Ok(SliceMut { start: self.start + first * size_of::<T>(), len, ..self })
    }

    /// Two disjoint unique borrows.
    #[track_caller]
    pub fn split_at(self, middle: usize) -> Result<(SliceMut<'a, T>, SliceMut<'a, T>)> {
        let (_, left) = resolve(..middle, self.len)?;
        let start = self.start + middle * size_of::<T>();
        let right = SliceMut { start, len: self.len - left, ..self };
        Ok((SliceMut { allocation: right.allocation, start: self.start, len: left, element: PhantomData }, right))
    }

    /// The same bytes as another element type.
    #[track_caller]
    pub fn cast<U: Element>(self) -> Result<SliceMut<'a, U>> {
        let len = recast::<U>(self.address(), self.bytes())?;
        Ok(SliceMut { allocation: self.allocation, start: self.start, len, element: PhantomData })
    }

    pub(crate) fn address(&self) -> Address {
        self.allocation.address + self.start as Address
    }

    pub(crate) fn allocation(&self) -> &'a Arc<Allocation> {
        self.allocation
    }
}

macro_rules! debug_as_range {
    ($($name:ident $(<$life:lifetime>)?),*) => {$(
        impl<T: Element> fmt::Debug for $name<$($life,)? T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}<{}>[{}] of queue {}", stringify!($name), T::C_NAME, self.len, self.queue_id().0)
            }
        }
    )*};
}

debug_as_range!(Buffer, Slice<'_>, SliceMut<'_>);
