//! Tables of a library's functions and numbers: one line for both vendors.
//!
//! `library!` makes a struct of functions that is filled by dlopen; a function the library lacks is an
//! error when it is called, not when the library is opened. In a symbol `%` stands for the letter of a
//! number type (`s d c z`) and `^` for the letter as a capital. `numbers!` makes an enum with each vendor's
//! number. Both keep what they were made of, so that a test can compare it with the vendors' headers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::Location;

use gpu::Vendor;
use gpu::foreign::Library;

use crate::error::{Error, Result};
use crate::scalar::ScalarKind;

/// An object of a library.
pub(crate) type Handle = *mut c_void;
/// A size or a stride.
pub(crate) type Int = c_int;
/// A number of an enum.
pub(crate) type LibraryChoice = c_int;
/// Something the library reads from the host.
pub(crate) type Host = *const c_void;
/// Something the library writes to the host.
pub(crate) type HostMut = *mut c_void;

/// A row of a table as data.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Our name.
    pub name: &'static str,
    /// AMD's symbol; empty where there is none.
    pub amd: &'static str,
    /// NVIDIA's symbol; empty where there is none.
    pub nvidia: &'static str,
    /// What `%` stands for, one for each kind of number; `-` where there is none.
    pub letters: &'static [&'static str],
    /// Argument types as written in the table.
    pub args: &'static [&'static str],
}

impl Row {
    /// The symbol for a kind of number, if the vendor has one.
    pub fn symbol(&self, vendor: Vendor, kind: usize) -> Option<String> {
        let template = vendor.pick(self.amd, self.nvidia);
        if template.is_empty() {
            return None;
        }
        if self.letters.is_empty() {
            return (kind == 0).then(|| template.to_owned());
        }
        let letters = *self.letters.get(kind).filter(|letters| **letters != "-")?;
        let (first, rest) = letters.split_at(1);
        Some(template.replace('%', letters).replace('^', &format!("{}{rest}", first.to_uppercase())))
    }
}

/// A number of both vendors as data: (AMD's name, number, NVIDIA's name, number).
pub type VendorNumbers = (&'static str, i64, &'static str, i64);

/// How a library is called and what its statuses are called.
pub(crate) struct Names {
    pub name: &'static str,
    pub sonames: &'static [&'static str],
    /// Functions from a status to its name and to a text; empty where there is none.
    pub status_name: &'static str,
    pub status_text: &'static str,
    /// For libraries without such functions.
    pub statuses: &'static [(c_int, &'static str)],
    /// A function that writes what went wrong last on this thread; empty where there is none.
    pub last_words: &'static str,
}

type Describe = unsafe extern "C" fn(c_int) -> *const c_char;
type LastWords = unsafe extern "C" fn(*mut c_char, usize);

