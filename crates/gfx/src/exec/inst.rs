//! Lowering: one decoded instruction becomes one to three dense `Inst`s with a handler and row numbers.
//!
//! Sources that are plain registers become row numbers; all else (scalars, constants, modifiers, lane movement, half
//! selection) is marked and copied into spare rows by `operand::prepare` just before the handler runs. Results that
//! need clamping, scaling or merging go to a spare row and are finished after it.

use super::access::Access;
use super::value::{ValueKind, f32_to_half};
use super::wave::{INLINE_FLOATS, ROW_AGPR, ROW_RESULT, ROW_SOURCE, ROW_SPARE, inline_double};
use super::{CodeEntry, Handler, find};
use crate::error::Cause;
use crate::isa::{Decoded, Dpp, Encoding, Family, Sdwa, code};

/// How lowering treats an instruction's operands.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Role {
    /// The handler reads codes itself.
    Raw,
    /// Lane-wise: rows in, a row out.
    Lanes,
    /// Lane-wise comparison: rows in, a mask out.
    Compare,
}

/// Bits of `Inst::fix`: sources that need preparing (0 to 2), the old destination (3), a result that needs finishing (4),
/// sources that are one scalar or constant for all lanes (5 to 7).
pub const FIX_OLD: u8 = 1 << 3;
pub const FIX_RESULT: u8 = 1 << 4;
pub const FIX_SCALARS: u8 = 7 << 5;
/// What is done before the handler.
pub const FIX_BEFORE: u8 = !FIX_RESULT;

/// What counters call an instruction.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Class {
    Scalar,
    Control,
    ScalarMemory,
    Lds,
    Global,
    Scratch,
    Vector,
}

impl Class {
    /// How many there are, with one to spare: rows of eight are added at once.
    pub const N: usize = 8;

    fn of(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Sop1 | Encoding::Sop2 | Encoding::Sopc | Encoding::Sopk => Class::Scalar,
            Encoding::Sopp => Class::Control,
            Encoding::Smem => Class::ScalarMemory,
            Encoding::Ds => Class::Lds,
            Encoding::Global | Encoding::Flat | Encoding::Mubuf => Class::Global,
            Encoding::Scratch => Class::Scratch,
            _ => Class::Vector,
        }
    }
}

#[derive(Clone)]
pub struct Inst<const N: usize> {
    pub run: Handler<N>,
    /// Rows.
    pub src: [u16; 3],
    pub dst: u16,
    /// What happens before and after the handler: bits above.
    pub fix: u8,
    pub class: Class,
    /// Constant sources, where `fix` calls them scalar.
    pub constant: [u64; 3],
    /// Operand codes.
    pub code: [u16; 3],
    pub sdst: u16,
    pub saddr: u16,
    pub literal: u32,
    pub imm: i32,
    pub target: u32,
    pub detail: Box<Detail>,
    pub op: &'static str,
    pub encoding: Encoding,
    /// Byte offset from the program's first instruction, and the words there.
    pub offset: u32,
    pub n_words: u8,
    pub is_sub: bool,
}

/// The rarely read part.
#[derive(Clone, Debug)]
pub struct Detail {
    pub family: Family,
    pub kinds: [ValueKind; 3],
    pub dst_kind: ValueKind,
    pub real_dst: u16,
    pub reads_dst: bool,
    pub neg: u8,
    pub abs: u8,
    /// Sources (bits 0 to 2) and destination (3) in the high half of their register.
    pub high: u8,
    pub op_sel: u8,
    pub op_sel_hi: u8,
    pub neg_hi: u8,
    pub is_clamped: bool,
    pub omod: u8,
    pub zero_high: bool,
    pub dpp: Option<Dpp>,
    pub sdwa: Option<Sdwa>,
    pub uses_vaddr: bool,
    pub returns_old: bool,
    pub access: Access,
    /// RDNA's `ds_cmpstore` names the new value first; CDNA's `ds_cmpst` the comparand.
    pub swaps_compare: bool,
    /// CDNA's `v_cmpx` writes its mask register and exec.
    pub sets_exec: bool,
    pub cbsz: u8,
    pub abid: u8,
    pub blgp: u8,
    /// Why a failing instruction fails.
    pub cause: Option<Cause>,
}

/// One instruction, or the parts of a dual one.
pub type Lowered<const N: usize> = Vec<Inst<N>>;

/// The row of a register code; `None` for scalars and constants.
pub fn row(at: u16) -> Option<u16> {
    match at {
        code::AGPR.. => Some(at - code::AGPR + ROW_AGPR),
        code::VGPR.. => Some(at - code::VGPR),
        _ => None,
    }
}

