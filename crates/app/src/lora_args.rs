//! The flags for adapters: which ones, and how much room they have.

use crate::model_file;
use anyhow::{Result, anyhow};
use rocinante::{Adapter, AdapterLimits, ModelFiles};
use std::path::{Path, PathBuf};

/// Adapters that are loaded while the server runs may have this rank, and so many of them are in memory at once.
const RUNTIME_RANK: usize = 64;
const RUNTIME_LOADED: usize = 8;

/// An adapter as it is typed: `NAME=PATH`, or a path whose last part is its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPath {
    pub name: String,
    pub path: PathBuf,
}

pub fn parse_lora(text: &str) -> Result<NamedPath, String> {
    let (name, path) = match text.split_once('=') {
        Some((name, path)) if !name.contains(['/', '\\']) => (Some(name), path),
        _ => (None, text),
    };
    let path = PathBuf::from(path);
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    match name.map(str::to_owned).or(stem).filter(|name| !name.is_empty()) {
        Some(name) => Ok(NamedPath { name, path }),
        None => Err("expected NAME=PATH".to_owned()),
    }
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Adapters")]
pub struct LoraArgs {
    /// Serve a LoRA adapter as a model with this name, and as MODEL:NAME; PATH is a folder from PEFT or a GGUF file;
    /// repeatable
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_lora)]
    pub lora: Vec<NamedPath>,
    /// Maximum number of adapters in memory and in one step [default: those of --lora; 8 with --allow-runtime-lora]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub max_loras: Option<u16>,
    /// The largest rank an adapter may have [default: that of --lora; 64 with --allow-runtime-lora]
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub max_lora_rank: Option<u16>,
    /// Let clients load adapters from paths on this machine (/v1/load_lora_adapter); with keys, only administrators
    #[arg(long)]
    pub allow_runtime_lora: bool,
}

impl LoraArgs {
    /// The adapters, opened and checked against the model in `path`.
    pub fn open(&self, path: &Path) -> Result<Vec<(String, Adapter)>> {
        if self.lora.is_empty() {
            return Ok(Vec::new());
        }
        let files = ModelFiles::open(path).map_err(|error| model_file::hinted(path, error))?;
        self.lora.iter().map(|lora| Ok((lora.name.clone(), open(&lora.path, &files)?))).collect()
    }

    /// The room that these adapters need, and those that come later.
    pub fn limits(&self, adapters: &[(String, Adapter)]) -> AdapterLimits {
        let later = |n: usize| if self.allow_runtime_lora { n } else { 0 };
        let max_rank = adapters.iter().map(|(_, adapter)| adapter.rank()).max().unwrap_or(0).max(later(RUNTIME_RANK));
        let max_loaded = adapters.len().max(later(RUNTIME_LOADED));
        AdapterLimits {
            max_loaded: self.max_loras.filter(|_| max_loaded > 0).map_or(max_loaded, usize::from),
            max_rank: self.max_lora_rank.map_or(max_rank, usize::from),
            has_experts: adapters.iter().any(|(_, adapter)| adapter.has_experts()),
        }
    }
}

/// Opens an adapter and checks that it is one of this model.
pub fn open(path: &Path, files: &ModelFiles) -> Result<Adapter> {
    let adapter = Adapter::open(path).map_err(|error| hinted(&error))?;
    adapter.check(files).map_err(|error| hinted(&error))?;
    Ok(adapter)
}

fn hinted(error: &rocinante::Error) -> anyhow::Error {
    let hint = "an adapter is a folder with adapter_config.json and adapter_model.safetensors, or a GGUF file made by \
                convert_lora_to_gguf.py, of the same model";
    let failed: Result<()> = crate::report::HintExt::hint(Err(anyhow!("{error}")), hint);
    failed.expect_err("it is an error")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths() {
        let check = |text: &str, name: &str, path: &str| {
            assert_eq!(parse_lora(text), Ok(NamedPath { name: name.to_owned(), path: path.into() }), "{text}");
        };
        check("sql=/data/sql-lora", "sql", "/data/sql-lora");
        check("/data/sql-lora", "sql-lora", "/data/sql-lora");
        check("adapters/a=b.gguf", "a=b", "adapters/a=b.gguf");
        check("x=y=z", "x", "y=z");
        assert!(parse_lora("").is_err());
        assert!(parse_lora("=path").is_err());
    }
}
