//! The kernel driver's own description of its GPUs, for libraries that read it past ROCr (RCCL does): paths below
//! `/sys/class/kfd/kfd/topology` lead to the folder that describes the software GPUs. Functions of the C library,
//! interposed because this library is preloaded; any other path goes through untouched.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use super::interpose::next_symbol;

const TOPOLOGIES: [&[u8]; 2] = [b"/sys/class/kfd/kfd/topology", b"/sys/devices/virtual/kfd/kfd/topology"];

/// The folder that stands for the driver's.
fn folder() -> Option<&'static [u8]> {
    static FOLDER: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let named = || std::env::var_os("HSA_MODEL_TOPOLOGY").map(|folder| folder.as_bytes().to_vec());
    FOLDER.get_or_init(named).as_deref()
}

/// Where `path` really leads; `None` where it says itself.
fn redirected(path: &[u8], folder: &[u8]) -> Option<CString> {
    let rest = TOPOLOGIES.iter().find_map(|topology| path.strip_prefix(*topology))?;
    if !(rest.is_empty() || rest.starts_with(b"/")) {
        return None;
    }
    CString::new([folder, rest].concat()).ok()
}

/// Calls `real` with the path that counts.
///
/// # Safety
/// `path` must be null or a C string.
unsafe fn with_path<R>(path: *const c_char, real: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: the caller's promise, after the test for null.
    let text = if path.is_null() { c"" } else { unsafe { CStr::from_ptr(path) } };
    let other = match text.to_bytes().starts_with(b"/sys/") {
        true => folder().and_then(|folder| redirected(text.to_bytes(), folder)),
        false => None,
    };
    match &other {
        Some(other) => real(other.as_ptr()),
        None => real(path),
    }
}

macro_rules! redirect {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, $missing:expr;)*) => {$(
        /// # Safety
        /// As the C library's own function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char $(, $arg: $ty)*) -> $ret {
            type Real = unsafe extern "C" fn(*const c_char $(, $ty)*) -> $ret;
            static REAL: OnceLock<Option<Real>> = OnceLock::new();
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without zeros"),
            };
            // SAFETY: the C library's function of this name has this type.
            let find = || next_symbol(NAME).map(|at| unsafe { std::mem::transmute::<*mut c_void, Real>(at) });
            let Some(real) = *REAL.get_or_init(find) else { return $missing };
            // SAFETY: the caller's call, passed on with the same path or another valid one.
            unsafe { with_path(path, |path| real(path $(, $arg)*)) }
        }
    )*};
}

// What RCCL reads with; streams of libstdc++ come down to `fopen`.
redirect! {
    fopen(mode: *const c_char) -> *mut c_void, std::ptr::null_mut();
    fopen64(mode: *const c_char) -> *mut c_void, std::ptr::null_mut();
    opendir() -> *mut c_void, std::ptr::null_mut();
    access(mode: c_int) -> c_int, -1;
    stat(to: *mut c_void) -> c_int, -1;
}

#[cfg(test)]
mod tests {
    use super::redirected;

    #[test]
    fn the_drivers_paths_lead_to_the_models_folder_and_no_other() {
        let to = |path: &str| redirected(path.as_bytes(), b"/t").map(|c| c.into_string().expect("plain"));
        assert_eq!(to("/sys/class/kfd/kfd/topology/nodes/1/gpu_id").as_deref(), Some("/t/nodes/1/gpu_id"));
        assert_eq!(to("/sys/devices/virtual/kfd/kfd/topology").as_deref(), Some("/t"));
        assert_eq!(to("/sys/class/kfd/kfd/topology2/nodes"), None);
        assert_eq!(to("/sys/class/drm"), None);
    }
}
