//! Named ranges for rocprof and nsys. Off unless asked for or a tool is attached; optional either way.
//!
//! AMD: roctx by dlopen, the profiler SDK's own first (its tools do not see the older one's calls). NVIDIA: NVTX has no
//! library of its own any more; a tool is a library named by `NVTX_INJECTION64_PATH` that fills a table of functions
//! which the program offers. [`injection`] is that table, so that no SDK is needed; the old library is the fallback.

use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::sync::OnceLock;

use crate::driver::open_first;
use crate::error::{Error, Result};
use crate::vendor::Vendor;

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// The two calls every one of them has.
pub struct Ranges {
    push: Push,
    pop: Pop,
}

/// Whether a profiler started this process.
pub fn is_tool_attached(vendor: Vendor) -> bool {
    let names = |name: &str, part: &str| std::env::var(name).is_ok_and(|value| value.contains(part));
    match vendor {
        // rocprofv3 sets the first; its predecessors preload themselves.
        Vendor::Amd => names("ROCP_TOOL_LIBRARIES", "/") || names("LD_PRELOAD", "rocprof"),
        Vendor::Nvidia => names(INJECTION, "/"),
    }
}

const INJECTION: &str = "NVTX_INJECTION64_PATH";

impl Ranges {
    pub fn get(vendor: Vendor) -> Result<&'static Ranges> {
        static AMD: OnceLock<Result<Ranges>> = OnceLock::new();
        static NVIDIA: OnceLock<Result<Ranges>> = OnceLock::new();
        vendor.pick(&AMD, &NVIDIA).get_or_init(|| Self::open(vendor)).as_ref().map_err(Clone::clone)
    }

    fn open(vendor: Vendor) -> Result<Self> {
        if let (Vendor::Nvidia, Some(path)) = (vendor, std::env::var_os(INJECTION)) {
            return injection::open(Path::new(&path));
        }
        let (library, path) = open_first(vendor, "profiler range", &vendor.ranges_libraries())?;
        let (push, pop) =
            (vendor.pick("roctxRangePushA", "nvtxRangePushA"), vendor.pick("roctxRangePop", "nvtxRangePop"));
        // SAFETY: both libraries declare `int push(const char*)`.
        let push_call = unsafe { library.get::<Push>(push.as_bytes()) };
        let push_call = *push_call.map_err(|_| Error::missing_symbol(push, &path))?;
        // SAFETY: both libraries declare `int pop(void)`.
        let pop_call = unsafe { library.get::<Pop>(pop.as_bytes()) };
        let pop_call = *pop_call.map_err(|_| Error::missing_symbol(pop, &path))?;
        Ok(Self { push: push_call, pop: pop_call })
    }

    pub(crate) fn push(&self, name: &str) {
        if let Ok(name) = CString::new(name) {
            // SAFETY: a NUL-terminated string that the library copies.
            unsafe { (self.push)(name.as_ptr()) };
        }
    }

    pub(crate) fn pop(&self) {
        // SAFETY: no preconditions; an unmatched pop answers an error number.
        unsafe { (self.pop)() };
    }
}

/// The program's side of NVTX 3, as its headers define it: a tool asks for the tables of functions by module and writes
/// its own into them.
mod injection {
    use std::ffi::{c_int, c_uint, c_void};
    use std::path::Path;
    use std::ptr::null_mut;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use libloading::Library;

    use super::{Pop, Push, Ranges};
    use crate::error::{Error, Result};

    /// Functions of each module, from 1 on: core, CUDA, OpenCL, CUDA runtime, core 2, sync. Entry 0 is never used.
    const N_FUNCTIONS: [usize; 6] = [16, 9, 15, 7, 16, 7];
    const CORE: usize = 0;
    const RANGE_PUSH_A: usize = 9;
    const RANGE_POP: usize = 11;
    const TABLE_CALLBACKS: u32 = 1;

    type FunctionSlot = AtomicPtr<c_void>;

    /// A module's functions, and the addresses of their places, which is what a tool is given (null at both ends).
    struct ToolModule {
        slots: Vec<FunctionSlot>,
        places: Vec<AtomicPtr<FunctionSlot>>,
    }

    #[repr(C)]
    struct Callbacks {
        struct_size: usize,
        get_module: unsafe extern "C" fn(c_int, *mut *const c_void, *mut c_uint) -> c_int,
    }

    static CALLBACKS: Callbacks = Callbacks { struct_size: size_of::<Callbacks>(), get_module };

