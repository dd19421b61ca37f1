//! Candle's GPU kernels, rewritten: one source for AMD and NVIDIA, compiled at run time.
//!
//! Used by an unmodified Candle through `[patch.crates-io]`. The names of the modules, of the kernels
//! and of the launchers, and the order of their arguments, are those that Candle asks for; the code is
//! our own. `Module::ptx` is C++ source with a table of kernels (see cudarc's `module.rs`), of which our
//! `cudarc` compiles the one that is asked for.

#[cfg(feature = "cutile")]
compile_error!("these kernels have no cuTile: build Candle with feature `cuda`, without `cutile`");

pub mod ffi;

#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Id {
    Affine,
    Binary,
    Cast,
    Conv,
    Fill,
    Indexing,
    Quantized,
    Reduce,
    Sort,
    Ternary,
    Unary,
}

pub const ALL_IDS: [Id; 11] = [
    Id::Affine,
    Id::Binary,
    Id::Cast,
    Id::Conv,
    Id::Fill,
    Id::Indexing,
    Id::Quantized,
    Id::Reduce,
    Id::Sort,
    Id::Ternary,
    Id::Unary,
];

/// A family of kernels.
pub struct Module {
    index: usize,
    text: &'static str,
}

impl Module {
    /// Its place in `ALL_IDS`.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its source.
    pub fn ptx(&self) -> &'static str {
        self.text
    }
}

macro_rules! families {
    ($($name:ident = $id:ident, $($file:literal)+;)*) => {$(
        pub const $name: Module = Module {
            index: Id::$id as usize,
            text: concat!(include_str!("../kernels/numbers.h"), $(include_str!(concat!("../kernels/", $file))),+),
        };
    )*};
}

families! {
    AFFINE = Affine, "affine.hip";
    BINARY = Binary, "binary.hip";
    CAST = Cast, "cast.hip";
    CONV = Conv, "conv.hip";
    FILL = Fill, "fill.hip";
    INDEXING = Indexing, "indexing.hip";
    QUANTIZED = Quantized, "quantized.h" "quantized.hip" "quantized_tiles.hip";
    REDUCE = Reduce, "reduce.hip";
    SORT = Sort, "sort.hip";
    TERNARY = Ternary, "ternary.hip";
    UNARY = Unary, "unary.hip";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_stand_at_their_index() {
        let modules = [AFFINE, BINARY, CAST, CONV, FILL, INDEXING, QUANTIZED, REDUCE, SORT, TERNARY, UNARY];
        for (i, (module, id)) in modules.iter().zip(ALL_IDS).enumerate() {
            assert_eq!((module.index(), id as usize), (i, i));
            assert!(module.ptx().contains("//@ "), "{id:?} has no table of kernels");
        }
    }
}
