//! All that differs between AMD's HIP and NVIDIA's CUDA driver API, in one place.
//!
//! Library names and folders, attribute numbers, architecture names, compile options, the few calls
//! without a twin, BLAS numbers: long, because being the one file is the point. Every other file of this
//! crate is the same for both vendors.

use serde::{Deserialize, Serialize};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::driver::{Driver, Reply};
use crate::error::Error;
use crate::overlap::{self, LaunchEx};
use crate::raw::{Context, Function};

/// Whose driver a device is reached through.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Vendor {
    /// HIP.
    Amd,
    /// CUDA's driver API.
    Nvidia,
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.pick("AMD", "NVIDIA"))
    }
}

/// Device attributes the layer reads. The numbers differ in every row.
#[derive(Clone, Copy, Debug)]
pub enum Attribute {
    MaxThreadsPerBlock,
    MaxGridX,
    MaxGridY,
    MaxGridZ,
    MaxBlockX,
    MaxBlockY,
    MaxBlockZ,
    SharedPerBlock,
    WaveWidth,
    Multiprocessors,
    Integrated,
    L2Bytes,
    ClockKhz,
    MemoryClockKhz,
    MemoryBusBits,
    ThreadsPerMultiprocessor,
}

impl Attribute {
    /// (ours, AMD's name, number, NVIDIA's name, number): the header check reads this too.
    pub const TABLE: &[(Attribute, &str, c_int, &str, c_int)] = &[
        (Self::MaxThreadsPerBlock, "hipDeviceAttributeMaxThreadsPerBlock", 56, "MAX_THREADS_PER_BLOCK", 1),
        (Self::MaxGridX, "hipDeviceAttributeMaxGridDimX", 29, "MAX_GRID_DIM_X", 5),
        (Self::MaxGridY, "hipDeviceAttributeMaxGridDimY", 30, "MAX_GRID_DIM_Y", 6),
        (Self::MaxGridZ, "hipDeviceAttributeMaxGridDimZ", 31, "MAX_GRID_DIM_Z", 7),
        (Self::MaxBlockX, "hipDeviceAttributeMaxBlockDimX", 26, "MAX_BLOCK_DIM_X", 2),
        (Self::MaxBlockY, "hipDeviceAttributeMaxBlockDimY", 27, "MAX_BLOCK_DIM_Y", 3),
        (Self::MaxBlockZ, "hipDeviceAttributeMaxBlockDimZ", 28, "MAX_BLOCK_DIM_Z", 4),
        // NVIDIA: the opt-in limit; `Extras::allow_shared` opts a kernel in.
        (
            Self::SharedPerBlock,
            "hipDeviceAttributeMaxSharedMemoryPerBlock",
            74,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            97,
        ),
        (Self::WaveWidth, "hipDeviceAttributeWarpSize", 87, "WARP_SIZE", 10),
        (Self::Multiprocessors, "hipDeviceAttributeMultiprocessorCount", 63, "MULTIPROCESSOR_COUNT", 16),
        (Self::Integrated, "hipDeviceAttributeIntegrated", 16, "INTEGRATED", 18),
        (Self::L2Bytes, "hipDeviceAttributeL2CacheSize", 19, "L2_CACHE_SIZE", 38),
        (Self::ClockKhz, "hipDeviceAttributeClockRate", 5, "CLOCK_RATE", 13),
        (Self::MemoryClockKhz, "hipDeviceAttributeMemoryClockRate", 60, "MEMORY_CLOCK_RATE", 36),
        (Self::MemoryBusBits, "hipDeviceAttributeMemoryBusWidth", 59, "GLOBAL_MEMORY_BUS_WIDTH", 37),
        (
            Self::ThreadsPerMultiprocessor,
            "hipDeviceAttributeMaxThreadsPerMultiProcessor",
            57,
            "MAX_THREADS_PER_MULTIPROCESSOR",
            39,
        ),
    ];

    pub fn number(self, vendor: Vendor) -> c_int {
        let row = Self::TABLE[self as usize];
        debug_assert_eq!(row.0 as usize, self as usize, "the table follows the enum's order");
        vendor.pick(row.2, row.4)
    }
}

