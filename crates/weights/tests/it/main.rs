//! The crate from outside: golden files from PyPI's `gguf`, lies field by field, mutations by the hundred thousand,
//! and the writer.

mod described;
mod golden;
mod heap;
mod hub;
mod lies;
mod mutation;
mod raw;
mod writer;

use std::path::PathBuf;

fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// A fresh, empty folder of its own for a test.
fn scratch(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
