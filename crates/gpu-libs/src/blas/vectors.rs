//! Level 1: vectors.

use super::{Blas, host, host_mut, same};
use crate::error::Result;
use crate::scalar::{Real, Scalar};
use crate::view::{Vector, VectorMut};

/// A Givens rotation that turns (a, b) into (r, 0).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rotation<T: Scalar> {
    pub r: T,
    pub cosine: T::Real,
    pub sine: T,
}

// Functions that differ in their name alone are written once, as macros: a generic helper that took the function as a
// pointer would lose the caller's line for errors.

macro_rules! dots {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a, T: Scalar>(&self, x: impl Into<Vector<'a, T>>, y: impl Into<Vector<'a, T>>) -> Result<T> {
            const CALL: &str = stringify!($name);
            let (x, y) = (x.into(), y.into());
            same(CALL, "lengths of x and y", x.len, y.len)?;
            let ((n, x, step_x), (_, y, step_y)) = (self.read(CALL, &x)?, self.read(CALL, &y)?);
            self.enter()?;
            let mut result = T::ZERO;
            // SAFETY: as for `axpy`; in host pointer mode the result is there when the call returns.
            unsafe { self.calls.$name(T::KIND, self.handle, n, x, step_x, y, step_y, host_mut(&mut result)) }?;
            Ok(result)
        }
    )*};
}

macro_rules! norms {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a, T: Scalar>(&self, x: impl Into<Vector<'a, T>>) -> Result<T::Real> {
            let (n, x, step) = self.read(stringify!($name), &x.into())?;
            self.enter()?;
            let mut result = T::Real::ZERO;
            // SAFETY: as for `dot`; norms are real for every kind.
            unsafe { self.calls.$name(T::KIND, self.handle, n, x, step, host_mut(&mut result)) }?;
            Ok(result)
        }
    )*};
}

macro_rules! extremes {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a, T: Scalar>(&self, x: impl Into<Vector<'a, T>>) -> Result<Option<usize>> {
            let (n, x, step) = self.read(stringify!($name), &x.into())?;
            self.enter()?;
            let mut result = 0;
            // SAFETY: as for `dot`.
            unsafe { self.calls.$name(T::KIND, self.handle, n, x, step, &mut result) }?;
            // The library counts from one, and gives zero for no elements.
            Ok(usize::try_from(result - 1).ok())
        }
    )*};
}