/// NVIDIA needs compute capability to name an architecture; AMD's driver reports a name.
const CUDA_CAPABILITY_MAJOR: c_int = 75;
const CUDA_CAPABILITY_MINOR: c_int = 76;
/// A static block of shared memory may take this much on NVIDIA before a kernel must opt in.
pub const CUDA_SHARED_DEFAULT: u32 = 48 * 1024;
const CUDA_FUNC_MAX_DYNAMIC_SHARED: c_int = 8;

/// `hipGetDevicePropertiesR0600` fills 1472 bytes with the name at 1160; the symbol without a suffix
/// fills the older 792-byte layout in every version, with the name at 396.
pub const HIP_PROPERTIES_BYTES: usize = 4096;
pub const HIP_ARCH_OFFSET_R0600: usize = 1160;
pub const HIP_ARCH_OFFSET_OLD: usize = 396;
/// The length of that name.
const HIP_ARCH_BYTES: usize = 256;

/// Units of version numbers: 70_253_211 is HIP 7.2, 12_090 is CUDA 12.9.
const HIP_MAJOR: c_int = 10_000_000;
const HIP_MINOR: c_int = 100_000;
const CUDA_MAJOR: c_int = 1000;
const CUDA_MINOR: c_int = 10;

/// Statuses that mean the same in both APIs.
mod status {
    use std::ffi::c_int;

    pub const SUCCESS: c_int = 0;
    pub const INVALID_VALUE: c_int = 1;
    pub const INVALID_CONFIGURATION: c_int = 9;
    pub const INVALID_DEVICE_FUNCTION: c_int = 98;
    pub const NO_DEVICE: c_int = 100;
    pub const INVALID_DEVICE: c_int = 101;
    pub const NO_BINARY_FOR_GPU: c_int = 209;
    pub const INVALID_HANDLE: c_int = 400;
    pub const NOT_FOUND: c_int = 500;
    pub const LAUNCH_OUT_OF_RESOURCES: c_int = 701;
    pub const NOT_SUPPORTED: c_int = 801;
    /// The first of the statuses of broken stream captures.
    pub const CAPTURE_UNSUPPORTED: c_int = 900;
    /// The last of them.
    pub const CAPTURE_WRONG_THREAD: c_int = 908;
}

impl Vendor {
    /// In the order in which devices are looked for.
    pub const ALL: [Vendor; 2] = [Vendor::Amd, Vendor::Nvidia];

    /// The value of this vendor.
    pub fn pick<T>(self, amd: T, nvidia: T) -> T {
        match self {
            Vendor::Amd => amd,
            Vendor::Nvidia => nvidia,
        }
    }

