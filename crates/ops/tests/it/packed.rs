//! Foreign packings (GPTQ, AWQ, compressed-tensors, F8, MXFP4), number for number against the packages that define them
//! (testdata/packed/make.py).

use half::f16;
use ops::quant::dequantize;
use weights::{Bytes, Checkpoint, Dtype, HubFiles};

fn read(name: &str) -> Vec<u8> {
    let path = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/packed").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn check(case: &str, dtype: Dtype, shape: &[usize]) {
    let config: serde_json::Value = serde_json::from_slice(&read(&format!("{case}.json"))).unwrap();
    let hub = HubFiles::of_config(serde_json::json!({"quantization_config": config}));
    let checkpoint = Checkpoint::from_hub(Bytes::from_vec(read(&format!("{case}.safetensors"))), hub).unwrap();
    assert_eq!(checkpoint.tensors().len(), 1, "{case}: {:?}", checkpoint.tensors());
    assert_eq!(checkpoint.unsupported().len(), 0, "{case}");
    assert_eq!(checkpoint.notes().len(), 1, "{case}");
    let tensor = checkpoint.tensor("l.weight").unwrap();
    assert_eq!((tensor.dtype, tensor.shape.as_slice()), (dtype, shape), "{case}");
    let mut out = vec![0.0; tensor.n_elements()];
    dequantize(tensor.dtype, &tensor.bytes, &mut out);
    let truth = read(&format!("{case}.f32"));
    let truth = truth.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk));
    assert_eq!(truth.len(), out.len(), "{case}");
    for (i, (found, truth)) in out.iter().zip(truth).enumerate() {
        // Held as F16, the numbers are rounded once; else not at all.
        let truth = if dtype == Dtype::F16 { f16::from_f32(truth).to_f32() } else { truth };
        // The package behind GPTQ multiplies in f16, so its truth is rounded also where ours is exact.
        let found = if case.starts_with("gptq") { f16::from_f32(*found).to_f32() } else { *found };
        assert!(found == truth, "{case} weight {i}: {found} for {truth}");
    }
}

#[test]
fn gptq() {
    check("gptq_sym4", Dtype::Q4_0, &[32, 64]);
    check("gptq_asym4", Dtype::F16, &[32, 64]);
    check("gptq_v2", Dtype::F16, &[32, 64]);
    check("gptq_act4", Dtype::F16, &[32, 64]);
    check("gptq_sym8", Dtype::Q8_0, &[32, 64]);
}

#[test]
fn awq() {
    check("awq", Dtype::F16, &[48, 64]);
}

#[test]
fn compressed_tensors() {
    check("ct_pack4", Dtype::Q4_0, &[24, 64]);
    check("ct_asym4", Dtype::F16, &[24, 64]);
    check("ct_pack8", Dtype::F16, &[24, 64]);
    check("ct_int8", Dtype::F16, &[24, 64]);
    check("ct_nvfp4", Dtype::F16, &[24, 64]);
}

#[test]
fn eight_bit_floats() {
    check("fp8_e4m3", Dtype::F16, &[2, 127]);
    check("fp8_e5m2", Dtype::F16, &[2, 124]);
    check("fp8_tensor", Dtype::F16, &[20, 40]);
    check("fp8_channel", Dtype::F16, &[20, 40]);
    check("fp8_block", Dtype::F16, &[20, 40]);
}

#[test]
fn mxfp4_keeps_every_bit() {
    check("mxfp4", Dtype::MXFP4, &[2, 6, 96]);
}

/// Pieces that are missing, or do not fit each other, are named when the file is opened.
#[test]
fn pieces_that_do_not_fit_are_named() {
    let open = |case: &str, config: &str, from: &str, to: &str| {
        let file = read(&format!("{case}.safetensors"));
        let n_header = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let header = std::str::from_utf8(&file[8..8 + n_header]).unwrap().replace(from, to);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(&file[8 + n_header..]);
        let config: serde_json::Value = serde_json::from_str(config).unwrap();
        let hub = HubFiles::of_config(serde_json::json!({"quantization_config": config}));
        Checkpoint::from_hub(Bytes::from_vec(bytes), hub).expect_err(case).to_string()
    };
    let gptq = r#"{"quant_method": "gptq", "bits": 4}"#;
    assert_eq!(open("gptq_sym4", gptq, "l.scales", "l.scalez"), "tensor `l`: `l.scales` is missing");
    let three = r#"{"quant_method": "gptq", "bits": 3}"#;
    assert_eq!(open("gptq_sym4", three, "", ""), "tensor `l.qweight`: 3 bits: only 2, 4 and 8 are read");
    let eight = r#"{"quant_method": "gptq", "bits": 8}"#;
    assert!(open("gptq_sym4", eight, "", "").contains("the tensors beside it ask for"));
    let other = r#"{"quant_method": "quip"}"#;
    assert!(open("gptq_sym4", other, "", "").contains("`quip` is not supported yet"));
    let gemv = r#"{"quant_method": "awq", "version": "gemv"}"#;
    assert!(open("awq", gemv, "", "").contains("only 4 bits in `gemm`"));
    assert!(open("mxfp4", "{}", "[2,6,3]", "[2,3,6]").contains("ask for [2, 6, 3]"));
}
