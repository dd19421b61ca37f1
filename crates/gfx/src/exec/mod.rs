//! Executes decoded instructions on waves of 32 or 64 lanes.
//!
//! A handler is one function per instruction, found once by AMD's name when a kernel is lowered. Vector handlers are
//! loops over whole rows that the compiler turns into AVX2; none of them allocates. Memory order is program order:
//! waits, clauses and cache controls are no-ops, which is why missing waits cannot be found here.

mod access;
mod buffer;
mod bulk;
mod compare;
mod control;
mod convert;
mod flat;
mod float;
mod fp8;
mod inst;
mod integer;
mod lane;
mod lds;
mod mfma;
mod move_lanes;
mod operand;
mod packed;
pub mod relative;
mod salu;
mod scratch;
mod smem;
mod space;
pub mod value;
pub mod wave;
mod wmma;

pub use inst::{Class, FIX_BEFORE, FIX_RESULT, Inst, Lowered, Role, lower};
pub use operand::{finish, prepare};
pub use wave::{Group, Wave};

use crate::isa::{Decoded, Family};
use value::ValueKind;

/// What happens after an instruction.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Flow {
    Next,
    /// To the instruction index in `Inst::target`.
    Branch,
    /// To the address in `Wave::far`.
    Far,
    Barrier,
    /// Indexed mode was turned on or off.
    Mode,
    End,
    Fault,
}