    /// The word a user types: `rocm:0`, `cuda:0`.
    pub fn word(self) -> &'static str {
        self.pick("rocm", "cuda")
    }

    /// The vendor of a word that a user typed.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|vendor| vendor.word() == word)
    }

    /// Whether the prelude defines `GPU_HAS_MMA` for this architecture.
    pub fn has_mma(self, arch: &str) -> bool {
        let number = arch.strip_prefix("sm_").and_then(|digits| digits.parse::<u32>().ok());
        self == Vendor::Nvidia && number.is_some_and(|number| number >= 80)
    }

    /// Whether its library for products ends the process where it lacks files, instead of saying so: rocBLAS without the
    /// kernels of a chip does.
    pub fn may_abort_in_blas(self) -> bool {
        self == Vendor::Amd
    }

    /// Whether wgmma.h defines `GPU_HAS_WGMMA` for this architecture.
    pub fn has_wgmma(self, arch: &str) -> bool {
        self == Vendor::Nvidia && arch == "sm_90"
    }

    /// Whether the prelude defines `GPU_HAS_TILES` for this architecture.
    pub fn has_matrix_units(self, arch: &str) -> bool {
        let arch = arch.split(':').next().unwrap_or(arch);
        let is_cdna = matches!(arch, "gfx908" | "gfx90a" | "gfx940" | "gfx942" | "gfx950");
        let is_rdna = arch.len() == 7 && (arch.starts_with("gfx11") || arch.starts_with("gfx12"));
        self.has_mma(arch) || (self == Vendor::Amd && (is_cdna || is_rdna))
    }

    /// Both APIs say "no device" with either of two numbers.
    pub fn is_no_device(self, status: c_int) -> bool {
        matches!(status, status::NO_DEVICE | status::INVALID_DEVICE)
    }

    /// Whether a failed call means that the device or its context is lost. Refused arguments, refused
    /// launch shapes, missing memory and broken captures leave the queue usable.
    pub fn is_fault(self, status: c_int) -> bool {
        !matches!(
            status,
            status::SUCCESS
                | status::INVALID_VALUE
                | STATUS_OUT_OF_MEMORY
                | status::INVALID_CONFIGURATION
                | status::INVALID_DEVICE_FUNCTION
                | status::NO_BINARY_FOR_GPU
                | status::INVALID_HANDLE
                | status::NOT_FOUND
                | STATUS_NOT_READY
                | status::LAUNCH_OUT_OF_RESOURCES
                | status::NOT_SUPPORTED
                | status::CAPTURE_UNSUPPORTED..=status::CAPTURE_WRONG_THREAD
        )
    }

    /// A driver's version number as people write it.
    pub fn driver_words(self, version: c_int) -> String {
        match self {
            Vendor::Amd => format!("HIP {}.{}", version / HIP_MAJOR, version % HIP_MAJOR / HIP_MINOR),
            Vendor::Nvidia => format!("CUDA {}.{}", version / CUDA_MAJOR, version % CUDA_MAJOR / CUDA_MINOR),
        }
    }

    pub fn driver_libraries(self) -> Vec<PathBuf> {
        match self {
            Vendor::Amd => self.candidates(&["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"]),
            Vendor::Nvidia => ["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"].map(PathBuf::from).to_vec(),
        }
    }

    /// libamdhip64.so.7 holds no hiprtc symbol; up to 5.x the compiler may live inside libamdhip64.
    /// Where the driver's version is known, compilers whose code it can load come first: HIP's own
    /// generation, and for CUDA none newer than the driver.
    pub fn rtc_libraries(self, driver_version: Option<c_int>) -> Vec<PathBuf> {
        let sonames: &[(c_int, &str)] = match self {
            Vendor::Amd => &[
                (7, "libhiprtc.so.7"),
                (6, "libhiprtc.so.6"),
                (5, "libhiprtc.so.5"),
                (6, "libamdhip64.so.6"),
                (5, "libamdhip64.so.5"),
            ],
            Vendor::Nvidia => &[(13, "libnvrtc.so.13"), (12, "libnvrtc.so.12"), (11, "libnvrtc.so.11.2")],
        };
        let fits = |major: c_int| match (self, driver_version) {
            (_, None) => true,
            (Vendor::Amd, Some(version)) => major == version / HIP_MAJOR,
            (Vendor::Nvidia, Some(version)) => major <= version / CUDA_MAJOR,
        };
        let (first, rest): (Vec<_>, Vec<_>) = sonames.iter().partition(|(major, _)| fits(*major));
        let names = |list: Vec<(c_int, &'static str)>| list.into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        [self.candidates(&names(first)), self.candidates(&names(rest))].concat()
    }

    pub fn ranges_libraries(self) -> Vec<PathBuf> {
        self.candidates(self.pick(
            &["librocprofiler-sdk-roctx.so.1", "libroctx64.so.4", "libroctx64.so.1"],
            &["libnvToolsExt.so.1", "libnvtx3interop.so.1"],
        ))
    }

    /// Each soname, newest first, in each usual folder, then by the loader's own path.
    pub fn candidates(self, sonames: &[&str]) -> Vec<PathBuf> {
        let folders = self.folders();
        let named = folders.iter().flat_map(|folder| sonames.iter().map(move |soname| folder.join(soname)));
        named.chain(sonames.iter().map(PathBuf::from)).collect()
    }

    fn folders(self) -> Vec<PathBuf> {
        let (variables, roots): (&[&str], &[&str]) = match self {
            Vendor::Amd => (&["ROCM_PATH", "HIP_PATH"], &["/opt/rocm"]),
            Vendor::Nvidia => (&["CUDA_PATH", "CUDA_HOME"], &["/usr/local/cuda"]),
        };
        let mut bases: Vec<PathBuf> =
            variables.iter().filter_map(std::env::var_os).filter(|v| !v.is_empty()).map(PathBuf::from).collect();
        bases.extend(roots.iter().map(PathBuf::from));
        match self {
            Vendor::Amd => {
                bases.extend(newest_first(Path::new("/opt/rocm"), "core-"));
                bases.extend(newest_first(Path::new("/opt"), "rocm-"));
            }
            Vendor::Nvidia => bases.extend(newest_first(Path::new("/usr/local"), "cuda-")),
        }
        bases.iter().flat_map(|base| [base.join("lib"), base.join("lib64"), base.clone()]).collect()
    }

    /// What the run-time compiler is told. `spelling` is the architecture as this compiler spells it.
    pub fn compile_options(self, spelling: &str, wave_width: u32) -> Vec<String> {
        let mut options =
            vec![format!("--gpu-architecture={spelling}"), "-std=c++17".into(), format!("-DGPU_WAVE={wave_width}")];
        match self {
            // Debug information off, full optimisation; never fast-math (FACTS: enabled and reverted by a peer).
            Vendor::Amd => options.push("-O3".into()),
            Vendor::Nvidia => options.push("--extra-device-vectorization".into()),
        }
        options
    }

    /// Spellings of an architecture to try in order. NVIDIA's `a` names unlock the matrix units of one
    /// chip (wgmma on sm_90a); an older nvrtc refuses them with an error. hiprtc aborts the process on
    /// an unknown name, so it gets exactly one, the device's own.
    pub fn arch_spellings(self, arch: &str) -> Vec<String> {
        match self {
            Vendor::Amd => vec![arch.to_owned()],
            Vendor::Nvidia => {
                let number = arch.strip_prefix("sm_").and_then(|digits| digits.parse::<u32>().ok());
                match number {
                    Some(90..) => vec![format!("{arch}a"), arch.to_owned()],
                    _ => vec![arch.to_owned()],
                }
            }
        }
    }
}

