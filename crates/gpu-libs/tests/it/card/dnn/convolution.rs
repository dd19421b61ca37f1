//! Convolutions: forward, both gradients, the bias's.

use gpu::Queue;
use gpu_libs::Result;
use gpu_libs::dnn::{Convolution, ConvolutionOptions, Dnn, Pass, Tensor, TensorMut, TensorShape};
use half::{bf16, f16};

use super::super::{on_each, read, refused, upload};
use super::{Case, From32};

fn options(case: &Case, dimensions: usize) -> ConvolutionOptions {
    let number = |key| case.number(key);
    let options = ConvolutionOptions::dimensions(dimensions).padding(number("padding")).stride(number("stride"));
    options.dilation(number("dilation")).groups(number("groups"))
}

fn forward<T: From32>(queue: &Queue, name: &str, bound: f64) -> Result<()> {
    let (case, dnn) = (Case::named(name), Dnn::new(queue)?);
    let (x, w, y) = (case.tensor("x"), case.tensor("w"), case.tensor("y"));
    let (shape_x, shape_w) = (TensorShape::dense(&x.lengths)?, TensorShape::dense(&w.lengths)?);
    let convolution = Convolution::<T>::new(&dnn, &shape_x, &shape_w, &options(&case, x.lengths.len() - 2))?;
    assert_eq!(convolution.output().lengths(), y.lengths);
    let (at_x, at_w, mut at_y) = (x.upload::<T>(queue), w.upload::<T>(queue), y.room::<T>(queue));
    let (from, filter) = (Tensor::new(at_x.all(), shape_x)?, Tensor::new(at_w.all(), shape_w)?);
    convolution.forward(from, filter, TensorMut::dense(at_y.all_mut(), &y.lengths)?)?;
    y.check(queue, &at_y, bound);
    Ok(())
}

fn gradients<T: From32>(queue: &Queue, name: &str, bound: f64) -> Result<()> {
    let (case, dnn) = (Case::named(name), Dnn::new(queue)?);
    let (x, w, dy) = (case.tensor("x"), case.tensor("w"), case.tensor("dy"));
    let (shape_x, shape_w) = (TensorShape::dense(&x.lengths)?, TensorShape::dense(&w.lengths)?);
    let convolution = Convolution::<T>::new(&dnn, &shape_x, &shape_w, &options(&case, x.lengths.len() - 2))?;
    let (at_x, at_w, at_dy) = (x.upload::<T>(queue), w.upload::<T>(queue), dy.upload::<T>(queue));
    let gradient = || Tensor::dense(at_dy.all(), &dy.lengths);

    let mut dx = x.room::<T>(queue);
    convolution.backward_data(
        gradient()?,
        Tensor::new(at_w.all(), shape_w.clone())?,
        TensorMut::new(dx.all_mut(), shape_x.clone())?,
    )?;
    case.tensor("dx").check(queue, &dx, bound);

    let mut dw = w.room::<T>(queue);
    convolution.backward_weights(
        gradient()?,
        Tensor::new(at_x.all(), shape_x)?,
        TensorMut::new(dw.all_mut(), shape_w)?,
    )?;
    case.tensor("dw").check(queue, &dw, bound);

    let db = case.tensor("db");
    let mut at_db = db.room::<T>(queue);
    convolution.backward_bias(gradient()?, at_db.all_mut())?;
    db.check(queue, &at_db, bound);
    Ok(())
}

#[test]
fn convolution_forward() {
    on_each(|queue| forward::<f32>(queue, "convolution_plain", 1e-6));
}

#[test]
fn convolution_in_groups_with_strides() {
    on_each(|queue| forward::<f32>(queue, "convolution_strided_groups", 1e-6));
}

#[test]
fn convolution_dilated() {
    on_each(|queue| forward::<f32>(queue, "convolution_dilated", 1e-6));
}

#[test]
fn convolution_of_single_elements() {
    on_each(|queue| forward::<f32>(queue, "convolution_pointwise", 1e-6));
}

