//! Compiles a kernel, runs it and reads the result: `cargo run -p roci-gpu --example add`.

use gpu::{Cache, Device, Grid, Module, Program, Queue, Slice, SliceMut};

const SOURCE: &str = r#"
extern "C" __global__ void add(const float* x, const float* y, float* sum, unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = x[i] + y[i];
}
"#;

gpu::args! {
    /// The kernel's parameters, in order. A kernel whose signature differs does not compile.
    struct Add<'a> {
        x: Slice<'a, f32>,
        y: Slice<'a, f32>,
        sum: SliceMut<'a, f32>,
        n: u32,
    }
}

fn main() -> gpu::Result<()> {
    let device = Device::first()?;
    let queue = Queue::new(&device)?;
    let program = Program::new("add", SOURCE).kernel::<Add>("add");
    let kernel = Module::load(&device, &program, &Cache::of_user())?.kernel::<Add>("add")?;

    let n = 1000;
    let x = queue.buffer_from(&vec![1.5f32; n])?;
    let y = queue.buffer_from(&vec![2.0f32; n])?;
    let mut sum = queue.alloc_zeroed::<f32>(n)?;
    let args = Add { x: x.all(), y: y.all(), sum: sum.all_mut(), n: n as u32 };
    queue.launcher().launch(&kernel, Grid::line((n as u32).div_ceil(256), 256), &args)?;

    let sum = queue.read(sum.all())?;
    assert!(sum.iter().all(|&number| number == 3.5));
    println!("{}: {n} sums of {}", device.label(), sum[0]);
    Ok(())
}