/// Folders in `parent` whose names start with `prefix`, highest version first.
fn newest_first(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let version = |path: &PathBuf| -> Vec<u64> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
    };
    let mut found: Vec<PathBuf> = std::fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort_by_key(|path| std::cmp::Reverse(version(path)));
    found
}

type Status = c_int;

/// The calls that have no twin with the same signature on the other side.
pub enum Extras {
    Amd {
        set_device: unsafe extern "C" fn(c_int) -> Status,
        error_name: unsafe extern "C" fn(c_int) -> *const c_char,
        error_text: unsafe extern "C" fn(c_int) -> *const c_char,
        properties: unsafe extern "C" fn(*mut c_void, c_int) -> Status,
        arch_offset: usize,
    },
    Nvidia {
        set_context: unsafe extern "C" fn(Context) -> Status,
        retain_context: unsafe extern "C" fn(*mut Context, c_int) -> Status,
        error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> Status,
        error_text: unsafe extern "C" fn(c_int, *mut *const c_char) -> Status,
        set_function_attribute: unsafe extern "C" fn(Function, c_int, c_int) -> Status,
        /// Since CUDA 11.8.
        launch_ex: Option<LaunchEx>,
    },
}

impl Extras {
    pub fn fill(vendor: Vendor, library: &'static Library, path: &str) -> Result<Self, Error> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the type of the field this fills is the signature in the vendor's header
                // (AMD's are compared in tests/it/headers.rs).
                unsafe { library.get($name.as_bytes()) }
                    .map(|found| *found)
                    .map_err(|_| Error::missing_symbol($name, path))
            };
        }
        Ok(match vendor {
            Vendor::Amd => {
                let newer = symbol!("hipGetDevicePropertiesR0600");
                let arch_offset = if newer.is_ok() { HIP_ARCH_OFFSET_R0600 } else { HIP_ARCH_OFFSET_OLD };
                Extras::Amd {
                    set_device: symbol!("hipSetDevice")?,
                    error_name: symbol!("hipGetErrorName")?,
                    error_text: symbol!("hipGetErrorString")?,
                    properties: newer.or_else(|_| symbol!("hipGetDeviceProperties"))?,
                    arch_offset,
                }
            }
            Vendor::Nvidia => Extras::Nvidia {
                set_context: symbol!("cuCtxSetCurrent")?,
                retain_context: symbol!("cuDevicePrimaryCtxRetain")?,
                error_name: symbol!("cuGetErrorName")?,
                error_text: symbol!("cuGetErrorString")?,
                set_function_attribute: symbol!("cuFuncSetAttribute")?,
                launch_ex: symbol!("cuLaunchKernelEx").ok(),
            },
        })
    }

    /// The vendor's own name and text for a status.
    pub fn describe(&self, status: c_int) -> (String, String) {
        match self {
            Extras::Amd { error_name, error_text, .. } => {
                // SAFETY: both return a static string for any number.
                unsafe { (text(error_name(status)), text(error_text(status))) }
            }
            Extras::Nvidia { error_name, error_text, .. } => {
                let (mut name, mut words) = (std::ptr::null(), std::ptr::null());
                // SAFETY: both write a pointer to a static string, or leave the null for a number they do not know.
                unsafe {
                    error_name(status, &mut name);
                    error_text(status, &mut words);
                    (text(name), text(words))
                }
            }
        }
    }

    #[track_caller]
    pub fn check(&self, reply: Reply<c_int>, device: &str) -> Result<(), Error> {
        match reply.value {
            status::SUCCESS => Ok(()),
            status => Err(Error::call(reply.call, status, self.describe(status), device)),
        }
    }

    /// CUDA works in a context per device; HIP's current device is enough.
    #[track_caller]
    pub fn open_context(&self, device: c_int, label: &str) -> Result<Context, Error> {
        match self {
            Extras::Amd { .. } => Ok(Context::NULL),
            Extras::Nvidia { retain_context, .. } => {
                let mut context = Context::NULL;
                // SAFETY: `device` came from cuDeviceGet and the out pointer is valid for the call.
                let value = unsafe { retain_context(&mut context, device) };
                self.check(Reply { call: "cuDevicePrimaryCtxRetain", value }, label)?;
                Ok(context)
            }
        }
    }

    pub fn set_current(&self, ordinal: c_int, context: Context) -> Reply<c_int> {
        match self {
            Extras::Amd { set_device, .. } => {
                // SAFETY: takes any number and answers an error for a bad one.
                Reply { call: "hipSetDevice", value: unsafe { set_device(ordinal) } }
            }
            Extras::Nvidia { set_context, .. } => {
                // SAFETY: the context was retained by `open_context` and is never released.
                Reply { call: "cuCtxSetCurrent", value: unsafe { set_context(context) } }
            }
        }
    }

    /// The architecture's name as the compiler takes it: `gfx1100`, `gfx90a:sramecc+:xnack-`, `sm_90`.
    #[track_caller]
    pub fn arch(&self, driver: &Driver, device: c_int, label: &str) -> Result<String, Error> {
        match self {
            Extras::Amd { properties, arch_offset, .. } => {
                let mut bytes = vec![0u8; HIP_PROPERTIES_BYTES];
                // SAFETY: the largest known layout is 1472 bytes; the block is 4 KiB.
                let value = unsafe { properties(bytes.as_mut_ptr().cast(), device) };
                self.check(Reply { call: "hipGetDeviceProperties", value }, label)?;
                let name = &bytes[*arch_offset..*arch_offset + HIP_ARCH_BYTES];
                Ok(CStr::from_bytes_until_nul(name).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default())
            }
            Extras::Nvidia { .. } => {
                let mut capability = [0 as c_int; 2];
                for (value, attribute) in capability.iter_mut().zip([CUDA_CAPABILITY_MAJOR, CUDA_CAPABILITY_MINOR]) {
                    // SAFETY: a valid out pointer and a device from cuDeviceGet.
                    self.check(unsafe { driver.device_attribute(value, attribute, device) }, label)?;
                }
                Ok(format!("sm_{}{}", capability[0], capability[1]))
            }
        }
    }

    pub fn can_overlap(&self) -> bool {
        matches!(self, Extras::Nvidia { launch_ex: Some(_), .. })
    }

    /// A launch that may begin before the work in front of it is over; `None` where there is no such thing.
    ///
    /// # Safety
    /// As [`overlap::launch`].
    pub unsafe fn launch_early(
        &self,
        function: Function,
        shape: overlap::LaunchShape,
        arguments: *mut *mut c_void,
    ) -> Option<Reply<c_int>> {
        let Extras::Nvidia { launch_ex: Some(call), .. } = self else { return None };
        // SAFETY: the caller's.
        let value = unsafe { overlap::launch(*call, function, shape, arguments) };
        Some(Reply { call: "cuLaunchKernelEx", value })
    }

    /// Let a kernel use more dynamic shared memory than the default. HIP needs no opting in (and its
    /// call of that name takes a host function pointer, which run-time compiled code does not have).
    pub fn allow_shared(&self, function: Function, bytes: u32) -> Option<Reply<c_int>> {
        match self {
            Extras::Amd { .. } => None,
            Extras::Nvidia { set_function_attribute, .. } => {
                // SAFETY: `function` belongs to a loaded module, and modules are never unloaded.
                let value = unsafe { set_function_attribute(function, CUDA_FUNC_MAX_DYNAMIC_SHARED, bytes as c_int) };
                Some(Reply { call: "cuFuncSetAttribute", value })
            }
        }
    }
}

