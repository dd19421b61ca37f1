//! Prefix sums, reductions and histograms.

use gpu::{Buffer, Element, Queue, Slice, SliceMut};
use kernel::Call;

use crate::Sorter;
use crate::kernels::{reduce, scan};

/// What a reduction keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduce {
    /// Integers wrap round.
    Sum,
    /// A NaN among the values is the answer.
    Min,
    Max,
}

/// A type with sums, minima and maxima.
pub trait Reducible: Element {
    #[doc(hidden)]
    fn call<'a>(values: Slice<'a, Self>, how: u32, out: SliceMut<'a, Self>) -> Call<'a>;
}

/// A type with prefix sums.
pub trait Scannable: Element {
    /// As the kernels see it: sums of signed integers are those of unsigned ones.
    #[doc(hidden)]
    type Bits: Scans;
}

#[doc(hidden)]
pub trait Scans: Element {
    fn tiles<'a>(values: SliceMut<'a, Self>, inclusive: u32, sums: SliceMut<'a, Self>) -> Call<'a>;
    fn sums<'a>(sums: SliceMut<'a, Self>) -> Call<'a>;
    fn add<'a>(values: SliceMut<'a, Self>, sums: Slice<'a, Self>) -> Call<'a>;
}

macro_rules! reducible {
    ($($ty:ty, $reduce:ident;)*) => {$(
        impl Reducible for $ty {
            fn call<'a>(values: Slice<'a, Self>, how: u32, out: SliceMut<'a, Self>) -> Call<'a> {
                reduce::$reduce(values, how, out)
            }
        }
    )*};
}
reducible! {
    u32, reduce_u32;
    i32, reduce_i32;
    u64, reduce_u64;
    i64, reduce_i64;
    f32, reduce_f32;
    f64, reduce_f64;
}

macro_rules! scannable {
    ($($bits:ty, $tiles:ident $sums:ident $add:ident: $($ty:ty)*;)*) => {$(
        impl Scans for $bits {
            fn tiles<'a>(values: SliceMut<'a, Self>, inclusive: u32, sums: SliceMut<'a, Self>) -> Call<'a> {
                scan::$tiles(values, inclusive, sums)
            }

            fn sums<'a>(sums: SliceMut<'a, Self>) -> Call<'a> {
                scan::$sums(sums)
            }

            fn add<'a>(values: SliceMut<'a, Self>, sums: Slice<'a, Self>) -> Call<'a> {
                scan::$add(values, sums)
            }
        }
        $( impl Scannable for $ty { type Bits = $bits; } )*
    )*};
}
scannable! {
    u32, scan_tiles_u32 scan_sums_u32 add_sums_u32: u32 i32;
    u64, scan_tiles_u64 scan_sums_u64 add_sums_u64: u64 i64;
    f32, scan_tiles_f32 scan_sums_f32 add_sums_f32: f32;
    f64, scan_tiles_f64 scan_sums_f64 add_sums_f64: f64;
}

/// Blocks of a reduction's first launch: enough for any chip, few enough for one block to finish.
const REDUCE_BLOCKS: usize = 1024;

impl Sorter {
    /// One value for all; of nothing, what is neutral (0, or the end of the type's range).
    #[track_caller]
    pub fn reduce<T: Reducible>(&self, queue: &Queue, values: Slice<'_, T>, how: Reduce) -> gpu::Result<Buffer<T>> {
        let how = match how {
            Reduce::Sum => reduce::SUM,
            Reduce::Min => reduce::MIN,
            Reduce::Max => reduce::MAX,
        };
        let blocks = values.len().div_ceil(reduce::THREADS as usize).clamp(1, REDUCE_BLOCKS);
        let mut parts = queue.alloc(blocks)?;
        let mut all = queue.alloc(1)?;
        let launcher = queue.launcher();
        self.kernels.launch(&launcher, blocks as u32, &T::call(values, how, parts.all_mut()))?;
        self.kernels.launch(&launcher, 1, &T::call(parts.all(), how, all.all_mut()))?;
        Ok(all)
    }

    /// Replaces each value by the sum of those before it.
    #[track_caller]
    pub fn exclusive_scan<T: Scannable>(&self, queue: &Queue, values: SliceMut<'_, T>) -> gpu::Result<()> {
        self.scan(queue, values.cast::<T::Bits>()?, 0)
    }

    /// Replaces each value by the sum of those up to it.
    #[track_caller]
    pub fn inclusive_scan<T: Scannable>(&self, queue: &Queue, values: SliceMut<'_, T>) -> gpu::Result<()> {
        self.scan(queue, values.cast::<T::Bits>()?, 1)
    }

    #[track_caller]
    fn scan<T: Scans>(&self, queue: &Queue, mut values: SliceMut<'_, T>, inclusive: u32) -> gpu::Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let n_tiles = values.len().div_ceil(scan::TILE as usize);
        let mut sums = queue.alloc(n_tiles)?;
        let launcher = queue.launcher();
        self.kernels.launch(&launcher, n_tiles as u32, &T::tiles(values.reborrow(), inclusive, sums.all_mut()))?;
        self.kernels.launch(&launcher, 1, &T::sums(sums.all_mut()))?;
        self.kernels.launch(&launcher, n_tiles as u32, &T::add(values, sums.all()))
    }

    /// Adds to `bins` how often each of their indices occurs among `values`; larger values are not counted.
    #[track_caller]
    pub fn histogram(&self, queue: &Queue, values: Slice<'_, u32>, bins: SliceMut<'_, u32>) -> gpu::Result<()> {
        self.kernels.launch_over(&queue.launcher(), values.len(), &reduce::histogram(values, bins))
    }
}
