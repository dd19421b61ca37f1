//! Softmax, activations, pooling, normalisation, reductions and dropout.

use gpu::Queue;
use gpu_libs::dnn::{
    Activation, BatchNorm, BatchNormGradients, BatchNormMode, BatchNormParameters, BatchNormSaved, BatchNormStatistics,
    Dnn, Dropout, LayerNormGradients, LayerNormParameters, LayerNormSaved, Pooling, PoolingMode, PoolingOptions,
    Reduction, SoftmaxKind, SoftmaxOver, Tensor, TensorMut, TensorShape,
};
use gpu_libs::{Error, Result};
use half::f16;

use super::super::{on_each, read, refused, upload};
use super::{Case, From32};

fn softmax_like<T: From32>(
    queue: &Queue,
    name: &str,
    kind: SoftmaxKind,
    over: SoftmaxOver,
    bounds: [f64; 2],
) -> Result<()> {
    let (case, dnn) = (Case::named(name), Dnn::new(queue)?);
    let (x, y, dy) = (case.tensor("x"), case.tensor("y"), case.tensor("dy"));
    let (at_x, mut at_y) = (x.upload::<T>(queue), y.room::<T>(queue));
    dnn.softmax(kind, over, Tensor::dense(at_x.all(), &x.lengths)?, TensorMut::dense(at_y.all_mut(), &x.lengths)?)?;
    y.check(queue, &at_y, bounds[0]);
    let (at_dy, mut dx) = (dy.upload::<T>(queue), x.room::<T>(queue));
    let result = Tensor::dense(at_y.all(), &x.lengths)?;
    let gradient = Tensor::dense(at_dy.all(), &x.lengths)?;
    dnn.softmax_backward(kind, over, result, gradient, TensorMut::dense(dx.all_mut(), &x.lengths)?)?;
    case.tensor("dx").check(queue, &dx, bounds[1]);
    Ok(())
}

#[test]
fn softmax_over_channels() {
    on_each(|queue| {
        let (kind, over) = (SoftmaxKind::Probabilities, SoftmaxOver::Channels);
        softmax_like::<f32>(queue, "softmax_channels", kind, over, [1e-6, 1e-5])?;
        softmax_like::<f16>(queue, "softmax_channels", kind, over, [1e-3, 5e-3])
    });
}

#[test]
fn softmax_over_all() {
    let (kind, over) = (SoftmaxKind::Probabilities, SoftmaxOver::All);
    on_each(|queue| softmax_like::<f32>(queue, "softmax_all", kind, over, [1e-6, 1e-5]));
}

#[test]
fn softmax_logarithms() {
    let (kind, over) = (SoftmaxKind::Logarithms, SoftmaxOver::Channels);
    on_each(|queue| softmax_like::<f32>(queue, "log_softmax_channels", kind, over, [1e-6, 1e-5]));
}

fn activation(queue: &Queue, name: &str, by: Activation) -> Result<()> {
    let (case, dnn) = (Case::named(name), Dnn::new(queue)?);
    let (x, y, dy) = (case.tensor("x"), case.tensor("y"), case.tensor("dy"));
    let lengths = &x.lengths;
    let (at_x, mut at_y) = (x.upload::<f32>(queue), y.room::<f32>(queue));
    dnn.activate(by, Tensor::dense(at_x.all(), lengths)?, TensorMut::dense(at_y.all_mut(), lengths)?)?;
    y.check(queue, &at_y, 2e-6);
    let (at_dy, mut dx) = (dy.upload::<f32>(queue), x.room::<f32>(queue));
    let (from, to) = (Tensor::dense(at_x.all(), lengths)?, Tensor::dense(at_y.all(), lengths)?);
    let gradient = Tensor::dense(at_dy.all(), lengths)?;
    dnn.activate_backward(by, from, to, gradient, TensorMut::dense(dx.all_mut(), lengths)?)?;
    case.tensor("dx").check(queue, &dx, 4e-6);
    Ok(())
}

#[test]
fn activations() {
    on_each(|queue| {
        activation(queue, "activation_sigmoid", Activation::Sigmoid)?;
        activation(queue, "activation_tanh", Activation::Tanh)?;
        activation(queue, "activation_relu", Activation::Relu)?;
        activation(queue, "activation_clipped_relu", Activation::ClippedRelu { limit: 0.75 })?;
        activation(queue, "activation_elu", Activation::Elu { alpha: 1.5 })
    });
}

