//! Block formats, bit for bit against PyPI's `gguf` (testdata/quant/README.md says how the data was made).

use std::path::PathBuf;

use ops::quant::{dequantize, quantize, quantize_for};
use weights::Dtype;

use crate::support::Random;

fn read(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/quant").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn read_f32s(name: &str) -> Vec<f32> {
    read(name).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Taken by their definition, below.
const NUMBERS: [Dtype; 5] = [Dtype::I8, Dtype::I16, Dtype::I32, Dtype::I64, Dtype::F64];

#[test]
fn plain_numbers_round_once() {
    let bytes: Vec<u8> = (0..32_u32).map(|i| (i * 37 + 5) as u8).collect();
    for dtype in NUMBERS {
        let n = dtype.block_bytes();
        let mut out = vec![0.0; bytes.len() / n];
        dequantize(dtype, &bytes, &mut out);
        for (chunk, out) in bytes.chunks_exact(n).zip(&out) {
            let mut wide = [0; 8];
            wide[8 - n..].copy_from_slice(chunk);
            // Shifted down from the top, which keeps the sign.
            let integer = i64::from_le_bytes(wide) >> (64 - 8 * n);
            let truth = if dtype == Dtype::F64 { f64::from_le_bytes(wide) as f32 } else { integer as f32 };
            assert_eq!(out.to_bits(), truth.to_bits(), "{dtype}");
        }
        let mut back = vec![0; 4 * n];
        quantize(dtype, &[-2.0, 0.0, 1.0, 100.0], &mut back);
        let mut out = [0.0; 4];
        dequantize(dtype, &back, &mut out);
        assert_eq!(out, [-2.0, 0.0, 1.0, 100.0], "{dtype}");
    }
}

/// Random blocks deviate about as asked, so that synthetic models of every type compute sensible numbers.
#[test]
fn random_blocks_have_the_asked_spread() {
    let mut random = Random::new(3);
    for dtype in Dtype::ALL.into_iter().filter(|dtype| !dtype.is_plain()) {
        let mut bytes = vec![0; dtype.row_bytes(256 * 64).unwrap()];
        ops::quant::randomize(dtype, 0.05, || random.bits(), &mut bytes);
        let mut out = vec![0.0; 256 * 64];
        dequantize(dtype, &bytes, &mut out);
        let mean = out.iter().map(|x| f64::from(*x)).sum::<f64>() / out.len() as f64;
        let std = (out.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / out.len() as f64).sqrt();
        assert!((0.03..0.1).contains(&std) && mean.abs() < 0.025, "{dtype}: {mean} {std}");
    }
}

#[test]
fn decoding_equals_gguf() {
    for dtype in Dtype::ALL.into_iter().filter(|dtype| *dtype != Dtype::F32 && !NUMBERS.contains(dtype)) {
        let (bytes, truth) = (read(&format!("dequant_{dtype}.bin")), read_f32s(&format!("dequant_{dtype}.f32")));
        let mut out = vec![0.0; truth.len()];
        dequantize(dtype, &bytes, &mut out);
        for (i, (out, truth)) in out.iter().zip(&truth).enumerate() {
            assert_eq!(out.to_bits(), truth.to_bits(), "{dtype} element {i}: {out} for {truth}");
        }
    }
}

#[test]
fn encoding_equals_gguf() {
    let small = [Dtype::F16, Dtype::BF16, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q5_0, Dtype::Q5_1, Dtype::Q8_0];
    for dtype in small.into_iter().chain([Dtype::MXFP4, Dtype::TQ1_0, Dtype::TQ2_0]) {
        let (values, truth) = (read_f32s(&format!("quant_{dtype}.f32")), read(&format!("quant_{dtype}.bin")));
        let mut out = vec![0; truth.len()];
        quantize(dtype, &values, &mut out);
        let n = dtype.block_bytes();
        for (i, (out, truth)) in out.chunks(n).zip(truth.chunks(n)).enumerate() {
            assert_eq!(out, truth, "{dtype} block {i}");
        }
    }
}

/// Encoders that search may choose other blocks than ggml's, but none that are worse: relative errors on the same
/// numbers, against those of ggml's own encoders (testdata/quant/make_ggml.py).
#[test]
fn encoders_lose_no_more_than_ggmls() {
    let (x, importance) = (read_f32s("errors_x.f32"), read_f32s("errors_importance.f32"));
    let truth: serde_json::Value = serde_json::from_slice(&read("errors.json")).unwrap();
    let mut worse = Vec::new();
    for dtype in Dtype::ALL.into_iter().filter(|dtype| !dtype.is_plain()) {
        for (what, given) in [("plain", None), ("importance", Some(importance.as_slice()))] {
            let Some(ggml) = truth[dtype.name()][what].as_f64() else { continue };
            let (mut error, mut size) = (0.0, 0.0);
            for row in x.chunks_exact(1024) {
                let mut bytes = vec![0; dtype.row_bytes(1024).unwrap()];
                quantize_for(dtype, row, given, &mut bytes);
                let mut out = vec![0.0; 1024];
                dequantize(dtype, &bytes, &mut out);
                for (i, (x, out)) in row.iter().zip(&out).enumerate() {
                    let w = given.map_or(1.0, |given| f64::from(given[i]));
                    error += w * (f64::from(*out) - f64::from(*x)).powi(2);
                    size += w * f64::from(*x).powi(2);
                }
            }
            let found = error / size;
            println!("{dtype} {what}: {found:.3e}, ggml {ggml:.3e}: {:.3}", found / ggml);
            if found > 1.01 * ggml {
                worse.push(format!("{dtype} {what}: {found:.3e} for {ggml:.3e}"));
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}

/// Zeros, one number, and numbers at the ends of f32 and f16 make finite blocks.
#[test]
fn encoders_take_any_finite_numbers() {
    let mut one = vec![0.0; 256];
    one[37] = -3.0;
    let cases = [vec![0.0; 256], one, vec![1e-30; 256], vec![-2.5; 256], vec![3e4; 256]];
    for dtype in Dtype::ALL.into_iter().filter(|dtype| !dtype.is_plain()) {
        for (i, values) in cases.iter().enumerate() {
            for importance in [None, Some(vec![1.0; 256]), Some(vec![0.0; 256])] {
                let mut bytes = vec![0xAA; dtype.row_bytes(256).unwrap()];
                quantize_for(dtype, values, importance.as_deref(), &mut bytes);
                let mut out = vec![0.0; 256];
                dequantize(dtype, &bytes, &mut out);
                assert!(out.iter().all(|x| x.is_finite()), "{dtype} case {i}");
            }
        }
    }
}