/// What the library says of its last failure, if it says anything.
///
/// # Safety
/// The function writes at most as many characters as it is told there is room for.
unsafe fn last_words(write: LastWords) -> Option<String> {
    let mut text = [0u8; 1024];
    // Room for one character fewer than there is, so that a text that fills it still ends.
    // SAFETY: as the caller says.
    unsafe { write(text.as_mut_ptr().cast(), text.len() - 1) };
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// An opened library.
pub(crate) struct Opened {
    pub library: Library,
    names: &'static Names,
    status_name: Option<Describe>,
    status_text: Option<Describe>,
    last_words: Option<LastWords>,
}

impl Opened {
    pub fn open(vendor: Vendor, role: &'static str, names: &'static Names) -> Result<Self> {
        let library = Library::open(vendor, role, names.sonames)?;
        let describe = |symbol: &str| {
            let found = (!symbol.is_empty()).then(|| library.symbol(symbol)).flatten();
            // SAFETY: both vendors' functions of that kind take a status and return a static string.
            found.map(|address| unsafe { std::mem::transmute::<*const c_void, Describe>(address) })
        };
        let (status_name, status_text) = (describe(names.status_name), describe(names.status_text));
        let found = (!names.last_words.is_empty()).then(|| library.symbol(names.last_words)).flatten();
        // SAFETY: cuDNN's, the one function of that kind; tests/it/headers.rs compares its signature.
        let last_words = found.map(|address| unsafe { std::mem::transmute::<*const c_void, LastWords>(address) });
        Ok(Self { library, names, status_name, status_text, last_words })
    }

    /// `rocBLAS (librocblas.so.5)`
    pub fn label(&self) -> String {
        format!("{} ({})", self.names.name, self.library.path())
    }

    #[track_caller]
    pub fn check(&self, call: String, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let words = |describe: Option<Describe>| {
            // SAFETY: any number is allowed; the answer is null or a static string.
            let text = describe.map(|describe| unsafe { describe(status) }).filter(|text| !text.is_null());
            // SAFETY: as above.
            text.map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let listed = self.names.statuses.iter().find(|(number, _)| *number == status).map(|(_, name)| *name);
        let name = words(self.status_name).unwrap_or_else(|| listed.unwrap_or("an unknown status").to_owned());
        // SAFETY: the library keeps to the room it is given.
        let last = || self.last_words.and_then(|write| unsafe { last_words(write) });
        let text =
            words(self.status_text).or_else(last).unwrap_or_else(|| "the library has no words for it".to_owned());
        Err(Error::Call { library: self.label(), call, status, name, text, at: Location::caller() })
    }

    pub fn lacks(&self, what: impl Into<String>) -> Error {
        Error::Unsupported { library: self.label(), what: what.into() }
    }
}

/// The symbol of whichever vendor has one, for errors.
pub(crate) fn either(amd: &str, nvidia: &str) -> String {
    match (amd, nvidia) {
        (amd, "") => amd.to_owned(),
        ("", nvidia) => nvidia.to_owned(),
        (amd, nvidia) if amd == nvidia => amd.to_owned(),
        (amd, nvidia) => format!("{amd} | {nvidia}"),
    }
}

/// The index of a kind in a row.
pub(crate) fn column(kind: ScalarKind) -> usize {
    kind as usize
}

macro_rules! library {
    (
        $(#[$doc:meta])*
        $table:ident, role $role:literal, amd $amd_names:expr, nvidia $nvidia_names:expr;
        plain { $( $name:ident | $amd:literal | $nvidia:literal | ($($arg:ident : $ty:ty),* $(,)?); )* }
        typed { $( $tname:ident | $tamd:literal | $tnvidia:literal | [$($letter:tt)*] | ($($targ:ident : $tty:ty),* $(,)?); )* }
    ) => {
        $(#[$doc])*
        pub struct $table {
            pub(crate) opened: $crate::table::Opened,
            $($name: Option<unsafe extern "C" fn($($ty),*) -> std::ffi::c_int>,)*
            $($tname: [Option<unsafe extern "C" fn($($tty),*) -> std::ffi::c_int>; 4],)*
        }

        impl $table {
            /// The table as data.
            pub const ROWS: &[$crate::table::Row] = &[
                $($crate::table::Row {
                    name: stringify!($name), amd: $amd, nvidia: $nvidia, letters: &[], args: &[$(stringify!($ty)),*],
                },)*
                $($crate::table::Row {
                    name: stringify!($tname), amd: $tamd, nvidia: $tnvidia, letters: &[$(stringify!($letter)),*],
                    args: &[$(stringify!($tty)),*],
                },)*
            ];

            /// The vendor's library, opened once. The first result, good or bad, is kept for the life of the process.
            pub fn get(vendor: gpu::Vendor) -> $crate::Result<&'static Self> {
                static AMD: std::sync::OnceLock<$crate::Result<$table>> = std::sync::OnceLock::new();
                static NVIDIA: std::sync::OnceLock<$crate::Result<$table>> = std::sync::OnceLock::new();
                let cell = vendor.pick(&AMD, &NVIDIA);
                cell.get_or_init(|| Self::open(vendor)).as_ref().map_err(Clone::clone)
            }

            #[allow(unused_mut, unused_variables, unused_assignments, reason = "tables without optional rows")]
            fn open(vendor: gpu::Vendor) -> $crate::Result<Self> {
                static NAMES: [$crate::table::Names; 2] = [$amd_names, $nvidia_names];
                let opened = $crate::table::Opened::open(vendor, $role, vendor.pick(&NAMES[0], &NAMES[1]))?;
                let mut rows = Self::ROWS.iter();
                // SAFETY (of the transmutes): a row's signature is the one in the vendor's header for that symbol;
                // tests/it/headers.rs compares them.
                $(
                    let row = rows.next().expect("a row for each field");
                    let found = row.symbol(vendor, 0).and_then(|symbol| opened.library.symbol(&symbol));
                    // SAFETY: as above.
                    let $name = found.map(|address| unsafe {
                        std::mem::transmute::<*const std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> std::ffi::c_int>(address)
                    });
                )*
                $(
                    let row = rows.next().expect("a row for each field");
                    let $tname = [0, 1, 2, 3].map(|kind| {
                        let found = row.symbol(vendor, kind).and_then(|symbol| opened.library.symbol(&symbol));
                        // SAFETY: as above.
                        found.map(|address| unsafe {
                            std::mem::transmute::<*const std::ffi::c_void, unsafe extern "C" fn($($tty),*) -> std::ffi::c_int>(address)
                        })
                    });
                )*
                Ok(Self { opened, $($name,)* $($tname,)* })
            }

            $(
                /// # Safety
                /// As the vendor documents for this call.
                #[allow(clippy::too_many_arguments, dead_code, reason = "the arguments are the library's own; tables may list more")]
                #[track_caller]
                pub(crate) unsafe fn $name(&self, $($arg: $ty),*) -> $crate::Result<()> {
                    let name = || $crate::table::either($amd, $nvidia);
                    let Some(call) = self.$name else { return Err(self.opened.lacks(name())) };
                    // SAFETY: the caller upholds the vendor's contract for this call.
                    let status = unsafe { call($($arg),*) };
                    if status == 0 { Ok(()) } else { self.opened.check(name(), status) }
                }
            )*

            $(
                /// # Safety
                /// As the vendor documents for this call.
                #[allow(clippy::too_many_arguments, dead_code, reason = "the arguments are the library's own; tables may list more")]
                #[track_caller]
                pub(crate) unsafe fn $tname(&self, kind: $crate::scalar::ScalarKind, $($targ: $tty),*) -> $crate::Result<()> {
                    let name = || format!("{} of {kind:?}", stringify!($tname));
                    let Some(call) = self.$tname[$crate::table::column(kind)] else {
                        return Err(self.opened.lacks(name()));
                    };
                    // SAFETY: the caller upholds the vendor's contract for this call.
                    let status = unsafe { call($($targ),*) };
                    if status == 0 { Ok(()) } else { self.opened.check(name(), status) }
                }
            )*
        }
    };
}

macro_rules! numbers {
    ($(
        $(#[$doc:meta])*
        $vis:vis enum $name:ident {
            $( $(#[$item_doc:meta])* $item:ident = $amd_name:literal $amd:literal | $nvidia_name:literal $nvidia:literal; )*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        $vis enum $name { $( $(#[$item_doc])* $item, )* }

        impl $name {
            /// Each vendor's name and number, for the check against the headers.
            #[doc(hidden)]
            pub const NUMBERS: &[$crate::table::VendorNumbers] = &[$(($amd_name, $amd, $nvidia_name, $nvidia)),*];

            #[allow(dead_code, reason = "not every enum needs both")]
            pub(crate) fn number(self, vendor: gpu::Vendor) -> std::ffi::c_int {
                let row = Self::NUMBERS[self as usize];
                vendor.pick(row.1, row.3) as std::ffi::c_int
            }

            /// The number, where the vendor has a name for it.
            #[allow(dead_code, reason = "not every enum needs both")]
            pub(crate) fn number_if_any(self, vendor: gpu::Vendor) -> Option<std::ffi::c_int> {
                let row = Self::NUMBERS[self as usize];
                (!vendor.pick(row.0, row.2).is_empty()).then(|| self.number(vendor))
            }
        }
    )*};
}

pub(crate) use {library, numbers};

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn two_lines(text: *mut c_char, room: usize) {
        let words = c"Error: a size is wrong\n  at: sizes.cpp:7\n\n".to_bytes_with_nul();
        assert!(words.len() <= room);
        // SAFETY: as many bytes as there is room for at least.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), text.cast(), words.len()) };
    }

    unsafe extern "C" fn silence(_: *mut c_char, _: usize) {}

    /// As `strncpy` leaves a text that is too long: without an end.
    unsafe extern "C" fn no_end(text: *mut c_char, room: usize) {
        // SAFETY: as many bytes as there is room for.
        unsafe { std::ptr::write_bytes(text.cast::<u8>(), b'x', room) };
    }

    fn said(write: LastWords) -> Option<String> {
        // SAFETY: the functions above keep to the room.
        unsafe { last_words(write) }
    }

    #[test]
    fn last_words_are_one_line() {
        assert_eq!(said(two_lines).unwrap(), "Error: a size is wrong; at: sizes.cpp:7");
        assert_eq!(said(silence), None);
        assert_eq!(said(no_end).unwrap(), "x".repeat(1023));
    }
}