impl<const N: usize> Inst<N> {
    /// Stands for code that must not be reached.
    pub fn failing(cause: Cause, op: &'static str, offset: u32, n_words: u8, run: Handler<N>) -> Self {
        let detail = Detail {
            family: Family::Rdna3,
            kinds: [ValueKind::None; 3],
            dst_kind: ValueKind::None,
            real_dst: 0,
            reads_dst: false,
            neg: 0,
            abs: 0,
            high: 0,
            op_sel: 0,
            op_sel_hi: 0,
            neg_hi: 0,
            is_clamped: false,
            omod: 0,
            zero_high: false,
            dpp: None,
            sdwa: None,
            uses_vaddr: false,
            returns_old: false,
            access: Access::None,
            swaps_compare: false,
            sets_exec: false,
            cbsz: 0,
            abid: 0,
            blgp: 0,
            cause: Some(cause),
        };
        Inst { run, op, offset, n_words, ..Inst::blank(Box::new(detail)) }
    }

    fn blank(detail: Box<Detail>) -> Self {
        Inst {
            run: super::lane::copy_row::<N>,
            src: [0; 3],
            dst: 0,
            fix: 0,
            class: Class::Control,
            constant: [0; 3],
            code: [code::ZERO; 3],
            sdst: code::NULL,
            saddr: code::NULL,
            literal: 0,
            imm: 0,
            target: 0,
            detail,
            op: "",
            encoding: Encoding::Sopp,
            offset: 0,
            n_words: 1,
            is_sub: false,
        }
    }
}

/// Lowers `d`, which lies `offset` bytes into the program. Unknown instructions are an error when they are executed.
pub fn lower<const N: usize>(d: &Decoded, offset: u32) -> Result<Lowered<N>, Cause> {
    let Some(second) = &d.dual else { return Ok(vec![single(d, offset)?]) };
    let mut x = single::<N>(d, offset)?;
    let mut y = single::<N>(second, offset)?;
    y.is_sub = true;
    // Both halves read before either writes: order them so that nobody reads what the other wrote.
    let reads = |i: &Inst<N>, dst: u16| i.code.iter().any(|c| row(*c) == Some(dst));
    if !reads(&y, x.dst) {
        return Ok(vec![x, y]);
    }
    if !reads(&x, y.dst) {
        x.is_sub = true;
        y.is_sub = false;
        return Ok(vec![y, x]);
    }
    let dst = std::mem::replace(&mut x.dst, ROW_SPARE);
    if x.detail.reads_dst {
        // A fused multiply-add into a register the other half reads: its old value must be in the spare row.
        x.fix |= FIX_OLD;
    }
    let copy = Inst {
        src: [ROW_SPARE, 0, 0],
        dst,
        op: d.op,
        encoding: d.encoding,
        class: Class::of(d.encoding),
        offset,
        n_words: d.n_words,
        is_sub: true,
        ..Inst::blank(x.detail.clone())
    };
    Ok(vec![x, y, copy])
}

/// The registers of an instruction, and which 16-bit operands are the high half of theirs (bit 3: the destination).
struct Halves {
    codes: [u16; 3],
    dst: u16,
    high: u8,
}

impl Halves {
    fn of<const N: usize>(d: &Decoded, entry: &CodeEntry<N>) -> Self {
        let mut halves = Self { codes: d.src, dst: d.dst, high: 0 };
        if entry.role == Role::Raw {
            return halves;
        }
        // RDNA's short forms keep the half in register bit 7, the long ones in op_sel.
        let is_in_register = d.is_short && d.family.is_rdna();
        for (k, code) in halves.codes.iter_mut().enumerate().filter(|(k, _)| entry.kinds[*k].is_16()) {
            if is_in_register {
                halves.high |= u8::from(take_half(code)) << k;
            } else if d.encoding != Encoding::Vop3p && d.op_sel >> k & 1 == 1 {
                halves.high |= 1 << k;
            }
        }
        if entry.dst.is_16() && (if is_in_register { take_half(&mut halves.dst) } else { d.op_sel & 8 != 0 }) {
            halves.high |= 8;
        }
        halves
    }
}

/// Clears a register's half bit, and says whether it was set.
fn take_half(register: &mut u16) -> bool {
    let is_high = *register >= code::VGPR + 128;
    if is_high {
        *register -= 128;
    }
    is_high
}

