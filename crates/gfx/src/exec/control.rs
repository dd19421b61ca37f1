//! Control flow, barriers and the instructions that change nothing an emulator in program order can see.

use super::inst::Inst;
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow};
use crate::error::Cause;
use crate::isa::code;

// Longer than other functions: a table with an arm for each instruction.
pub fn find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
    let run: super::Handler<N> = match op {
        "s_endpgm" | "s_endpgm_saved" => |_, _, _| Flow::End,
        "s_barrier" => |w, _, _| {
            w.counters.barriers += 1;
            Flow::Barrier
        },
        // The workgroup's barrier, -1: arrived where its wait is. (The others have names, and waves that join them.)
        "s_barrier_signal" => |w, i, _| match i.code[0] {
            193 => Flow::Next,
            _ => w.stop(Cause::Unsupported("a named barrier".into())),
        },
        "s_barrier_wait" => |w, i, _| {
            if i.imm != -1 {
                return w.stop(Cause::Unsupported("a named barrier".into()));
            }
            w.counters.barriers += 1;
            Flow::Barrier
        },
        "s_branch" => |_, _, _| Flow::Branch,
        "s_cbranch_scc0" => |w, _, _| when(!w.scc),
        "s_cbranch_scc1" => |w, _, _| when(w.scc),
        "s_cbranch_vccz" => |w, _, _| when(w.mask(code::VCC) == 0),
        "s_cbranch_vccnz" => |w, _, _| when(w.mask(code::VCC) != 0),
        "s_cbranch_execz" => |w, _, _| when(w.exec() == 0),
        "s_cbranch_execnz" => |w, _, _| when(w.exec() != 0),
        "s_getpc_b64" => |w, i, _| {
            w.set_scalar64(i.sdst, after(w, i));
            Flow::Next
        },
        "s_setpc_b64" => |w, i, _| {
            w.far = w.scalar64(i.code[0], i.literal);
            Flow::Far
        },
        "s_swappc_b64" => |w, i, _| {
            let to = w.scalar64(i.code[0], i.literal);
            w.set_scalar64(i.sdst, after(w, i));
            w.far = to;
            Flow::Far
        },
        "s_call_b64" => |w, i, _| {
            let from = after(w, i);
            w.set_scalar64(i.sdst, from);
            w.far = from.wrapping_add((i.imm as i64 * 4) as u64);
            Flow::Far
        },
        "s_trap" => |w, i, _| w.stop(Cause::Trap(i.imm as u16)),
        "s_getreg_b32" => get_register,
        "s_setreg_b32" | "s_setreg_imm32_b32" => set_register,
        "s_round_mode" => |w, i, _| match i.imm & 15 {
            0 => Flow::Next,
            _ => w.stop(Cause::Unsupported("a rounding mode other than nearest even".into())),
        },
        "s_denorm_mode" => |w, i, _| {
            w.mode = w.mode & !0xf0 | (i.imm as u32 & 15) << 4;
            Flow::Next
        },
        "s_nop"
        | "s_waitcnt"
        | "s_waitcnt_depctr"
        | "s_wait_idle"
        | "s_wait_event"
        | "s_delay_alu"
        | "s_clause"
        | "s_set_inst_prefetch_distance"
        | "s_sleep"
        | "s_setprio"
        | "s_icache_inv"
        | "s_sendmsg"
        | "s_wakeup"
        | "s_sethalt"
        | "s_inst_prefetch"
        | "s_code_end"
        | "s_incperflevel"
        | "s_decperflevel"
        | "s_ttracedata"
        | "s_ttracedata_imm"
        | "s_waitcnt_vscnt"
        | "s_waitcnt_vmcnt"
        | "s_waitcnt_expcnt"
        | "s_waitcnt_lgkmcnt"
        | "s_wait_loadcnt"
        | "s_wait_storecnt"
        | "s_wait_samplecnt"
        | "s_wait_bvhcnt"
        | "s_wait_expcnt"
        | "s_wait_dscnt"
        | "s_wait_kmcnt"
        | "s_wait_loadcnt_dscnt"
        | "s_wait_storecnt_dscnt"
        | "s_wait_alu"
        | "s_sleep_var"
        | "s_prefetch_inst"
        | "s_prefetch_inst_pc_rel"
        | "s_prefetch_data"
        | "s_prefetch_data_pc_rel"
        | "s_buffer_prefetch_data"
        | "global_inv"
        | "global_wb"
        | "global_wbinv"
        | "s_version"
        | "s_gl1_inv"
        | "s_dcache_inv"
        | "s_dcache_wb"
        | "s_dcache_inv_vol"
        | "s_dcache_wb_vol"
        | "buffer_gl0_inv"
        | "buffer_gl1_inv"
        | "buffer_inv"
        | "buffer_wbl2"
        | "buffer_wbinvl1"
        | "buffer_wbinvl1_vol"
        | "buffer_invl2"
        | "v_nop"
        | "v_pipeflush"
        | "ds_nop"
        | "s_nop_vop3"
        | "s_setvskip" => |_, _, _| Flow::Next,
        "s_sendmsg_rtn_b32" => |w, i, _| message(w, i, false),
        "s_sendmsg_rtn_b64" => |w, i, _| message(w, i, true),
        "s_memtime" | "s_memrealtime" => |w, i, _| {
            w.set_scalar64(i.sdst, w.n_run);
            Flow::Next
        },
        _ => return None,
    };
    Some(CodeEntry::raw(run))
}