/// # Safety
/// `words` is null or a NUL-terminated string that lives for the process.
pub unsafe fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::from("unknown");
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

/// Flags and modes that are equal in both APIs.
pub const STREAM_NON_BLOCKING: c_uint = 1;
pub const EVENT_NO_TIMING: c_uint = 2;
pub const HOST_ALLOC_PORTABLE: c_uint = 1;
pub const CAPTURE_THREAD_LOCAL: c_int = 1;
pub const STATUS_OUT_OF_MEMORY: c_int = 2;
pub const STATUS_NOT_READY: c_int = 600;
pub const FUNCTION_MAX_THREADS: c_int = 0;
pub const FUNCTION_SHARED_BYTES: c_int = 1;
pub const FUNCTION_LOCAL_BYTES: c_int = 3;
pub const FUNCTION_REGISTERS: c_int = 4;

/// A BLAS library and the numbers it uses for the same things.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlasNumbers {
    pub name: &'static str,
    pub sonames: &'static [&'static str],
    pub create: &'static str,
    pub destroy: &'static str,
    pub set_stream: &'static str,
    pub set_pointer_mode: &'static str,
    pub set_workspace: &'static str,
    pub gemm: &'static str,
    pub status_text: &'static str,
    pub op_none: c_int,
    pub op_transpose: c_int,
    pub pointer_mode_host: c_int,
    pub f32: c_int,
    pub f64: c_int,
    pub f16: c_int,
    pub bf16: c_int,
    pub i8: c_int,
    pub i32: c_int,
    /// What "accumulate in f32" is called, in f64, and in i32.
    pub compute_f32: c_int,
    pub compute_f64: c_int,
    pub compute_i32: c_int,
    pub algorithm: c_int,
    pub is_rocblas: bool,
}

