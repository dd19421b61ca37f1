//! A parameter's two sides: what the kernel sees and what the host gives.

use gpu::{Arg, ArgList, Element, Error, Slice, SliceMut};

use crate::{View, ViewMut};

/// A type that a kernel's parameter may have.
pub trait Param {
    /// Inside the kernel.
    type Device;
    /// At a launch.
    type Host<'a>: Given + 'a;
}

impl<T: Element> Param for &[T] {
    type Device = View<T>;
    type Host<'a> = Slice<'a, T>;
}

impl<T: Element> Param for &mut [T] {
    type Device = ViewMut<T>;
    type Host<'a> = SliceMut<'a, T>;
}

/// What can be put into a launch's arguments.
pub trait Given {
    #[doc(hidden)]
    fn give(&self, list: &mut ArgList) -> gpu::Result<()>;
}

impl<T: Element> Given for Slice<'_, T> {
    fn give(&self, list: &mut ArgList) -> gpu::Result<()> {
        self.put(list)?;
        length(self.len())?.put(list)
    }
}

impl<T: Element> Given for SliceMut<'_, T> {
    fn give(&self, list: &mut ArgList) -> gpu::Result<()> {
        self.put(list)?;
        length(self.len())?.put(list)
    }
}

fn length(len: usize) -> gpu::Result<u32> {
    let at = std::panic::Location::caller();
    let why = || format!("{len} values are more than a kernel in Rust can index (4,294,967,295)");
    u32::try_from(len).map_err(|_| Error::Bounds { what: "a kernel's slice", why: why(), at })
}

macro_rules! numbers {
    ($($ty:ty)*) => {$(
        impl Param for $ty {
            type Device = $ty;
            type Host<'a> = $ty;
        }

        impl Given for $ty {
            fn give(&self, list: &mut ArgList) -> gpu::Result<()> {
                self.put(list)
            }
        }
    )*};
}
numbers!(u32 i32 u64 i64 f32);
