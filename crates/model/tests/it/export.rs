//! Safetensors turned into GGUF, against what llama.cpp's converter made of the same folders: every tensor bit for bit,
//! every key of the model with its type and value.

use weights::{Checkpoint, Value};

use crate::families::{folder, names};

/// Read from safetensors, but not exported.
const REFUSED: [&str; 3] = ["deepseek2", "deepseek3", "gpt-oss"];
/// A head that llama.cpp's converter leaves half of behind.
const NO_TRUTH: [&str; 1] = ["bert-rerank"];
/// Keys that say nothing: how many weights there are, and settings that are off.
const SKIPPED: [&str; 4] =
    ["general.size_label", "stablelm.use_parallel_residual", "phi3.attention.sliding_window", "tokenizer.ggml.model"];
/// Written with the weights' types.
const LATER: [&str; 2] = ["general.file_type", "general.quantization_version"];

#[test]
fn every_export_is_what_llama_cpps_converter_makes() {
    let mut n_compared = 0;
    let is_compared = |name: &&String| !REFUSED.contains(&name.as_str()) && !NO_TRUTH.contains(&name.as_str());
    for name in names().iter().filter(is_compared) {
        let truth = Checkpoint::open(&folder().join(format!("{name}.gguf"))).unwrap();
        let source = Checkpoint::open(&folder().join(name)).unwrap();
        let found = model::export(&source, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (key, value) in truth.metadata().iter() {
            // Written for Phi-3 also where nothing is scaled.
            let is_idle = name == "phi3" && key == "phi3.rope.scaling.original_context_length";
            if SKIPPED.contains(&key) || LATER.contains(&key) || is_idle {
                continue;
            }
            let found = found.metadata().get(key).unwrap_or_else(|| panic!("{name}: no `{key}`"));
            match (found, value) {
                // The converter computes in f32 or f64 as it comes.
                (Value::F32(found), Value::F32(value)) => {
                    assert!((found - value).abs() <= 1e-6 * value.abs(), "{name} {key}: {found} for {value}");
                }
                _ => assert_eq!(found, value, "{name}: {key}"),
            }
        }
        assert_eq!(found.tensors().len(), truth.tensors().len(), "{name}");
        for tensor in truth.tensors() {
            let same = found.tensor(&tensor.name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((same.dtype, &same.shape), (tensor.dtype, &tensor.shape), "{name} {}", tensor.name);
            if tensor.name == "rope_freqs.weight" {
                let floats = |bytes: &[u8]| -> Vec<f32> {
                    bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
                };
                for (found, truth) in floats(&same.bytes).iter().zip(floats(&tensor.bytes)) {
                    assert!((found - truth).abs() <= 1e-5 * truth, "{name}: rope_freqs {found} for {truth}");
                }
                continue;
            }
            assert!(same.bytes[..] == tensor.bytes[..], "{name} {}: other bytes", tensor.name);
            n_compared += 1;
        }
    }
    assert!(n_compared > 400, "{n_compared} tensors");
}

#[test]
fn other_families_are_refused_by_name() {
    for name in names().iter().filter(|name| REFUSED.contains(&name.as_str())) {
        let source = Checkpoint::open(&folder().join(name)).unwrap();
        let error = model::export(&source, name).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("cannot be written as GGUF") && error.contains("family"), "{name}: {error}");
    }
}
