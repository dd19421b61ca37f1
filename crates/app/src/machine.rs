//! What the operating system tells about this machine's processor. Reads Linux's /proc; elsewhere the name is `None`
//! and callers leave it out.

use std::fs;

/// The processor.
#[derive(Debug)]
pub struct Cpu {
    pub name: Option<String>,
    pub n_cores: usize,
    /// The instruction sets that matter to the kernels, those that are here.
    pub features: Vec<&'static str>,
}

impl Cpu {
    pub fn detect() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            name: name.map(|(_, name)| name.trim().to_owned()),
            n_cores: std::thread::available_parallelism().map_or(1, usize::from),
            features: features(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    macro_rules! detected {
        ($($name:tt),*) => { [$(($name, std::is_x86_feature_detected!($name))),*] };
    }
    let all = detected!("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vnni", "avxvnni", "avx512bf16");
    all.into_iter().filter(|(_, is_here)| *is_here).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}
