//! Devices, streams, memory, kernels: cudarc's `driver`, as far as Candle names it.

mod context;
mod error;
mod launch;
mod module;
mod pool;
pub mod result;
mod slice;
mod staging;
mod stream;
pub mod sys;
mod traits;

pub use context::CudaContext;
pub use error::DriverError;
pub use launch::{LaunchArgs, LaunchConfig, PushKernelArg};
pub use module::{CudaFunction, CudaModule};
pub use slice::{CudaSlice, CudaView, CudaViewMut};
pub use stream::CudaStream;
pub use traits::{DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, HostSlice, SyncOnDrop, ValidAsZeroBits};

/// The same names once more, where cudarc has them too.
pub mod safe {
    pub use super::{
        CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut,
        DeviceRepr, DeviceSlice, DriverError, HostSlice, LaunchArgs, LaunchConfig, PushKernelArg, SyncOnDrop,
        ValidAsZeroBits,
    };
}
