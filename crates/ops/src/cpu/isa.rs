//! Which instructions the CPU kernels may use, chosen once at start.
//!
//! `ROCI_ISA=plain|neon|avx2|avx512|zen4` asks for less than the machine has, so that each path can be tested on one machine.

use std::fmt;

#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub enum Isa {
    /// Portable Rust.
    Plain,
    /// What every 64-bit ARM has.
    Neon,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI, besides the above.
    Avx512,
    /// The same on a core that adds vectors while it multiplies others, as AMD's do from Zen 4 on: an addition more is
    /// cheaper there than a product.
    Zen4,
}

impl Isa {
    /// Those of this kind of machine, each with all the ones before it.
    #[cfg(target_arch = "aarch64")]
    const ALL: [Self; 2] = [Isa::Plain, Isa::Neon];
    #[cfg(not(target_arch = "aarch64"))]
    const ALL: [Self; 4] = [Isa::Plain, Isa::Avx2, Isa::Avx512, Isa::Zen4];

    /// The best set this machine has, or the lesser one that `ROCI_ISA` names.
    pub fn detect() -> Self {
        let best = Self::best();
        match std::env::var("ROCI_ISA").ok().and_then(|name| Self::from_name(&name)) {
            Some(asked) => asked.min(best),
            None => best,
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Isa::Plain => "plain",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Zen4 => "zen4",
        }
    }

    /// Every set this machine can run, for tests.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| *isa <= Self::best()).collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn best() -> Self {
        let has_avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let has_avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni");
        match (has_avx2, has_avx512) {
            (true, true) if is_amd() => Isa::Zen4,
            (true, true) => Isa::Avx512,
            (true, false) => Isa::Avx2,
            _ => Isa::Plain,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn best() -> Self {
        Isa::Neon
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn best() -> Self {
        Isa::Plain
    }
}

/// Whether AMD made this CPU, by the name it gives.
#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    let name = std::arch::x86_64::__cpuid(0);
    let words = [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes);
    words.as_flattened() == b"AuthenticAMD"
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
