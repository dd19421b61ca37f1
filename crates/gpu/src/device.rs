//! A GPU: what it is, how much memory it has, and being the calling thread's current device.
//!
//! HIP and CUDA keep the current device per thread; the layer sets it before each call, so nobody
//! above has to know. A `Device` is a cheap handle that may be shared between threads; work goes
//! through the `Queue`s it makes.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Arc;

use crate::counters::Counters;
use crate::driver::{Driver, LoadedDriver};
use crate::error::{Error, Result};
use crate::raw::Context;
use crate::vendor::{Attribute, Extras, Vendor};

/// Room for a name that the driver writes, with its NUL.
const NAME_BYTES: usize = 256;
/// Memory with double data rate transfers twice per clock.
const TRANSFERS_PER_CLOCK: u64 = 2;

/// A GPU that has been opened.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    loaded: &'static LoadedDriver,
    ordinal: u32,
    context: Context,
    label: String,
    properties: Properties,
}

/// What a device is. Plain data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Properties {
    /// As the vendor markets it.
    pub name: String,
    /// As the compiler takes it: `gfx1100`, `gfx90a:sramecc+:xnack-`, `sm_90`.
    pub arch: String,
    /// Lanes in a wave: 32 on RDNA and NVIDIA, 64 on GCN and CDNA.
    pub wave_width: u32,
    /// Compute units; on RDNA the driver counts pairs of them.
    pub n_multiprocessors: u32,
    /// Device memory in all.
    pub memory_bytes: usize,
    /// Shares its memory with the CPU.
    pub is_integrated: bool,
    /// The largest block, in threads.
    pub max_threads_per_block: u32,
    /// The largest block in each dimension.
    pub max_block: [u32; 3],
    /// The largest grid in each dimension, in blocks.
    pub max_grid: [u32; 3],
    /// Shared memory a block may have without asking for more.
    pub max_shared_bytes: u32,
    /// Threads that a multiprocessor holds at once.
    pub threads_per_multiprocessor: u32,
    /// Size of the L2 cache.
    pub l2_bytes: usize,
    /// The highest clock of the multiprocessors.
    pub clock_khz: u32,
    /// From bus width and memory clock; what the driver reports, not what was measured.
    pub memory_bytes_per_s: u64,
    /// `0000:03:00.0`
    pub pci: String,
}

/// Free and total device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// What an allocation could get now.
    pub free_bytes: usize,
    /// What the device has.
    pub total_bytes: usize,
}

thread_local! {
    /// Per vendor: ordinal + 1 of this thread's current device; 0 is "none set by us".
    static CURRENT: [Cell<u32>; 2] = const { [Cell::new(0), Cell::new(0)] };
}

impl Device {
    /// How many devices the vendor's driver reports. Loads the driver; see `discovery` for a way that
    /// survives a driver that hangs or aborts.
    #[track_caller]
    pub fn count(vendor: Vendor) -> Result<u32> {
        let loaded = LoadedDriver::get(vendor)?;
        let mut count: c_int = 0;
        // SAFETY: a valid out pointer.
        let reply = unsafe { loaded.driver.device_count(&mut count) };
        if vendor.is_no_device(reply.value) {
            return Ok(0);
        }
        loaded.extras.check(reply, vendor.word())?;
        Ok(count.max(0) as u32)
    }

    /// The first device of the first vendor that has one, for programs that do not care which. The error is the last
    /// vendor's.
    #[track_caller]
    pub fn first() -> Result<Self> {
        let has_one = |vendor: &Vendor| Self::count(*vendor).is_ok_and(|n| n > 0);
        let vendor = Vendor::ALL.into_iter().find(has_one);
        Self::open(vendor.unwrap_or(Vendor::ALL[Vendor::ALL.len() - 1]), 0)
    }

    /// Device `ordinal` of a vendor's driver.
    #[track_caller]
    pub fn open(vendor: Vendor, ordinal: u32) -> Result<Self> {
        let n_devices = Self::count(vendor)?;
        if n_devices == 0 {
            return Err(Error::NoDevice { vendor });
        }
        if ordinal >= n_devices {
            return Err(Error::NoSuchDevice { vendor, ordinal, n_devices });
        }
        let loaded = LoadedDriver::get(vendor)?;
        let id = format!("{}:{ordinal}", vendor.word());
        let mut handle: c_int = 0;
        // SAFETY: a valid out pointer and an ordinal below the count.
        loaded.extras.check(unsafe { loaded.driver.device_get(&mut handle, ordinal as c_int) }, &id)?;
        let properties = Properties::read(loaded, handle, &id)?;
        let context = loaded.extras.open_context(handle, &id)?;
        let label = format!("{id} ({}, {})", properties.display_name(), properties.arch);
        let device = Device { inner: Arc::new(Inner { loaded, ordinal, context, label, properties }) };
        device.make_current()?;
        Ok(device)
    }

    /// Whose driver it is reached through.
    pub fn vendor(&self) -> Vendor {
        self.inner.loaded.driver.vendor
    }

    /// Its number, as in `rocm:0`.
    pub fn ordinal(&self) -> u32 {
        self.inner.ordinal
    }

    /// What it is; read once, when it was opened.
    pub fn properties(&self) -> &Properties {
        &self.inner.properties
    }

    /// `rocm:0 (AMD Radeon RX 7900 XTX, gfx1100)`: what every error says.
    pub fn label(&self) -> &str {
        &self.inner.label
    }

