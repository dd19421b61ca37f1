//! Main memory as the operating system reports it. Reads Linux's /proc and /sys; elsewhere the answer is `None` and
//! nothing is refused for lack of memory.

use std::fs;

/// Main memory in bytes.
#[derive(Debug, Clone, Copy)]
pub struct HostMemory {
    /// All there is.
    pub total_bytes: u64,
    /// What a program can take without pushing others out, with the container's limit taken into account.
    pub available_bytes: u64,
}

impl HostMemory {
    /// Reads it now; `None` where the system does not say.
    pub fn read() -> Option<Self> {
        let info = fs::read_to_string("/proc/meminfo").ok()?;
        let total_bytes = field_bytes(&info, "MemTotal:")?;
        let mut available_bytes = field_bytes(&info, "MemAvailable:")?;
        if let Some(left) = cgroup_left_bytes() {
            available_bytes = available_bytes.min(left);
        }
        Some(Self { total_bytes, available_bytes })
    }
}

/// What the container's limit leaves (cgroup v2), if there is one.
fn cgroup_left_bytes() -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // File pages count as used, but can be reclaimed.
    let stat = read("memory.stat").unwrap_or_default();
    let file = stat.lines().find_map(|line| line.strip_prefix("file ")?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(file)))
}

/// The most memory this process has held at once.
pub fn peak_bytes() -> Option<u64> {
    field_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// `Name:   123 kB` -> bytes.
fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_kilobyte_fields() {
        let text = "MemTotal:       24689664 kB\nMemFree: 1 kB\n";
        assert_eq!(super::field_bytes(text, "MemTotal:"), Some(24_689_664 * 1024));
        assert_eq!(super::field_bytes(text, "Mem:"), None);
        assert_eq!(super::field_bytes("VmHWM: x kB", "VmHWM:"), None);
    }
}
