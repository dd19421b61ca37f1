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
const ROWS: usize = 37;

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
            let mut push = |name: &str, inputs, bound, op: Box<dyn Fn(QTensor, &Tensor) -> Result<Tensor>>| {
                let bytes = bytes.clone();
                let case = Case::new(format!("{name} {format:?} of {k}"), inputs, bound, move |x| {
                    op(on(x[0].device(), &bytes, format, k)?, &x[0])
                });
                cases.push(case.without_reference());
            };
            let nothing = || vec![input(DType::F32, &[1], Lie::Contiguous, Values::Tame)];
            push("dequantize", nothing(), Bound::Exact, Box::new(|q, x| q.dequantize(x.device())));
            push("dequantize_f16", nothing(), Bound::Steps(1), Box::new(|q, x| q.dequantize_f16(x.device())));
            let ids = vec![input(DType::U32, &[6], Lie::Contiguous, Values::Below(ROWS))];
            push("quantized rows", ids, Bound::Exact, Box::new(|q, x| q.embedding(x)));
            for n in [1, 2, 3, 5, 8, 9, 40] {
                let inputs = vec![input(DType::F32, &[1, n, k], Lie::Contiguous, Values::Tame)];
                // Both sides round their activations (up to 4) to 8 bits, each by half a step of 4/127 at most; an f16
                // scale is half a thousandth more.
                let bound = Bound::Within(largest * 4.0 * (1.0 / 127.0 + 1.0 / 1000.0));
                push(
                    &format!("quantized product of {n}"),
                    inputs,
                    bound,
                    Box::new(|q, x| QMatMul::from_qtensor(q)?.forward(x)),
                );
            }
        }
    }
    Ok(cases)
}
