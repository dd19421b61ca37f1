//! An op that waits: it only has the launcher, and that cannot.

fn op(launcher: &gpu::Launcher<'_>) {
    let _ = launcher.wait();
}

fn main() {}