/// The address of the next instruction.
fn after<const N: usize>(w: &Wave<N>, i: &Inst<N>) -> u64 {
    w.code_base + i.offset as u64 + 4 * i.n_words as u64
}

fn when(condition: bool) -> Flow {
    if condition { Flow::Branch } else { Flow::Next }
}

/// Clock requests are answered with the wave's instruction count; nothing else returns.
fn message<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, is_wide: bool) -> Flow {
    const GET_REALTIME: u16 = 0x83;
    // The message id is the source field itself, not an operand.
    if i.code[0] != GET_REALTIME {
        return w.stop(Cause::Unsupported(format!("message {:#x}", i.code[0])));
    }
    if is_wide {
        w.set_scalar64(i.sdst, w.n_run)
    } else {
        w.set_scalar(i.sdst, w.n_run as u32)
    }
    Flow::Next
}

const HW_REG_MODE: u32 = 1;
const HW_REG_SHADER_CYCLES: u32 = 29;

/// Register id, offset and width of a hardware-register immediate.
fn field(imm: i32) -> (u32, u32, u32) {
    let imm = imm as u32;
    (imm & 63, imm >> 6 & 31, (imm >> 11 & 31) + 1)
}

fn get_register<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (id, at, n) = field(i.imm);
    let value = match id {
        HW_REG_MODE => w.mode,
        HW_REG_SHADER_CYCLES => w.n_run as u32,
        _ => return w.stop(Cause::Unsupported(format!("hardware register {id}"))),
    };
    let mask = if n == 32 { !0 } else { (1 << n) - 1 };
    w.set_scalar(i.sdst, value >> at & mask);
    Flow::Next
}

fn set_register<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (id, at, n) = field(i.imm);
    let value = if i.op == "s_setreg_b32" { w.scalar(i.sdst, 0) } else { i.literal };
    if id != HW_REG_MODE {
        return w.stop(Cause::Unsupported(format!("writing hardware register {id}")));
    }
    let mask = if n == 32 { !0 } else { (1u32 << n) - 1 } << at;
    w.mode = w.mode & !mask | (value << at) & mask;
    if w.mode & 15 != 0 {
        return w.stop(Cause::Unsupported("a rounding mode other than nearest even".into()));
    }
    Flow::Mode
}