/// Those that one library alone has; the other one's answer is an error.
#[test]
fn activations_of_one_library() {
    on_each(|queue| {
        let amd = [
            ("activation_leaky_relu", Activation::LeakyRelu { slope: 0.25 }),
            ("activation_softplus", Activation::Softplus),
            ("activation_abs", Activation::Abs),
        ];
        let nvidia = [("activation_swish", Activation::Swish { beta: 1.0 })];
        let (has, lacks) = queue.device().vendor().pick((&amd[..], &nvidia[..]), (&nvidia[..], &amd[..]));
        for (name, by) in has {
            activation(queue, name, *by)?;
        }
        for (name, by) in lacks {
            assert!(matches!(activation(queue, name, *by), Err(Error::Unsupported { .. })));
        }
        Ok(())
    });
}

fn pooling<T: From32>(queue: &Queue, name: &str, options: &PoolingOptions, bound: f64) -> Result<()> {
    let (case, dnn) = (Case::named(name), Dnn::new(queue)?);
    let (x, y, dy) = (case.tensor("x"), case.tensor("y"), case.tensor("dy"));
    let mut pooling = Pooling::<T>::new(&dnn, &TensorShape::dense(&x.lengths)?, options)?;
    assert_eq!(pooling.output().lengths(), y.lengths);
    let (at_x, mut at_y) = (x.upload::<T>(queue), y.room::<T>(queue));
    let from = Tensor::dense(at_x.all(), &x.lengths)?;
    pooling.forward(from.clone(), TensorMut::dense(at_y.all_mut(), &y.lengths)?)?;
    y.check(queue, &at_y, bound);
    let mut at_y = y.room::<T>(queue);
    pooling.forward_training(from.clone(), TensorMut::dense(at_y.all_mut(), &y.lengths)?)?;
    y.check(queue, &at_y, bound);
    let (at_dy, mut dx) = (dy.upload::<T>(queue), x.room::<T>(queue));
    let (to, gradient) = (Tensor::dense(at_y.all(), &y.lengths)?, Tensor::dense(at_dy.all(), &y.lengths)?);
    pooling.backward(from, to, gradient, TensorMut::dense(dx.all_mut(), &x.lengths)?)?;
    case.tensor("dx").check(queue, &dx, bound);
    Ok(())
}

#[test]
fn pooling_of_planes() {
    on_each(|queue| {
        let options = |mode| PoolingOptions::new(mode, &[3, 2]).stride(2).padding(1);
        pooling::<f32>(queue, "pooling_max", &options(PoolingMode::Max), 1e-7)?;
        pooling::<f16>(queue, "pooling_max", &options(PoolingMode::Max), 1e-3)?;
        pooling::<f32>(queue, "pooling_average", &options(PoolingMode::Average), 1e-6)?;
        pooling::<f32>(queue, "pooling_average_padded", &options(PoolingMode::AverageWithPadding), 1e-6)
    });
}

#[test]
fn pooling_in_space() {
    on_each(|queue| {
        pooling::<f32>(queue, "pooling_max_space", &PoolingOptions::new(PoolingMode::Max, &[2; 3]), 1e-7)?;
        pooling::<f32>(queue, "pooling_average_space", &PoolingOptions::new(PoolingMode::Average, &[2; 3]), 1e-6)
    });
}

