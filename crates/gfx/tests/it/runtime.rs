//! AMD's unmodified HIP runtime, ROCr and hiprtc over the plug-in: the whole road, and faults on demand.

use std::process::{Command, Output};

use crate::tools;

/// Runs the smoke program through the run script with extra environment.
fn smoke(env: &[(&str, &str)]) -> Option<Output> {
    tools::rocm()?;
    if !tools::has_patchelf() {
        return None;
    }
    let target = tools::target_dir();
    let mut command = Command::new(tools::crate_dir().join("run"));
    command.arg(target.join("examples/hip-smoke")).env("GFX_MODEL_LIB", target.join("libgfx_model.so"));
    command.envs(env.iter().copied());
    Some(command.output().expect("the run script starts"))
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[test]
fn compile_copy_launch_event_memset_graph() {
    let Some(out) = smoke(&[]) else { return };
    assert!(out.status.success(), "{}", text(&out));
    for line in ["(gfx1100)", "rmsnorm: worst", "memset and device copy: right", "replayed 4 times: right", "ok\n"] {
        assert!(text(&out).contains(line), "no `{line}` in {}", text(&out));
    }
}
