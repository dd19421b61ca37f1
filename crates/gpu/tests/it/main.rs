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

/// Says why a test did nothing, or fails if `required_by` is set to 1.
#[track_caller]
fn skip(what: &str, why: &str, required_by: &str) {
    test_support::skip(&format!("{what}: {why}"), required_by);
}