fn batch_norm<T: From32>(queue: &Queue, name: &str, mode: BatchNormMode, bound: f64) -> Result<()> {
    let (case, dnn) = (Case::named(name), Dnn::new(queue)?);
    let (x, y, dy) = (case.tensor("x"), case.tensor("y"), case.tensor("dy"));
    let norm = BatchNorm::<T>::new(&dnn, &TensorShape::dense(&x.lengths)?, mode)?;
    let known = |key: &str| case.tensor(key).upload::<f32>(queue);
    let room = |key: &str| case.tensor(key).room::<f32>(queue);
    let (scale, bias, mut mean, mut variance) = (known("scale"), known("bias"), known("mean"), known("variance"));
    assert_eq!(norm.parameters(), scale.len());
    let by = BatchNormParameters { scale: scale.all(), bias: bias.all() };
    let (at_x, mut at_y) = (x.upload::<T>(queue), y.room::<T>(queue));
    let from = Tensor::dense(at_x.all(), &x.lengths)?;

    let to = TensorMut::dense(at_y.all_mut(), &x.lengths)?;
    norm.inference(from.clone(), by, mean.all(), variance.all(), 1e-3, to)?;
    case.tensor("known").check(queue, &at_y, bound);

    let mut at_y = y.room::<T>(queue);
    let (mut saved_mean, mut deviation) = (room("saved_mean"), room("saved_inverse_deviation"));
    let mut saved = BatchNormSaved { mean: saved_mean.all_mut(), inverse_deviation: deviation.all_mut() };
    let running = BatchNormStatistics { factor: 0.25, mean: mean.all_mut(), variance: variance.all_mut() };
    let to = TensorMut::dense(at_y.all_mut(), &x.lengths)?;
    norm.training(from.clone(), by, Some(running), 1e-3, &mut saved, to)?;

    let (at_dy, mut dx) = (dy.upload::<T>(queue), x.room::<T>(queue));
    let (mut ds, mut db) = (room("ds"), room("db"));
    let (gradient, to) = (Tensor::dense(at_dy.all(), &x.lengths)?, TensorMut::dense(dx.all_mut(), &x.lengths)?);
    let gradients = BatchNormGradients { x: to, scale: ds.all_mut(), bias: db.all_mut() };
    norm.backward(from, gradient, scale.all(), 1e-3, &saved, gradients)?;

    y.check(queue, &at_y, bound);
    for (key, found) in [("running_mean", &mean), ("running_variance", &variance), ("saved_mean", &saved_mean)] {
        case.tensor(key).check(queue, found, 1e-5);
    }
    case.tensor("saved_inverse_deviation").check(queue, &deviation, 1e-5);
    case.tensor("dx").check(queue, &dx, 4.0 * bound);
    case.tensor("ds").check(queue, &ds, 4.0 * bound);
    case.tensor("db").check(queue, &db, 4.0 * bound);
    Ok(())
}

#[test]
fn batch_norm_of_channels() {
    on_each(|queue| {
        batch_norm::<f32>(queue, "batch_norm_channels", BatchNormMode::Channels, 2e-6)?;
        batch_norm::<f16>(queue, "batch_norm_channels", BatchNormMode::Channels, 1e-3)
    });
}

#[test]
fn batch_norm_of_places() {
    on_each(|queue| batch_norm::<f32>(queue, "batch_norm_places", BatchNormMode::Places, 2e-6));
}

#[test]
fn layer_norm() {
    on_each(|queue| {
        let (case, dnn) = (Case::named("layer_norm"), Dnn::new(queue)?);
        let (x, w, y, dy) = (case.tensor("x"), case.tensor("w"), case.tensor("y"), case.tensor("dy"));
        let (at_x, at_w, at_b) = (x.upload::<f32>(queue), w.upload::<f32>(queue), case.tensor("b").upload(queue));
        let (mut at_y, at_dy) = (y.room::<f32>(queue), dy.upload::<f32>(queue));
        let (mut mean, mut deviation) = (queue.alloc_zeroed::<f32>(6)?, queue.alloc_zeroed::<f32>(6)?);
        let mut saved = LayerNormSaved {
            mean: TensorMut::dense(mean.all_mut(), &[2, 3])?,
            inverse_deviation: TensorMut::dense(deviation.all_mut(), &[2, 3])?,
        };
        let (from, weight) = (Tensor::dense(at_x.all(), &x.lengths)?, Tensor::dense(at_w.all(), &[8])?);
        let bias = Tensor::dense(at_b.all(), &[8])?;
        let by = LayerNormParameters { weight: weight.clone(), bias, epsilon: 1e-3 };
        let done = dnn.layer_norm(from.clone(), by, TensorMut::dense(at_y.all_mut(), &x.lengths)?, &mut saved);
        if queue.device().vendor() == gpu::Vendor::Nvidia {
            assert!(matches!(done, Err(Error::Unsupported { .. })));
            return Ok(());
        }
        done?;
        let (mut dx, mut dw, mut db) = (x.room::<f32>(queue), w.room::<f32>(queue), w.room::<f32>(queue));
        let gradients = LayerNormGradients {
            x: TensorMut::dense(dx.all_mut(), &x.lengths)?,
            weight: TensorMut::dense(dw.all_mut(), &[8])?,
            bias: TensorMut::dense(db.all_mut(), &[8])?,
        };
        dnn.layer_norm_backward(from, weight, &saved, Tensor::dense(at_dy.all(), &x.lengths)?, gradients)?;
        y.check(queue, &at_y, 2e-6);
        case.tensor("mean").check(queue, &mean, 1e-6);
        case.tensor("inverse_deviation").check(queue, &deviation, 1e-6);
        case.tensor("dx").check(queue, &dx, 1e-5);
        case.tensor("dw").check(queue, &dw, 1e-5);
        case.tensor("db").check(queue, &db, 1e-5);
        Ok(())
    });
}

