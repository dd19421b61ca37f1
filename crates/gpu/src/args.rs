//! Kernel arguments: a struct per kernel, declared once with `args!`.
//!
//! The struct's fields are numbers and slices; the macro makes from it the argument array of a launch
//! and the C++ signature that the compiler checks the kernel against. So a kernel and its host side
//! cannot disagree about a type, an order or a count, and a slice of a foreign queue is refused here.

use std::ffi::c_void;
use std::mem::{align_of, size_of};
use std::panic::Location;
use std::sync::Arc;

use crate::buffer::{Allocation, Element, Slice, SliceMut};
use crate::error::{Error, Result};
use crate::queue::QueueId;

/// Arguments of one kernel. Implemented by `args!`.
pub trait Args {
    /// The same struct for any lifetime: what a `Kernel` is typed with.
    type Key: 'static;
    /// The C++ parameter list, e.g. `const float*, float*, unsigned int`.
    fn signature() -> String;
    /// Appends the values in the order of [`Args::signature`].
    fn put(&self, list: &mut ArgList) -> Result<()>;
}

/// One argument: a number or a slice.
pub trait Arg {
    /// The C++ type of the parameter.
    fn c_type() -> String;
    /// Appends the value; a slice of another queue is refused.
    fn put(&self, list: &mut ArgList) -> Result<()>;
}

const MAX_WORDS: usize = 64;
const MAX_ARGS: usize = 40;

/// The argument array under construction: values in one block, and a pointer to each.
pub struct ArgList {
    words: [u64; MAX_WORDS],
    offsets: [u16; MAX_ARGS],
    pointers: [*mut c_void; MAX_ARGS],
    n_args: usize,
    used: usize,
    queue: QueueId,
    at: &'static Location<'static>,
    /// In a capture: the memory the graph must keep alive.
    pub(crate) keep: Option<Vec<Arc<Allocation>>>,
}

// SAFETY: the pointers point into `words` and are only read by the driver during a call.
unsafe impl Send for ArgList {}
// SAFETY: shared access reads nothing through them.
unsafe impl Sync for ArgList {}

impl ArgList {
    #[track_caller]
    pub(crate) fn new(queue: QueueId, keep: Option<Vec<Arc<Allocation>>>) -> Self {
        Self {
            words: [0; MAX_WORDS],
            offsets: [0; MAX_ARGS],
            pointers: [std::ptr::null_mut(); MAX_ARGS],
            n_args: 0,
            used: 0,
            queue,
            at: Location::caller(),
            keep,
        }
    }

    fn number<T: Element>(&mut self, value: T) -> Result<()> {
        let offset = self.used.next_multiple_of(align_of::<T>());
        if offset + size_of::<T>() > size_of::<[u64; MAX_WORDS]>() || self.n_args == MAX_ARGS {
            let why = format!("more than {MAX_ARGS} arguments or {} bytes", size_of::<[u64; MAX_WORDS]>());
            return Err(Error::Bounds { what: "kernel arguments", why, at: self.at });
        }
        // SAFETY: in bounds and aligned by the check above (the block is 8-aligned, no element is wider).
        unsafe { self.words.as_mut_ptr().cast::<u8>().add(offset).cast::<T>().write(value) };
        self.offsets[self.n_args] = offset as u16;
        self.n_args += 1;
        self.used = offset + size_of::<T>();
        Ok(())
    }

    fn memory(&mut self, allocation: &Arc<Allocation>, address: u64) -> Result<()> {
        let owner = allocation.shared.id;
        if owner != self.queue {
            return Err(Error::Foreign { what: "a buffer", owner: owner.0, user: self.queue.0, at: self.at });
        }
        if let Some(keep) = &mut self.keep
            && !keep.iter().any(|kept| Arc::ptr_eq(kept, allocation))
        {
            keep.push(allocation.clone());
        }
        self.number(address)
    }

    /// The array the driver takes. Valid while `self` stays where it is.
    pub(crate) fn as_array(&mut self) -> *mut *mut c_void {
        let base = self.words.as_mut_ptr().cast::<u8>();
        for (pointer, offset) in self.pointers.iter_mut().zip(self.offsets).take(self.n_args) {
            // SAFETY: every offset was checked against the block by `number`.
            *pointer = unsafe { base.add(usize::from(offset)) }.cast();
        }
        self.pointers.as_mut_ptr()
    }
}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl Arg for $ty {
            fn c_type() -> String {
                <$ty as Element>::C_NAME.to_owned()
            }

            fn put(&self, list: &mut ArgList) -> Result<()> {
                list.number(*self)
            }
        }
    )*};
}

numbers!(u32, i32, u64, i64, f32);

impl<T: Element> Arg for Slice<'_, T> {
    fn c_type() -> String {
        format!("const {}*", T::C_NAME)
    }

    fn put(&self, list: &mut ArgList) -> Result<()> {
        list.memory(self.allocation(), self.address())
    }
}

impl<T: Element> Arg for SliceMut<'_, T> {
    fn c_type() -> String {
        format!("{}*", T::C_NAME)
    }

    fn put(&self, list: &mut ArgList) -> Result<()> {
        list.memory(self.allocation(), self.address())
    }
}

/// `None` is a null pointer: an optional input such as a bias.
impl<S: Arg + Pointer> Arg for Option<S> {
    fn c_type() -> String {
        S::c_type()
    }

    fn put(&self, list: &mut ArgList) -> Result<()> {
        match self {
            Some(slice) => slice.put(list),
            None => list.number(0u64),
        }
    }
}

/// Arguments that are addresses.
pub trait Pointer {}
impl<T: Element> Pointer for Slice<'_, T> {}
impl<T: Element> Pointer for SliceMut<'_, T> {}

/// Declare a kernel's arguments, in the order of its parameters.
///
/// ```
/// gpu::args! {
///     /// y = x * factor
///     pub struct Scale<'a> {
///         pub x: gpu::Slice<'a, f32>,
///         pub y: gpu::SliceMut<'a, f32>,
///         pub n: u32,
///         pub factor: f32,
///     }
/// }
/// assert_eq!(<Scale as gpu::Args>::signature(), "const float*, float*, unsigned int, float");
/// ```
#[macro_export]
macro_rules! args {
    (
        $(#[$doc:meta])*
        $vis:vis struct $name:ident<$life:lifetime> {
            $( $(#[$field_doc:meta])* $field_vis:vis $field:ident : $ty:ty ),* $(,)?
        }
    ) => {
        $(#[$doc])*
        $vis struct $name<$life> {
            $( $(#[$field_doc])* $field_vis $field: $ty ),*
        }

        impl<$life> $crate::Args for $name<$life> {
            type Key = $name<'static>;

            fn signature() -> String {
                [$(<$ty as $crate::Arg>::c_type()),*].join(", ")
            }

            fn put(&self, list: &mut $crate::ArgList) -> $crate::Result<()> {
                $( $crate::Arg::put(&self.$field, list)?; )*
                Ok(())
            }
        }
    };
}
