//! The plug-in interface: the function table that ROCr's software-model hook asks for.
//!
//! `HSA_MODEL_LIB` names this library; libhsakmt calls `get_hsakmt_model_functions`, creates one model per GPU node of
//! `HSA_MODEL_TOPOLOGY`, and from then on tells it about memory and queues. Device address x is host address
//! aperture + x. No call may unwind into C: everything here is caught or cannot fail.

mod agent;
mod clock;
mod config;
mod interpose;
mod lock;
mod managed;
mod mapped;
mod mmio;
mod model;
mod packet;
mod queue;
mod shutdown;
mod startup;
mod sysfs;
mod threads;

pub use config::Config;

use model::Model;
use queue::Queue;
use std::ffi::c_void;
use std::sync::Arc;

/// `struct hsakmt_model_queue_info`.
#[repr(C)]
pub struct QueueInfo {
    pub ring_base: u64,
    pub write_pointer: u64,
    pub read_pointer: u64,
    pub doorbell: *mut u64,
    pub ring_bytes: u32,
    pub queue_type: u32,
}

type SetEvent = unsafe extern "C" fn(*mut c_void, u32);

/// `struct hsakmt_model_functions`, interface 0.4.
#[repr(C)]
pub struct Functions {
    version_major: u32,
    version_minor: u32,
    create: extern "C" fn() -> *mut Model,
    destroy: unsafe extern "C" fn(*mut Model),
    set_global_aperture: unsafe extern "C" fn(*mut Model, *mut c_void, u64),
    alloced_memory: unsafe extern "C" fn(*mut Model, *mut c_void, u64, u32),
    freed_memory: unsafe extern "C" fn(*mut Model, *mut c_void, u64),
    set_notify_event: unsafe extern "C" fn(*mut Model, *mut c_void, *mut c_void),
    set_wait_event: unsafe extern "C" fn(*mut Model, *mut c_void, *mut c_void),
    register_queue: unsafe extern "C" fn(*mut Model, *const QueueInfo) -> *const Queue,
    set_set_event: unsafe extern "C" fn(*mut Model, Option<SetEvent>, *mut c_void),
    destroy_queue: unsafe extern "C" fn(*mut Model, *const Queue),
}

static FUNCTIONS: Functions = Functions {
    version_major: 0,
    version_minor: 4,
    create,
    destroy,
    set_global_aperture,
    alloced_memory,
    freed_memory,
    set_notify_event,
    set_wait_event,
    register_queue,
    set_set_event,
    destroy_queue,
};

/// The only symbol libhsakmt looks for.
#[unsafe(no_mangle)]
pub extern "C" fn get_hsakmt_model_functions() -> *const Functions {
    &FUNCTIONS
}

/// A null model makes libhsakmt print and abort, so the reason is printed first.
extern "C" fn create() -> *mut Model {
    match Config::from_env().and_then(Model::start) {
        Ok(model) => Box::into_raw(Box::new(model)),
        Err(e) => {
            eprintln!("gfx: {e}");
            std::ptr::null_mut()
        }
    }
}

unsafe extern "C" fn destroy(model: *mut Model) {
    if !model.is_null() {
        // SAFETY: libhsakmt hands back the pointer that `create` made from a box, once.
        drop(unsafe { Box::from_raw(model) });
    }
}

/// Borrows the model behind a C pointer.
///
/// # Safety
/// `model` must come from `create` and not have been destroyed.
unsafe fn model<'a>(model: *mut Model) -> Option<&'a Model> {
    // SAFETY: the caller's promise; models live until `destroy`, and all access is through shared references.
    unsafe { model.as_ref() }
}

unsafe extern "C" fn set_global_aperture(m: *mut Model, base: *mut c_void, n_bytes: u64) {
    // SAFETY: libhsakmt passes the pointer `create` returned.
    if let Some(model) = unsafe { model(m) } {
        model.set_aperture(base as u64, n_bytes);
    }
}

unsafe extern "C" fn alloced_memory(m: *mut Model, start: *mut c_void, n_bytes: u64, flags: u32) {
    // SAFETY: as above.
    if let Some(model) = unsafe { model(m) } {
        model.allocated(start as u64, n_bytes, flags);
    }
}

unsafe extern "C" fn freed_memory(m: *mut Model, start: *mut c_void, n_bytes: u64) {
    // SAFETY: as above.
    if let Some(model) = unsafe { model(m) } {
        model.freed(start as u64, n_bytes);
    }
}

/// Event notification in the other direction is for models in another process.
unsafe extern "C" fn set_notify_event(_: *mut Model, _: *mut c_void, _: *mut c_void) {}
unsafe extern "C" fn set_wait_event(_: *mut Model, _: *mut c_void, _: *mut c_void) {}

unsafe extern "C" fn set_set_event(m: *mut Model, set: Option<SetEvent>, data: *mut c_void) {
    // SAFETY: as above.
    if let (Some(model), Some(set)) = (unsafe { model(m) }, set) {
        model.set_event_function(set, data as usize);
    }
}

unsafe extern "C" fn register_queue(m: *mut Model, info: *const QueueInfo) -> *const Queue {
    // SAFETY: as above; `info` is libhsakmt's own structure, alive during the call.
    let (Some(model), Some(info)) = (unsafe { model(m) }, unsafe { info.as_ref() }) else { return std::ptr::null() };
    Arc::into_raw(model.add_queue(info))
}

unsafe extern "C" fn destroy_queue(m: *mut Model, queue: *const Queue) {
    if queue.is_null() {
        return;
    }
    // SAFETY: libhsakmt hands back what `register_queue` made from an Arc, once.
    let queue = unsafe { Arc::from_raw(queue) };
    // SAFETY: as above.
    if let Some(model) = unsafe { model(m) } {
        model.remove_queue(&queue);
    }
}

/// One line of JSON per dispatch, for a kernel author.
fn counters_line(n: u64, grid: &[u32; 3], r: &crate::emulator::Report) -> String {
    let c = &r.counters;
    let fields = [
        ("dispatch", n),
        ("waves", c.waves),
        ("wave_lanes", r.wave_lanes as u64),
        ("vgprs", r.n_vgprs as u64),
        ("agprs", r.n_agprs as u64),
        ("lds", r.lds_bytes as u64),
        ("scratch_per_lane", r.private_bytes as u64),
        ("occupancy", r.occupancy as u64),
        ("instructions", c.instructions),
        ("scalar", c.scalar),
        ("vector", c.vector),
        ("matrix", c.matrix),
        ("scalar_memory", c.scalar_memory),
        ("lds_instructions", c.lds),
        ("global", c.global),
        ("scratch", c.scratch),
        ("branches", c.branches),
        ("barriers", c.barriers),
        ("global_read_bytes", c.global_read_bytes),
        ("global_written_bytes", c.global_written_bytes),
        ("lds_bytes", c.lds_bytes),
        ("scratch_bytes", c.scratch_bytes),
    ];
    let body: Vec<String> = fields.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
    let name = r.kernel.replace(['"', '\\'], "_");
    format!("{{\"kernel\":\"{name}\",\"grid\":[{},{},{}],{}}}\n", grid[0], grid[1], grid[2], body.join(","))
}
