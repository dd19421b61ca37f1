//! The crate's one error. A vendor call's error carries the call, the vendor's own name and text, the
//! device, and the file and line that asked for it; the rest carry the object and the numbers.
//!
//! Errors are `Clone`: a poisoned queue hands its first fault to everyone who comes after.

use std::ffi::c_int;
use std::panic::Location;

use crate::vendor::Vendor;

/// A vendor call that failed.
#[derive(Clone, Debug)]
pub struct CallError {
    /// The vendor's symbol.
    pub call: &'static str,
    /// The vendor's number for it.
    pub status: i32,
    /// The vendor's name for the status, e.g. `hipErrorIllegalAddress`.
    pub name: String,
    /// The vendor's words for it.
    pub text: String,
    /// The device that was called.
    pub device: String,
    /// What the launcher was doing, where an op said so.
    pub op: Option<&'static str>,
    /// The line of the program that asked for it.
    pub at: &'static Location<'static>,
}

/// Everything that can go wrong with a device.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("{device}: {call} failed with {name} ({status}): {text}{during}{place}", device = .0.device, call = .0.call,
            name = .0.name, status = .0.status, text = .0.text, place = place(.0.at),
            during = .0.op.map(|op| format!(", during op `{op}`")).unwrap_or_default())]
    Call(Box<CallError>),
    #[error("{device}: `{what}` has not finished after {waited_ms} ms{place}", place = place(.at))]
    Stalled { device: String, what: String, waited_ms: u64, at: &'static Location<'static> },
    #[error("no {vendor} {role} library could be loaded ({tried})")]
    NoLibrary { vendor: Vendor, role: &'static str, tried: String },
    #[error("{library} has no symbol `{symbol}`: too old or too new for this program")]
    MissingSymbol { symbol: &'static str, library: String },
    #[error("no {vendor} GPU in this machine, or none this user may open")]
    NoDevice { vendor: Vendor },
    #[error("there is no {vendor} device {ordinal}: the driver reports {n_devices}")]
    NoSuchDevice { vendor: Vendor, ordinal: u32, n_devices: u32 },
    #[error("{device}: {wanted_bytes} bytes wanted, {free_bytes} of {total_bytes} free{place}", place = place(.at))]
    OutOfMemory {
        device: String,
        wanted_bytes: usize,
        free_bytes: usize,
        total_bytes: usize,
        at: &'static Location<'static>,
    },
    #[error("{what} belongs to queue {owner}, and queue {user} was asked to use it{place}: hand it over first", place = place(.at))]
    Foreign { what: &'static str, owner: u64, user: u64, at: &'static Location<'static> },
    #[error("{what}: {why}{place}", place = place(.at))]
    Bounds { what: &'static str, why: String, at: &'static Location<'static> },
    #[error("kernel `{kernel}`: {why}{place}", place = place(.at))]
    Launch { kernel: String, why: String, at: &'static Location<'static> },
    #[error("program `{program}` does not compile for {arch}: {log}")]
    Compile { program: String, arch: String, log: String },
    #[error("capture: {why}{place}", place = place(.at))]
    Capture { why: String, at: &'static Location<'static> },
    #[error("hand-over: {why}{place}", place = place(.at))]
    HandOver { why: String, at: &'static Location<'static> },
    #[error("{library}: {call} returned {status} ({text})")]
    Blas { library: String, call: &'static str, status: i32, text: String },
    #[error("no BLAS on {device}: {why}")]
    NoBlas { device: String, why: String },
    #[error("code object {path}: {why}")]
    Code { path: String, why: String },
    #[error("kernel cache {path}: {why}")]
    Cache { path: String, why: String },
    #[error("{what}: {why}")]
    Late { what: String, why: String },
    #[error("{what}: {why}")]
    Probe { what: String, why: String },
    /// What a probe's child process reported, in its own words.
    #[error("{0}")]
    Reported(String),
}

/// The file and line that asked, as the end of a sentence; empty where it is unknown: a `#[track_caller]` function that
/// is called through a function pointer takes the standard library for its caller.
fn place(at: &Location) -> String {
    let is_ours = !at.file().starts_with("/rustc/") && !at.file().contains("/lib/rustlib/src/");
    if is_ours { format!(" (at {at})") } else { String::new() }
}

/// What this crate's fallible functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    #[track_caller]
    pub(crate) fn call(call: &'static str, status: c_int, (name, text): (String, String), device: &str) -> Self {
        let at = Location::caller();
        Error::Call(Box::new(CallError { call, status, name, text, device: device.to_owned(), op: None, at }))
    }

    pub(crate) fn missing_symbol(symbol: &'static str, library: &str) -> Self {
        Error::MissingSymbol { symbol, library: library.to_owned() }
    }

    #[track_caller]
    pub(crate) fn bounds(what: &'static str, why: impl Into<String>) -> Self {
        Error::Bounds { what, why: why.into(), at: Location::caller() }
    }

    /// Name the op under way, unless a deeper one already did.
    pub(crate) fn during(mut self, op: Option<&'static str>) -> Self {
        if let Error::Call(inner) = &mut self {
            inner.op = inner.op.or(op);
        }
        self
    }

    /// The vendor's status number, where a vendor call failed.
    pub fn status(&self) -> Option<i32> {
        match self {
            Error::Call(inner) => Some(inner.status),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn out_of_bounds(what: &'static str) -> Error {
        Error::bounds(what, "too long")
    }

    #[test]
    fn an_error_names_the_line_that_asked() {
        let line = line!() + 1;
        let text = out_of_bounds("alloc").to_string();
        assert!(text.ends_with(&format!("error.rs:{line}:20)")), "{text}");
    }

    #[test]
    fn an_error_never_names_a_line_of_the_standard_library() {
        #[allow(clippy::unnecessary_map_on_constructor, reason = "the call that loses its caller is the point")]
        let through_pointer = Some("alloc").map(out_of_bounds).unwrap();
        let Error::Bounds { at, .. } = &through_pointer else { panic!("{through_pointer:?}") };
        assert!(!at.file().ends_with("error.rs"), "the compiler passes callers through function pointers now: {at}");
        assert_eq!(through_pointer.to_string(), "alloc: too long");
    }
}
