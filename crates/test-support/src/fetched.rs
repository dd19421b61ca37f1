//! Files that `./check` fetches (`scripts/fetch.py`) and names in the environment. A test asks for one and is skipped
//! with the reason if it is not there, or fails with `ROCI_REQUIRE_MODEL=1` or `ROCI_REQUIRE_PYTHON=1`.

use crate::skip::skip;
use std::path::{Path, PathBuf};
use std::process::Command;

/// SmolLM2-135M-Instruct, Q4_1.
pub const SMOLLM2: &str = "ROCI_SMOLLM2";
/// Gemma 3 270M, Q4_K_M.
pub const GEMMA3: &str = "ROCI_GEMMA3";
/// TinyLlama 1.1B, IQ2_XXS: fetched by `./check --all`.
pub const TINYLLAMA: &str = "ROCI_TINYLLAMA";
/// Qwen2.5-Coder 1.5B, Q4_K_M: fetched by `./check --all`.
pub const QWEN25_CODER: &str = "ROCI_QWEN25_CODER";
/// The folder `models` of llama.cpp's sources: vocabularies and chat templates.
pub const VOCABULARIES: &str = "ROCI_VOCAB_DIR";

/// The file or folder that a variable names.
#[track_caller]
pub fn path(variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    match &found {
        Some(path) => assert!(path.exists(), "{variable} names {}, which does not exist", path.display()),
        None => skip(&format!("{variable} names no file; ./check fetches one"), "ROCI_REQUIRE_MODEL"),
    }
    found
}

/// A Python that can import all of `modules`: `ROCI_PYTHON`, or the one on the path.
#[track_caller]
pub fn python(modules: &[&str]) -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os("ROCI_PYTHON").unwrap_or_else(|| "python3".into()));
    match missing_module(&python, modules) {
        None => Some(python),
        Some(reason) => {
            let advice = "name a Python that can in ROCI_PYTHON";
            skip(&format!("{}: {reason}; {advice}", python.display()), "ROCI_REQUIRE_PYTHON");
            None
        }
    }
}

fn missing_module(python: &Path, modules: &[&str]) -> Option<String> {
    match Command::new(python).args(["-c", &format!("import {}", modules.join(", "))]).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr);
            Some(words.lines().last().unwrap_or("the import failed").to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_without_the_module_is_named() {
        let reason = missing_module(Path::new("/nonexistent/python3"), &["gguf"]).unwrap();
        assert!(reason.contains("No such file"), "{reason}");
    }
}
