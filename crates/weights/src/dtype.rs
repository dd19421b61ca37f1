//! The element types weights come in, as block layouts: how many elements a block holds and how many bytes it takes.
//! Numbers and names are ggml's; a format that ggml lacks, such as GPTQ, has no row here and is converted to one of
//! these types while it is read (`safetensors/packed/`). What the bits inside a block mean is known to `ops`
//! (`formats/`, `encode/`).
//!
//! `Dtype` is what this engine computes with; `ggml_layout` also knows the two types ggml keeps for its own sums (Q8_1,
//! Q8_K), so that an error can call them by name.

use std::fmt;

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names are ggml's")]
pub enum Dtype {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    IQ1S,
    IQ1M,
    IQ2XXS,
    IQ2XS,
    IQ2S,
    IQ3XXS,
    IQ3S,
    IQ4NL,
    IQ4XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
    I8,
    I16,
    I32,
    I64,
    F64,
}

impl Dtype {
    /// Every type that this engine computes with.
    pub const ALL: [Self; 33] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::IQ1S,
        Self::IQ1M,
        Self::IQ2XXS,
        Self::IQ2XS,
        Self::IQ2S,
        Self::IQ3XXS,
        Self::IQ3S,
        Self::IQ4NL,
        Self::IQ4XS,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::MXFP4,
        Self::NVFP4,
        Self::Q1_0,
        Self::Q2_0,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F64,
    ];

    /// The type with this number in GGUF files.
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.ggml_id() == id)
    }

    /// Its number in GGUF files.
    pub const fn ggml_id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::BF16 => 30,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::IQ1S => 19,
            Self::IQ1M => 29,
            Self::IQ2XXS => 16,
            Self::IQ2XS => 17,
            Self::IQ2S => 22,
            Self::IQ3XXS => 18,
            Self::IQ3S => 21,
            Self::IQ4NL => 20,
            Self::IQ4XS => 23,
            Self::TQ1_0 => 34,
            Self::TQ2_0 => 35,
            Self::MXFP4 => 39,
            Self::NVFP4 => 40,
            Self::Q1_0 => 41,
            Self::Q2_0 => 42,
            Self::I8 => 24,
            Self::I16 => 25,
            Self::I32 => 26,
            Self::I64 => 27,
            Self::F64 => 28,
        }
    }

    /// The row of ggml's table. Found while compiling wherever the type is a constant.
    const fn layout(self) -> BlockLayout {
        match ggml_layout(self.ggml_id()) {
            Some(layout) => layout,
            None => panic!("every type has a row"),
        }
    }

    /// As ggml spells it: `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.layout().name
    }

    /// From ggml's spelling, in any case: `Q4_K`, `q4_k`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name().eq_ignore_ascii_case(name))
    }

    /// Elements in a block.
    pub const fn block_len(self) -> usize {
        self.layout().block_len
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.layout().block_bytes
    }

    /// One number an element: no scales, no blocks.
    pub const fn is_plain(self) -> bool {
        self.block_len() == 1
    }

    /// Bytes of a row of `n_cols` elements; `None` where it is no whole number of blocks, or too large to count.
    pub const fn row_bytes(self, n_cols: usize) -> Option<usize> {
        if !n_cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (n_cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The type itself, or the nearest whose blocks fill rows of `n_cols`: llama.cpp takes the same.
    pub fn for_rows_of(self, n_cols: usize) -> Self {
        let fits = |dtype: Self| n_cols.is_multiple_of(dtype.block_len());
        if fits(self) {
            return self;
        }
        let other = match self {
            Self::Q4K => Self::Q5_0,
            Self::Q5K => Self::Q5_1,
            Self::Q6K => Self::Q8_0,
            Self::Q2K | Self::Q3K | Self::TQ1_0 | Self::TQ2_0 | Self::Q2_0 | Self::Q1_0 | Self::NVFP4 => Self::Q4_0,
            _ => Self::IQ4NL,
        };
        if fits(other) { other } else { Self::F16 }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The layout of one of ggml's types, supported or not.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct BlockLayout {
    /// Its number in GGUF files.
    pub ggml_id: u32,
    /// As ggml spells it.
    pub name: &'static str,
    /// Weights of a block.
    pub block_len: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
}

/// The layout of a ggml type by its number in the file; `None` for numbers ggml has not given out or has taken back.
pub const fn ggml_layout(ggml_id: u32) -> Option<BlockLayout> {
    let mut row_idx = 0;
    while row_idx < GGML_TYPES.len() {
        let (id, name, block_len, block_bytes) = GGML_TYPES[row_idx];
        if id == ggml_id {
            return Some(BlockLayout { ggml_id, name, block_len, block_bytes });
        }
        row_idx += 1;
    }
    None
}

/// (number, name, elements in a block, bytes of a block)
const GGML_TYPES: &[(u32, &str, usize, usize)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
];
