//! Integers and F64 as weights: rare in files, and computed with in f32 like the other plain numbers.

use super::Float;

pub(crate) enum I8 {}
pub(crate) enum I16 {}
pub(crate) enum I32 {}
pub(crate) enum I64 {}
pub(crate) enum F64 {}

macro_rules! plain_number {
    ($name:ident, $number:ty) => {
        impl Float for $name {
            const BYTES: usize = size_of::<$number>();

            fn decode(bytes: &[u8]) -> f32 {
                <$number>::from_le_bytes(bytes.try_into().expect("one number")) as f32
            }

            /// Rounded, and held at the ends of the range.
            fn encode(value: f32, bytes: &mut [u8]) {
                bytes.copy_from_slice(&(Self::rounded(value) as $number).to_le_bytes());
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn load8(at: *const u8) -> std::arch::x86_64::__m256 {
                let mut eight = [0.0; 8];
                for (i, x) in eight.iter_mut().enumerate() {
                    // SAFETY: the caller's promise: eight numbers from `at` on.
                    *x = unsafe { at.cast::<$number>().add(i).read_unaligned() } as f32;
                }
                // SAFETY: eight f32, and a CPU with AVX2 by the caller's promise.
                unsafe { std::arch::x86_64::_mm256_loadu_ps(eight.as_ptr()) }
            }
        }
    };
}

macro_rules! rounds {
    ($($name:ident),*) => {$(impl $name {
        fn rounded(value: f32) -> f32 {
            value.round()
        }
    })*};
}

plain_number!(I8, i8);
plain_number!(I16, i16);
plain_number!(I32, i32);
plain_number!(I64, i64);
plain_number!(F64, f64);
rounds!(I8, I16, I32, I64);

impl F64 {
    fn rounded(value: f32) -> f32 {
        value
    }
}
