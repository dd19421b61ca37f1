//! A kernel launched with the arguments of another.

use gpu::{Grid, Kernel, SliceMut};

gpu::args! {
    pub struct Fill<'a> { pub y: SliceMut<'a, f32>, pub n: u32 }
}
gpu::args! {
    pub struct Scale<'a> { pub y: SliceMut<'a, f32>, pub by: f32 }
}

fn scale(launcher: &gpu::Launcher<'_>, kernel: &Kernel<Fill<'static>>, y: &mut gpu::Buffer<f32>) -> gpu::Result<()> {
    launcher.launch(kernel, Grid::line(1, 64), &Scale { y: y.all_mut(), by: 2.0 })
}

fn main() {}
