//! Memory that some other library took, by its address, in a capture: only what a queue made can be named.

gpu::args! {
    struct Fill<'a> {
        out: gpu::SliceMut<'a, f32>,
    }
}

fn replay_into(queue: &mut gpu::Queue, kernel: &gpu::Kernel<Fill<'static>>, address: u64) {
    let grid = gpu::Grid::line(1, 32);
    let _ = queue.capture(|launcher| launcher.launch(kernel, grid, &Fill { out: address }));
}

fn main() {}
