//! AMD instruction words to named, family-neutral records.
//!
//! A family file (`rdna3`, `rdna4`, `cdna3`) knows bit positions; the `.ops` files beside them are AMD's opcode numbers as
//! data. Nothing here knows what an instruction does: `exec` finds its handler by AMD's own name, so that
//! families share one meaning. Scalar operand codes leave here in RDNA3's numbering (null 124, m0 125).

pub mod cdna3;
pub mod rdna3;
pub mod rdna4;
mod words;

use words::Words;

use std::collections::HashMap;
use std::sync::OnceLock;

/// An instruction set. `Rdna3` covers gfx11, `Rdna4` gfx12, `Cdna3` gfx940 to gfx942.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Hash)]
pub enum Family {
    Rdna3,
    Rdna4,
    Cdna3,
}

impl Family {
    pub const ALL: [Family; 3] = [Family::Rdna3, Family::Rdna4, Family::Cdna3];

    pub fn is_rdna(self) -> bool {
        self != Family::Cdna3
    }
}

/// How the word is laid out; also the class that counters report.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Hash)]
pub enum Encoding {
    Sop1,
    Sop2,
    Sopc,
    Sopk,
    Sopp,
    Smem,
    Vop1,
    Vop2,
    Vopc,
    Vop3,
    Vop3sd,
    Vop3p,
    Vopd,
    Ds,
    Flat,
    Global,
    Scratch,
    Mubuf,
}

impl Encoding {
    const ALL: [(Encoding, &'static str); 18] = [
        (Encoding::Sop1, "sop1"),
        (Encoding::Sop2, "sop2"),
        (Encoding::Sopc, "sopc"),
        (Encoding::Sopk, "sopk"),
        (Encoding::Sopp, "sopp"),
        (Encoding::Smem, "smem"),
        (Encoding::Vop1, "vop1"),
        (Encoding::Vop2, "vop2"),
        (Encoding::Vopc, "vopc"),
        (Encoding::Vop3, "vop3"),
        (Encoding::Vop3sd, "vop3sd"),
        (Encoding::Vop3p, "vop3p"),
        (Encoding::Vopd, "vopd"),
        (Encoding::Ds, "ds"),
        (Encoding::Flat, "flat"),
        (Encoding::Global, "global"),
        (Encoding::Scratch, "scratch"),
        (Encoding::Mubuf, "mubuf"),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(e, _)| *e == self).map_or("?", |(_, n)| n)
    }
}

/// Source operand codes shared by both families.
pub mod code {
    pub const VCC: u16 = 106;
    /// First trap register.
    pub const TTMP: u16 = 108;
    pub const NULL: u16 = 124;
    pub const M0: u16 = 125;
    pub const EXEC: u16 = 126;
    pub const ZERO: u16 = 128;
    pub const SCC: u16 = 253;
    pub const LITERAL: u16 = 255;
    /// First VGPR; AGPRs follow at 512 (a code of our own: AMD keeps them in a side bit).
    pub const VGPR: u16 = 256;
    pub const AGPR: u16 = 512;
}

/// Data-parallel primitive: lane movement on source 0.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Dpp {
    /// Control code, row mask, bank mask, bound control, fetch inactive.
    Row { ctrl: u16, row_mask: u8, bank_mask: u8, bound_ctrl: bool, fetch_inactive: bool },
    /// Three bits per lane of eight.
    Eight { select: u32, fetch_inactive: bool },
}

/// Sub-dword addressing (CDNA): which bytes of each operand are used.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Sdwa {
    pub dst_sel: u8,
    pub dst_unused: u8,
    pub src_sel: [u8; 2],
    pub src_sext: [bool; 2],
}

/// One decoded instruction.
#[derive(Clone, PartialEq, Debug)]
pub struct Decoded {
    pub family: Family,
    pub encoding: Encoding,
    pub op: &'static str,
    pub n_words: u8,
    /// Vector destination (or data) as an operand code: 256 + VGPR, 512 + AGPR.
    pub dst: u16,
    /// Scalar destination code.
    pub sdst: u16,
    pub src: [u16; 3],
    pub literal: u32,
    pub imm: i32,
    pub neg: u8,
    pub abs: u8,
    pub op_sel: u8,
    pub op_sel_hi: u8,
    pub neg_hi: u8,
    pub is_clamped: bool,
    pub omod: u8,
    pub dpp: Option<Dpp>,
    pub sdwa: Option<Sdwa>,
    /// Memory: address comes from a scalar base; scratch: a vector address is used.
    pub saddr: u16,
    pub uses_vaddr: bool,
    /// Cache bits: an atomic with this set returns the old value.
    pub returns_old: bool,
    /// A 32-bit VOP1/VOP2/VOPC word: 16-bit operands carry their half in register bit 7.
    pub is_short: bool,
    /// Matrix-core lane controls (CDNA).
    pub cbsz: u8,
    pub abid: u8,
    pub blgp: u8,
    /// The second half of a dual instruction.
    pub dual: Option<Box<Decoded>>,
}

