//! Writes the folder that `HSA_MODEL_TOPOLOGY` names, laid out like the kernel driver's own: node 0 the CPU, then the GPUs,
//! each linked with the CPU and with every other. ROCr reads the same files on a machine with cards.

use std::fs;
use std::path::Path;

use crate::chip::Chip;
use crate::error::Error;
use crate::isa::Family;

/// The first SIMD's id; any number above the CPU's works.
const SIMD_BASE: u64 = 2147487744;
/// ASIC revision, doorbell type and coherence bits; no debugger support, which the hook does not have.
const CAPABILITY: u64 = 0x0800_2280;
/// `HSA_CAP_SRAM_EDCSUPPORTED`: Instinct accelerators run with it, and the runtime then says `sramecc+`.
const SRAM_ECC: u64 = 0x0400_0000;
const CPU_MEMORY: u64 = 16 << 30;

fn put(dir: &Path, name: &str, text: &str) -> Result<(), Error> {
    let path = dir.join(name);
    let fail = |source| Error::Io { path: path.display().to_string(), source };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(fail)?;
    }
    fs::write(&path, text).map_err(fail)
}

fn properties(rows: &[(&str, u64)]) -> String {
    rows.iter().map(|(k, v)| format!("{k} {v}\n")).collect()
}

fn link(from: u64, to: u64) -> String {
    properties(&[
        ("type", 2),
        ("version_major", 0),
        ("version_minor", 0),
        ("node_from", from),
        ("node_to", to),
        ("weight", if from == 0 || to == 0 { 20 } else { 40 }),
        ("min_latency", 0),
        ("max_latency", 0),
        ("min_bandwidth", 312),
        ("max_bandwidth", 16000),
        ("recommended_transfer_size", 0),
        // Enabled; no bit that takes atomics over the link away, or ROCr starts no host calls (printf).
        ("flags", 1),
    ])
}

fn bank(heap: u64, n_bytes: u64, width: u64, clock: u64) -> String {
    properties(&[
        ("heap_type", heap),
        ("size_in_bytes", n_bytes),
        ("flags", 0),
        ("width", width),
        ("mem_clk_max", clock),
    ])
}

/// Fills `dir` (created when missing) with the description of a machine with so many of `chip`.
pub fn write(chip: &Chip, n_gpus: u64, dir: &Path) -> Result<(), Error> {
    put(dir, "generation_id", "2\n")?;
    put(dir, "system_properties", "platform_oem 0\nplatform_id 0\nplatform_rev 0\n")?;
    for node in (0..=n_gpus).map(|n| format!("nodes/{n}")) {
        // The reader lists these folders even when they are empty.
        for folder in ["caches", "io_links", "p2p_links", "mem_banks"] {
            let path = dir.join(&node).join(folder);
            fs::create_dir_all(&path).map_err(|source| Error::Io { path: path.display().to_string(), source })?;
        }
    }
    let n_cpus = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
    put(dir, "nodes/0/gpu_id", "0\n")?;
    put(dir, "nodes/0/name", "\n")?;
    put(dir, "nodes/0/mem_banks/0/properties", &bank(0, CPU_MEMORY, 64, 1600))?;
    for gpu in 1..=n_gpus {
        put(dir, &format!("nodes/0/io_links/{}/properties", gpu - 1), &link(0, gpu))?;
    }
    let cpu = [
        ("cpu_cores_count", n_cpus),
        ("simd_count", 0),
        ("mem_banks_count", 1),
        ("caches_count", 0),
        ("io_links_count", n_gpus),
        ("p2p_links_count", 0),
        ("cpu_core_id_base", 0),
        ("simd_id_base", 0),
        ("max_waves_per_simd", 0),
        ("lds_size_in_kb", 0),
        ("gds_size_in_kb", 0),
        ("wave_front_size", 0),
        ("array_count", 0),
        ("simd_arrays_per_engine", 0),
        ("cu_per_simd_array", 0),
        ("simd_per_cu", 0),
        ("max_slots_scratch_cu", 0),
        ("gfx_target_version", 0),
        ("vendor_id", 0),
        ("device_id", 0),
        ("location_id", 0),
        ("domain", 0),
        ("drm_render_minor", 0),
        ("hive_id", 0),
        ("num_sdma_engines", 0),
        ("num_sdma_xgmi_engines", 0),
        ("num_sdma_queues_per_engine", 0),
        ("num_cp_queues", 0),
        ("max_engine_clk_ccompute", 3000),
    ];
    put(dir, "nodes/0/properties", &properties(&cpu))?;
    (1..=n_gpus).try_for_each(|node| gpu(chip, node, n_gpus, &dir.join(format!("nodes/{node}"))))
}

