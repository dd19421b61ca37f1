//! One buffer as an input and an output that the kernel was told do not overlap.

use gpu::{Grid, Kernel, Slice, SliceMut};

gpu::args! {
    pub struct Add<'a> { pub x: Slice<'a, f32>, pub y: SliceMut<'a, f32>, pub n: u32 }
}

fn add(launcher: &gpu::Launcher<'_>, kernel: &Kernel<Add<'static>>, y: &mut gpu::Buffer<f32>) -> gpu::Result<()> {
    launcher.launch(kernel, Grid::line(1, 64), &Add { x: y.all(), y: y.all_mut(), n: 4 })
}

fn main() {}
