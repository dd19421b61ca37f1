//! Launches that may begin while the one before them is still running: NVIDIA's programmatic dependent launch, from
//! sm_90 on. The kernel itself waits (`wait_for_inputs` in kernels/prelude.h) before it touches what earlier work made;
//! until then it may only read what nothing in the step writes, which is how a product's weights are on their way while
//! the norm before it still runs. A program says that all its kernels wait with `Program::overlapping`; elsewhere the
//! word changes nothing. `ROCI_OVERLAP=0` turns it off.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::device::Device;
use crate::raw::{Function, Stream};
use crate::vendor::Vendor;

pub type LaunchEx =
    unsafe extern "C" fn(config: *const LaunchConfig, function: Function, *mut *mut c_void, *mut *mut c_void) -> c_int;

const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;

/// `CUlaunchAttribute`: an id, padding to 8 bytes, and a value of 64 bytes.
#[repr(C)]
pub struct LaunchAttribute {
    id: c_int,
    padding: c_int,
    value: [c_int; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Stream,
    attributes: *const LaunchAttribute,
    n_attributes: c_uint,
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72 && size_of::<LaunchConfig>() == 56);

/// The shape of a launch as both APIs take it.
#[derive(Clone, Copy)]
pub struct LaunchShape {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: Stream,
}

/// Whether kernels that wait by themselves may be launched early here.
pub fn is_possible(device: &Device) -> bool {
    static IS_WANTED: OnceLock<bool> = OnceLock::new();
    let arch = &device.properties().arch;
    let number = arch.strip_prefix("sm_").and_then(|digits| digits.parse::<u32>().ok());
    device.vendor() == Vendor::Nvidia
        && number.is_some_and(|number| number >= 90)
        && device.extras().can_overlap()
        && *IS_WANTED.get_or_init(|| std::env::var("ROCI_OVERLAP").map_or(true, |value| value != "0"))
}

/// # Safety
/// As for `cuLaunchKernel`; and the kernel waits before it touches what earlier work in the stream wrote or reads.
pub unsafe fn launch(call: LaunchEx, function: Function, shape: LaunchShape, arguments: *mut *mut c_void) -> c_int {
    let mut value = [0; 16];
    value[0] = 1;
    let attribute = LaunchAttribute { id: PROGRAMMATIC_STREAM_SERIALIZATION, padding: 0, value };
    let LaunchShape { grid, block, shared_bytes, stream } = shape;
    let config = LaunchConfig { grid, block, shared_bytes, stream, attributes: &attribute, n_attributes: 1 };
    // SAFETY: the structs have the layout of NVIDIA's header (sizes asserted above, fields compared in
    // tests/it/headers.rs) and live during the call; the rest is the caller's.
    unsafe { call(&config, function, arguments, std::ptr::null_mut()) }
}