#[test]
fn convolution_of_lines() {
    on_each(|queue| forward::<f32>(queue, "convolution_line", 1e-6));
}

#[test]
fn convolution_in_space() {
    on_each(|queue| forward::<f32>(queue, "convolution_space", 1e-6));
}

#[test]
fn convolution_of_halves() {
    on_each(|queue| {
        forward::<f16>(queue, "convolution_plain", 1e-3)?;
        forward::<bf16>(queue, "convolution_plain", 8e-3)
    });
}

#[test]
fn convolution_gradients() {
    on_each(|queue| gradients::<f32>(queue, "convolution_plain", 1e-6));
}

#[test]
fn convolution_gradients_in_groups() {
    on_each(|queue| gradients::<f32>(queue, "convolution_strided_groups", 1e-6));
}

#[test]
fn convolution_channels_last() {
    on_each(|queue| {
        let (case, dnn) = (Case::named("convolution_plain"), Dnn::new(queue)?);
        let (x, w, y) = (case.tensor("x"), case.tensor("w"), case.tensor("y"));
        let (shape_x, shape_w) = (TensorShape::channels_last(&x.lengths)?, TensorShape::channels_last(&w.lengths)?);
        let convolution = Convolution::<f32>::new(&dnn, &shape_x, &shape_w, &options(&case, 2))?;
        // Element (n, c, h, w) of a dense list, in the order of the shape's memory.
        let turned = |data: &[f64], shape: &TensorShape| {
            let mut list = vec![0f32; data.len()];
            let (l, s) = (shape.lengths(), shape.strides());
            for (i, value) in data.iter().enumerate() {
                let at = [i / (l[1] * l[2] * l[3]), i / (l[2] * l[3]) % l[1], i / l[3] % l[2], i % l[3]];
                list[at.iter().zip(s).map(|(i, step)| i * step).sum::<usize>()] = *value as f32;
            }
            list
        };
        let at_x = upload(queue, &turned(&x.data, &shape_x));
        let at_w = upload(queue, &turned(&w.data, &shape_w));
        let mut at_y = y.room::<f32>(queue);
        let shape_y = convolution.output().clone();
        let (from, filter) = (Tensor::new(at_x.all(), shape_x)?, Tensor::new(at_w.all(), shape_w)?);
        convolution.forward(from, filter, TensorMut::new(at_y.all_mut(), shape_y.clone())?)?;
        super::super::close(&read(queue, at_y.all()), &turned(&y.data, &shape_y), 1e-6);
        Ok(())
    });
}

/// Every way that the library offers gives the same.
#[test]
fn convolution_by_each_solution() {
    on_each(|queue| {
        let (case, dnn) = (Case::named("convolution_plain"), Dnn::new(queue)?);
        let (x, w, y) = (case.tensor("x"), case.tensor("w"), case.tensor("y"));
        let (shape_x, shape_w) = (TensorShape::dense(&x.lengths)?, TensorShape::dense(&w.lengths)?);
        let mut convolution = Convolution::<f32>::new(&dnn, &shape_x, &shape_w, &options(&case, 2))?;
        let solutions = convolution.solutions(Pass::Forward)?;
        assert!(!solutions.is_empty());
        for solution in solutions {
            println!("{solution:?}");
            convolution.choose(solution)?;
            let (at_x, at_w, mut at_y) = (x.upload::<f32>(queue), w.upload::<f32>(queue), y.room::<f32>(queue));
            let (from, filter) = (Tensor::new(at_x.all(), shape_x.clone())?, Tensor::new(at_w.all(), shape_w.clone())?);
            convolution.forward(from, filter, TensorMut::dense(at_y.all_mut(), &y.lengths)?)?;
            y.check(queue, &at_y, 1e-6);
        }
        Ok(())
    });
}

