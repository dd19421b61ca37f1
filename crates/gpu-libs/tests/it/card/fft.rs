//! rocFFT and cuFFT against rustfft.

use gpu::Queue;
use gpu_libs::fft::{ComplexFft, Direction, FftLayout, InverseRealFft, RealFft, RealFftLayout};
use rustfft::num_complex::Complex;
use rustfft::{FftNum, FftPlanner};

use super::{close, numbers, on_each, read, refused, upload};

/// One dimension of many rows, by rustfft.
fn rows<T: FftNum>(data: &mut [Complex<T>], length: usize, direction: Direction) {
    let mut planner = FftPlanner::new();
    match direction {
        Direction::Forward => planner.plan_fft_forward(length).process(data),
        Direction::Inverse => planner.plan_fft_inverse(length).process(data),
    }
}

/// All dimensions, the last one fastest: rows, then a turn of the axes, as many times as there are axes.
fn transform<T: FftNum>(data: &[Complex<T>], lengths: &[usize], direction: Direction) -> Vec<Complex<T>> {
    let mut data = data.to_vec();
    for &length in lengths.iter().rev() {
        rows(&mut data, length, direction);
        let outer = data.len() / length;
        data = (0..data.len()).map(|i| data[(i % outer) * length + i / outer]).collect();
    }
    data
}

fn complex(seed: u64, n: usize) -> Vec<Complex<f64>> {
    numbers(seed, 2 * n).chunks(2).map(|pair| Complex::new(pair[0], pair[1])).collect()
}

fn flat(data: &[Complex<f64>]) -> Vec<f64> {
    data.iter().flat_map(|z| [z.re, z.im]).collect()
}

fn single(data: &[Complex<f64>]) -> Vec<Complex<f32>> {
    data.iter().map(|z| Complex::new(z.re as f32, z.im as f32)).collect()
}

fn double(data: Vec<Complex<f32>>) -> Vec<Complex<f64>> {
    data.into_iter().map(|z| Complex::new(z.re.into(), z.im.into())).collect()
}

fn one_to_three_dimensions(queue: &Queue, lengths: &[usize]) -> gpu_libs::Result<()> {
    let n = lengths.iter().product();
    let data = complex(n as u64, n);
    let truth = transform(&data, lengths, Direction::Forward);
    let forward = ComplexFft::<f32>::new(queue, Direction::Forward, FftLayout::dense(lengths)?)?;
    let (from, mut to) = (upload(queue, &single(&data)), queue.alloc_zeroed::<Complex<f32>>(n)?);
    forward.run(from.all(), to.all_mut())?;
    close(&flat(&double(read(queue, to.all()))), &flat(&truth), 1e-6);
    // Back again, in place.
    let inverse = ComplexFft::<f32>::new(queue, Direction::Inverse, FftLayout::dense(lengths)?)?;
    inverse.run_in_place(to.all_mut())?;
    let back: Vec<f64> = flat(&double(read(queue, to.all()))).iter().map(|x| x / n as f64).collect();
    close(&back, &flat(&data), 1e-6);
    Ok(())
}

#[test]
fn one_dimension() {
    on_each(|queue| one_to_three_dimensions(queue, &[60]));
}

#[test]
fn three_dimensions() {
    on_each(|queue| one_to_three_dimensions(queue, &[4, 3, 8]));
}

#[test]
fn columns_of_a_matrix_in_double_precision() {
    on_each(|queue| {
        let (rows, columns) = (16, 3);
        let data = complex(70, rows * columns);
        let mut truth = vec![Complex::default(); rows * columns];
        for j in 0..columns {
            let column: Vec<_> = (0..rows).map(|i| data[i * columns + j]).collect();
            for (i, z) in transform(&column, &[rows], Direction::Forward).into_iter().enumerate() {
                truth[i * columns + j] = z;
            }
        }
        let layout = FftLayout::dense(&[rows])?.strided(columns, columns, 1)?;
        let fft = ComplexFft::<f64>::new(queue, Direction::Forward, layout)?;
        let mut on_device = upload(queue, &data);
        fft.run_in_place(on_device.all_mut())?;
        close(&flat(&read(queue, on_device.all())), &flat(&truth), 1e-14);
        Ok(())
    });
}

