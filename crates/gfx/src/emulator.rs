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
    kernels: Mutex<HashMap<u64, (Descriptor, Loaded)>>,
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

    /// Runs the kernel whose descriptor lies at `descriptor_at`.
    pub fn dispatch(&self, descriptor_at: u64, launch: Launch) -> Result<Report, Error> {
        let (descriptor, loaded) = self.load(descriptor_at)?;
        let (name, counters) = match loaded {
            Loaded::Wave32(k) => (k.name.clone(), dispatch(k, self.memory.clone(), launch, self.options, &self.pool)?),
            Loaded::Wave64(k) => (k.name.clone(), dispatch(k, self.memory.clone(), launch, self.options, &self.pool)?),
        };
        Ok(self.report(name, counters, &descriptor, &launch))
    }

    /// The kernel's name, without running it.
    pub fn kernel_name(&self, descriptor_at: u64) -> String {
        code_object::name_in_memory(&self.memory, descriptor_at).unwrap_or_else(|| format!("?{descriptor_at:#x}"))
    }

    fn load(&self, at: u64) -> Result<(Descriptor, Loaded), Error> {
        let unreadable =
            || Error::Launch { kernel: format!("?{at:#x}"), what: "its descriptor is not in device memory".into() };
        let bytes = self.memory.read_bytes(at, Descriptor::BYTES).ok_or_else(unreadable)?;
        let descriptor = Descriptor::parse(&bytes).ok_or_else(unreadable)?;
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, loaded)) = kernels.get(&at)
            && *known == descriptor
        {
            let is_current = match loaded {
                Loaded::Wave32(k) => k.is_current(&self.memory),
                Loaded::Wave64(k) => k.is_current(&self.memory),
            };
            if is_current {
                return Ok((descriptor, loaded.clone()));
            }
        }
        let name = self.kernel_name(at);
        let entry = at.wrapping_add(descriptor.entry_offset as u64);
        let family = self.chip.family;
        let loaded = match descriptor.wave_lanes(family) {
            32 => Loaded::Wave32(Arc::new(Kernel::load(name, family, descriptor, entry, &self.memory)?)),
            _ => Loaded::Wave64(Arc::new(Kernel::load(name, family, descriptor, entry, &self.memory)?)),
        };
        kernels.insert(at, (descriptor, loaded.clone()));
        Ok((descriptor, loaded))
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