#[test]
fn reductions() {
    on_each(|queue| {
        let (case, dnn) = (Case::named("reduce"), Dnn::new(queue)?);
        let x = case.tensor("x");
        let at_x = x.upload::<f32>(queue);
        let from = || Tensor::dense(at_x.all(), &x.lengths).unwrap();
        for (key, reduction) in [
            ("sum", Reduction::Sum),
            ("mean", Reduction::Mean),
            ("max", Reduction::Max),
            ("min", Reduction::Min),
            ("max_abs", Reduction::MaxAbs),
            ("sum_abs", Reduction::SumAbs),
            ("norm", Reduction::Norm),
            ("all", Reduction::Sum),
        ] {
            let y = case.tensor(key);
            let mut at_y = y.room::<f32>(queue);
            dnn.reduce(reduction, from(), TensorMut::dense(at_y.all_mut(), &y.lengths)?)?;
            y.check(queue, &at_y, 1e-6);
        }
        // A product of small numbers: the golden one is of quarters.
        let quarters: Vec<f32> = x.data.iter().map(|x| *x as f32 / 4.0).collect();
        let (at_x, y) = (upload(queue, &quarters), case.tensor("product"));
        let mut at_y = y.room::<f32>(queue);
        let from_quarters = Tensor::dense(at_x.all(), &x.lengths)?;
        dnn.reduce(Reduction::Product, from_quarters, TensorMut::dense(at_y.all_mut(), &y.lengths)?)?;
        y.check(queue, &at_y, 1e-6);
        Ok(())
    });
}

#[test]
fn reductions_with_indices() {
    on_each(|queue| {
        let (case, dnn) = (Case::named("reduce"), Dnn::new(queue)?);
        let (x, y, places) = (case.tensor("x"), case.tensor("max"), case.tensor("max_index"));
        let (at_x, mut at_y) = (x.upload::<f32>(queue), y.room::<f32>(queue));
        let mut indices = queue.alloc_zeroed::<u32>(places.data.len())?;
        let (from, to) = (Tensor::dense(at_x.all(), &x.lengths)?, TensorMut::dense(at_y.all_mut(), &y.lengths)?);
        dnn.reduce_with_indices(Reduction::Max, from, to, indices.all_mut())?;
        y.check(queue, &at_y, 1e-7);
        let found: Vec<f64> = read(queue, indices.all()).into_iter().map(f64::from).collect();
        assert_eq!(found, places.data);
        Ok(())
    });
}

/// No golden data: what comes out is defined by what went in and by the mask, which the gradient shows.
#[test]
fn dropout() {
    on_each(|queue| {
        let dnn = Dnn::new(queue)?;
        let (lengths, n) = ([4, 8, 8, 8], 2048);
        let x = upload(queue, &vec![3f32; n]);
        let run = |dropout: &mut Dropout| -> Result<(Vec<f32>, Vec<f32>)> {
            let (mut y, mut dx) = (upload(queue, &vec![7f32; n]), upload(queue, &vec![7f32; n]));
            let from = Tensor::dense(x.all(), &lengths)?;
            let mask = dropout.forward(from.clone(), TensorMut::dense(y.all_mut(), &lengths)?)?;
            dropout.backward(&mask, from, TensorMut::dense(dx.all_mut(), &lengths)?)?;
            Ok((read(queue, y.all()), read(queue, dx.all())))
        };
        let (mut dropout, mut again) = (Dropout::new(&dnn, 0.25, 42)?, Dropout::new(&dnn, 0.25, 42)?);
        let (y, dx) = run(&mut dropout)?;
        assert!(y.iter().all(|y| *y == 0.0 || (*y - 4.0).abs() < 1e-5), "neither zero nor 3 / 0.75");
        assert_eq!(y, dx);
        let zeroes = y.iter().filter(|y| **y == 0.0).count();
        // Four standard deviations of a binomial distribution are 78.
        assert!((512 - 78..=512 + 78).contains(&zeroes), "{zeroes} of {n} are zero, expected 512");
        assert_eq!(run(&mut again)?.0, y, "the same seed");
        assert_ne!(run(&mut dropout)?.0, y, "the generator goes on");
        assert_ne!(run(&mut Dropout::new(&dnn, 0.25, 43)?)?.0, y, "another seed");
        Ok(())
    });
}

