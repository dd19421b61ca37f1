//! The device: memory, threads, and kernels decoded once per descriptor address.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::chip::Chip;
use crate::code_object;
use crate::dispatch::{Launch, Options, dispatch};
use crate::error::Error;
use crate::exec::Counters;
use crate::kernel::{Descriptor, Kernel};
use crate::memory::Memory;
use crate::pool::Pool;

/// A kernel of either wave width.
#[derive(Clone)]
enum Loaded {
    Wave32(Arc<Kernel<32>>),
    Wave64(Arc<Kernel<64>>),
}

pub struct Emulator {
    pub chip: &'static Chip,
    pub memory: Arc<Memory>,
    pub options: Options,
    pool: Pool,
    kernels: Mutex<HashMap<u64, Known>>,
}

/// A kernel decoded before.
struct Known {
    ready: Ready,
    /// The list of allocations then: code does not change while that does not.
    generation: u64,
}

/// A kernel that can be run.
#[derive(Clone)]
pub struct Ready {
    descriptor: Descriptor,
    loaded: Loaded,
}

impl Ready {
    pub fn name(&self) -> &str {
        match &self.loaded {
            Loaded::Wave32(k) => &k.name,
            Loaded::Wave64(k) => &k.name,
        }
    }

    fn is_current(&self, memory: &Memory) -> bool {
        match &self.loaded {
            Loaded::Wave32(k) => k.is_current(memory),
            Loaded::Wave64(k) => k.is_current(memory),
        }
    }
}

/// What a dispatch did and needed.
#[derive(Clone, Debug)]
pub struct Report {
    pub kernel: String,
    pub counters: Counters,
    pub wave_lanes: u32,
    pub n_vgprs: u32,
    pub n_agprs: u32,
    pub lds_bytes: u32,
    pub private_bytes: u32,
    /// Waves a SIMD could hold at once, by registers and LDS; an estimate.
    pub occupancy: u32,
}

impl Emulator {
    pub fn new(chip: &'static Chip, options: Options) -> Result<Self, Error> {
        Self::with_memory(chip, options, Memory::new(options.is_checked))
    }

    /// One of several GPUs, whose memory shares its list of allocations with the others'.
    pub fn with_memory(chip: &'static Chip, options: Options, memory: Memory) -> Result<Self, Error> {
        #[cfg(target_arch = "x86_64")]
        if !std::arch::is_x86_feature_detected!("avx2") || !std::arch::is_x86_feature_detected!("fma") {
            return Err(Error::Cpu);
        }
        Ok(Emulator {
            chip,
            memory: Arc::new(memory),
            options,
            pool: Pool::new(options.n_threads.max(1)),
            kernels: Mutex::default(),
        })
    }

    /// Runs a kernel.
    pub fn dispatch(&self, kernel: &Ready, launch: Launch) -> Result<Report, Error> {
        let counters = match &kernel.loaded {
            Loaded::Wave32(k) => dispatch(k.clone(), self.memory.clone(), launch, self.options, &self.pool)?,
            Loaded::Wave64(k) => dispatch(k.clone(), self.memory.clone(), launch, self.options, &self.pool)?,
        };
        Ok(self.report(kernel.name().to_string(), counters, &kernel.descriptor, &launch))
    }

    /// The kernel whose descriptor lies at this address, decoded when it is first met or another has taken its place.
    pub fn kernel(&self, at: u64) -> Result<Ready, Error> {
        let unreadable =
            || Error::Launch { kernel: format!("?{at:#x}"), what: "its descriptor is not in device memory".into() };
        let generation = self.memory.generation();
        let bytes = self.memory.read_bytes(at, Descriptor::BYTES).ok_or_else(unreadable)?;
        let descriptor = Descriptor::parse(&bytes).ok_or_else(unreadable)?;
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kernels.get_mut(&at)
            && known.ready.descriptor == descriptor
            && (known.generation == generation || known.ready.is_current(&self.memory))
        {
            known.generation = generation;
            return Ok(known.ready.clone());
        }
        let name = code_object::name_in_memory(&self.memory, at).unwrap_or_else(|| format!("?{at:#x}"));
        let entry = at.wrapping_add(descriptor.entry_offset as u64);
        let family = self.chip.family;
        let loaded = match descriptor.wave_lanes(family) {
            32 => Loaded::Wave32(Arc::new(Kernel::load(name, family, descriptor, entry, &self.memory)?)),
            _ => Loaded::Wave64(Arc::new(Kernel::load(name, family, descriptor, entry, &self.memory)?)),
        };
        let ready = Ready { descriptor, loaded };
        kernels.insert(at, Known { ready: ready.clone(), generation });
        Ok(ready)
    }

    fn report(&self, kernel: String, counters: Counters, d: &Descriptor, launch: &Launch) -> Report {
        let (n_vgprs, n_agprs) = d.n_vgprs(self.chip.family);
        let wave_lanes = d.wave_lanes(self.chip.family);
        let lds_bytes = launch.lds_bytes.max(d.lds_bytes);
        let granule = self.chip.vgpr_granule;
        // A 64-lane wave on 32-lane hardware takes two registers for each it names.
        let per_wave = (n_vgprs + n_agprs).next_multiple_of(granule) * wave_lanes / self.chip.wave_lanes;
        let by_registers = self.chip.vgprs_per_simd / per_wave.max(1);
        let waves_per_group = launch.workgroup.iter().product::<u32>().div_ceil(wave_lanes).max(1);
        let by_lds = match lds_bytes {
            0 => u32::MAX,
            n => (self.chip.lds_bytes_per_cu / n.max(1) * waves_per_group).div_ceil(self.chip.simds_per_cu),
        };
        let occupancy = by_registers.min(by_lds).min(self.chip.waves_per_simd);
        let private_bytes = launch.private_bytes.max(d.private_bytes);
        Report { kernel, counters, wave_lanes, n_vgprs, n_agprs, lds_bytes, private_bytes, occupancy }
    }
}
