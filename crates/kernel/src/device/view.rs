//! Memory that many threads use at once: every access is one load or store, checked against the length; never a reference.

/// A slice a kernel reads.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct View<T> {
    ptr: *const T,
    len: u32,
}

/// A slice a kernel reads and writes. Threads that race on one value get one of the values written, unless the kernel
/// orders them by [`barrier`](super::barrier) or atomics.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ViewMut<T> {
    ptr: *mut T,
    len: u32,
}

impl<T: Copy> View<T> {
    /// # Safety
    /// `ptr` is good for `len` values for as long as the kernel runs.
    #[inline(always)]
    pub unsafe fn new(ptr: *const T, len: u32) -> Self {
        Self { ptr, len }
    }

    #[inline(always)]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> u32 {
        self.len
    }

    #[inline(always)]
    pub fn get(self, i: u32) -> T {
        assert!(i < self.len);
        // SAFETY: inside by the line above.
        unsafe { self.ptr.add(i as usize).read() }
    }

    /// The `N` values from `first` on, which must all be there: one check, and as few loads as the chip allows.
    #[inline(always)]
    pub fn run<const N: usize>(self, first: u32) -> [T; N] {
        assert!(first <= self.len && N as u32 <= self.len - first);
        // SAFETY: all of them are inside by the line above.
        unsafe { self.ptr.add(first as usize).cast::<[T; N]>().read() }
    }

    /// The `N` values at `first`, `first + stride` and so on; places beyond the end give the last value. One check for all,
    /// so that the loads are under way together.
    #[inline(always)]
    pub fn gather<const N: usize>(self, first: u32, stride: u32) -> [T; N] {
        assert!(self.len > 0);
        // SAFETY: no index is beyond the last value, and there is one.
        core::array::from_fn(|k| unsafe {
            let i = (first + k as u32 * stride).min(self.len - 1);
            self.ptr.add(i as usize).read()
        })
    }
}

impl<T: Copy> ViewMut<T> {
    /// # Safety
    /// `ptr` is good for `len` values for as long as the kernel runs.
    #[inline(always)]
    pub unsafe fn new(ptr: *mut T, len: u32) -> Self {
        Self { ptr, len }
    }

    #[inline(always)]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> u32 {
        self.len
    }

    #[inline(always)]
    pub(super) fn at(self, i: u32) -> *mut T {
        assert!(i < self.len);
        // SAFETY: inside by the line above.
        unsafe { self.ptr.add(i as usize) }
    }

    #[inline(always)]
    pub fn get(self, i: u32) -> T {
        // SAFETY: inside by `at`.
        unsafe { self.at(i).read() }
    }

    #[inline(always)]
    pub fn set(self, i: u32, value: T) {
        // SAFETY: inside by `at`.
        unsafe { self.at(i).write(value) }
    }

    /// As [`View::gather`].
    #[inline(always)]
    pub fn gather<const N: usize>(self, first: u32, stride: u32) -> [T; N] {
        View { ptr: self.ptr.cast_const(), len: self.len }.gather(first, stride)
    }

    /// `len` values from value `first` on.
    #[inline(always)]
    pub fn part(self, first: u32, len: u32) -> Self {
        assert!(first <= self.len && len <= self.len - first);
        // SAFETY: inside by the line above.
        Self { ptr: unsafe { self.ptr.add(first as usize) }, len }
    }
}
