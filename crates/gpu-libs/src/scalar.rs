//! The four numbers that every numerical library knows: real and complex, of 32 and 64 bits.

use gpu::Element;
use num_complex::{Complex32, Complex64};

/// Which of the four, in the order of the letters `s d c z`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScalarKind {
    F32,
    F64,
    C32,
    C64,
}

impl ScalarKind {
    /// Whether it has an imaginary part.
    pub fn is_complex(self) -> bool {
        matches!(self, ScalarKind::C32 | ScalarKind::C64)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// `f32`, `f64`, `Complex32` or `Complex64`.
pub trait Scalar: Element + sealed::Sealed {
    /// The number of the same precision without an imaginary part.
    type Real: Real;
    /// Which of the four this is.
    const KIND: ScalarKind;
    const ZERO: Self;
    const ONE: Self;
}

/// `f32` or `f64`.
pub trait Real: Scalar<Real = Self> {
    /// The complex number of the same precision.
    type Complex: Scalar<Real = Self>;
}

macro_rules! scalars {
    ($($ty:ty, $real:ty, $kind:ident, $zero:expr, $one:expr;)*) => {$(
        impl sealed::Sealed for $ty {}
        impl Scalar for $ty {
            type Real = $real;
            const KIND: ScalarKind = ScalarKind::$kind;
            const ZERO: Self = $zero;
            const ONE: Self = $one;
        }
    )*};
}

scalars! {
    f32, f32, F32, 0.0, 1.0;
    f64, f64, F64, 0.0, 1.0;
    Complex32, f32, C32, Complex32::new(0.0, 0.0), Complex32::new(1.0, 0.0);
    Complex64, f64, C64, Complex64::new(0.0, 0.0), Complex64::new(1.0, 0.0);
}

impl Real for f32 {
    type Complex = Complex32;
}

impl Real for f64 {
    type Complex = Complex64;
}
