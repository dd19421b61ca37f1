//! GGUF's block formats: unpacking, rows by index, and products.

use std::borrow::Cow;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};

use crate::case::Case;
use crate::data::{Lie, Random, Values, input};
use crate::judge::Bound;

const FORMATS: [GgmlDType; 10] = [
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];
const ROWS: usize = 77;

type Of = Box<dyn Fn(QTensor, &Tensor) -> Result<Tensor>>;

/// A matrix packed by Candle on the CPU, and the largest sum of magnitudes in a row of it.
fn packed(format: GgmlDType, k: usize) -> Result<(Vec<u8>, f64)> {
    let mut random = Random(k as u64 ^ format as u64);
    let numbers: Vec<f32> = (0..ROWS * k).map(|_| (random.below(20001) as f32 - 10000.0) / 10000.0).collect();
    let matrix = Tensor::from_vec(numbers, (ROWS, k), &Device::Cpu)?;
    let packed = QTensor::quantize(&matrix, format)?;
    let sums = packed.dequantize(&Device::Cpu)?.abs()?.sum(1)?.to_vec1::<f32>()?;
    Ok((packed.data()?.into_owned(), sums.into_iter().fold(0.0, |most, sum| most.max(f64::from(sum)))))
}

fn on(device: &Device, bytes: &[u8], format: GgmlDType, k: usize) -> Result<QTensor> {
    QTensor::new(QStorage::from_data(Cow::Borrowed(bytes), device, format)?, (ROWS, k))
}

pub fn cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for format in FORMATS {
        for k in [256, 768] {
            let (bytes, largest) = packed(format, k)?;
            let case = |name: &str, inputs, bound, op: Of| {
                let bytes = bytes.clone();
                let case = Case::new(format!("{name} {format:?} of {k}"), inputs, bound, move |x| {
                    op(on(x[0].device(), &bytes, format, k)?, &x[0])
                });
                case.without_reference()
            };
            let nothing = || vec![input(DType::F32, &[1], Lie::Contiguous, Values::Tame)];
            cases.push(case("dequantize", nothing(), Bound::Exact, Box::new(|q, x| q.dequantize(x.device()))));
            let halves: Of = Box::new(|q, x| q.dequantize_f16(x.device()));
            cases.push(case("dequantize_f16", nothing(), Bound::Steps(1), halves));
            let ids = vec![input(DType::U32, &[6], Lie::Contiguous, Values::Below(ROWS))];
            cases.push(case("quantized rows", ids, Bound::Exact, Box::new(|q, x| q.embedding(x))));
            for n in [1, 2, 3, 5, 8, 9, 40, 83] {
                let inputs = vec![input(DType::F32, &[1, n, k], Lie::Contiguous, Values::Tame)];
                // Both sides round their activations (up to 4) to 8 bits, each by half a step of 4/127 at most; an f16
                // scale is half a thousandth more.
                let bound = Bound::Within(largest * 4.0 * (1.0 / 127.0 + 1.0 / 1000.0));
                let product: Of = Box::new(|q, x| QMatMul::from_qtensor(q)?.forward(x));
                cases.push(case(&format!("quantized product of {n}"), inputs, bound, product));
                cases.push(beside_f64(format, k, n, bytes.clone())?);
            }
        }
    }
    Ok(cases)
}

/// A product beside the same one in f64, of activations rounded to 8 bits as the kernels round them: the CPU rounds them by
/// another rule, so here it never decides, and the bound is that of other products.
fn beside_f64(format: GgmlDType, k: usize, n: usize, bytes: Vec<u8>) -> Result<Case> {
    let inputs = vec![input(DType::F32, &[1, n, k], Lie::Contiguous, Values::Tame)];
    let name = format!("quantized product beside f64 of {n} {format:?} of {k}");
    let again = bytes.clone();
    let case = Case::new(name, inputs, Bound::Products(k), move |x| {
        QMatMul::from_qtensor(on(x[0].device(), &bytes, format, k)?)?.forward(&x[0].affine(0.25, 0.0)?)
    });
    Ok(case.with_reference(move |x| {
        // Exactly what it was: a number of f32 came here by way of f64.
        let x = x[0].to_dtype(DType::F32)?.affine(0.25, 0.0)?.reshape((n, k))?.to_vec2::<f32>()?;
        let weights = on(&Device::Cpu, &again, format, k)?.dequantize(&Device::Cpu)?.to_vec2::<f32>()?;
        let offsets = match bytes_before_numbers(format) {
            None => vec![vec![0.0; k]; ROWS],
            Some((head, size)) => {
                let mut empty = again.clone();
                empty.chunks_exact_mut(size).for_each(|block| block[head..].fill(0));
                on(&Device::Cpu, &empty, format, k)?.dequantize(&Device::Cpu)?.to_vec2::<f32>()?
            }
        };
        let mut out = Vec::with_capacity(n * ROWS);
        for column in &x {
            let groups: Vec<Group> = column.chunks_exact(32).map(group).collect();
            for (row, offsets) in weights.iter().zip(&offsets) {
                out.push(
                    groups
                        .iter()
                        .enumerate()
                        .map(|(i, group)| group.times(&row[32 * i..], &offsets[32 * i..]))
                        .sum::<f64>(),
                );
            }
        }
        Tensor::from_vec(out, (1, n, ROWS), &Device::Cpu)
    }))
}

/// Of the formats whose zero point the kernels multiply with the sum of the activations as
/// they were before rounding: the bytes before the numbers in a block, and its size.
fn bytes_before_numbers(format: GgmlDType) -> Option<(usize, usize)> {
    match format {
        GgmlDType::Q4_0 => Some((2, 18)),
        GgmlDType::Q5_0 => Some((2, 22)),
        _ => None,
    }
}

/// 32 activations as q8_1 holds them, which llama.cpp defines: scale and sum as halves.
struct Group {
    numbers: [f64; 32],
    sum: f64,
}

fn group(x: &[f32]) -> Group {
    let scale = x.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
    let rounded = f64::from(half::f16::from_f32(scale).to_f32());
    let numbers = std::array::from_fn(|i| if scale == 0.0 { 0.0 } else { f64::from((x[i] / scale).round()) * rounded });
    // In pairs: the sum is rounded to a half, and so must be the same to the last bit before.
    let mut sums: [f32; 32] = std::array::from_fn(|i| x[i]);
    for mask in [16, 8, 4, 2, 1] {
        sums = std::array::from_fn(|i| sums[i] + sums[i ^ mask]);
    }
    Group { numbers, sum: f64::from(half::f16::from_f32(sums[0]).to_f32()) }
}

impl Group {
    fn times(&self, weights: &[f32], offsets: &[f32]) -> f64 {
        let offset = f64::from(offsets[0]);
        let products: f64 = self.numbers.iter().zip(weights).map(|(x, w)| x * (f64::from(*w) - offset)).sum();
        products + offset * self.sum
    }
}