/// Measuring compiles and runs all there is, which takes long on the software GPU.
#[test]
#[ignore = "compiles and runs every solution of two passes"]
fn convolution_found_by_measuring() {
    on_each(|queue| {
        let (case, dnn) = (Case::named("convolution_plain"), Dnn::new(queue)?);
        let (x, w, y) = (case.tensor("x"), case.tensor("w"), case.tensor("y"));
        let (shape_x, shape_w) = (TensorShape::dense(&x.lengths)?, TensorShape::dense(&w.lengths)?);
        let mut convolution = Convolution::<f32>::new(&dnn, &shape_x, &shape_w, &options(&case, 2))?;
        for solution in convolution.find(Pass::Forward)? {
            println!("{solution:?}");
            convolution.choose(solution)?;
            let (at_x, at_w, mut at_y) = (x.upload::<f32>(queue), w.upload::<f32>(queue), y.room::<f32>(queue));
            let (from, filter) = (Tensor::new(at_x.all(), shape_x.clone())?, Tensor::new(at_w.all(), shape_w.clone())?);
            convolution.forward(from, filter, TensorMut::dense(at_y.all_mut(), &y.lengths)?)?;
            y.check(queue, &at_y, 1e-6);
        }
        Ok(())
    });
}

#[test]
fn convolution_misuse() {
    on_each(|queue| {
        let dnn = Dnn::new(queue)?;
        let shape = |lengths: &[usize]| TensorShape::dense(lengths);
        let made = |x: &[usize], w: &[usize], options: &ConvolutionOptions| {
            Convolution::<f32>::new(&dnn, &shape(x)?, &shape(w)?, options)
        };
        let plane = ConvolutionOptions::dimensions(2);
        refused(made(&[1, 3, 4, 4], &[2, 4, 3, 3], &plane), "channels");
        refused(made(&[1, 3, 4, 4], &[2, 3, 5, 3], &plane), "reaches over 5 in 4");
        refused(made(&[1, 3, 4], &[2, 3, 3], &plane), "2 dimensions of space");
        refused(made(&[1, 3, 4, 4], &[2, 3, 3, 3], &plane.clone().stride(0)), "stride of 0");
        refused(made(&[1, 3, 4, 4], &[2, 1, 3, 3], &plane.clone().groups(3)), "groups");
        let apart = TensorShape::strided(&[2, 3, 3, 3], &[54, 18, 6, 2])?;
        refused(Convolution::<f32>::new(&dnn, &shape(&[1, 3, 4, 4])?, &apart, &plane), "not dense");

        let mut convolution = made(&[1, 3, 4, 4], &[2, 3, 3, 3], &plane)?;
        let (x, w) = (queue.alloc_zeroed::<f32>(48)?, queue.alloc_zeroed::<f32>(54)?);
        let mut y = queue.alloc_zeroed::<f32>(8)?;
        refused(Tensor::dense(x.all(), &[2, 3, 4, 4]), "does not fit into 48 elements");
        refused(Tensor::dense(x.all(), &[]), "0 dimensions");
        let filter = || Tensor::dense(w.all(), &[2, 3, 3, 3]).unwrap();
        let wrong = Tensor::dense(x.all(), &[1, 3, 2, 8])?;
        refused(convolution.forward(wrong, filter(), TensorMut::dense(y.all_mut(), &[1, 2, 2, 2])?), "was made for");
        let other = Queue::new(queue.device())?;
        let foreign = other.alloc_zeroed::<f32>(48)?;
        let from = Tensor::dense(foreign.all(), &[1, 3, 4, 4])?;
        refused(convolution.forward(from, filter(), TensorMut::dense(y.all_mut(), &[1, 2, 2, 2])?), "queue");
        refused(Dnn::with_workspace(queue, other.alloc_zeroed::<u8>(64)?), "queue");
        // A solution of other shapes.
        let solution = made(&[1, 3, 8, 8], &[2, 3, 3, 3], &plane)?.solutions(Pass::Forward)?.remove(0);
        refused(convolution.choose(solution), "another convolution");
        Ok(())
    });
}
