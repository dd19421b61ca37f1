//! Atomics: on a block's shared memory, on memory of the device, and on memory that other devices and the host use too.
//!
//! All are relaxed: they order nothing but themselves. What else must be seen in order needs a fence
//! ([`device_fence`](super::device_fence), [`system_fence`](super::system_fence)) or a barrier.

use super::arch::Base;
use super::shared::Shared;
use super::view::ViewMut;

/// Where an atomic works.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub enum Memory<T> {
    Device(*mut T),
    System(*mut T),
    Shared(Base, u32),
}

/// Types that can be added to atomically: `u32`, `u64` and `f32`.
pub trait AtomicNumber: Copy {
    #[doc(hidden)]
    fn add(memory: Memory<Self>, value: Self) -> Self;
}

/// Types with all atomics: `u32` and `u64`.
pub trait AtomicWord: AtomicNumber {
    #[doc(hidden)]
    fn max(memory: Memory<Self>, value: Self) -> Self;
    #[doc(hidden)]
    fn min(memory: Memory<Self>, value: Self) -> Self;
    #[doc(hidden)]
    fn or(memory: Memory<Self>, value: Self) -> Self;
    #[doc(hidden)]
    fn swap(memory: Memory<Self>, value: Self) -> Self;
    #[doc(hidden)]
    fn compare_swap(memory: Memory<Self>, expected: Self, value: Self) -> Self;
}

/// Memory with atomics. Each gives the value that was there before.
pub trait AtomicView: Copy {
    type Value: AtomicNumber;

    #[doc(hidden)]
    fn place(self, i: u32) -> Memory<Self::Value>;

    #[inline(always)]
    fn fetch_add(self, i: u32, value: Self::Value) -> Self::Value {
        Self::Value::add(self.place(i), value)
    }

    #[inline(always)]
    fn fetch_max(self, i: u32, value: Self::Value) -> Self::Value
    where
        Self::Value: AtomicWord,
    {
        Self::Value::max(self.place(i), value)
    }

    #[inline(always)]
    fn fetch_min(self, i: u32, value: Self::Value) -> Self::Value
    where
        Self::Value: AtomicWord,
    {
        Self::Value::min(self.place(i), value)
    }

    #[inline(always)]
    fn fetch_or(self, i: u32, value: Self::Value) -> Self::Value
    where
        Self::Value: AtomicWord,
    {
        Self::Value::or(self.place(i), value)
    }

    #[inline(always)]
    fn swap(self, i: u32, value: Self::Value) -> Self::Value
    where
        Self::Value: AtomicWord,
    {
        Self::Value::swap(self.place(i), value)
    }

    /// Writes `value` if `expected` is there.
    #[inline(always)]
    fn compare_swap(self, i: u32, expected: Self::Value, value: Self::Value) -> Self::Value
    where
        Self::Value: AtomicWord,
    {
        Self::Value::compare_swap(self.place(i), expected, value)
    }
}

/// One device sees these in order; other devices and the host need not.
impl<T: AtomicNumber> AtomicView for ViewMut<T> {
    type Value = T;

    #[inline(always)]
    fn place(self, i: u32) -> Memory<T> {
        Memory::Device(self.at(i))
    }
}

impl<T: AtomicNumber> AtomicView for Shared<T> {
    type Value = T;

    #[inline(always)]
    fn place(self, i: u32) -> Memory<T> {
        Memory::Shared(self.base, self.offset(i))
    }
}

/// A view whose atomics other devices and the host see as such, too: [`ViewMut::system`]. Slower than those of a device.
#[derive(Clone, Copy)]
pub struct SystemView<T>(ViewMut<T>);

impl<T: AtomicNumber> AtomicView for SystemView<T> {
    type Value = T;

    #[inline(always)]
    fn place(self, i: u32) -> Memory<T> {
        Memory::System(self.0.at(i))
    }
}

impl<T: AtomicNumber> ViewMut<T> {
    /// The same memory with atomics of system scope.
    #[inline(always)]
    pub fn system(self) -> SystemView<T> {
        SystemView(self)
    }
}
