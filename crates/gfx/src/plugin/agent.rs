//! What the GPU says about itself, where ROCr over the hook cannot: its name, and its one instruction set.
//!
//! Two functions of ROCr, interposed because this library is preloaded. A card's name comes from the graphics driver,
//! which is not there. And today's ROCr lists a chip's own instruction set and the generic one of its generation, while
//! HIP 5.7 refuses a GPU with two: where this ROCr stands in for that of 5.7 (`GFX_ONE_ISA=1`), callers see the first,
//! which is the chip's own, as the older one answered.

use std::ffi::{c_int, c_void};

use super::config::{chip, is_on};
use super::interpose::{BREAK, NOT_INITIALIZED, SUCCESS, rocr_function};

type Agent = u64;
type GetInfo = unsafe extern "C" fn(Agent, c_int, *mut c_void) -> c_int;
type Visit = unsafe extern "C" fn(u64, *mut c_void) -> c_int;
type IterateIsas = unsafe extern "C" fn(Agent, Visit, *mut c_void) -> c_int;

/// `HSA_AGENT_INFO_DEVICE`, and a GPU's answer.
pub const INFO_DEVICE: c_int = 17;
pub const DEVICE_GPU: u32 = 1;
/// `HSA_AMD_AGENT_INFO_PRODUCT_NAME`, and how many bytes its caller has.
const INFO_PRODUCT_NAME: c_int = 0xa009;
const NAME_BYTES: usize = 64;

/// # Safety
/// As ROCr's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_agent_get_info(agent: Agent, what: c_int, to: *mut c_void) -> c_int {
    let Some(real) = rocr_function::<GetInfo>(c"hsa_agent_get_info") else { return NOT_INITIALIZED };
    // SAFETY: the caller's call, passed on.
    let status = unsafe { real(agent, what, to) };
    if status != SUCCESS || what != INFO_PRODUCT_NAME {
        return status;
    }
    let mut kind = 0u32;
    // SAFETY: the answer to this question is a 32-bit enum.
    let known = unsafe { real(agent, INFO_DEVICE, (&raw mut kind).cast()) };
    // SAFETY: ROCr has just written a string of `NAME_BYTES` there.
    let name = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), NAME_BYTES) };
    if known == SUCCESS
        && kind == DEVICE_GPU
        && name[0] == 0
        && let Ok(chip) = chip()
    {
        write_name(name, chip.marketing_name);
    }
    SUCCESS
}

fn write_name(to: &mut [u8], name: &str) {
    let n = name.len().min(to.len() - 1);
    to[..n].copy_from_slice(&name.as_bytes()[..n]);
    to[n..].fill(0);
}

struct First {
    visit: Visit,
    data: *mut c_void,
    answer: c_int,
}

/// Passes one instruction set on, keeps the caller's answer, and ends the walk.
unsafe extern "C" fn visit_first(isa: u64, first: *mut c_void) -> c_int {
    // SAFETY: `hsa_agent_iterate_isas` below passes a `First` that outlives the walk.
    let first = unsafe { &mut *first.cast::<First>() };
    // SAFETY: the caller's own function and data, with what ROCr gave us for it.
    first.answer = unsafe { (first.visit)(isa, first.data) };
    BREAK
}

/// # Safety
/// As ROCr's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_agent_iterate_isas(agent: Agent, visit: Visit, data: *mut c_void) -> c_int {
    let Some(real) = rocr_function::<IterateIsas>(c"hsa_agent_iterate_isas") else { return NOT_INITIALIZED };
    if !is_on("GFX_ONE_ISA") {
        // SAFETY: the caller's call, passed on.
        return unsafe { real(agent, visit, data) };
    }
    let mut first = First { visit, data, answer: SUCCESS };
    // SAFETY: `visit_first` has the callback's type; `first` lives until the walk is over.
    let status = unsafe { real(agent, visit_first, (&raw mut first).cast()) };
    if status == BREAK { first.answer } else { status }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_within_its_room() {
        let mut room = [1u8; 8];
        write_name(&mut room, "Radeon");
        assert_eq!(&room, b"Radeon\0\0");
        write_name(&mut room, "a longer name");
        assert_eq!(&room, b"a longe\0");
        for chip in &crate::chip::CHIPS {
            assert!(chip.marketing_name.len() < NAME_BYTES);
        }
    }

    /// Answers as ROCr does with two instruction sets: the walk ends where the visitor says so.
    unsafe extern "C" fn note(isa: u64, seen: *mut c_void) -> c_int {
        // SAFETY: the test below passes its own vector.
        unsafe { (*seen.cast::<Vec<u64>>()).push(isa) };
        SUCCESS
    }

    #[test]
    fn only_the_first_is_passed_on() {
        let mut seen: Vec<u64> = Vec::new();
        let mut first = First { visit: note, data: (&raw mut seen).cast(), answer: BREAK };
        // SAFETY: `first` is what the visitor expects.
        let status = unsafe { visit_first(7, (&raw mut first).cast()) };
        assert_eq!((status, first.answer), (BREAK, SUCCESS), "the walk ends, with the caller's own answer");
        assert_eq!(seen, [7]);
    }
}
