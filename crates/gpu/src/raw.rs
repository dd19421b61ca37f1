//! The vendors' opaque handles, one Rust type each, so that an event can never be passed where a
//! stream is meant. Nothing here leaves the crate: above `gpu` nobody can name a stream.

use std::ffi::c_void;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(pub *mut c_void);

        impl $name {
            pub const NULL: Self = Self(std::ptr::null_mut());
        }

        // SAFETY: a handle is a name that both vendors' runtimes accept from any thread; the layer
        // keeps the thread's current device right before each use, and `Queue` (not Sync) keeps two
        // threads from enqueueing at once.
        unsafe impl Send for $name {}
        // SAFETY: as above; a shared handle is only ever copied.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    Stream,
    Event,
    Module,
    Function,
    Graph,
    GraphExec,
    /// A CUDA context; HIP has none.
    Context,
    /// A program of the run-time compiler.
    Program,
    /// A handle of a BLAS library.
    Blas,
}

/// An address in device memory. 64 bits wide in both APIs (`void*` in HIP, `CUdeviceptr` in CUDA).
pub type Address = u64;
