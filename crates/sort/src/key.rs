//! What can be sorted, and what can travel with a key.

use gpu::{Element, Slice, SliceMut};
use half::{bf16, f16};
use kernel::Call;

use crate::kernels::radix::{self, FLOAT, SIGNED};

/// A pass's arguments.
#[doc(hidden)]
pub struct Pass<'a, B: Element> {
    pub keys: Slice<'a, B>,
    pub kind: u32,
    pub shift: u32,
}

/// An unsigned number as wide as a key: what the kernels see.
#[doc(hidden)]
pub trait Bits: Element {
    fn histogram<'a>(pass: Pass<'a, Self>, counts: SliceMut<'a, u32>, groups: SliceMut<'a, u32>) -> Call<'a>;
    fn scatter<'a>(pass: Pass<'a, Self>, places: Slice<'a, u32>, out: SliceMut<'a, Self>) -> Call<'a>;
    fn scatter_u32<'a>(
        pass: Pass<'a, Self>,
        places: Slice<'a, u32>,
        out: SliceMut<'a, Self>,
        values: (Slice<'a, u32>, SliceMut<'a, u32>),
    ) -> Call<'a>;
    fn scatter_u64<'a>(
        pass: Pass<'a, Self>,
        places: Slice<'a, u32>,
        out: SliceMut<'a, Self>,
        values: (Slice<'a, u64>, SliceMut<'a, u64>),
    ) -> Call<'a>;
}

macro_rules! bits {
    ($($ty:ty, $histogram:ident $scatter:ident $with_u32:ident $with_u64:ident;)*) => {$(
        impl Bits for $ty {
            fn histogram<'a>(pass: Pass<'a, Self>, counts: SliceMut<'a, u32>, groups: SliceMut<'a, u32>) -> Call<'a> {
                radix::$histogram(pass.keys, pass.kind, pass.shift, counts, groups)
            }

            fn scatter<'a>(pass: Pass<'a, Self>, places: Slice<'a, u32>, out: SliceMut<'a, Self>) -> Call<'a> {
                radix::$scatter(pass.keys, pass.kind, pass.shift, places, out)
            }

            fn scatter_u32<'a>(
                pass: Pass<'a, Self>,
                places: Slice<'a, u32>,
                out: SliceMut<'a, Self>,
                (values, to): (Slice<'a, u32>, SliceMut<'a, u32>),
            ) -> Call<'a> {
                radix::$with_u32(pass.keys, pass.kind, pass.shift, places, out, values, to)
            }

            fn scatter_u64<'a>(
                pass: Pass<'a, Self>,
                places: Slice<'a, u32>,
                out: SliceMut<'a, Self>,
                (values, to): (Slice<'a, u64>, SliceMut<'a, u64>),
            ) -> Call<'a> {
                radix::$with_u64(pass.keys, pass.kind, pass.shift, places, out, values, to)
            }
        }
    )*};
}
bits! {
    u8, histogram_u8 scatter_u8 scatter_u8_with_u32 scatter_u8_with_u64;
    u16, histogram_u16 scatter_u16 scatter_u16_with_u32 scatter_u16_with_u64;
    u32, histogram_u32 scatter_u32 scatter_u32_with_u32 scatter_u32_with_u64;
    u64, histogram_u64 scatter_u64 scatter_u64_with_u32 scatter_u64_with_u64;
}

/// A type that can be sorted.
pub trait Key: Element {
    #[doc(hidden)]
    type Bits: Bits;
    #[doc(hidden)]
    const KIND: u32;
}

macro_rules! keys {
    ($($ty:ty as $bits:ty, $kind:expr;)*) => {$(
        impl Key for $ty {
            type Bits = $bits;
            const KIND: u32 = $kind;
        }
    )*};
}
keys! {
    u8 as u8, 0;
    u16 as u16, 0;
    u32 as u32, 0;
    u64 as u64, 0;
    i8 as u8, SIGNED;
    i16 as u16, SIGNED;
    i32 as u32, SIGNED;
    i64 as u64, SIGNED;
    f16 as u16, FLOAT;
    bf16 as u16, FLOAT;
    f32 as u32, FLOAT;
    f64 as u64, FLOAT;
}

/// A type of 4 or 8 bytes that can travel with a key.
pub trait Payload: Element {
    #[doc(hidden)]
    type Word: Word;
}

/// The kernels' two kinds of payload.
#[doc(hidden)]
pub trait Word: Element {
    fn scatter<'a, B: Bits>(
        pass: Pass<'a, B>,
        places: Slice<'a, u32>,
        out: SliceMut<'a, B>,
        values: (Slice<'a, Self>, SliceMut<'a, Self>),
    ) -> Call<'a>;
}

macro_rules! words {
    ($($word:ty, $scatter:ident: $($ty:ty)*;)*) => {$(
        impl Word for $word {
            fn scatter<'a, B: Bits>(
                pass: Pass<'a, B>,
                places: Slice<'a, u32>,
                out: SliceMut<'a, B>,
                values: (Slice<'a, Self>, SliceMut<'a, Self>),
            ) -> Call<'a> {
                B::$scatter(pass, places, out, values)
            }
        }
        $( impl Payload for $ty { type Word = $word; } )*
    )*};
}
words! {
    u32, scatter_u32: u32 i32 f32;
    u64, scatter_u64: u64 i64 f64;
}
