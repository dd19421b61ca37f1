//! A block's shared memory (AMD: LDS). It has its own type because NVIDIA's loads, stores and above all atomics are several
//! times as fast if the compiler knows which memory they are for.

use core::marker::PhantomData;

use super::arch::{self, Base};

/// Values in the block's shared memory. Threads that race on one get one of the values written, unless the kernel orders
/// them by [`barrier`](super::barrier) or atomics.
pub struct Shared<T> {
    pub(super) base: Base,
    len: u32,
    values: PhantomData<*mut T>,
}

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

/// The first `len` values of the block's shared memory, which is as large as `#[launch(shared = BYTES)]` says.
#[inline(always)]
pub fn shared<T: Copy>(len: u32) -> Shared<T> {
    Shared { base: arch::shared(), len, values: PhantomData }
}

impl<T: Copy> Shared<T> {
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> u32 {
        self.len
    }

    #[inline(always)]
    pub(super) fn offset(self, i: u32) -> u32 {
        assert!(i < self.len);
        i * size_of::<T>() as u32
    }

    #[inline(always)]
    pub fn get(self, i: u32) -> T {
        // SAFETY: inside by `offset`, if the launch gave what `shared` promised.
        unsafe { arch::shared_read(self.base, self.offset(i)) }
    }

    #[inline(always)]
    pub fn set(self, i: u32, value: T) {
        // SAFETY: as for `get`.
        unsafe { arch::shared_write(self.base, self.offset(i), value) }
    }

    /// The `N` values at `first`, `first + stride` and so on, which must all be there: one check, so that the loads are
    /// under way together.
    #[inline(always)]
    pub fn gather<const N: usize>(self, first: u32, stride: u32) -> [T; N] {
        assert!(first + (N as u32 - 1) * stride < self.len);
        // SAFETY: the last one is inside, so all are.
        core::array::from_fn(|k| unsafe {
            arch::shared_read(self.base, (first + k as u32 * stride) * size_of::<T>() as u32)
        })
    }

    /// `len` values from value `first` on.
    #[inline(always)]
    pub fn part(self, first: u32, len: u32) -> Self {
        assert!(first <= self.len && len <= self.len - first);
        Self { base: arch::shared_at(self.base, first * size_of::<T>() as u32), len, values: PhantomData }
    }

    /// The same bytes, as many values of another type as fit. Parts of 16-byte multiples suit every type.
    #[inline(always)]
    pub fn cast<U: Copy>(self) -> Shared<U> {
        let bytes = self.len * size_of::<T>() as u32;
        Shared { base: self.base, len: bytes / size_of::<U>() as u32, values: PhantomData }
    }
}
