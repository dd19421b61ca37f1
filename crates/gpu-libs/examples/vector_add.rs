//! A custom kernel: compiled at run time, typed arguments, no SDK.
//!
//!     cargo run -p roci-gpu-libs --example vector_add

use gpu::{Cache, Device, Grid, Module, Program, Queue, Slice, SliceMut, Vendor};

const SOURCE: &str = r#"
extern "C" __global__ void add(const float *x, const float *y, float *sum, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = x[i] + y[i];
}
"#;

gpu::args! {
    struct Add<'a> { x: Slice<'a, f32>, y: Slice<'a, f32>, sum: SliceMut<'a, f32>, n: u32 }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Vendor::Amd, 0).or_else(|_| Device::open(Vendor::Nvidia, 0))?;
    let queue = Queue::new(&device)?;
    let program = Program::new("vector_add", SOURCE).kernel::<Add>("add");
    let add = Module::load(&device, &program, &Cache::of_user())?.kernel::<Add>("add")?;

    let n = 1000;
    let (x, y) = (queue.buffer_from(&vec![1f32; n])?, queue.buffer_from(&vec![2f32; n])?);
    let mut sum = queue.alloc_zeroed::<f32>(n)?;
    let args = Add { x: x.all(), y: y.all(), sum: sum.all_mut(), n: n as u32 };
    queue.launcher().launch(&add, Grid::line(4, 256), &args)?;

    assert!(queue.read(sum.all())?.iter().all(|x| *x == 3.0));
    println!("{n} sums are right on {device:?}");
    Ok(())
}