impl Decoded {
    pub(crate) fn new(family: Family, encoding: Encoding, op: &'static str, n_words: u8) -> Self {
        Decoded {
            family,
            encoding,
            op,
            n_words,
            dst: code::VGPR,
            sdst: code::NULL,
            src: [code::ZERO; 3],
            literal: 0,
            imm: 0,
            neg: 0,
            abs: 0,
            op_sel: 0,
            op_sel_hi: 0,
            neg_hi: 0,
            is_clamped: false,
            omod: 0,
            dpp: None,
            sdwa: None,
            saddr: code::NULL,
            uses_vaddr: true,
            returns_old: false,
            is_short: false,
            cbsz: 0,
            abid: 0,
            blgp: 0,
            dual: None,
        }
    }
}

/// Why a word could not be decoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeError {
    #[error("no {encoding} instruction has number {number} ({word:#010x})")]
    Opcode { encoding: &'static str, number: u16, word: u32 },
    #[error("no encoding starts with {word:#010x}")]
    Encoding { word: u32 },
    #[error("the code ends inside the instruction {word:#010x}")]
    Cut { word: u32 },
    #[error("{op} ({word:#010x}): {what}")]
    Unsupported { op: &'static str, word: u32, what: &'static str },
}

/// Opcode numbers to names, one map per family.
struct Table {
    names: HashMap<(Encoding, u16), &'static str>,
}

impl Table {
    fn parse(text: &'static str) -> Self {
        let mut names = HashMap::new();
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let mut parts = line.split(' ');
            let (Some(enc), Some(number), Some(name)) = (parts.next(), parts.next(), parts.next()) else { continue };
            let encoding = Encoding::ALL.iter().find(|(_, n)| *n == enc).map(|(e, _)| *e);
            if let (Some(encoding), Ok(number)) = (encoding, number.parse()) {
                names.insert((encoding, number), name);
            }
        }
        Table { names }
    }

    fn of(family: Family) -> &'static Table {
        static RDNA3: OnceLock<Table> = OnceLock::new();
        static RDNA4: OnceLock<Table> = OnceLock::new();
        static CDNA3: OnceLock<Table> = OnceLock::new();
        match family {
            Family::Rdna3 => RDNA3.get_or_init(|| Table::parse(include_str!("rdna3.ops"))),
            Family::Rdna4 => RDNA4.get_or_init(|| Table::parse(include_str!("rdna4.ops"))),
            Family::Cdna3 => CDNA3.get_or_init(|| Table::parse(include_str!("cdna3.ops"))),
        }
    }

    fn name(&self, encoding: Encoding, number: u16, word: u32) -> Result<&'static str, DecodeError> {
        self.names.get(&(encoding, number)).copied().ok_or(DecodeError::Opcode {
            encoding: encoding.name(),
            number,
            word,
        })
    }
}

/// Every instruction of a family, for tests that walk the whole set.
pub fn opcodes(family: Family) -> Vec<(Encoding, u16, &'static str)> {
    let mut all: Vec<_> = Table::of(family).names.iter().map(|((e, n), name)| (*e, *n, *name)).collect();
    all.sort_by_key(|(e, n, _)| (e.name(), *n));
    all
}

/// Decodes the instruction at the start of `words`.
pub fn decode(family: Family, words: &[u32]) -> Result<Decoded, DecodeError> {
    match family {
        Family::Rdna3 => rdna3::decode(words),
        Family::Rdna4 => rdna4::decode(words),
        Family::Cdna3 => cdna3::decode(words),
    }
}

/// `value[hi:lo]`, as AMD's manuals write it.
fn bits(value: u64, hi: u32, lo: u32) -> u16 {
    ((value >> lo) & ((1 << (hi - lo + 1)) - 1)) as u16
}

fn is_set(value: u64, bit: u32) -> bool {
    value >> bit & 1 == 1
}
