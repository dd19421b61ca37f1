//! The table: one row per call, `our name | HIP symbol | CUDA symbol | signature`.
//!
//! Both driver APIs agree argument for argument on every row, so one backend serves both. The table
//! is filled by dlopen at run time; nothing is linked. Each call is counted by its row, so that a
//! test can assert what a step costs. What has no twin on the other side lives in `vendor.rs`.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libloading::Library;

use crate::error::Error;
use crate::raw::{Address, Event, Function, Graph, GraphExec, Module, Program, Stream};
use crate::vendor::{Extras, Vendor};

/// What a vendor call answered, together with the symbol that was called.
#[must_use]
#[derive(Clone, Copy)]
pub struct Reply<R> {
    pub call: &'static str,
    pub value: R,
}

/// One row as data: for the header check and for reports.
#[derive(Clone, Copy, Debug)]
pub struct DriverRow {
    pub name: &'static str,
    pub hip: &'static str,
    pub cuda: &'static str,
    /// Argument types as written in the table.
    pub args: &'static [&'static str],
    pub returns: &'static str,
}

impl DriverRow {
    pub fn symbol(&self, vendor: Vendor) -> &'static str {
        match vendor {
            Vendor::Amd => self.hip,
            Vendor::Nvidia => self.cuda,
        }
    }
}

