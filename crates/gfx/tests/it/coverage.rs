//! Which instructions of a family have a meaning here. The list of those that do not is printed, and the kinds that
//! compilers emit for compute kernels must have one.

use std::collections::BTreeSet;

use gfx_model::exec::find;
use gfx_model::isa::{self, Encoding, Family};

/// Instruction families that compute kernels do not use: graphics, traps, debugging, addressing relics.
const OUT_OF_SCOPE: &[&str] = &[
    "s_rfe",
    "s_subvector",
    "s_sendmsghalt",
    "s_setkill",
    "s_endpgm_ordered",
    "s_cbranch_cdbg",
    "s_wqm",
    "s_quadmask",
    "s_cbranch_g_fork",
    "s_cbranch_i_fork",
    "s_cbranch_join",
    "s_atc",
    "s_atomic",
    "s_buffer",
    "s_scratch",
    "s_dcache",
    "s_store",
    "s_mem",
    "ds_gws",
    "ds_ordered",
    "ds_bvh",
    "ds_append",
    "ds_consume",
    "ds_add_gs",
    "ds_sub_gs",
    "ds_load_addtid",
    "ds_store_addtid",
    "ds_read_addtid",
    "ds_write_addtid",
    "ds_condxchg",
    "ds_wrap",
    "ds_mskor",
    "v_interp",
    "v_cube",
    "v_msad",
    "v_mqsad",
    "v_qsad",
    "v_lerp",
    "v_smfmac",
    "v_mfma_ld",
    "v_clrexcp",
    "v_mullit",
    "v_cvt_scale",
    "v_prng",
    "v_bitop3",
    "v_ashr_pk",
    "buffer_",
    "s_call",
    "s_xnor_wrexec",
    "v_cvt_off",
    "v_cvt_norm",
    "v_cvt_pk_norm",
    "v_cvt_sr",
    "global_load_lds",
    "scratch_load_lds",
    "flat_load_lds",
    "global_load_addtid",
    "global_store_addtid",
    "s_ttrace",
    "v_exp_legacy",
    "v_log_legacy",
    "v_cvt_pkaccum",
    "v_screen",
    "v_mfma_f32_16x16x128",
    "v_mfma_f32_32x32x64",
    "s_sethalt",
    "s_setvskip",
    "v_permlane32",
    "v_permlane16_swap",
    "v_swmmac",
    "v_dot4_f32_",
    "s_barrier_init",
    "s_barrier_join",
    "s_barrier_leave",
    "s_barrier_signal_isfirst",
    "s_get_barrier",
    "s_alloc_vgpr",
    "s_wakeup_barrier",
    "global_load_tr",
    "global_load_block",
    "global_store_block",
    "scratch_load_block",
    "scratch_store_block",
    "global_atomic_ordered",
];

/// Whether the emulator knows what an opcode does: tried on random operands.
pub fn has_meaning(family: Family, encoding: Encoding, number: u16, name: &str) -> bool {
    let mut dice = crate::tools::Dice(number as u64);
    let words = (0..8).filter_map(|_| crate::decode::random_words(family, encoding, number, &mut dice));
    let mut decoded = words.filter_map(|w| isa::decode(family, &[w[0], w[1], 0, 0]).ok());
    decoded.any(|d| d.op == name && find::<64>(&d).is_some())
}

fn missing(family: Family) -> BTreeSet<&'static str> {
    let mut missing = BTreeSet::new();
    for (encoding, number, name) in isa::opcodes(family) {
        if OUT_OF_SCOPE.iter().any(|p| name.starts_with(p)) || encoding == Encoding::Mubuf {
            continue;
        }
        let mut dice = crate::tools::Dice(number as u64);
        let words = (0..8).filter_map(|_| crate::decode::random_words(family, encoding, number, &mut dice));
        let decoded: Vec<_> =
            words.filter_map(|w| isa::decode(family, &[w[0], w[1], 0, 0]).ok()).filter(|d| d.op == name).collect();
        let is_known = decoded.iter().any(|d| find::<64>(d).is_some());
        if !is_known && !decoded.is_empty() {
            missing.insert(name);
        }
    }
    missing
}

#[test]
fn compute_instructions_have_a_meaning() {
    let all = Family::ALL.map(|family| {
        let missing = missing(family);
        eprintln!("{family:?}: {} of {} without a meaning: {missing:?}", missing.len(), isa::opcodes(family).len());
        missing.len()
    });
    assert!(all[0] <= 42 && all[1] <= 42 && all[2] <= 41, "instructions without a meaning grew to {all:?}");
}
