//! A kernel that writes what others may be reading.

fn write(launcher: &gpu::Launcher<'_>, buffer: &gpu::Buffer<f32>) -> gpu::Result<()> {
    launcher.zero(buffer.all_mut())
}

fn main() {}
