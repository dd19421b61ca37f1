//! Named ranges for rocprof and nsys, by dlopen of roctx or nvtx. Optional: without the library, or
//! without being asked for, nothing is loaded and nothing is called.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use crate::driver::open_first;
use crate::error::{Error, Result};
use crate::vendor::Vendor;

/// The two calls both libraries have.
pub struct Ranges {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

impl Ranges {
    pub fn get(vendor: Vendor) -> Result<&'static Ranges> {
        static AMD: OnceLock<Result<Ranges>> = OnceLock::new();
        static NVIDIA: OnceLock<Result<Ranges>> = OnceLock::new();
        vendor.pick(&AMD, &NVIDIA).get_or_init(|| Self::open(vendor)).as_ref().map_err(Clone::clone)
    }

    fn open(vendor: Vendor) -> Result<Self> {
        let (library, path) = open_first(vendor, "profiler range", &vendor.ranges_libraries())?;
        let (push, pop) =
            (vendor.pick("roctxRangePushA", "nvtxRangePushA"), vendor.pick("roctxRangePop", "nvtxRangePop"));
        // SAFETY: both libraries declare `int push(const char*)`.
        let push_call = unsafe { library.get(push.as_bytes()) }.map_err(|_| Error::missing_symbol(push, &path))?;
        // SAFETY: both libraries declare `int pop(void)`.
        let pop_call = unsafe { library.get(pop.as_bytes()) }.map_err(|_| Error::missing_symbol(pop, &path))?;
        Ok(Self { push: *push_call, pop: *pop_call })
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
