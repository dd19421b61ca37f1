//! How much memory a model may take on a device. A discrete card has its own; an integrated one shares
//! the machine's, so the kernel's GTT, MemAvailable and the cgroup's limit each bound it, and they are
//! read separately (APU memory mis-sized is one of the most reported faults of other engines).
//!
//! Reading and deciding are apart: `Budget::decide` is pure.

use std::fs;
use std::path::{Path, PathBuf};

use crate::device::{Device, Memory};
use crate::error::Result;

/// What was read, and what follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// What may be allocated now.
    pub usable_bytes: usize,
    /// What sets that bound.
    pub bound: Bound,
    /// What the driver reports.
    pub device: Memory,
    /// System memory the GPU may map (amdgpu on Linux).
    pub gtt: Option<Gtt>,
    /// What the system has left, which bounds integrated GPUs.
    pub host: SystemMemory,
}

/// What limits an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// Free memory as the driver reports it.
    DeviceFree,
    /// VRAM carve-out and GTT together.
    Gtt,
    /// What the kernel says is available (`MemAvailable`).
    MemAvailable,
    /// The limit of a cgroup around this process, for example a container.
    Cgroup,
}

/// System memory that amdgpu may map for the GPU, as sysfs reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gtt {
    /// The limit that the driver was given.
    pub total_bytes: usize,
    /// What all processes have mapped of it.
    pub used_bytes: usize,
}

/// System memory that is left, where it can be read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SystemMemory {
    /// `MemAvailable` of `/proc/meminfo`.
    pub available_bytes: Option<usize>,
    /// What the tightest cgroup around this process still allows.
    pub cgroup_left_bytes: Option<usize>,
}

impl Budget {
    /// Asks the driver and the system now.
    #[track_caller]
    pub fn read(device: &Device) -> Result<Self> {
        let properties = device.properties();
        let memory = device.memory()?;
        Ok(Self::decide(properties.is_integrated, memory, Gtt::read(&properties.pci), SystemMemory::read()))
    }

    /// The smallest of what bounds this kind of device.
    pub fn decide(is_integrated: bool, device: Memory, gtt: Option<Gtt>, host: SystemMemory) -> Self {
        let mut least = (device.free_bytes, Bound::DeviceFree);
        if is_integrated {
            // The driver's "free" may count only the carve-out, or memory the machine does not have free.
            if let Some(gtt) = gtt {
                least = (device.free_bytes.max(gtt.total_bytes.saturating_sub(gtt.used_bytes)), Bound::Gtt);
            }
            let bounds = [(host.available_bytes, Bound::MemAvailable), (host.cgroup_left_bytes, Bound::Cgroup)];
            for (bytes, bound) in bounds.into_iter().filter_map(|(bytes, bound)| Some((bytes?, bound))) {
                if bytes < least.0 {
                    least = (bytes, bound);
                }
            }
        }
        Self { usable_bytes: least.0, bound: least.1, device, gtt, host }
    }
}

impl Gtt {
    fn read(pci: &str) -> Option<Self> {
        let folder = Path::new("/sys/bus/pci/devices").join(pci.to_lowercase());
        let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
        Some(Self { total_bytes: number("mem_info_gtt_total")?, used_bytes: number("mem_info_gtt_used")? })
    }
}

impl SystemMemory {
    /// Reads `/proc` and the cgroups now.
    pub fn read() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let cgroup_left_bytes = cgroup_left(&own, Path::new("/sys/fs/cgroup"));
        Self { available_bytes: mem_available(&meminfo), cgroup_left_bytes }
    }
}

fn mem_available(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// The least that any cgroup from this process's up to the root still allows (v2), or v1's one limit.
fn cgroup_left(own: &str, root: &Path) -> Option<usize> {
    let read = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    let unified = own.lines().find_map(|line| line.strip_prefix("0::"));
    let mut left: Option<usize> = None;
    let mut note = |limit: Option<usize>, used: Option<usize>| {
        if let (Some(limit), Some(used)) = (limit, used) {
            let here = limit.saturating_sub(used);
            left = Some(left.map_or(here, |so_far| so_far.min(here)));
        }
    };
    if let Some(path) = unified {
        for folder in Path::new(path.trim_start_matches('/')).ancestors() {
            let folder = root.join(folder);
            note(read(folder.join("memory.max")), read(folder.join("memory.current")));
        }
    }
    let v1 = root.join("memory");
    // Version 1 writes "no limit" as a number near 2^63.
    let limit = read(v1.join("memory.limit_in_bytes")).filter(|limit| *limit < 1 << 60);
    note(limit, read(v1.join("memory.usage_in_bytes")));
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    fn device(free: usize) -> Memory {
        Memory { free_bytes: free * GIB, total_bytes: 64 * GIB }
    }

    #[test]
    fn a_discrete_card_is_bounded_by_its_own_memory() {
        let host = SystemMemory { available_bytes: Some(GIB), cgroup_left_bytes: Some(GIB) };
        let budget = Budget::decide(false, device(20), None, host);
        assert_eq!((budget.usable_bytes, budget.bound), (20 * GIB, Bound::DeviceFree));
    }

    #[test]
    fn an_integrated_one_by_whatever_is_least() {
        let gtt = Some(Gtt { total_bytes: 32 * GIB, used_bytes: 2 * GIB });
        let host = |available, cgroup| SystemMemory { available_bytes: available, cgroup_left_bytes: cgroup };
        let decide = |host| {
            let budget = Budget::decide(true, device(1), gtt, host);
            (budget.usable_bytes / GIB, budget.bound)
        };
        assert_eq!(decide(host(None, None)), (30, Bound::Gtt));
        assert_eq!(decide(host(Some(12 * GIB), None)), (12, Bound::MemAvailable));
        assert_eq!(decide(host(Some(12 * GIB), Some(4 * GIB))), (4, Bound::Cgroup));
        assert_eq!(decide(host(Some(60 * GIB), Some(50 * GIB))), (30, Bound::Gtt));
    }

    #[test]
    fn meminfo_and_cgroups_are_read() {
        let meminfo = "MemTotal:       65810504 kB\nMemFree:  1 kB\nMemAvailable:   52000000 kB\n";
        assert_eq!(mem_available(meminfo), Some(52_000_000 * 1024));
        assert_eq!(mem_available("MemAvailable: lots\n"), None);
        let root = std::env::temp_dir().join(format!("gpu-cgroup-{}", std::process::id()));
        let inner = root.join("user/app");
        fs::create_dir_all(&inner).unwrap();
        for (folder, max, current) in [(root.join("user"), "1000", "400"), (inner, "max", "10")] {
            fs::write(folder.join("memory.max"), max).unwrap();
            fs::write(folder.join("memory.current"), current).unwrap();
        }
        assert_eq!(cgroup_left("0::/user/app\n", &root), Some(600));
        assert_eq!(cgroup_left("0::/other\n", &root), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
