//! GPU kernels written in Rust.
//!
//! A kernel is a function in [`kernels!`]. The same text is compiled twice: by `roci-kernel-build` to AMD code objects and
//! to PTX, and by this build to a function that packs the kernel's arguments into a typed [`Call`]. So a launch cannot
//! disagree with its kernel about a type, an order or a count.
//!
//! `device` is what a kernel may use: checked views of memory, ids, the barrier, shared memory, atomics and wave operations.
//! It is also carried as text (`DEVICE_SOURCES`), because the build script compiles it for each chip.
//!
//! What this crate does not do: it knows no compiler (that is `roci-kernel-build`) and owns no memory (that is `roci-gpu`).

pub mod device;
#[cfg(feature = "host")]
mod launch;
#[cfg(feature = "host")]
mod objects;
#[cfg(feature = "host")]
mod param;

pub use device::*;
#[cfg(feature = "host")]
pub use launch::{Call, Loaded};
#[cfg(feature = "host")]
pub use objects::{Object, Objects};
#[cfg(feature = "host")]
pub use param::Param;

/// The device's side of this crate as text, for `roci-kernel-build`: file name and contents. The first one is the root.
#[doc(hidden)]
pub const DEVICE_SOURCES: &[(&str, &str)] = &[
    ("mod.rs", include_str!("device/mod.rs")),
    ("shared.rs", include_str!("device/shared.rs")),
    ("view.rs", include_str!("device/view.rs")),
    ("atomic.rs", include_str!("device/atomic.rs")),
    ("matrix.rs", include_str!("device/matrix.rs")),
    ("units.rs", include_str!("device/units.rs")),
    ("amd.rs", include_str!("device/amd.rs")),
    ("nvidia.rs", include_str!("device/nvidia.rs")),
    ("host.rs", include_str!("device/host.rs")),
    ("macros.rs", include_str!("device/macros.rs")),
];

/// What Rust cannot express about AMD's chips, as LLVM bitcode; assembled from `amdgpu.ll`.
#[doc(hidden)]
pub const AMD_BITCODE: &[u8] = include_bytes!("amdgpu.bc");

/// Declare kernels, in a file that a build script gives to `roci-kernel-build` and the crate includes as a module.
///
/// Parameters are numbers (`u32 i32 u64 i64 f32`) and slices. In the body a slice is a [`View`] or a [`ViewMut`]: every
/// access is checked against the slice's length, and one outside of it stops the kernel with a trap.
///
/// ```
/// mod kernels {
///     use kernel::*;
///
///     kernel::kernels! {
///         /// y = k x + y
///         #[launch(threads = 256)]
///         fn saxpy(k: f32, x: &[f32], y: &mut [f32]) {
///             let i = global_id();
///             if i < y.len() {
///                 y.set(i, fma(k, x.get(i), y.get(i)));
///             }
///         }
///     }
/// }
/// ```
///
/// On the host `kernels::saxpy(k, x, y)` takes a `f32`, a `gpu::Slice` and a `gpu::SliceMut` and gives a [`Call`].
#[cfg(feature = "host")]
#[macro_export]
macro_rules! kernels {
    ($(
        $(#[doc = $doc:expr])*
        #[launch(threads = $threads:expr $(, shared = $shared:expr)?)]
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block
    )*) => {$(
        $(#[doc = $doc])*
        #[allow(clippy::too_many_arguments, reason = "a kernel's arguments are the caller's choice")]
        pub fn $name<'a>($($arg: <$ty as $crate::Param>::Host<'a>),*) -> $crate::Call<'a> {
            // Checked here as on the device, and never run.
            #[allow(dead_code, clippy::too_many_arguments, reason = "compiled for its checks, never called")]
            fn body($($arg: <$ty as $crate::Param>::Device),*) $body
            #[allow(unused_mut, unused_assignments, reason = "kernels without `shared`")]
            let mut shared_bytes: u32 = 0;
            $( shared_bytes = $shared; )?
            $crate::Call::new(stringify!($name), $threads, shared_bytes)$(.with($arg))*
        }
    )*};
}