impl Blas {
    /// y = alpha x + y
    #[track_caller]
    pub fn axpy<'a, T: Scalar>(
        &self,
        alpha: T,
        x: impl Into<Vector<'a, T>>,
        y: impl Into<VectorMut<'a, T>>,
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        same("axpy", "lengths of x and y", x.len, y.len)?;
        let ((n, x, step_x), (_, y, step_y)) = (self.read("axpy", &x)?, self.write("axpy", &y)?);
        self.enter()?;
        // SAFETY: both views were checked against their memory, which is this queue's; alpha outlives the call.
        unsafe { self.calls.axpy(T::KIND, self.handle, n, host(&alpha), x, step_x, y, step_y) }
    }

    /// x = alpha x
    #[track_caller]
    pub fn scal<'a, T: Scalar>(&self, alpha: T, x: impl Into<VectorMut<'a, T>>) -> Result<()> {
        let (n, x, step) = self.write("scal", &x.into())?;
        self.enter()?;
        // SAFETY: as for `axpy`.
        unsafe { self.calls.scal(T::KIND, self.handle, n, host(&alpha), x, step) }
    }

    /// y = x
    #[track_caller]
    pub fn copy<'a, T: Scalar>(&self, x: impl Into<Vector<'a, T>>, y: impl Into<VectorMut<'a, T>>) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        same("copy", "lengths of x and y", x.len, y.len)?;
        let ((n, x, step_x), (_, y, step_y)) = (self.read("copy", &x)?, self.write("copy", &y)?);
        self.enter()?;
        // SAFETY: as for `axpy`.
        unsafe { self.calls.copy(T::KIND, self.handle, n, x, step_x, y, step_y) }
    }

    /// x and y change places.
    #[track_caller]
    pub fn swap<'a, T: Scalar>(&self, x: impl Into<VectorMut<'a, T>>, y: impl Into<VectorMut<'a, T>>) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        same("swap", "lengths of x and y", x.len, y.len)?;
        let ((n, x, step_x), (_, y, step_y)) = (self.write("swap", &x)?, self.write("swap", &y)?);
        self.enter()?;
        // SAFETY: as for `axpy`.
        unsafe { self.calls.swap(T::KIND, self.handle, n, x, step_x, y, step_y) }
    }

    dots! {
        /// The sum of x y, without conjugation. Waits.
        dot;
        /// The sum of conj(x) y. Waits.
        dotc;
    }

    norms! {
        /// The Euclidean norm. Waits.
        nrm2;
        /// The sum of |re| + |im|. Waits.
        asum;
    }

    extremes! {
        /// Where |re| + |im| is largest, counted from zero; `None` for no elements. Waits.
        iamax;
        /// Where |re| + |im| is smallest, counted from zero; `None` for no elements. Waits.
        iamin;
    }

    /// (x, y) = (c x + s y, c y - conj(s) x)
    #[track_caller]
    pub fn rot<'a, T: Scalar>(
        &self,
        x: impl Into<VectorMut<'a, T>>,
        y: impl Into<VectorMut<'a, T>>,
        cosine: T::Real,
        sine: T,
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        same("rot", "lengths of x and y", x.len, y.len)?;
        let ((n, x, step_x), (_, y, step_y)) = (self.write("rot", &x)?, self.write("rot", &y)?);
        self.enter()?;
        // SAFETY: as for `axpy`; the cosine is real for every kind.
        unsafe { self.calls.rot(T::KIND, self.handle, n, x, step_x, y, step_y, host(&cosine), host(&sine)) }
    }

    /// The rotation that turns (a, b) into (r, 0). Waits.
    #[track_caller]
    pub fn rotg<T: Scalar>(&self, a: T, b: T) -> Result<Rotation<T>> {
        let (mut r, mut b, mut cosine, mut sine) = (a, b, T::Real::ZERO, T::ZERO);
        self.enter()?;
        // SAFETY: four numbers of the host that outlive the call.
        unsafe {
            self.calls.rotg(
                T::KIND,
                self.handle,
                host_mut(&mut r),
                host_mut(&mut b),
                host_mut(&mut cosine),
                host_mut(&mut sine),
            )
        }?;
        Ok(Rotation { r, cosine, sine })
    }

    /// The modified rotation H with the five parameters of BLAS: flag, h11, h21, h12, h22.
    #[track_caller]
    pub fn rotm<'a, T: Real>(
        &self,
        x: impl Into<VectorMut<'a, T>>,
        y: impl Into<VectorMut<'a, T>>,
        parameters: [T; 5],
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        same("rotm", "lengths of x and y", x.len, y.len)?;
        let ((n, x, step_x), (_, y, step_y)) = (self.write("rotm", &x)?, self.write("rotm", &y)?);
        self.enter()?;
        // SAFETY: as for `axpy`; five parameters of the host.
        unsafe { self.calls.rotm(T::KIND, self.handle, n, x, step_x, y, step_y, host(&parameters)) }
    }

    /// The parameters of `rotm` that zero the second component of (sqrt(d1) x1, sqrt(d2) y1). Waits.
    #[track_caller]
    pub fn rotmg<T: Real>(&self, d1: T, d2: T, x1: T, y1: T) -> Result<[T; 5]> {
        let (mut d1, mut d2, mut x1, mut parameters) = (d1, d2, x1, [T::ZERO; 5]);
        self.enter()?;
        // SAFETY: numbers of the host that outlive the call.
        unsafe {
            self.calls.rotmg(
                T::KIND,
                self.handle,
                host_mut(&mut d1),
                host_mut(&mut d2),
                host_mut(&mut x1),
                host(&y1),
                host_mut(&mut parameters),
            )
        }?;
        Ok(parameters)
    }
}