#[test]
fn real_numbers_and_half_a_spectrum() {
    on_each(|queue| {
        let (n, batch) = (24, 2);
        let data = numbers(71, n * batch);
        let forward = RealFft::<f64>::new(queue, &[n], batch)?;
        let (from, mut half) = (upload(queue, &data), queue.alloc_zeroed::<Complex<f64>>(13 * batch)?);
        forward.run(from.all(), half.all_mut())?;
        let truth: Vec<_> = data
            .chunks(n)
            .flat_map(|row| {
                let row: Vec<_> = row.iter().map(|x| Complex::new(*x, 0.0)).collect();
                transform(&row, &[n], Direction::Forward)[..13].to_vec()
            })
            .collect();
        close(&flat(&read(queue, half.all())), &flat(&truth), 1e-14);
        let inverse = InverseRealFft::<f64>::new(queue, &[n], batch)?;
        let mut back = queue.alloc_zeroed::<f64>(n * batch)?;
        inverse.run(half.all_mut(), back.all_mut())?;
        let back: Vec<f64> = read(queue, back.all()).iter().map(|x| x / n as f64).collect();
        close(&back, &data, 1e-14);
        Ok(())
    });
}

/// Columns of a matrix of real numbers into columns of a matrix of spectra, and back.
#[test]
fn real_columns_of_a_matrix() {
    on_each(|queue| {
        let (n, columns) = (12, 3);
        let data = numbers(72, n * columns);
        let layout = || RealFftLayout::dense(&[n], columns)?.strided((columns, 1), (columns, 1));
        let mut truth = vec![Complex::default(); 7 * columns];
        for j in 0..columns {
            let column: Vec<_> = (0..n).map(|i| Complex::new(data[i * columns + j], 0.0)).collect();
            for (i, z) in transform(&column, &[n], Direction::Forward).into_iter().take(7).enumerate() {
                truth[i * columns + j] = z;
            }
        }
        let (from, mut half) = (upload(queue, &data), queue.alloc_zeroed::<Complex<f64>>(7 * columns)?);
        RealFft::<f64>::with_layout(queue, layout()?)?.run(from.all(), half.all_mut())?;
        close(&flat(&read(queue, half.all())), &flat(&truth), 1e-14);
        let mut back = queue.alloc_zeroed::<f64>(n * columns)?;
        InverseRealFft::<f64>::with_layout(queue, layout()?)?.run(half.all_mut(), back.all_mut())?;
        let back: Vec<f64> = read(queue, back.all()).iter().map(|x| x / n as f64).collect();
        close(&back, &data, 1e-14);
        Ok(())
    });
}

/// Two planes of real numbers, each line with room for its half spectrum.
#[test]
fn real_planes_in_place() {
    on_each(|queue| {
        let (lengths, batch, padded) = ([4, 6], 2, 8);
        let data = numbers(73, 24 * batch);
        let mut truth = Vec::new();
        for plane in data.chunks(24) {
            let plane: Vec<_> = plane.iter().map(|x| Complex::new(*x, 0.0)).collect();
            for line in transform(&plane, &lengths, Direction::Forward).chunks(6) {
                truth.extend_from_slice(&line[..4]);
            }
        }
        let lines = data.chunks(6).flat_map(|line| line.iter().copied().chain([77.0; 2]));
        let lines: Vec<f32> = lines.map(|x| x as f32).collect();
        assert_eq!(lines.len(), 4 * padded * batch);
        let mut on_device = upload(queue, &lines);
        RealFft::<f32>::new(queue, &lengths, batch)?.run_in_place(on_device.all_mut())?;
        close(&read(queue, on_device.all()), &flat(&truth), 1e-6);
        InverseRealFft::<f32>::new(queue, &lengths, batch)?.run_in_place(on_device.all_mut())?;
        let back = read(queue, on_device.all());
        let back: Vec<f32> = back.chunks(padded).flat_map(|line| line[..6].iter().map(|x| x / 24.0)).collect();
        close(&back, &data, 1e-6);
        Ok(())
    });
}

#[test]
fn misuse_is_refused() {
    on_each(|queue| {
        refused(FftLayout::dense(&[2, 2, 2, 2]), "4 dimensions");
        refused(FftLayout::dense(&[8, 0]), "lengths");
        refused(FftLayout::dense(&[8])?.strided(3, 2, 2), "share elements");
        let fft = ComplexFft::<f32>::new(queue, Direction::Forward, FftLayout::dense(&[8])?.batched(2))?;
        let mut short = queue.alloc_zeroed::<Complex<f32>>(15)?;
        refused(fft.run_in_place(short.all_mut()), "takes 16 elements");
        refused(RealFftLayout::dense(&[8], 3)?.strided((1, 8), (1, 4)), "share elements");
        let mut few = queue.alloc_zeroed::<f32>(9)?;
        let real = RealFft::<f32>::new(queue, &[8], 1)?;
        refused(real.run_in_place(few.all_mut()), "10 real elements wanted in place, the buffer has 9");
        refused(real.run(few.slice(..7)?, short.all_mut()), "8 real and 5 complex elements wanted");
        let other = Queue::new(queue.device())?;
        let mut foreign = other.alloc_zeroed::<Complex<f32>>(16)?;
        refused(fft.run_in_place(foreign.all_mut()), "belongs to queue");
        Ok(())
    });
}