fn gpu(chip: &Chip, node: u64, n_gpus: u64, dir: &Path) -> Result<(), Error> {
    // The hook wants a GPU id of node + 1.
    put(dir, "gpu_id", &format!("{}\n", node + 1))?;
    put(dir, "name", &format!("{}\n", chip.codename))?;
    let others = (0..=n_gpus).filter(|other| *other != node);
    for (n, other) in others.enumerate() {
        put(dir, &format!("io_links/{n}/properties"), &link(node, other))?;
    }
    let simd_base = SIMD_BASE + 4096 * (node - 1);
    let clock = chip.memory_clock_mhz as u64;
    put(dir, "mem_banks/0/properties", &bank(1, chip.vram_bytes, chip.memory_width_bits as u64, clock))?;
    for (n, kib) in chip.caches_kib.iter().enumerate() {
        let rows = [
            ("processor_id_low", simd_base),
            ("level", n as u64 + 1),
            ("size", *kib as u64),
            ("cache_line_size", 128),
            ("cache_lines_per_tag", 1),
            ("association", 16),
            ("latency", 1),
            ("type", 9),
            ("sibling_map", 1),
        ];
        put(dir, &format!("caches/{n}/properties"), &properties(&rows))?;
    }
    let rows = [
        ("cpu_cores_count", 0),
        ("simd_count", chip.n_simds as u64),
        ("mem_banks_count", 1),
        ("caches_count", chip.caches_kib.len() as u64),
        ("io_links_count", n_gpus),
        ("p2p_links_count", 0),
        ("cpu_core_id_base", 0),
        ("simd_id_base", simd_base),
        ("max_waves_per_simd", chip.waves_per_simd as u64),
        ("lds_size_in_kb", 64),
        ("gds_size_in_kb", 0),
        ("num_gws", 0), // cooperative launches need the driver
        ("wave_front_size", chip.wave_lanes as u64),
        ("array_count", chip.n_arrays as u64),
        ("simd_arrays_per_engine", chip.arrays_per_engine as u64),
        ("cu_per_simd_array", chip.cus_per_array as u64),
        ("simd_per_cu", chip.simds_per_cu as u64),
        ("max_slots_scratch_cu", 32),
        ("gfx_target_version", chip.target_version as u64),
        ("vendor_id", 4098),
        ("device_id", chip.device_id as u64),
        ("location_id", 512 + 256 * node),
        ("domain", 0),
        ("drm_render_minor", 127 + node),
        ("hive_id", 0),
        ("num_sdma_engines", 2),
        ("num_sdma_xgmi_engines", 0),
        ("num_sdma_queues_per_engine", 6),
        ("num_cp_queues", 8),
        ("max_engine_clk_fcompute", chip.engine_clock_mhz as u64),
        ("local_mem_size", chip.vram_bytes),
        ("fw_version", chip.firmware as u64),
        ("capability", CAPABILITY | if chip.family == Family::Cdna3 { SRAM_ECC } else { 0 }),
        ("debug_prop", 1511),
        ("sdma_fw_version", 22),
        ("unique_id", 1311768467463790319 + node),
        ("num_xcc", 1),
        ("max_engine_clk_ccompute", 3000),
    ];
    put(dir, "properties", &properties(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_the_runtime_lists_is_there() {
        for chip in &crate::chip::CHIPS {
            let dir = std::env::temp_dir().join(format!("gfx-topology-{}-{}", chip.name, std::process::id()));
            write(chip, 2, &dir).unwrap();
            for node in 0..3 {
                for folder in ["caches", "io_links", "p2p_links", "mem_banks"] {
                    assert!(dir.join(format!("nodes/{node}/{folder}")).is_dir());
                }
            }
            let text = fs::read_to_string(dir.join("nodes/2/properties")).unwrap();
            let peer = fs::read_to_string(dir.join("nodes/2/io_links/1/properties")).unwrap();
            assert!(peer.contains("node_from 2\nnode_to 1\n"), "{peer}");
            assert!(text.contains(&format!("gfx_target_version {}\n", chip.target_version)));
            let capability = text.lines().find_map(|line| line.strip_prefix("capability ")).unwrap();
            assert_eq!(capability.parse::<u64>().unwrap() & SRAM_ECC != 0, chip.name == "gfx942", "{}", chip.name);
            fs::remove_dir_all(&dir).unwrap();
        }
    }
}