macro_rules! table {
    (
        $(#[$doc:meta])*
        pub struct $table:ident, rows $rows:ident, counts $counts:ident;
        $( $name:ident | $hip:literal | $cuda:literal | ($($arg:ident : $ty:ty),*) -> $ret:ty; )*
    ) => {
        pub const $rows: &[DriverRow] = &[$(
            DriverRow {
                name: stringify!($name),
                hip: $hip,
                cuda: $cuda,
                args: &[$(stringify!($ty)),*],
                returns: stringify!($ret),
            },
        )*];

        #[derive(Default)]
        pub struct $counts { $(pub $name: AtomicU64),* }

        $(#[$doc])*
        pub struct $table {
            pub vendor: Vendor,
            /// The file the loader took.
            pub library: String,
            pub counts: $counts,
            $($name: unsafe extern "C" fn($($ty),*) -> $ret,)*
        }

        impl $table {
            /// Fill the table from a library that stays loaded for the life of the process.
            fn fill(vendor: Vendor, library: &'static Library, path: String) -> Result<Self, Error> {
                Ok(Self {
                    vendor,
                    counts: $counts::default(),
                    $($name: {
                        let symbol = vendor.pick($hip, $cuda);
                        // SAFETY: the signature of this row is the one in the vendor's header for that
                        // symbol (tests/it/headers.rs compares them with AMD's and NVIDIA's own).
                        unsafe { library.get::<unsafe extern "C" fn($($ty),*) -> $ret>(symbol.as_bytes()) }
                            .map(|found| *found)
                            .map_err(|_| Error::missing_symbol(symbol, &path))?
                    },)*
                    library: path,
                })
            }

            $(
                /// # Safety
                /// As the vendor documents for this call.
                #[inline]
                #[allow(clippy::too_many_arguments, reason = "the arguments are the driver's own")]
                pub unsafe fn $name(&self, $($arg: $ty),*) -> Reply<$ret> {
                    self.counts.$name.fetch_add(1, Ordering::Relaxed);
                    // SAFETY: the caller upholds the vendor's contract for this call.
                    let value = unsafe { (self.$name)($($arg),*) };
                    Reply { call: self.vendor.pick($hip, $cuda), value }
                }
            )*
        }
    };
}

table! {
    /// The driver: libamdhip64 or libcuda.
    pub struct Driver, rows DRIVER_ROWS, counts DriverCounts;
    // devices
    init              | "hipInit"                    | "cuInit"                    | (flags: c_uint) -> c_int;
    runtime_version   | "hipRuntimeGetVersion"       | "cuDriverGetVersion"        | (version: *mut c_int) -> c_int;
    device_count      | "hipGetDeviceCount"          | "cuDeviceGetCount"          | (count: *mut c_int) -> c_int;
    device_get        | "hipDeviceGet"               | "cuDeviceGet"               | (device: *mut c_int, ordinal: c_int) -> c_int;
    device_name       | "hipDeviceGetName"           | "cuDeviceGetName"           | (name: *mut c_char, len: c_int, device: c_int) -> c_int;
    device_memory     | "hipDeviceTotalMem"          | "cuDeviceTotalMem_v2"       | (bytes: *mut usize, device: c_int) -> c_int;
    device_attribute  | "hipDeviceGetAttribute"      | "cuDeviceGetAttribute"      | (value: *mut c_int, attribute: c_int, device: c_int) -> c_int;
    device_pci        | "hipDeviceGetPCIBusId"       | "cuDeviceGetPCIBusId"       | (id: *mut c_char, len: c_int, device: c_int) -> c_int;
    // memory
    memory_info       | "hipMemGetInfo"              | "cuMemGetInfo_v2"           | (free: *mut usize, total: *mut usize) -> c_int;
    alloc             | "hipMalloc"                  | "cuMemAlloc_v2"             | (at: *mut Address, bytes: usize) -> c_int;
    free              | "hipFree"                    | "cuMemFree_v2"              | (at: Address) -> c_int;
    host_alloc        | "hipHostMalloc"              | "cuMemHostAlloc"            | (at: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int;
    host_free         | "hipHostFree"                | "cuMemFreeHost"             | (at: *mut c_void) -> c_int;
    copy_to_device    | "hipMemcpyHtoDAsync"         | "cuMemcpyHtoDAsync_v2"      | (to: Address, from: *const c_void, bytes: usize, stream: Stream) -> c_int;
    copy_to_host      | "hipMemcpyDtoHAsync"         | "cuMemcpyDtoHAsync_v2"      | (to: *mut c_void, from: Address, bytes: usize, stream: Stream) -> c_int;
    copy_on_device    | "hipMemcpyDtoDAsync"         | "cuMemcpyDtoDAsync_v2"      | (to: Address, from: Address, bytes: usize, stream: Stream) -> c_int;
    fill_u8           | "hipMemsetD8Async"           | "cuMemsetD8Async"           | (at: Address, value: u8, count: usize, stream: Stream) -> c_int;
    fill_u32          | "hipMemsetD32Async"          | "cuMemsetD32Async"          | (at: Address, value: c_uint, count: usize, stream: Stream) -> c_int;
    // streams and events
    stream_create     | "hipStreamCreateWithFlags"   | "cuStreamCreate"            | (stream: *mut Stream, flags: c_uint) -> c_int;
    stream_destroy    | "hipStreamDestroy"           | "cuStreamDestroy_v2"        | (stream: Stream) -> c_int;
    stream_wait_event | "hipStreamWaitEvent"         | "cuStreamWaitEvent"         | (stream: Stream, event: Event, flags: c_uint) -> c_int;
    event_create      | "hipEventCreateWithFlags"    | "cuEventCreate"             | (event: *mut Event, flags: c_uint) -> c_int;
    event_destroy     | "hipEventDestroy"            | "cuEventDestroy_v2"         | (event: Event) -> c_int;
    event_record      | "hipEventRecord"             | "cuEventRecord"             | (event: Event, stream: Stream) -> c_int;
    event_query       | "hipEventQuery"              | "cuEventQuery"              | (event: Event) -> c_int;
    event_elapsed     | "hipEventElapsedTime"        | "cuEventElapsedTime"        | (ms: *mut f32, start: Event, stop: Event) -> c_int;
    // code
    module_load       | "hipModuleLoadData"          | "cuModuleLoadData"          | (module: *mut Module, image: *const c_void) -> c_int;
    module_function   | "hipModuleGetFunction"       | "cuModuleGetFunction"       | (function: *mut Function, module: Module, name: *const c_char) -> c_int;
    function_attribute| "hipFuncGetAttribute"        | "cuFuncGetAttribute"        | (value: *mut c_int, attribute: c_int, function: Function) -> c_int;
    launch            | "hipModuleLaunchKernel"      | "cuLaunchKernel"            | (function: Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Stream, args: *mut *mut c_void, extra: *mut *mut c_void) -> c_int;
    occupancy         | "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor" | "cuOccupancyMaxActiveBlocksPerMultiprocessor" | (blocks: *mut c_int, function: Function, threads: c_int, shared_bytes: usize) -> c_int;
    // graphs
    capture_begin     | "hipStreamBeginCapture"      | "cuStreamBeginCapture_v2"   | (stream: Stream, mode: c_int) -> c_int;
    capture_end       | "hipStreamEndCapture"        | "cuStreamEndCapture"        | (stream: Stream, graph: *mut Graph) -> c_int;
    graph_nodes       | "hipGraphGetNodes"           | "cuGraphGetNodes"           | (graph: Graph, nodes: *mut *mut c_void, count: *mut usize) -> c_int;
    graph_instantiate | "hipGraphInstantiateWithFlags" | "cuGraphInstantiateWithFlags" | (exec: *mut GraphExec, graph: Graph, flags: u64) -> c_int;
    graph_launch      | "hipGraphLaunch"             | "cuGraphLaunch"             | (exec: GraphExec, stream: Stream) -> c_int;
    graph_exec_destroy| "hipGraphExecDestroy"        | "cuGraphExecDestroy"        | (exec: GraphExec) -> c_int;
    graph_destroy     | "hipGraphDestroy"            | "cuGraphDestroy"            | (graph: Graph) -> c_int;
}

table! {
    /// The run-time compiler: libhiprtc or libnvrtc.
    pub struct Rtc, rows RTC_ROWS, counts RtcCounts;
    version         | "hiprtcVersion"           | "nvrtcVersion"           | (major: *mut c_int, minor: *mut c_int) -> c_int;
    error_text      | "hiprtcGetErrorString"    | "nvrtcGetErrorString"    | (status: c_int) -> *const c_char;
    program_create  | "hiprtcCreateProgram"     | "nvrtcCreateProgram"     | (program: *mut Program, source: *const c_char, name: *const c_char, n_headers: c_int, headers: *const *const c_char, names: *const *const c_char) -> c_int;
    program_compile | "hiprtcCompileProgram"    | "nvrtcCompileProgram"    | (program: Program, n_options: c_int, options: *const *const c_char) -> c_int;
    log_bytes       | "hiprtcGetProgramLogSize" | "nvrtcGetProgramLogSize" | (program: Program, bytes: *mut usize) -> c_int;
    log             | "hiprtcGetProgramLog"     | "nvrtcGetProgramLog"     | (program: Program, text: *mut c_char) -> c_int;
    code_bytes      | "hiprtcGetCodeSize"       | "nvrtcGetCUBINSize"      | (program: Program, bytes: *mut usize) -> c_int;
    code            | "hiprtcGetCode"           | "nvrtcGetCUBIN"          | (program: Program, code: *mut c_char) -> c_int;
    program_destroy | "hiprtcDestroyProgram"    | "nvrtcDestroyProgram"    | (program: *mut Program) -> c_int;
}

/// A vendor's driver, its extras and the library that holds them: loaded once, never unloaded.
pub struct LoadedDriver {
    pub driver: Driver,
    pub extras: Extras,
}

impl LoadedDriver {
    /// The vendor's driver, initialised. The first result, good or bad, is kept for the life of the process.
    pub fn get(vendor: Vendor) -> Result<&'static LoadedDriver, Error> {
        static AMD: OnceLock<Result<LoadedDriver, Error>> = OnceLock::new();
        static NVIDIA: OnceLock<Result<LoadedDriver, Error>> = OnceLock::new();
        let cell = match vendor {
            Vendor::Amd => &AMD,
            Vendor::Nvidia => &NVIDIA,
        };
        cell.get_or_init(|| Self::open(vendor)).as_ref().map_err(Clone::clone)
    }

    /// As the driver counts: 70253211 is HIP 7.2, 12080 is CUDA 12.8.
    pub fn version(&self) -> Option<c_int> {
        let mut version: c_int = 0;
        // SAFETY: a valid out pointer.
        let reply = unsafe { self.driver.runtime_version(&mut version) };
        (reply.value == 0 && version > 0).then_some(version)
    }

    fn open(vendor: Vendor) -> Result<Self, Error> {
        let (library, path) = open_first(vendor, "driver", &vendor.driver_libraries())?;
        let driver = Driver::fill(vendor, library, path)?;
        let extras = Extras::fill(vendor, library, &driver.library)?;
        // SAFETY: no preconditions; both APIs ask for this call first, with flags 0.
        let reply = unsafe { driver.init(0) };
        if vendor.is_no_device(reply.value) {
            return Err(Error::NoDevice { vendor });
        }
        extras.check(reply, vendor.word())?;
        Ok(Self { driver, extras })
    }
}

impl Rtc {
    /// The vendor's run-time compiler. It needs no GPU.
    pub fn get(vendor: Vendor) -> Result<&'static Rtc, Error> {
        static AMD: OnceLock<Result<Rtc, Error>> = OnceLock::new();
        static NVIDIA: OnceLock<Result<Rtc, Error>> = OnceLock::new();
        let cell = match vendor {
            Vendor::Amd => &AMD,
            Vendor::Nvidia => &NVIDIA,
        };
        cell.get_or_init(|| {
            let driver_version = LoadedDriver::get(vendor).ok().and_then(LoadedDriver::version);
            let (library, path) = open_first(vendor, "run-time compiler", &vendor.rtc_libraries(driver_version))?;
            Rtc::fill(vendor, library, path)
        })
        .as_ref()
        .map_err(Clone::clone)
    }
}

/// dlopen the first candidate that loads. The error lists every name tried, with the loader's words
/// for a file that is there and does not load.
pub fn open_first(
    vendor: Vendor,
    role: &'static str,
    candidates: &[PathBuf],
) -> Result<(&'static Library, String), Error> {
    let (mut absent, mut broken) = (Vec::new(), Vec::new());
    for path in candidates {
        if path.is_absolute() && !path.exists() {
            continue;
        }
        // SAFETY: loading runs the vendor library's constructors; these are the GPU driver's own
        // libraries, by soname or from the folders their installer uses.
        match unsafe { Library::new(path) } {
            Ok(library) => return Ok((Box::leak(Box::new(library)), path.display().to_string())),
            Err(error) => {
                let (name, words) = (path.display().to_string(), error.to_string());
                // A static program's loader says so of every file.
                if words.contains("Dynamic loading not supported") {
                    let tried =
                        "this is a static program, which cannot load libraries; the other archive of the release \
                                 can"
                        .to_owned();
                    return Err(Error::NoLibrary { vendor, role, tried });
                }
                let is_absent = words.starts_with(&format!("{name}: cannot open shared object file"));
                if is_absent { absent.push(name) } else { broken.push(words) }
            }
        }
    }
    let mut tried = absent.join(", ");
    if !absent.is_empty() {
        tried.push_str(": not found");
    }
    for words in broken {
        tried = if tried.is_empty() { words } else { format!("{words}; {tried}") };
    }
    Err(Error::NoLibrary { vendor, role, tried })
}
