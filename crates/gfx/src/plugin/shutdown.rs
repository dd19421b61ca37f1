//! A safe end: ROCr's `hsa_shut_down`, interposed because this library is preloaded.
//!
//! While ROCr destroys its last queue, a thread of its own may still be about to set the event that all queues share.
//! A kernel driver answers a late call with an error that nobody reads; libhsakmt's model calls `abort`. The event lives
//! as long as there is a queue: so before AMD's own function runs, one more queue is made, which nobody uses or ends.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use super::agent::{DEVICE_GPU, INFO_DEVICE};
use super::interpose::{BREAK, NOT_INITIALIZED, SUCCESS, rocr_function};

type Agent = u64;
type Visit = unsafe extern "C" fn(Agent, *mut c_void) -> c_int;
type ShutDown = unsafe extern "C" fn() -> c_int;
type IterateAgents = unsafe extern "C" fn(Visit, *mut c_void) -> c_int;
type AgentGetInfo = unsafe extern "C" fn(Agent, c_int, *mut c_void) -> c_int;
type QueueCreate =
    unsafe extern "C" fn(Agent, u32, u32, *const c_void, *mut c_void, u32, u32, *mut *mut c_void) -> c_int;

const QUEUE_TYPE_MULTI: u32 = 0;
const N_PACKETS: u32 = 64;

static IS_MAKING: AtomicBool = AtomicBool::new(false);

/// The queue that is being made is not for packets: the scheduler must not look at it, since its memory may go any time.
pub fn is_making_a_keeper() -> bool {
    IS_MAKING.load(Ordering::Acquire)
}

/// Makes a queue on the first GPU, once.
unsafe extern "C" fn visit(agent: Agent, _: *mut c_void) -> c_int {
    let (Some(info), Some(create)) =
        (rocr_function::<AgentGetInfo>(c"hsa_agent_get_info"), rocr_function::<QueueCreate>(c"hsa_queue_create"))
    else {
        return BREAK;
    };
    let mut kind = 0u32;
    // SAFETY: `agent` is what ROCr gave us; the answer to this question is a 32-bit enum.
    let status = unsafe { info(agent, INFO_DEVICE, (&raw mut kind).cast()) };
    if status != SUCCESS || kind != DEVICE_GPU {
        return SUCCESS;
    }
    let mut queue = std::ptr::null_mut();
    // SAFETY: a live agent, a power of two of packets, no callback, sizes left to ROCr, a place for the answer.
    unsafe {
        create(
            agent,
            N_PACKETS,
            QUEUE_TYPE_MULTI,
            std::ptr::null(),
            std::ptr::null_mut(),
            u32::MAX,
            u32::MAX,
            &raw mut queue,
        )
    };
    BREAK
}

/// # Safety
/// As ROCr's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_shut_down() -> c_int {
    let Some(real) = rocr_function::<ShutDown>(c"hsa_shut_down") else { return NOT_INITIALIZED };
    if let Some(iterate) = rocr_function::<IterateAgents>(c"hsa_iterate_agents") {
        IS_MAKING.store(true, Ordering::Release);
        // SAFETY: ROCr is open until `real` runs; `visit` unwinds nowhere.
        unsafe { iterate(visit, std::ptr::null_mut()) };
        IS_MAKING.store(false, Ordering::Release);
    }
    // SAFETY: the caller's call, passed on.
    unsafe { real() }
}
