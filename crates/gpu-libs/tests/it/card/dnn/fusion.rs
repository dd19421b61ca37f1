//! Fused layers.

use gpu::{Queue, Vendor};
use gpu_libs::dnn::{
    Activation, BatchNormMode, BatchNormParameters, ConvolutionOptions, Dnn, FusedBatchNorm, FusedConvolution, Tensor,
    TensorMut, TensorShape,
};
use gpu_libs::{Error, Result};

use super::super::{on_each, refused};
use super::{Case, From32};

fn convolution<T: From32>(queue: &Queue, name: &str, bound: f64) -> Result<()> {
    let case = Case::named(name);
    let (x, w, y) = (case.tensor("x"), case.tensor("w"), case.tensor("y"));
    let (of_x, of_w) = (TensorShape::dense(&x.lengths)?, TensorShape::dense(&w.lengths)?);
    let options = ConvolutionOptions::dimensions(2).padding(case.number("padding"));
    let fused = FusedConvolution::<T>::new(&Dnn::new(queue)?, &of_x, &of_w, &options, Activation::Relu)?;
    assert_eq!(fused.output().lengths(), y.lengths);
    let (at_x, at_w, mut at_y) = (x.upload::<T>(queue), w.upload::<T>(queue), y.room::<T>(queue));
    let bias = case.tensor("bias").upload::<T>(queue);
    let to = TensorMut::dense(at_y.all_mut(), &y.lengths)?;
    fused.forward(Tensor::new(at_x.all(), of_x)?, Tensor::new(at_w.all(), of_w)?, bias.all(), to)?;
    y.check(queue, &at_y, bound);
    Ok(())
}

/// MIOpen has kernels for few of these on each chip: what it has is right, what it lacks is said to be lacking.
#[test]
fn convolution_bias_and_activation() {
    on_each(|queue| {
        for name in ["fused_convolution", "fused_convolution_3x3"] {
            match convolution::<f32>(queue, name, 2e-6) {
                Err(Error::Unsupported { library, what }) if queue.device().vendor() == Vendor::Amd => {
                    assert!(what.contains("fused convolution") && what.contains("Relu"), "{what}");
                    println!("{library} has no {what}");
                }
                result => result?,
            }
        }
        Ok(())
    });
}

#[test]
fn batch_norm_and_activation() {
    on_each(|queue| {
        let case = Case::named("fused_batch_norm");
        let (x, y) = (case.tensor("x"), case.tensor("y"));
        let shape = TensorShape::dense(&x.lengths)?;
        let dnn = Dnn::new(queue)?;
        let fused = FusedBatchNorm::<f32>::new(&dnn, &shape, BatchNormMode::Channels, Activation::Relu);
        if queue.device().vendor() == Vendor::Nvidia {
            assert!(matches!(fused, Err(Error::Unsupported { .. })));
            return Ok(());
        }
        let fused = fused?;
        let [scale, bias, mean, variance] =
            ["scale", "bias", "mean", "variance"].map(|key| case.tensor(key).upload::<f32>(queue));
        let by = BatchNormParameters { scale: scale.all(), bias: bias.all() };
        let (at_x, mut at_y) = (x.upload::<f32>(queue), y.room::<f32>(queue));
        let (from, to) = (Tensor::new(at_x.all(), shape.clone())?, TensorMut::new(at_y.all_mut(), shape.clone())?);
        fused.inference(from.clone(), by, mean.all(), variance.all(), 1e-3, to)?;
        y.check(queue, &at_y, 2e-6);
        let (few, to) = (mean.slice(..3)?, TensorMut::new(at_y.all_mut(), shape)?);
        refused(fused.inference(from, by, few, variance.all(), 1e-3, to), "3 parameters where 4 are due");
        Ok(())
    });
}
