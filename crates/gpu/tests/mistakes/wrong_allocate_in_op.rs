//! An op that allocates: it only has the launcher, and that cannot.

fn op(launcher: &gpu::Launcher<'_>) {
    let _ = launcher.alloc::<f32>(16);
}

fn main() {}
