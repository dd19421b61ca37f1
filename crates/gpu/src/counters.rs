//! What the driver table counted: a snapshot, and the difference of two. Tests assert cost with it
//! (allocations per model, launches and read-backs per step) instead of trusting comments.
//!
//! Counts are per vendor and process, taken at the table itself, so that no path escapes them.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::Driver;
use crate::vendor::Vendor;

/// Calls and bytes since the driver was loaded.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it, but for those that are explained")]
pub struct Counters {
    pub allocations: u64,
    pub frees: u64,
    pub host_allocations: u64,
    pub host_frees: u64,
    pub copies_to_device: u64,
    /// Copies from the device to the host.
    pub read_backs: u64,
    pub copies_on_device: u64,
    pub fills: u64,
    pub launches: u64,
    pub graph_launches: u64,
    pub graphs_built: u64,
    pub events_created: u64,
    pub events_recorded: u64,
    /// Times a thread waited for the device. (Polls are not counted; there is no device-wide wait.)
    pub waits: u64,
    pub modules_loaded: u64,
    pub bytes_allocated: u64,
    pub bytes_to_device: u64,
    pub bytes_to_host: u64,
    /// Memory given up because its queue was dead (device and host together).
    pub bytes_leaked: u64,
}

/// Byte totals and waits: what a count of calls cannot say. One set per vendor.
#[derive(Default)]
pub(crate) struct Meter {
    pub bytes_allocated: AtomicU64,
    pub bytes_to_device: AtomicU64,
    pub bytes_to_host: AtomicU64,
    pub bytes_leaked: AtomicU64,
    pub waits: AtomicU64,
}

static AMD: Meter = Meter::new();
static NVIDIA: Meter = Meter::new();

impl Meter {
    const fn new() -> Self {
        Self {
            bytes_allocated: AtomicU64::new(0),
            bytes_to_device: AtomicU64::new(0),
            bytes_to_host: AtomicU64::new(0),
            bytes_leaked: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    pub fn of(vendor: Vendor) -> &'static Meter {
        vendor.pick(&AMD, &NVIDIA)
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn read(driver: &Driver) -> Self {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (calls, meter) = (&driver.counts, Meter::of(driver.vendor));
        Self {
            allocations: get(&calls.alloc),
            frees: get(&calls.free),
            host_allocations: get(&calls.host_alloc),
            host_frees: get(&calls.host_free),
            copies_to_device: get(&calls.copy_to_device),
            read_backs: get(&calls.copy_to_host),
            copies_on_device: get(&calls.copy_on_device),
            fills: get(&calls.fill_u8) + get(&calls.fill_u32),
            launches: get(&calls.launch),
            graph_launches: get(&calls.graph_launch),
            graphs_built: get(&calls.graph_instantiate),
            events_created: get(&calls.event_create),
            events_recorded: get(&calls.event_record),
            waits: get(&meter.waits),
            modules_loaded: get(&calls.module_load),
            bytes_allocated: get(&meter.bytes_allocated),
            bytes_to_device: get(&meter.bytes_to_device),
            bytes_to_host: get(&meter.bytes_to_host),
            bytes_leaked: get(&meter.bytes_leaked),
        }
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        macro_rules! each {
            ($($field:ident),*) => { Counters { $($field: self.$field - earlier.$field),* } };
        }
        each!(
            allocations,
            frees,
            host_allocations,
            host_frees,
            copies_to_device,
            read_backs,
            copies_on_device,
            fills,
            launches,
            graph_launches,
            graphs_built,
            events_created,
            events_recorded,
            waits,
            modules_loaded,
            bytes_allocated,
            bytes_to_device,
            bytes_to_host,
            bytes_leaked
        )
    }
}
