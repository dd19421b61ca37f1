//! The crate's one error: a library's call with its status, or a shape that was refused before the call.

use std::panic::Location;

/// What went wrong.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The device layer's: an absent library, a foreign buffer, no memory, a fault.
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
    /// A library's call failed.
    #[error("{library}: {call} failed with {name} ({status}): {text} (at {at})")]
    Call {
        /// The library and the file it came from.
        library: String,
        /// The vendor's symbol.
        call: String,
        status: i32,
        /// The vendor's name for the status.
        name: String,
        /// The vendor's words for it.
        text: String,
        at: &'static Location<'static>,
    },
    /// This library does not have the function.
    #[error("{library} has no {what}")]
    Unsupported {
        library: String,
        /// A function or a combination of types.
        what: String,
    },
    /// Shapes, strides or lengths that do not fit; the library was not called.
    #[error("{call}: {why} (at {at})")]
    Shape {
        /// Our function.
        call: &'static str,
        why: String,
        at: &'static Location<'static>,
    },
    /// The numbers do not allow it: a singular matrix, an iteration that did not converge.
    #[error("{call}: {why}")]
    Numeric {
        /// Our function.
        call: &'static str,
        why: String,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    #[track_caller]
    pub(crate) fn shape(call: &'static str, why: impl Into<String>) -> Self {
        Error::Shape { call, why: why.into(), at: Location::caller() }
    }
}

/// Keeps what went wrong in a `Drop` for the queue's next call.
pub(crate) fn report_late(binding: &gpu::foreign::Binding, result: Result<()>) {
    if let Err(error) = result {
        let what = "giving back a library's object".to_owned();
        binding.report_later(gpu::Error::Late { what, why: error.to_string() });
    }
}

/// `value` as the 32-bit integer the libraries take.
#[track_caller]
pub(crate) fn int(call: &'static str, what: &str, value: usize) -> Result<i32> {
    i32::try_from(value).map_err(|_| Error::shape(call, format!("{what} is {value}, past 2^31-1")))
}

/// Refuses with `why` unless `holds`.
#[track_caller]
pub(crate) fn ensure(call: &'static str, holds: bool, why: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::shape(call, why())) }
}
