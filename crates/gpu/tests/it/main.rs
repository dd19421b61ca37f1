//! The crate's integration tests, one binary. What needs a GPU runs on each one that is there, and is
//! skipped with a reason where there is none; `ROCI_REQUIRE_GPU=1` turns that skip into a failure.

mod absent;
#[path = "../../examples/selftest/checks.rs"]
mod checks;
mod device;
mod headers;
mod mistakes;
mod offline;

/// Does nothing, unless this process was started as a child of another test.
#[test]
fn child() {
    gpu::discovery::answer_if_asked();
    checks::play_if_asked();
}

/// How to start a child of this binary that runs only `child`.
fn child_command() -> (std::path::PathBuf, Vec<String>) {
    let program = std::env::current_exe().expect("a test has a path");
    (program, ["--exact", "child", "--nocapture"].map(String::from).to_vec())
}

/// Say why a test did nothing; fail instead where hardware is required.
fn skip(what: &str, why: &str, required_by: &str) {
    let is_required = std::env::var(required_by).is_ok_and(|value| value == "1");
    assert!(!is_required, "{what} cannot run, and {required_by}=1 requires it: {why}");
    eprintln!("skipped: {what}: {why}");
}
