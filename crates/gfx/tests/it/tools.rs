//! Finding what other people's programs these tests lean on.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Skips a test with a reason; under `CI=true` that is a failure.
pub fn skip(reason: &str) {
    assert!(!std::env::var("CI").is_ok_and(|v| v == "true"), "under CI=true this may not be skipped: {reason}");
    eprintln!("skipped: {reason}");
}

/// The crate's own folder.
pub fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What cargo built beside this test.
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    exe.ancestors().nth(2).expect("target/debug/deps/test").to_path_buf()
}

/// AMD's library folder, fetched when it is not there yet; `None` when no mirror answers.
pub fn rocm() -> Option<PathBuf> {
    let out = Command::new(crate_dir().join("fetch-rocm")).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    match (out.status.success(), text.lines().last()) {
        (true, Some(path)) => Some(PathBuf::from(path)),
        _ => {
            skip(&format!("AMD's packages: {}", String::from_utf8_lossy(&out.stderr).trim()));
            None
        }
    }
}

/// `patchelf`, which the run script needs.
pub fn has_patchelf() -> bool {
    let found = Command::new("patchelf").arg("--version").output().is_ok();
    if !found {
        skip("patchelf is missing (apt-get install patchelf)");
    }
    found
}