/// Carries out one instruction.
///
/// # Safety
/// The CPU must have AVX2 and FMA: handlers are compiled for them. `Emulator::new` checks. The instruction must come from
/// `lower`, whose row numbers are all below `wave::N_ROWS`; handlers do not check them again.
pub type Handler<const N: usize> = unsafe fn(&mut Wave<N>, &Inst<N>, &mut Group<'_>) -> Flow;

/// A handler and what lowering must know to feed it.
pub struct CodeEntry<const N: usize> {
    pub run: Handler<N>,
    pub role: Role,
    pub kinds: [ValueKind; 3],
    pub dst: ValueKind,
    pub reads_dst: bool,
}

impl<const N: usize> CodeEntry<N> {
    /// For handlers that fetch their own operands.
    pub fn raw(run: Handler<N>) -> Self {
        CodeEntry { run, role: Role::Raw, kinds: [ValueKind::None; 3], dst: ValueKind::None, reads_dst: false }
    }
}

/// Finds the meaning of an instruction by its name.
pub fn find<const N: usize>(d: &Decoded) -> Option<CodeEntry<N>> {
    let op = d.op.strip_prefix("v_dual_").map_or(d.op.to_string(), |rest| format!("v_{rest}"));
    let op = match d.family {
        // Its 8-bit floats are of another kind, which is not here.
        Family::Rdna4 if op.contains("fp8") || op.contains("bf8") => return None,
        Family::Rdna4 => as_rdna3(&op),
        _ => op,
    };
    let op = rename(&op);
    salu::find(op, d)
        .or_else(|| control::find(op))
        .or_else(|| smem::find(op))
        .or_else(|| float::find(op))
        .or_else(|| integer::find(op))
        .or_else(|| convert::find(op))
        .or_else(|| compare::find(op))
        .or_else(|| move_lanes::find(op))
        .or_else(|| relative::find(op))
        .or_else(|| packed::find(op, d))
        .or_else(|| wmma::find(op, d.family))
        .or_else(|| mfma::find(op))
        .or_else(|| lds::find(op))
        .or_else(|| flat::find(op, d))
}

/// The meaning of an integer instruction with the clamp bit: the exact result, cut to the range of its type.
pub fn find_saturating<const N: usize>(d: &Decoded) -> Option<CodeEntry<N>> {
    integer::find_saturating(rename(d.op))
}

/// RDNA4 tells minima that skip NaN (`num`) and additions that carry (`co`) from newer ones; to RDNA3 they are the only
/// ones, and have no such word.
fn as_rdna3(op: &str) -> String {
    match op {
        "s_add_co_ci_u32" => "s_addc_u32".into(),
        "s_sub_co_ci_u32" => "s_subb_u32".into(),
        "s_add_co_u32" | "s_sub_co_u32" | "s_add_co_i32" | "s_sub_co_i32" | "s_addk_co_i32" => op.replace("_co_", "_"),
        "v_mad_co_u64_u32" | "v_mad_co_i64_i32" => op.replace("_co_", "_"),
        _ => op.replace("_num_", "_"),
    }
}

/// CDNA spells some of RDNA's names differently; the meaning is one.
fn rename(op: &str) -> &str {
    match op {
        "v_add_u32" => "v_add_nc_u32",
        "v_sub_u32" => "v_sub_nc_u32",
        "v_subrev_u32" => "v_subrev_nc_u32",
        "v_add_i32" => "v_add_nc_i32",
        "v_sub_i32" => "v_sub_nc_i32",
        "v_add_u16" => "v_add_nc_u16",
        "v_add_i16" => "v_add_nc_i16",
        "v_sub_u16" => "v_sub_nc_u16",
        "v_sub_i16" => "v_sub_nc_i16",
        "v_subrev_u16" => "v_subrev_nc_u16",
        "v_addc_co_u32" => "v_add_co_ci_u32",
        "v_subb_co_u32" => "v_sub_co_ci_u32",
        "v_subbrev_co_u32" => "v_subrev_co_ci_u32",
        "v_ffbh_u32" => "v_clz_i32_u32",
        "v_ffbl_b32" => "v_ctz_i32_b32",
        "v_ffbh_i32" => "v_cls_i32",
        "v_cvt_pkrtz_f16_f32" => "v_cvt_pk_rtz_f16_f32",
        "v_cvt_rpi_i32_f32" => "v_cvt_nearest_i32_f32",
        "v_cvt_flr_i32_f32" => "v_cvt_floor_i32_f32",
        "v_cvt_pknorm_i16_f32" => "v_cvt_pk_norm_i16_f32",
        "v_cvt_pknorm_u16_f32" => "v_cvt_pk_norm_u16_f32",
        "s_andn2_b32" => "s_and_not1_b32",
        "s_andn2_b64" => "s_and_not1_b64",
        "s_orn2_b32" => "s_or_not1_b32",
        "s_orn2_b64" => "s_or_not1_b64",
        "s_andn2_saveexec_b64" => "s_and_not1_saveexec_b64",
        "s_orn2_saveexec_b64" => "s_or_not1_saveexec_b64",
        "s_andn1_saveexec_b64" => "s_and_not0_saveexec_b64",
        "s_orn1_saveexec_b64" => "s_or_not0_saveexec_b64",
        "s_andn1_wrexec_b64" => "s_and_not0_wrexec_b64",
        "s_andn2_wrexec_b64" => "s_and_not1_wrexec_b64",
        "s_ff1_i32_b32" => "s_ctz_i32_b32",
        "s_ff1_i32_b64" => "s_ctz_i32_b64",
        "s_flbit_i32_b32" => "s_clz_i32_u32",
        "s_flbit_i32_b64" => "s_clz_i32_u64",
        "s_flbit_i32" => "s_cls_i32",
        "s_flbit_i32_i64" => "s_cls_i32_i64",
        "s_load_dword" => "s_load_b32",
        "s_load_dwordx2" => "s_load_b64",
        "s_load_dwordx4" => "s_load_b128",
        "s_load_dwordx8" => "s_load_b256",
        "s_load_dwordx16" => "s_load_b512",
        other => other,
    }
}

/// What a dispatch did, for a kernel author without a card.
#[derive(Copy, Clone, Default, Debug, PartialEq, Eq)]
pub struct Counters {
    pub waves: u64,
    pub instructions: u64,
    pub scalar: u64,
    pub vector: u64,
    pub matrix: u64,
    pub scalar_memory: u64,
    pub lds: u64,
    pub global: u64,
    pub scratch: u64,
    pub branches: u64,
    pub barriers: u64,
    pub global_read_bytes: u64,
    pub global_written_bytes: u64,
    pub lds_bytes: u64,
    pub scratch_bytes: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, o: Self) {
        self.waves += o.waves;
        self.instructions += o.instructions;
        self.scalar += o.scalar;
        self.vector += o.vector;
        self.matrix += o.matrix;
        self.scalar_memory += o.scalar_memory;
        self.lds += o.lds;
        self.global += o.global;
        self.scratch += o.scratch;
        self.branches += o.branches;
        self.barriers += o.barriers;
        self.global_read_bytes += o.global_read_bytes;
        self.global_written_bytes += o.global_written_bytes;
        self.lds_bytes += o.lds_bytes;
        self.scratch_bytes += o.scratch_bytes;
    }
}
