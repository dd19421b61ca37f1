//! An image convolved with a filter, as a neural network does it: MIOpen or cuDNN.
//!
//!     cargo run -p roci-gpu-libs --example conv2d

use gpu::{Device, Queue, Vendor};
use gpu_libs::dnn::{Convolution, ConvolutionOptions, Dnn, Tensor, TensorMut, TensorShape};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Vendor::Amd, 0).or_else(|_| Device::open(Vendor::Nvidia, 0))?;
    let queue = Queue::new(&device)?;
    let dnn = Dnn::new(&queue)?;

    // One image of one channel, 4 x 6, brighter from left to right; a filter that sees vertical edges.
    let (image, filter) = (TensorShape::dense(&[1, 1, 4, 6])?, TensorShape::dense(&[1, 1, 3, 3])?);
    let pixels: Vec<f32> = (0..24).map(|i| if i % 6 < 3 { 0.0 } else { 1.0 }).collect();
    let sobel = [-1.0, 0.0, 1.0, -2.0, 0.0, 2.0, -1.0, 0.0, 1.0f32];
    let (x, w) = (queue.buffer_from(&pixels)?, queue.buffer_from(&sobel)?);

    let convolution = Convolution::<f32>::new(&dnn, &image, &filter, &ConvolutionOptions::dimensions(2))?;
    let shape = convolution.output().clone();
    let mut y = queue.alloc_zeroed::<f32>(shape.elements())?;
    let edges = TensorMut::new(y.all_mut(), shape)?;
    convolution.forward(Tensor::new(x.all(), image)?, Tensor::new(w.all(), filter)?, edges)?;

    let found = queue.read(y.all())?;
    println!("{found:?} by {}", dnn.library());
    assert_eq!(found, [0.0, 4.0, 4.0, 0.0, 0.0, 4.0, 4.0, 0.0]);
    Ok(())
}