    fn modules() -> &'static [ToolModule] {
        static MODULES: OnceLock<Vec<ToolModule>> = OnceLock::new();
        MODULES.get_or_init(|| {
            N_FUNCTIONS
                .iter()
                .map(|&n| {
                    let slots: Vec<FunctionSlot> = (0..n).map(|_| FunctionSlot::new(null_mut())).collect();
                    let place = |i: usize| if i == 0 || i >= n { null_mut() } else { (&raw const slots[i]).cast_mut() };
                    let places = (0..=n).map(|i| AtomicPtr::new(place(i))).collect();
                    ToolModule { slots, places }
                })
                .collect()
        })
    }

    unsafe extern "C" fn get_module(module: c_int, table: *mut *const c_void, bytes: *mut c_uint) -> c_int {
        let found = usize::try_from(module).ok().and_then(|module| modules().get(module.checked_sub(1)?));
        let Some(found) = found else { return 0 };
        // SAFETY: the tool passes pointers it may leave null; the tables live as long as the process.
        unsafe {
            if !table.is_null() {
                *table = found.places.as_ptr().cast();
            }
            if !bytes.is_null() {
                *bytes = (found.slots.len() * size_of::<*const c_void>()) as c_uint;
            }
        }
        1
    }

    unsafe extern "C" fn export_table(id: u32) -> *const c_void {
        if id == TABLE_CALLBACKS { (&raw const CALLBACKS).cast() } else { null_mut() }
    }

    pub fn open(path: &Path) -> Result<Ranges> {
        type Initialize = unsafe extern "C" fn(unsafe extern "C" fn(u32) -> *const c_void) -> c_int;
        const NAME: &str = "InitializeInjectionNvtx2";
        let shown = path.display().to_string();
        let fail = |why: String| Error::Probe { what: format!("the NVTX tool {shown}"), why };
        // SAFETY: loading runs the tool's constructors; the user named it to be loaded into this process.
        let library = unsafe { Library::new(path) }.map_err(|error| fail(error.to_string()))?;
        // SAFETY: the signature that NVTX's headers give this symbol.
        let initialize = unsafe { library.get::<Initialize>(NAME.as_bytes()) };
        let initialize = *initialize.map_err(|_| fail(format!("it has no {NAME}")))?;
        // SAFETY: as above; the tables outlive the tool.
        if unsafe { initialize(export_table) } == 0 {
            return Err(fail("it refused to attach".into()));
        }
        let slots = &modules()[CORE].slots;
        let (push, pop) = (slots[RANGE_PUSH_A].load(Ordering::Acquire), slots[RANGE_POP].load(Ordering::Acquire));
        if push.is_null() || pop.is_null() {
            return Err(fail("it takes no ranges".into()));
        }
        // SAFETY: the tool wrote functions of these types there, by NVTX's numbering of the core module.
        let (push, pop) =
            unsafe { (std::mem::transmute::<*mut c_void, Push>(push), std::mem::transmute::<*mut c_void, Pop>(pop)) };
        // The code behind the two must stay.
        std::mem::forget(library);
        Ok(Ranges { push, pop })
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::process::Command;

        /// A tool as small as one can be: it keeps the depth and the last name.
        const TOOL: &str = r#"
            #include <stddef.h>
            #include <string.h>
            typedef void (*Function)(void);
            typedef struct { size_t size; int (*get)(int, Function ***, unsigned *); } Callbacks;
            static int depth = 0; static char last[64];
            int tool_depth(void) { return depth; }
            const char *tool_last(void) { return last; }
            static int push(const char *name) { strncpy(last, name, 63); return depth++; }
            static int pop(void) { return --depth; }
            int InitializeInjectionNvtx2(const void *(*tables)(unsigned)) {
                const Callbacks *callbacks = tables(1);
                Function **core; unsigned bytes;
                if (!callbacks || callbacks->size < sizeof *callbacks || !callbacks->get(1, &core, &bytes)) return 0;
                if (bytes < 12 * sizeof *core || core[0] || callbacks->get(7, 0, 0) || !callbacks->get(5, 0, 0)) return 0;
                *core[9] = (Function)push; *core[11] = (Function)pop;
                return 1;
            }"#;

        #[test]
        fn a_tool_gets_the_ranges() {
            let folder = std::env::temp_dir().join(format!("gpu-nvtx-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let (source, library) = (folder.join("tool.c"), folder.join("libtool.so"));
            std::fs::write(&source, TOOL).unwrap();
            let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
            assert!(built.is_ok_and(|status| status.success()), "cc builds the stand-in tool");
            let ranges = open(&library).unwrap();
            // SAFETY: the same file again, with the signatures above.
            let tool = unsafe { Library::new(&library).unwrap() };
            // SAFETY: as above.
            let depth = unsafe { *tool.get::<Pop>(b"tool_depth").unwrap() };
            // SAFETY: as above.
            let last = unsafe { *tool.get::<unsafe extern "C" fn() -> *const std::ffi::c_char>(b"tool_last").unwrap() };
            ranges.push("attention");
            // SAFETY: the tool's own buffer, NUL-terminated.
            let name = unsafe { std::ffi::CStr::from_ptr(last()) };
            // SAFETY: no preconditions.
            assert_eq!((unsafe { depth() }, name.to_str().unwrap()), (1, "attention"));
            ranges.pop();
            // SAFETY: no preconditions.
            assert_eq!(unsafe { depth() }, 0);
            assert!(open(&source).is_err(), "no library");
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }
}
