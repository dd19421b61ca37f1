//! The chips that can be stood in for, as data: instruction set, wave width, and what the topology folder says.

use crate::error::Error;
use crate::isa::Family;

#[derive(Debug, PartialEq, Eq)]
pub struct Chip {
    /// As compilers name it.
    pub name: &'static str,
    pub family: Family,
    /// `gfx_target_version` of the driver: major * 10000 + minor * 100 + step.
    pub target_version: u32,
    pub marketing_name: &'static str,
    pub codename: &'static str,
    pub device_id: u32,
    pub wave_lanes: u32,
    pub n_simds: u32,
    pub simds_per_cu: u32,
    pub n_arrays: u32,
    pub arrays_per_engine: u32,
    pub cus_per_array: u32,
    pub waves_per_simd: u32,
    pub vram_bytes: u64,
    pub memory_width_bits: u32,
    pub memory_clock_mhz: u32,
    pub engine_clock_mhz: u32,
    /// KiB of each cache level, first to last.
    pub caches_kib: &'static [u32],
    pub firmware: u32,
    /// Vector registers a SIMD has per lane, for occupancy.
    pub vgprs_per_simd: u32,
    pub vgpr_granule: u32,
    pub lds_bytes_per_cu: u32,
}

pub const CHIPS: [Chip; 4] = [
    Chip {
        name: "gfx1100",
        family: Family::Rdna3,
        target_version: 110000,
        marketing_name: "Radeon RX 7900 XTX (software model)",
        codename: "navi31",
        device_id: 0x744c,
        wave_lanes: 32,
        n_simds: 192,
        simds_per_cu: 2,
        n_arrays: 12,
        arrays_per_engine: 2,
        cus_per_array: 8,
        waves_per_simd: 16,
        vram_bytes: 16 << 30,
        memory_width_bits: 384,
        memory_clock_mhz: 1249,
        engine_clock_mhz: 2482,
        caches_kib: &[32, 6144, 98304],
        firmware: 550,
        vgprs_per_simd: 1536,
        vgpr_granule: 24,
        lds_bytes_per_cu: 64 << 10,
    },
    Chip {
        name: "gfx1151",
        family: Family::Rdna3,
        target_version: 110501,
        marketing_name: "Radeon 8060S (software model)",
        codename: "gfx1151",
        device_id: 0x1586,
        wave_lanes: 32,
        n_simds: 80,
        simds_per_cu: 2,
        n_arrays: 4,
        arrays_per_engine: 2,
        cus_per_array: 10,
        waves_per_simd: 16,
        vram_bytes: 16 << 30,
        memory_width_bits: 256,
        memory_clock_mhz: 1000,
        engine_clock_mhz: 2900,
        caches_kib: &[32, 2048, 32768],
        firmware: 32,
        vgprs_per_simd: 1536,
        vgpr_granule: 24,
        lds_bytes_per_cu: 64 << 10,
    },
    Chip {
        name: "gfx1201",
        family: Family::Rdna4,
        target_version: 120001,
        marketing_name: "Radeon RX 9070 XT (software model)",
        codename: "gfx1201",
        device_id: 0x7550,
        wave_lanes: 32,
        n_simds: 128,
        simds_per_cu: 2,
        n_arrays: 8,
        arrays_per_engine: 2,
        cus_per_array: 8,
        waves_per_simd: 16,
        vram_bytes: 16 << 30,
        memory_width_bits: 256,
        memory_clock_mhz: 1258,
        engine_clock_mhz: 2970,
        caches_kib: &[32, 8192, 65536],
        firmware: 100,
        vgprs_per_simd: 1536,
        vgpr_granule: 24,
        lds_bytes_per_cu: 64 << 10,
    },
    Chip {
        name: "gfx942",
        family: Family::Cdna3,
        target_version: 90402,
        marketing_name: "Instinct MI300X (software model)",
        codename: "aqua_vanjaram",
        device_id: 0x74a1,
        wave_lanes: 64,
        n_simds: 1216,
        simds_per_cu: 4,
        n_arrays: 32,
        arrays_per_engine: 1,
        cus_per_array: 10,
        waves_per_simd: 8,
        vram_bytes: 16 << 30,
        memory_width_bits: 8192,
        memory_clock_mhz: 1300,
        engine_clock_mhz: 2100,
        caches_kib: &[32, 4096, 262144],
        firmware: 177,
        vgprs_per_simd: 512,
        vgpr_granule: 8,
        lds_bytes_per_cu: 64 << 10,
    },
];

/// The names, for messages.
pub fn known() -> String {
    CHIPS.map(|c| c.name).join(", ")
}

impl Chip {
    pub fn find(name: &str) -> Result<&'static Chip, Error> {
        CHIPS.iter().find(|c| c.name == name).ok_or_else(|| Error::Chip(name.to_string()))
    }
}
