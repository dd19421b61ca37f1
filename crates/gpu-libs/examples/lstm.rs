//! A recurrent network: one LSTM cell that counts up by what it is given, and forgets nothing.
//!
//!     cargo run -p roci-gpu-libs --example lstm

use gpu::{Device, Queue, Vendor};
use gpu_libs::dnn::{Dnn, Rnn, RnnCell, RnnGate, RnnOptions, RnnSource, RnnState, RnnStateMut, RnnWay};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Vendor::Amd, 0).or_else(|_| Device::open(Vendor::Nvidia, 0))?;
    let queue = Queue::new(&device)?;
    let dnn = Dnn::new(&queue)?;

    // One sequence of four steps, one number in each; a state of one number.
    let rnn = Rnn::<f32>::new(&dnn, RnnOptions::new(RnnCell::Lstm, 1, 1), &[4])?;
    let mut weights = vec![0f32; rnn.weights()];
    let part = |gate| rnn.part(0, RnnWay::Forwards, gate, RnnSource::Input);
    // What is new is tanh(x / 10); gates are open where their sums are large.
    weights[part(RnnGate::Cell)?.matrix][0] = 0.1;
    for gate in [RnnGate::Input, RnnGate::Forget, RnnGate::Output] {
        weights[part(gate)?.bias.ok_or("a network with biases")?][0] = 20.0;
    }

    let (weights, x) = (queue.buffer_from(&weights)?, queue.buffer_from(&[1.0f32, 2.0, 3.0, 4.0])?);
    let (h, c) = (queue.alloc_zeroed::<f32>(1)?, queue.alloc_zeroed::<f32>(1)?);
    let (mut y, mut last_h, mut last_c) =
        (queue.alloc_zeroed::<f32>(4)?, queue.alloc_zeroed::<f32>(1)?, queue.alloc_zeroed::<f32>(1)?);
    let first = RnnState { hidden: h.all(), cell: Some(c.all()) };
    let last = RnnStateMut { hidden: last_h.all_mut(), cell: Some(last_c.all_mut()) };
    rnn.forward(weights.all(), x.all(), Some(first), y.all_mut(), Some(last))?;

    let (found, count) = (queue.read(y.all())?, queue.read(last_c.all())?[0]);
    println!("{found:.3?}, the cell holds {count:.3}, by {}", dnn.library());
    let truth: f32 = [0.1f32, 0.2, 0.3, 0.4].iter().map(|x| x.tanh()).sum();
    assert!((count - truth).abs() < 1e-4 && (found[3] - truth.tanh()).abs() < 1e-4);
    Ok(())
}
