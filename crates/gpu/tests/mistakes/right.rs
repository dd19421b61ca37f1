//! The work the `wrong_*` files do wrongly, done right. It compiles; it needs a GPU to run, so it
//! only runs where one is asked for.

use gpu::{Device, Grid, Kernel, Queue, Slice, SliceMut, Timed, Vendor};

gpu::args! {
    pub struct Add<'a> { pub x: Slice<'a, f32>, pub y: SliceMut<'a, f32>, pub n: u32 }
}

fn work(kernel: &Kernel<Add<'static>>) -> gpu::Result<()> {
    let device = Device::open(Vendor::Amd, 0)?;
    let (mut queue, other) = (Queue::new(&device)?, Queue::new(&device)?);
    let (x, mut y) = (queue.buffer_from(&[1f32; 4])?, queue.alloc_zeroed::<f32>(4)?);
    let graph = queue.capture(|l| l.launch(kernel, Grid::line(1, 64), &Add { x: x.all(), y: y.all_mut(), n: 4 }))?;
    let start = queue.record::<Timed>()?;
    queue.replay(&graph)?;
    let _took = queue.record::<Timed>()?.since(&start)?;
    let pending = queue.download(y.all(), queue.pinned(4)?)?;
    let host = pending.wait()?;
    assert_eq!(host[0], 1.0);
    let theirs = queue.hand_over(x, &other)?;
    other.read(theirs.all())?;
    std::thread::spawn(move || other.wait()).join().unwrap()
}

fn main() {
    let _ = work;
}