fn single<const N: usize>(d: &Decoded, offset: u32) -> Result<Inst<N>, Cause> {
    let mut entry = find::<N>(d).ok_or_else(|| Cause::Unsupported(d.op.to_string()))?;
    let is_integer = matches!(entry.dst, ValueKind::B16 | ValueKind::B32 | ValueKind::B64);
    let saturates = d.is_clamped && entry.role == Role::Lanes && is_integer && d.encoding != Encoding::Vop3p;
    if saturates {
        let unknown = || Cause::Unsupported(format!("{} with integer clamp", d.op));
        entry = super::find_saturating::<N>(d).ok_or_else(unknown)?;
    }
    let Halves { codes, dst: dst_code, high } = Halves::of(d, &entry);
    let detail = Detail {
        family: d.family,
        kinds: entry.kinds,
        dst_kind: entry.dst,
        real_dst: row(dst_code).unwrap_or(0),
        reads_dst: entry.reads_dst,
        neg: d.neg,
        abs: d.abs,
        high,
        op_sel: d.op_sel,
        op_sel_hi: d.op_sel_hi,
        neg_hi: d.neg_hi,
        is_clamped: d.is_clamped && !saturates,
        omod: d.omod,
        zero_high: d.family == Family::Cdna3 && entry.dst.is_16() && zeroes_high(d.op) && high & 8 == 0,
        dpp: d.dpp,
        sdwa: d.sdwa,
        uses_vaddr: d.uses_vaddr,
        returns_old: d.returns_old,
        access: super::access::on(d.family, d.op),
        swaps_compare: d.op.starts_with("ds_cmpst_"),
        sets_exec: d.family == Family::Cdna3 && d.op.starts_with("v_cmpx"),
        cbsz: d.cbsz,
        abid: d.abid,
        blgp: d.blgp,
        cause: None,
    };
    let mut inst = Inst {
        run: entry.run,
        dst: detail.real_dst,
        code: codes,
        sdst: d.sdst,
        saddr: d.saddr,
        literal: d.literal,
        imm: d.imm,
        op: d.op,
        encoding: d.encoding,
        class: Class::of(d.encoding),
        offset,
        n_words: d.n_words,
        ..Inst::blank(Box::new(detail))
    };
    place(&mut inst, d, entry.role);
    Ok(inst)
}

/// Decides which operands are rows already and which must be prepared.
fn place<const N: usize>(inst: &mut Inst<N>, d: &Decoded, role: Role) {
    if role == Role::Raw {
        for k in 0..3 {
            inst.src[k] = row(inst.code[k]).unwrap_or(0);
        }
        return;
    }
    let detail = &inst.detail;
    // Packed and mixed instructions read neg and op_sel in their own way.
    let has_modifiers = d.encoding != Encoding::Vop3p;
    for k in 0..3 {
        if detail.kinds[k] == ValueKind::None {
            continue;
        }
        let is_modified = has_modifiers && (detail.neg | detail.abs | detail.high) >> k & 1 == 1
            || (k == 0 && detail.dpp.is_some())
            || (k < 2 && detail.sdwa.is_some());
        match row(inst.code[k]) {
            Some(r) if !is_modified => inst.src[k] = r,
            Some(_) => {
                inst.src[k] = ROW_SOURCE + 2 * k as u16;
                inst.fix |= 1 << k;
            }
            None => {
                inst.src[k] = ROW_SOURCE + 2 * k as u16;
                let constant = constant(inst.code[k], inst.literal, detail.kinds[k]);
                let is_register = inst.code[k] < 128;
                if !is_modified && (is_register || constant.is_some()) {
                    inst.fix |= 1 << (5 + k);
                    inst.constant[k] = constant.unwrap_or(0);
                } else {
                    inst.fix |= 1 << k;
                }
            }
        }
    }
    if role == Role::Lanes {
        let needs_finish = detail.is_clamped && d.encoding != Encoding::Vop3p
            || detail.omod != 0
            || detail.high & 8 != 0
            || detail.zero_high
            || detail.dpp.is_some()
            || detail.sdwa.is_some();
        if needs_finish {
            inst.dst = ROW_RESULT;
            inst.fix |= FIX_RESULT;
            if detail.reads_dst {
                inst.fix |= FIX_OLD;
            }
        }
    }
}

/// The value of a source that is no register at all, as an operand of this kind reads it.
pub fn constant(at: u16, literal: u32, kind: ValueKind) -> Option<u64> {
    let float = || INLINE_FLOATS[at as usize - 240];
    Some(match at {
        128..=192 => at as u64 - 128,
        193..=208 => (192 - at as i64) as u64,
        240..=248 if kind.is_64() => inline_double(at).to_bits(),
        240..=248 if kind == ValueKind::F16 => f32_to_half(float()) as u64,
        240..=248 => float().to_bits() as u64,
        // A literal is the high half of a double.
        code::LITERAL if kind == ValueKind::F64 => (literal as u64) << 32,
        code::LITERAL => literal as u64,
        _ => return None,
    })
}

/// CDNA clears the upper half of a 16-bit result, except in these.
fn zeroes_high(op: &str) -> bool {
    !matches!(
        op,
        "v_mad_f16"
            | "v_fma_f16"
            | "v_mad_u16"
            | "v_mad_i16"
            | "v_div_fixup_f16"
            | "v_fma_mixlo_f16"
            | "v_fma_mixhi_f16"
            | "v_cvt_pk_fp8_f32"
            | "v_cvt_pk_bf8_f32"
    )
}
