//! Sum, minimum and maximum of many values, and how often each small number occurs.

use kernel::*;

pub const THREADS: u32 = 256;

pub const SUM: u32 = 0;
pub const MIN: u32 = 1;
pub const MAX: u32 = 2;

trait Value: Copy {
    /// What `how` gives of nothing.
    fn nothing(how: u32) -> Self;
    fn with(self, other: Self, how: u32) -> Self;
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl Value for $ty {
            #[inline(always)]
            fn nothing(how: u32) -> Self {
                if how == SUM { 0 } else if how == MIN { <$ty>::MAX } else { <$ty>::MIN }
            }

            #[inline(always)]
            fn with(self, other: Self, how: u32) -> Self {
                if how == SUM {
                    self.wrapping_add(other)
                } else if (how == MIN) == (other < self) {
                    other
                } else {
                    self
                }
            }
        }
    )*};
}
integers!(u32 i32 u64 i64);

macro_rules! floats {
    ($($ty:ty)*) => {$(
        impl Value for $ty {
            #[inline(always)]
            fn nothing(how: u32) -> Self {
                if how == SUM { 0.0 } else if how == MIN { <$ty>::INFINITY } else { <$ty>::NEG_INFINITY }
            }

            /// A NaN among the values is the answer.
            #[inline(always)]
            fn with(self, other: Self, how: u32) -> Self {
                if how == SUM {
                    self + other
                } else if other != other || (self == self && (how == MIN) == (other < self)) {
                    other
                } else {
                    self
                }
            }
        }
    )*};
}
floats!(f32 f64);

/// The grid strides over the values; a block's threads then meet in a tree.
#[inline(always)]
fn reduce<T: Value>(values: View<T>, how: u32, out: ViewMut<T>) {
    let tree = shared::<T>(THREADS);
    let t = thread();
    let mut own = T::nothing(how);
    let mut i = global_id();
    while i < values.len() {
        own = own.with(values.get(i), how);
        // The last stride may pass the end of a u32.
        let next = i.wrapping_add(blocks() * THREADS);
        if next < i {
            break;
        }
        i = next;
    }
    tree.set(t, own);
    barrier();
    let mut half = THREADS / 2;
    while half > 0 {
        if t < half {
            tree.set(t, tree.get(t).with(tree.get(t + half), how));
        }
        barrier();
        half /= 2;
    }
    if t == 0 {
        out.set(block(), tree.get(0));
    }
}

macro_rules! reductions {
    ($($ty:ty, $name:ident;)*) => {
        kernel::kernels! {$(
            #[launch(threads = THREADS, shared = THREADS * 8)]
            fn $name(values: &[$ty], how: u32, out: &mut [$ty]) {
                reduce(values, how, out)
            }
        )*}
    };
}
reductions! {
    u32, reduce_u32;
    i32, reduce_i32;
    u64, reduce_u64;
    i64, reduce_i64;
    f32, reduce_f32;
    f64, reduce_f64;
}

kernel::kernels! {
    /// Adds one to bins[v] for each value v; values without a bin are not counted.
    #[launch(threads = THREADS)]
    fn histogram(values: &[u32], bins: &mut [u32]) {
        let i = global_id();
        if i < values.len() {
            let value = values.get(i);
            if value < bins.len() {
                bins.fetch_add(value, 1);
            }
        }
    }
}
