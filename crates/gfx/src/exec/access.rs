//! What a memory instruction moves: parsed once from its name, shared by global, flat, scratch, buffer and LDS.

use crate::isa::Family;

/// Which half of a register a 16-bit access uses.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Half {
    Whole,
    Low,
    High,
    /// As `Low` and `High`, but a load clears the other half.
    LowAlone,
    HighAlone,
}

impl Half {
    /// The bits of a register that a load leaves as they are.
    #[inline(always)]
    pub fn kept(self) -> u32 {
        match self {
            Half::Low => 0xffff_0000,
            Half::High => 0xffff,
            Half::Whole | Half::LowAlone | Half::HighAlone => 0,
        }
    }

    /// A loaded value, extended to 32 bits, where it goes in the register.
    #[inline(always)]
    pub fn place(self, value: u32) -> u32 {
        match self {
            Half::Whole => value,
            Half::Low | Half::LowAlone => value & 0xffff,
            Half::High | Half::HighAlone => value << 16,
        }
    }
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Access {
    None,
    /// One or two bytes, extended to a register or put into one half.
    LoadPart {
        n_bytes: u8,
        is_signed: bool,
        half: Half,
    },
    LoadWords(u8),
    StorePart {
        n_bytes: u8,
        half: Half,
    },
    StoreWords(u8),
    Atomic {
        op: AtomicOp,
        n_words: u8,
    },
    /// LDS: two places at scaled offsets; words at each, and the scale in bytes.
    LoadTwo {
        n_words: u8,
        scale: u32,
    },
    StoreTwo {
        n_words: u8,
        scale: u32,
    },
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum AtomicOp {
    Swap,
    /// Global: source then comparand in one register group. LDS: comparand and source in two.
    CompareSwap,
    Add,
    Sub,
    ReverseSub,
    SubClamp,
    /// Subtracts where the old value is large enough.
    SubIf,
    MinI,
    MinU,
    MaxI,
    MaxU,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    AddF,
    MinF,
    MaxF,
    PackedAddF16,
    PackedAddBf16,
}

impl Access {
    pub fn is_write(self) -> bool {
        !matches!(self, Access::LoadPart { .. } | Access::LoadWords(_) | Access::LoadTwo { .. } | Access::None)
    }

    /// Bytes at one address.
    pub fn n_bytes(self) -> u32 {
        match self {
            Access::None => 0,
            Access::LoadPart { n_bytes, .. } | Access::StorePart { n_bytes, .. } => n_bytes as u32,
            Access::LoadWords(n) | Access::StoreWords(n) => 4 * n as u32,
            Access::Atomic { n_words, .. } | Access::LoadTwo { n_words, .. } | Access::StoreTwo { n_words, .. } => {
                4 * n_words as u32
            }
        }
    }
}

/// The access of an instruction on a chip of the family. Instinct accelerators run with SRAM-ECC, which writes whole
/// registers: a load into one half clears the other. LLVM counts on neither, rocBLAS on this.
pub fn on(family: Family, op: &str) -> Access {
    match (family, parse(op)) {
        (Family::Cdna3, Access::LoadPart { n_bytes, is_signed, half }) => {
            let half = match half {
                Half::Low => Half::LowAlone,
                Half::High => Half::HighAlone,
                other => other,
            };
            Access::LoadPart { n_bytes, is_signed, half }
        }
        (_, access) => access,
    }
}

/// The access a name stands for; `None` for names that move no memory.
pub fn parse(op: &str) -> Access {
    let rest = ["global_", "flat_", "scratch_", "buffer_", "ds_"].iter().find_map(|p| op.strip_prefix(p));
    let Some(rest) = rest else { return Access::None };
    if let Some(what) = rest.strip_prefix("atomic_") {
        return atomic(what);
    }
    let part = |n_bytes, is_signed, half| Access::LoadPart { n_bytes, is_signed, half };
    let store = |n_bytes, half| Access::StorePart { n_bytes, half };
    use Half::*;
    match rest {
        "load_u8" | "load_ubyte" | "read_u8" => part(1, false, Whole),
        "load_i8" | "load_sbyte" | "read_i8" => part(1, true, Whole),
        "load_u16" | "load_ushort" | "read_u16" => part(2, false, Whole),
        "load_i16" | "load_sshort" | "read_i16" => part(2, true, Whole),
        "load_d16_u8" | "load_ubyte_d16" | "load_u8_d16" | "read_u8_d16" => part(1, false, Low),
        "load_d16_i8" | "load_sbyte_d16" | "load_i8_d16" | "read_i8_d16" => part(1, true, Low),
        "load_d16_b16" | "load_short_d16" | "load_u16_d16" | "read_u16_d16" => part(2, false, Low),
        "load_d16_hi_u8" | "load_ubyte_d16_hi" | "load_u8_d16_hi" | "read_u8_d16_hi" => part(1, false, High),
        "load_d16_hi_i8" | "load_sbyte_d16_hi" | "load_i8_d16_hi" | "read_i8_d16_hi" => part(1, true, High),
        "load_d16_hi_b16" | "load_short_d16_hi" | "load_u16_d16_hi" | "read_u16_d16_hi" => part(2, false, High),
        "load_b32" | "load_dword" | "read_b32" => Access::LoadWords(1),
        "load_b64" | "load_dwordx2" | "read_b64" => Access::LoadWords(2),
        "load_b96" | "load_dwordx3" | "read_b96" => Access::LoadWords(3),
        "load_b128" | "load_dwordx4" | "read_b128" => Access::LoadWords(4),
        "store_b8" | "store_byte" | "write_b8" => store(1, Low),
        "store_b16" | "store_short" | "write_b16" => store(2, Low),
        "store_d16_hi_b8" | "store_byte_d16_hi" | "store_b8_d16_hi" | "write_b8_d16_hi" => store(1, High),
        "store_d16_hi_b16" | "store_short_d16_hi" | "store_b16_d16_hi" | "write_b16_d16_hi" => store(2, High),
        "store_b32" | "store_dword" | "write_b32" => Access::StoreWords(1),
        "store_b64" | "store_dwordx2" | "write_b64" => Access::StoreWords(2),
        "store_b96" | "store_dwordx3" | "write_b96" => Access::StoreWords(3),
        "store_b128" | "store_dwordx4" | "write_b128" => Access::StoreWords(4),
        "load_2addr_b32" | "read2_b32" => Access::LoadTwo { n_words: 1, scale: 4 },
        "load_2addr_b64" | "read2_b64" => Access::LoadTwo { n_words: 2, scale: 8 },
        "load_2addr_stride64_b32" | "read2st64_b32" => Access::LoadTwo { n_words: 1, scale: 256 },
        "load_2addr_stride64_b64" | "read2st64_b64" => Access::LoadTwo { n_words: 2, scale: 512 },
        "store_2addr_b32" | "write2_b32" => Access::StoreTwo { n_words: 1, scale: 4 },
        "store_2addr_b64" | "write2_b64" => Access::StoreTwo { n_words: 2, scale: 8 },
        "store_2addr_stride64_b32" | "write2st64_b32" => Access::StoreTwo { n_words: 1, scale: 256 },
        "store_2addr_stride64_b64" | "write2st64_b64" => Access::StoreTwo { n_words: 2, scale: 512 },
        _ if op.starts_with("ds_") => atomic(&rest.replace("_rtn", "")),
        _ => Access::None,
    }
}

fn atomic(what: &str) -> Access {
    // CDNA writes `add`, `add_x2` and `smin`; RDNA3 `add_u32`, `add_u64` and `min_i32`.
    let n_words = if what.ends_with("64") || what.ends_with("_x2") { 2 } else { 1 };
    let op = match what.trim_end_matches("_x2") {
        "swap_b32" | "swap_b64" | "swap" | "storexchg_b32" | "storexchg_b64" | "wrxchg_b32" | "wrxchg_b64" => {
            AtomicOp::Swap
        }
        "cmpswap_b32" | "cmpswap_b64" | "cmpswap" | "cmpstore_b32" | "cmpstore_b64" | "cmpst_b32" | "cmpst_b64" => {
            AtomicOp::CompareSwap
        }
        "add_u32" | "add_u64" | "add" => AtomicOp::Add,
        "sub_u32" | "sub_u64" | "sub" => AtomicOp::Sub,
        "rsub_u32" | "rsub_u64" => AtomicOp::ReverseSub,
        "csub_u32" | "sub_clamp_u32" => AtomicOp::SubClamp,
        "cond_sub_u32" => AtomicOp::SubIf,
        "min_i32" | "min_i64" | "smin" => AtomicOp::MinI,
        "min_u32" | "min_u64" | "umin" => AtomicOp::MinU,
        "max_i32" | "max_i64" | "smax" => AtomicOp::MaxI,
        "max_u32" | "max_u64" | "umax" => AtomicOp::MaxU,
        "and_b32" | "and_b64" | "and" => AtomicOp::And,
        "or_b32" | "or_b64" | "or" => AtomicOp::Or,
        "xor_b32" | "xor_b64" | "xor" => AtomicOp::Xor,
        "inc_u32" | "inc_u64" | "inc" => AtomicOp::Inc,
        "dec_u32" | "dec_u64" | "dec" => AtomicOp::Dec,
        "add_f32" | "add_f64" => AtomicOp::AddF,
        "min_f32" | "min_f64" | "min_num_f32" | "min_num_f64" => AtomicOp::MinF,
        "max_f32" | "max_f64" | "max_num_f32" | "max_num_f64" => AtomicOp::MaxF,
        "pk_add_f16" => AtomicOp::PackedAddF16,
        "pk_add_bf16" => AtomicOp::PackedAddBf16,
        _ => return Access::None,
    };
    Access::Atomic { op, n_words }
}

impl AtomicOp {
    /// The new value; `n_words` is one or two, `compare` only for `CompareSwap`.
    pub fn apply(self, old: u64, data: u64, compare: u64, n_words: u8) -> u64 {
        use super::value::{bf16_to_f32, f32_to_bf16, f32_to_half, half_to_f32};
        let is_wide = n_words == 2;
        let signed = |x: u64| if is_wide { x as i64 } else { x as u32 as i32 as i64 };
        let float = |f: fn(f64, f64) -> f64| {
            if is_wide {
                f(f64::from_bits(old), f64::from_bits(data)).to_bits()
            } else {
                (f(f32::from_bits(old as u32) as f64, f32::from_bits(data as u32) as f64) as f32).to_bits() as u64
            }
        };
        let value = match self {
            AtomicOp::Swap => data,
            AtomicOp::CompareSwap => {
                if old == compare {
                    data
                } else {
                    old
                }
            }
            AtomicOp::Add => old.wrapping_add(data),
            AtomicOp::Sub => old.wrapping_sub(data),
            AtomicOp::ReverseSub => data.wrapping_sub(old),
            AtomicOp::SubClamp => old.saturating_sub(data),
            AtomicOp::SubIf => old.checked_sub(data).unwrap_or(old),
            AtomicOp::MinI => {
                if signed(data) < signed(old) {
                    data
                } else {
                    old
                }
            }
            AtomicOp::MaxI => {
                if signed(data) >= signed(old) {
                    data
                } else {
                    old
                }
            }
            AtomicOp::MinU => old.min(data),
            AtomicOp::MaxU => old.max(data),
            AtomicOp::And => old & data,
            AtomicOp::Or => old | data,
            AtomicOp::Xor => old ^ data,
            AtomicOp::Inc => {
                if old >= data {
                    0
                } else {
                    old + 1
                }
            }
            AtomicOp::Dec => {
                if old == 0 || old > data {
                    data
                } else {
                    old - 1
                }
            }
            AtomicOp::AddF if is_wide => (f64::from_bits(old) + f64::from_bits(data)).to_bits(),
            AtomicOp::AddF => (f32::from_bits(old as u32) + f32::from_bits(data as u32)).to_bits() as u64,
            AtomicOp::MinF => float(|a, b| if b < a { b } else { a }),
            AtomicOp::MaxF => float(|a, b| if b > a { b } else { a }),
            AtomicOp::PackedAddF16 => halves(old, data, |a, b| f32_to_half(half_to_f32(a) + half_to_f32(b))),
            AtomicOp::PackedAddBf16 => halves(old, data, |a, b| f32_to_bf16(bf16_to_f32(a) + bf16_to_f32(b))),
        };
        if is_wide { value } else { value & 0xffff_ffff }
    }
}

fn halves(old: u64, data: u64, f: fn(u16, u16) -> u16) -> u64 {
    f(old as u16, data as u16) as u64 | (f((old >> 16) as u16, (data >> 16) as u16) as u64) << 16
}