/// rocBLAS first: its numbers are the same from 5.5 to 7.x. `hipblasGemmStridedBatchedEx` kept its name
/// and changed its numbers with soname 3.
pub const ROCBLAS: BlasNumbers = BlasNumbers {
    name: "rocBLAS",
    sonames: &["librocblas.so.5", "librocblas.so.4", "librocblas.so.3", "librocblas.so.0"],
    create: "rocblas_create_handle",
    destroy: "rocblas_destroy_handle",
    set_stream: "rocblas_set_stream",
    set_pointer_mode: "rocblas_set_pointer_mode",
    set_workspace: "rocblas_set_workspace",
    gemm: "rocblas_gemm_strided_batched_ex",
    status_text: "rocblas_status_to_string",
    op_none: 111,
    op_transpose: 112,
    pointer_mode_host: 0,
    f32: 151,
    f64: 152,
    f16: 150,
    bf16: 168,
    i8: 160,
    i32: 162,
    compute_f32: 151,
    compute_f64: 152,
    compute_i32: 162,
    algorithm: 0,
    is_rocblas: true,
};

pub const HIPBLAS_3: BlasNumbers = BlasNumbers {
    name: "hipBLAS",
    sonames: &["libhipblas.so.3"],
    create: "hipblasCreate",
    destroy: "hipblasDestroy",
    set_stream: "hipblasSetStream",
    set_pointer_mode: "hipblasSetPointerMode",
    set_workspace: "hipblasSetWorkspace",
    gemm: "hipblasGemmStridedBatchedEx",
    status_text: "hipblasStatusToString",
    f32: 0,
    f64: 1,
    f16: 2,
    bf16: 14,
    i8: 3,
    i32: 10,
    compute_f32: 2,
    compute_f64: 7,
    compute_i32: 9,
    algorithm: 160,
    is_rocblas: false,
    ..ROCBLAS
};

