//! The weight formats that a device's kernels read, in one table: Rust's numbers for them, the `FORMAT_*` of the kernels
//! (`kernels/formats.h`, generated from here) and the variants that are compiled all follow from its order.

use weights::Dtype;

use crate::Error;

/// A format's number is its place here. Append only: `kernels/quant.h` tells the first eight from the rest by number.
pub(crate) const DEVICE_FORMATS: [Dtype; 28] = [
    Dtype::F32,
    Dtype::F16,
    Dtype::BF16,
    Dtype::Q4_0,
    Dtype::Q4_1,
    Dtype::Q8_0,
    Dtype::Q4K,
    Dtype::Q6K,
    Dtype::Q5_0,
    Dtype::Q5_1,
    Dtype::Q5K,
    Dtype::Q3K,
    Dtype::Q2K,
    Dtype::IQ4NL,
    Dtype::IQ4XS,
    Dtype::MXFP4,
    Dtype::NVFP4,
    Dtype::IQ3XXS,
    Dtype::IQ3S,
    Dtype::IQ2XXS,
    Dtype::IQ2XS,
    Dtype::IQ2S,
    Dtype::IQ1S,
    Dtype::IQ1M,
    Dtype::TQ1_0,
    Dtype::TQ2_0,
    Dtype::Q1_0,
    Dtype::Q2_0,
];

/// Which formats a kernel file is compiled for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum FormatSet {
    All,
    /// Plain numbers.
    Plain,
    Packed,
    /// What the matrix units take: packed formats and F16.
    Halves,
}

impl FormatSet {
    pub(crate) fn has(self, number: u32) -> bool {
        let Some(dtype) = DEVICE_FORMATS.get(number as usize).copied() else { return false };
        match self {
            FormatSet::All => true,
            FormatSet::Plain => dtype.block_len() == 1,
            FormatSet::Packed => dtype.block_len() > 1,
            FormatSet::Halves => crate::plan::fits_f16(dtype),
        }
    }

    #[cfg(test)]
    pub(crate) fn numbers(self) -> impl Iterator<Item = u32> {
        (0..DEVICE_FORMATS.len() as u32).filter(move |number| self.has(*number))
    }
}

const fn known_format(dtype: Dtype) -> Option<u32> {
    let mut i = 0;
    while i < DEVICE_FORMATS.len() {
        if DEVICE_FORMATS[i] as u32 == dtype as u32 {
            return Some(i as u32);
        }
        i += 1;
    }
    None
}

/// A format's number in `kernels/formats.h`.
pub(crate) fn format_number(dtype: Dtype) -> Result<u32, Error> {
    known_format(dtype).ok_or_else(|| Error::Argument {
        op: "kernels",
        what: format!("no kernel of the device reads {dtype}; weights come as {}", device_dtype(dtype)),
    })
}

/// The type that weights of `dtype` take on a device: their own; F32 for plain numbers that its
/// kernels do not read, F16 for packed types that they do not.
pub const fn device_dtype(dtype: Dtype) -> Dtype {
    match known_format(dtype) {
        Some(_) => dtype,
        None if dtype.is_plain() => Dtype::F32,
        None => Dtype::F16,
    }
}

/// The text of `kernels/formats.h`.
#[cfg(test)]
pub(crate) fn header() -> String {
    use std::fmt::Write;
    let mut text = String::from(
        "// Numbers and block sizes of the weight formats. Generated from crates/ops/src/gpu/formats.rs; see variants.txt.\n\
         #pragma once\n\n",
    );
    for (i, dtype) in DEVICE_FORMATS.iter().enumerate() {
        writeln!(text, "#define FORMAT_{dtype} {i}").expect("a string takes everything");
    }
    text.push_str(
        "\n// The host always says; a compiler run by hand may not.\n#ifndef FORMAT\n#define FORMAT FORMAT_Q4_K\n#endif\n\n\
         // A block as it lies in a file: bytes, and groups of 32 weights.\n",
    );
    for (i, dtype) in DEVICE_FORMATS.iter().filter(|dtype| dtype.block_len() > 1).enumerate() {
        let word = if i == 0 { "if" } else { "elif" };
        let (bytes, groups) = (dtype.block_bytes(), dtype.block_len() / crate::tiles::GROUP);
        writeln!(text, "#{word} FORMAT == FORMAT_{dtype}\n#define BLOCK_BYTES {bytes}\n#define BLOCK_GROUPS {groups}")
            .expect("a string takes everything");
    }
    text.push_str("#endif\n");
    text
}

/// The text of `kernels/grids.h`: the codebooks, as in `formats/grids.rs`.
#[cfg(test)]
pub(crate) fn grids_header() -> String {
    use crate::formats::grids::{IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
    let mut text = String::from(
        "// The codebooks of the IQ formats: one entry is eight codes of two bits, or four of three. Generated from\n\
         // crates/ops/src/formats/grids.rs; see variants.txt.\n#pragma once\n\n",
    );
    let grids: [(&[&str], &[u16]); 6] = [
        (&["IQ2_XXS"], &IQ2_XXS),
        (&["IQ2_XS"], &IQ2_XS),
        (&["IQ2_S"], &IQ2_S),
        (&["IQ3_XXS"], &IQ3_XXS),
        (&["IQ3_S"], &IQ3_S),
        (&["IQ1_S", "IQ1_M"], &IQ1_S),
    ];
    for (i, (names, grid)) in grids.iter().enumerate() {
        let condition = names.iter().map(|name| format!("FORMAT == FORMAT_{name}")).collect::<Vec<_>>().join(" || ");
        let word = if i == 0 { "if" } else { "elif" };
        text.push_str(&format!("#{word} {condition}\nDEVICE_TABLE u16 GRID[{}] = {{\n", grid.len()));
        for line in grid.chunks(16) {
            let numbers = line.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
            text.push_str(&format!("    {numbers},\n"));
        }
        text.push_str("};\n");
    }
    text.push_str("#endif\n");
    text
}