#[test]
fn layers_misuse() {
    on_each(|queue| {
        let dnn = Dnn::new(queue)?;
        let x = queue.alloc_zeroed::<f32>(24)?;
        let (mut y, mut short) = (queue.alloc_zeroed::<f32>(24)?, queue.alloc_zeroed::<f32>(6)?);
        let from = || Tensor::dense(x.all(), &[2, 3, 2, 2]).unwrap();
        let (kind, over) = (SoftmaxKind::Probabilities, SoftmaxOver::Channels);
        let wrong = TensorMut::dense(y.all_mut(), &[2, 3, 4, 1])?;
        refused(dnn.softmax(kind, over, from(), wrong), "[2, 3, 2, 2] is due");
        refused(dnn.reduce(Reduction::Sum, from(), TensorMut::dense(y.all_mut(), &[2, 2, 1, 1])?), "cannot become");
        let mut indices = queue.alloc_zeroed::<u32>(5)?;
        let to = TensorMut::dense(short.all_mut(), &[2, 3, 1, 1])?;
        refused(dnn.reduce_with_indices(Reduction::Max, from(), to, indices.all_mut()), "5 indices of 6");
        let to = TensorMut::dense(short.all_mut(), &[2, 3, 1, 1])?;
        refused(dnn.reduce_with_indices(Reduction::Sum, from(), to, indices.all_mut()), "no single place");
        refused(Dropout::new(&dnn, 1.0, 1), "probability of 1");

        let shape = TensorShape::dense(&[2, 3, 2, 2])?;
        let max = PoolingOptions::new(PoolingMode::Max, &[2, 2]);
        refused(Pooling::<f32>::new(&dnn, &shape, &max.clone().padding(2)), "padding of 2");
        refused(Pooling::<f32>::new(&dnn, &shape, &PoolingOptions::new(PoolingMode::Max, &[3, 2])), "window of 3 in 2");
        let pooling = Pooling::<f32>::new(&dnn, &shape, &max)?;
        let (small, large) = (Tensor::dense(x.all(), &[2, 3, 1, 1])?, TensorMut::dense(y.all_mut(), &[2, 3, 2, 2])?);
        refused(pooling.backward(from(), small.clone(), small, large), "before forward_training");

        let norm = BatchNorm::<f32>::new(&dnn, &shape, BatchNormMode::Channels)?;
        let four = queue.alloc_zeroed::<f32>(4)?;
        let by = BatchNormParameters { scale: four.all(), bias: four.all() };
        let to = TensorMut::dense(y.all_mut(), &[2, 3, 2, 2])?;
        refused(norm.inference(from(), by, four.all(), four.all(), 1e-3, to), "4 parameters where 3 are due");

        let other = Queue::new(queue.device())?;
        let foreign = other.alloc_zeroed::<f32>(24)?;
        let from = Tensor::dense(foreign.all(), &[2, 3, 2, 2])?;
        refused(dnn.activate(Activation::Relu, from, TensorMut::dense(y.all_mut(), &[2, 3, 2, 2])?), "queue");
        Ok(())
    });
}

/// An operation that needs more memory than the caller's workspace has is refused before the library runs.
#[test]
fn workspace_of_the_caller() {
    on_each(|queue| {
        let case = Case::named("reduce");
        let (x, y) = (case.tensor("x"), case.tensor("all"));
        let dnn = Dnn::with_workspace(queue, queue.alloc_zeroed::<u8>(1 << 20)?)?;
        let (at_x, mut at_y) = (x.upload::<f32>(queue), y.room::<f32>(queue));
        let from = Tensor::dense(at_x.all(), &x.lengths)?;
        dnn.reduce(Reduction::Sum, from, TensorMut::dense(at_y.all_mut(), &y.lengths)?)?;
        y.check(queue, &at_y, 1e-5);
        Ok(())
    });
}