pub const HIPBLAS_OLD: BlasNumbers = BlasNumbers {
    sonames: &["libhipblas.so.2", "libhipblas.so.1", "libhipblas.so.0"],
    f32: 151,
    f64: 152,
    f16: 150,
    bf16: 168,
    i8: 160,
    i32: 162,
    compute_f32: 151,
    compute_f64: 152,
    compute_i32: 162,
    ..HIPBLAS_3
};

pub const CUBLAS: BlasNumbers = BlasNumbers {
    name: "cuBLAS",
    sonames: &["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"],
    create: "cublasCreate_v2",
    destroy: "cublasDestroy_v2",
    set_stream: "cublasSetStream_v2",
    set_pointer_mode: "cublasSetPointerMode_v2",
    set_workspace: "cublasSetWorkspace_v2",
    gemm: "cublasGemmStridedBatchedEx",
    status_text: "cublasGetStatusString",
    op_none: 0,
    op_transpose: 1,
    pointer_mode_host: 0,
    f32: 0,
    f64: 1,
    f16: 2,
    bf16: 14,
    i8: 3,
    i32: 10,
    compute_f32: 68,
    compute_f64: 70,
    compute_i32: 72,
    algorithm: -1,
    is_rocblas: false,
};

impl Vendor {
    /// BLAS libraries in order of preference.
    pub fn blas_libraries(self) -> &'static [BlasNumbers] {
        self.pick(&[ROCBLAS, HIPBLAS_3, HIPBLAS_OLD], &[CUBLAS])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_versions_as_people_write_them() {
        assert_eq!(Vendor::Amd.driver_words(70253211), "HIP 7.2");
        assert_eq!(Vendor::Amd.driver_words(50731921), "HIP 5.7");
        assert_eq!(Vendor::Nvidia.driver_words(12090), "CUDA 12.9");
    }

    fn names(vendor: Vendor, driver_version: Option<c_int>) -> Vec<String> {
        let plain = vendor.rtc_libraries(driver_version).into_iter().filter(|path| path.components().count() == 1);
        plain.map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_compiler_fits_the_driver() {
        assert_eq!(names(Vendor::Nvidia, None), ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"]);
        assert_eq!(names(Vendor::Nvidia, Some(12080)), ["libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so.13"]);
        assert_eq!(names(Vendor::Amd, Some(70253211))[0], "libhiprtc.so.7");
        assert_eq!(names(Vendor::Amd, Some(60443484))[..2], ["libhiprtc.so.6", "libamdhip64.so.6"]);
        assert_eq!(names(Vendor::Amd, Some(50731921))[..2], ["libhiprtc.so.5", "libamdhip64.so.5"]);
    }

    #[test]
    fn only_lost_devices_are_faults() {
        for vendor in Vendor::ALL {
            for refusal in [0, 1, 2, 9, 600, 701, 900, 908] {
                assert!(!vendor.is_fault(refusal), "{refusal}");
            }
            for fault in [700, 702, 710, 714, 717, 719, 999] {
                assert!(vendor.is_fault(fault), "{fault}");
            }
        }
    }

    #[test]
    fn attributes_are_in_order() {
        for (i, row) in Attribute::TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, i, "{:?}", row.0);
        }
    }

    #[test]
    fn newest_folders_come_first() {
        let parent = std::env::temp_dir().join(format!("gpu-folders-{}", std::process::id()));
        for name in ["rocm-6.4.3", "rocm-7.2.0", "rocm-10.0.1", "other-9"] {
            std::fs::create_dir_all(parent.join(name)).unwrap();
        }
        let found: Vec<String> = newest_first(&parent, "rocm-")
            .iter()
            .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        std::fs::remove_dir_all(&parent).unwrap();
        assert_eq!(found, ["rocm-10.0.1", "rocm-7.2.0", "rocm-6.4.3"]);
    }
}
