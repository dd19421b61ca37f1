//! The device layer: AMD GPUs through HIP, NVIDIA GPUs through CUDA's driver API, as one backend.
//!
//! A table with one row per call and two symbol names is filled by dlopen at run time, so the crate
//! builds anywhere and links nothing. Kernels are C++ compiled at run time by hiprtc or nvrtc. Stream
//! mistakes do not compile: see `Queue`, `Launcher`, `Buffer` and `Pending`.
//!
//! What this crate does not know and must never learn: tensors, shapes of models, weights, tokens.
//! There is no default stream, no synchronous copy, no device-wide wait, no way to name a stream above
//! it, and no async. It never prints. Raw addresses and streams are reachable in two places: [`foreign`], for crates that
//! wrap a vendor's library, and [`unchecked`], for code that stands in for another GPU layer.

#![warn(missing_docs)]

mod args;
mod blas;
mod blas_library;
mod budget;
mod buffer;
mod cache;
mod compile;
mod counters;
mod device;
pub mod discovery;
#[allow(missing_docs, reason = "hidden tables: the names are the vendors'")]
mod driver;
mod error;
mod event;
pub mod foreign;
mod graph;
mod launcher;
mod module;
mod overlap;
mod pinned;
mod pool;
mod queue;
mod ranges;
mod raw;
mod shared;
pub mod unchecked;
mod unchecked_blas;
#[allow(missing_docs, reason = "hidden tables: the names are the vendors'")]
mod vendor;

pub use args::{Arg, ArgList, Args, Pointer};
pub use blas::{Accumulate, Blas, FactorLayout, GemmShape, Number, ProductTypes, Scalar};
pub use budget::{Bound, Budget, Gtt, SystemMemory};
pub use buffer::{Buffer, Element, Slice, SliceMut};
pub use cache::{Cache, CachedKernel};
pub use compile::{BuildProgress, Code, Program, Target, build, compiler};
pub use counters::Counters;
pub use device::{Device, Memory, Properties};
pub use error::{CallError, Error, Result};
pub use event::{Event, EventKind, Timed, Untimed};
pub use graph::Graph;
pub use launcher::{Launcher, Op, Work};
pub use module::{Grid, Kernel, Module, Resources};
pub use pinned::{Pending, Pinned};
pub use pool::{ALIGNMENT, MemoryPool};
pub use queue::{DebugSync, OpTime, Profiling, Queue, QueueId};
pub use ranges::is_tool_attached;
pub use shared::Leak;
pub use vendor::Vendor;

/// The tables as data, for the check against the vendors' headers.
#[doc(hidden)]
pub mod tables {
    pub use crate::driver::{DRIVER_ROWS, DriverRow, RTC_ROWS};
    pub use crate::vendor::{
        Attribute, BlasNumbers, CAPTURE_THREAD_LOCAL, CUBLAS, EVENT_NO_TIMING, FUNCTION_LOCAL_BYTES,
        FUNCTION_MAX_THREADS, FUNCTION_REGISTERS, FUNCTION_SHARED_BYTES, HIP_ARCH_OFFSET_R0600, HIP_PROPERTIES_BYTES,
        HIPBLAS_3, HOST_ALLOC_PORTABLE, ROCBLAS, STATUS_NOT_READY, STATUS_OUT_OF_MEMORY, STREAM_NON_BLOCKING,
    };
}
