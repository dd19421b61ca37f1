//! Block formats, bit for bit against PyPI's `gguf` (testdata/quant/README.md says how the data was made).

use std::path::PathBuf;

use ops::quant::{dequantize, quantize};
use weights::Dtype;

use crate::support::{Random, assert_close};

fn read(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/quant").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn read_f32s(name: &str) -> Vec<f32> {
    read(name).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn decoding_equals_gguf() {
    for dtype in [Dtype::F16, Dtype::BF16, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K] {
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
    for dtype in [Dtype::F16, Dtype::BF16, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q8_0] {
        let (values, truth) = (read_f32s(&format!("quant_{dtype}.f32")), read(&format!("quant_{dtype}.bin")));
        let mut out = vec![0; truth.len()];
        quantize(dtype, &values, &mut out);
        let n = dtype.block_bytes();
        for (i, (out, truth)) in out.chunks(n).zip(truth.chunks(n)).enumerate() {
            assert_eq!(out, truth, "{dtype} block {i}");
        }
    }
}

/// gguf has no encoder for these: what is encoded must decode (by the golden-tested decoder) to nearly the input.
#[test]
fn k_quants_encode_closely() {
    let mut random = Random::new(7);
    for (dtype, bound) in [(Dtype::Q4K, 0.07), (Dtype::Q6K, 0.02)] {
        let values = random.numbers(256 * 16);
        let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
        quantize(dtype, &values, &mut bytes);
        let mut out = vec![0.0; values.len()];
        dequantize(dtype, &bytes, &mut out);
        let truth: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
        assert_close(dtype.name(), &out, &truth, bound);
    }
}