    /// Whether the kernels' tile of matrix units exists on this chip.
    pub fn has_matrix_units(&self) -> bool {
        self.vendor().has_matrix_units(&self.properties().arch)
    }

    /// Whether the kernels' `mma_16x8x16` exists on this chip (NVIDIA from Ampere on).
    pub fn has_mma(&self) -> bool {
        self.vendor().has_mma(&self.properties().arch)
    }

    /// Whether kernels can multiply by groups of four waves (NVIDIA's Hopper).
    pub fn has_wgmma(&self) -> bool {
        self.vendor().has_wgmma(&self.properties().arch)
    }

    /// The driver library and its version number, for reports.
    pub fn driver_version(&self) -> (String, i32) {
        (self.driver().library.clone(), self.inner.loaded.version().unwrap_or(0))
    }

    /// Free and total memory, asked now.
    #[track_caller]
    pub fn memory(&self) -> Result<Memory> {
        self.make_current()?;
        let (mut free_bytes, mut total_bytes) = (0, 0);
        // SAFETY: valid out pointers; the current device is this one.
        self.check(unsafe { self.driver().memory_info(&mut free_bytes, &mut total_bytes) })?;
        Ok(Memory { free_bytes, total_bytes })
    }

    /// What this vendor's driver table has counted since the process began.
    pub fn counters(&self) -> Counters {
        Counters::read(self.driver())
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        &self.inner.loaded.driver
    }

    pub(crate) fn extras(&self) -> &'static Extras {
        &self.inner.loaded.extras
    }

    #[track_caller]
    pub(crate) fn check(&self, reply: crate::driver::Reply<c_int>) -> Result<()> {
        self.extras().check(reply, &self.inner.label)
    }

    /// Make this device the calling thread's current one, where it is not. A library that changes it
    /// (the vendors' BLAS do not: they put it back) would have to be told to.
    #[track_caller]
    pub(crate) fn make_current(&self) -> Result<()> {
        CURRENT.with(|current| {
            let slot = &current[self.vendor() as usize];
            let wanted = self.inner.ordinal + 1;
            if slot.get() == wanted {
                return Ok(());
            }
            self.check(self.extras().set_current(self.inner.ordinal as c_int, self.inner.context))?;
            slot.set(wanted);
            Ok(())
        })
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.vendor() == other.vendor() && self.ordinal() == other.ordinal()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.label)
    }
}

impl Properties {
    #[track_caller]
    fn read(loaded: &LoadedDriver, device: c_int, id: &str) -> Result<Self> {
        let LoadedDriver { driver, extras } = loaded;
        let number = |attribute: Attribute| -> Result<u32> {
            let mut value: c_int = 0;
            // SAFETY: a valid out pointer and a device from device_get.
            let reply = unsafe { driver.device_attribute(&mut value, attribute.number(driver.vendor), device) };
            extras.check(reply, id)?;
            Ok(value.max(0) as u32)
        };
        // Facts for reports only: an old driver that does not know one must not stop the device.
        let hint = |attribute: Attribute| number(attribute).unwrap_or(0);
        let text = |fill: &dyn Fn(*mut c_char, c_int) -> c_int| -> String {
            let mut bytes = [0 as c_char; NAME_BYTES];
            if fill(bytes.as_mut_ptr(), bytes.len() as c_int) != 0 {
                return String::new();
            }
            bytes[NAME_BYTES - 1] = 0;
            // SAFETY: NUL-terminated by the line above.
            unsafe { CStr::from_ptr(bytes.as_ptr()) }.to_string_lossy().into_owned()
        };
        let mut memory_bytes = 0usize;
        // SAFETY: a valid out pointer and a device from device_get.
        extras.check(unsafe { driver.device_memory(&mut memory_bytes, device) }, id)?;
        let wave_width = number(Attribute::WaveWidth)?;
        let memory_clock_hz = 1000 * u64::from(hint(Attribute::MemoryClockKhz));
        let memory_bits_per_s = TRANSFERS_PER_CLOCK * memory_clock_hz * u64::from(hint(Attribute::MemoryBusBits));
        Ok(Self {
            // SAFETY: the buffer and its length belong together; a device from device_get.
            name: text(&|at, len| unsafe { driver.device_name(at, len, device) }.value),
            arch: extras.arch(driver, device, id)?,
            wave_width,
            n_multiprocessors: number(Attribute::Multiprocessors)?,
            memory_bytes,
            is_integrated: hint(Attribute::Integrated) != 0,
            max_threads_per_block: number(Attribute::MaxThreadsPerBlock)?,
            max_block: [number(Attribute::MaxBlockX)?, number(Attribute::MaxBlockY)?, number(Attribute::MaxBlockZ)?],
            max_grid: [number(Attribute::MaxGridX)?, number(Attribute::MaxGridY)?, number(Attribute::MaxGridZ)?],
            max_shared_bytes: number(Attribute::SharedPerBlock)?,
            threads_per_multiprocessor: hint(Attribute::ThreadsPerMultiprocessor),
            l2_bytes: hint(Attribute::L2Bytes) as usize,
            clock_khz: hint(Attribute::ClockKhz),
            memory_bytes_per_s: memory_bits_per_s / 8,
            // SAFETY: as for the name.
            pci: text(&|at, len| unsafe { driver.device_pci(at, len, device) }.value),
        })
    }

    /// The marketing name, or the architecture where the driver has no name.
    pub fn display_name(&self) -> &str {
        if self.name.is_empty() { &self.arch } else { &self.name }
    }
}
