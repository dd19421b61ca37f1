//! Captures two launches as a graph and replays it: `cargo run -p roci-gpu --example graph`.
//!
//! Inside a capture there is only a `Launcher`: code that would allocate, wait or read back does not compile there.

use gpu::{Cache, Device, Grid, Module, Program, Queue, SliceMut};

const SOURCE: &str = r#"
extern "C" __global__ void twice(float* y, unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] *= 2.0f;
}
"#;

gpu::args! {
    struct Twice<'a> {
        y: SliceMut<'a, f32>,
        n: u32,
    }
}

fn main() -> gpu::Result<()> {
    let device = Device::first()?;
    let mut queue = Queue::new(&device)?;
    let program = Program::new("twice", SOURCE).kernel::<Twice>("twice");
    let kernel = Module::load(&device, &program, &Cache::of_user())?.kernel::<Twice>("twice")?;
    let mut y = queue.buffer_from(&[1f32; 256])?;
    let graph = queue.capture(|launcher| {
        for _ in 0..2 {
            launcher.launch(&kernel, Grid::line(1, 256), &Twice { y: y.all_mut(), n: 256 })?;
        }
        Ok::<(), gpu::Error>(())
    })?;
    for _ in 0..3 {
        queue.replay(&graph)?;
    }
    let y = queue.read(y.all())?;
    assert_eq!(y, [64.0; 256]);
    println!("{}: {} launches, replayed 3 times: {}", device.label(), graph.n_nodes(), y[0]);
    Ok(())
}
