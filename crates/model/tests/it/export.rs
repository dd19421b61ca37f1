//! Safetensors turned into GGUF, against what llama.cpp's converter made of the same folders: every tensor bit for bit,
//! every key of the model with its type and value.

use std::path::{Path, PathBuf};

use model::Config;
use ops::Isa;
use weights::{Bytes, Checkpoint, Dtype, Tensor, Value};

use crate::families::{distance, folder, golden, load, names, run};

/// A head that llama.cpp's converter leaves half of behind.
const NO_TRUTH: [&str; 1] = ["bert-rerank"];
/// Keys that say nothing: how many weights there are, and settings that are off.
const SKIPPED: [&str; 4] =
    ["general.size_label", "stablelm.use_parallel_residual", "phi3.attention.sliding_window", "tokenizer.ggml.model"];
/// Written with the weights' types.
const LATER: [&str; 2] = ["general.file_type", "general.quantization_version"];

/// Checkpoints that are exported only: gpt-oss with experts in MXFP4.
fn exports() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/exports")
}

fn exported(folder: &Path, name: &str) -> Checkpoint {
    let source = Checkpoint::open(&folder.join(name)).unwrap();
    model::export(&source, name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_export_is_what_llama_cpps_converter_makes() {
    let is_compared = |name: &&String| !NO_TRUTH.contains(&name.as_str());
    let n_compared: usize = exported_names().iter().filter(is_compared).map(|name| compare(&folder(), name)).sum();
    assert!(n_compared > 500, "{n_compared} tensors");
    assert!(compare(&exports(), "gpt-oss-mxfp4") > 30);
}

/// A checkpoint whose rope GGUF has no word for.
const NOT_IN_GGUF: &str = "deepseek3-halves";

/// Names of the checkpoints that are there as safetensors.
fn sources() -> impl Iterator<Item = String> {
    names().into_iter().filter(|name| folder().join(name).exists())
}

/// Names of the checkpoints that can be written as GGUF.
fn exported_names() -> Vec<String> {
    sources().filter(|name| config(name).family.is_exported && name != NOT_IN_GGUF).collect()
}

#[test]
fn rope_in_halves_of_compressed_attention_is_refused() {
    let source = Checkpoint::open(&folder().join(NOT_IN_GGUF)).unwrap();
    let error = model::export(&source, NOT_IN_GGUF).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("`rope_interleave` is false"), "{error}");
}

fn config(name: &str) -> Config {
    Config::from_checkpoint(&Checkpoint::open(&folder().join(name)).unwrap()).unwrap()
}

#[test]
fn families_that_cannot_be_written_are_refused_by_name() {
    for name in sources().filter(|name| !config(name).family.is_exported) {
        let source = Checkpoint::open(&folder().join(&name)).unwrap();
        let error = model::export(&source, &name).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(&format!("the family {}", config(&name).family.name)), "{name}: {error}");
    }
}

/// The number of tensors that are the same.
fn compare(folder: &Path, name: &str) -> usize {
    let mut n_compared = 0;
    let truth = Checkpoint::open(&folder.join(format!("{name}.gguf"))).unwrap();
    let found = exported(folder, name);
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
    n_compared
}

/// Also of what the converter has no truth for, or leaves out: how DeepSeek's third version weighs experts.
#[test]
fn every_export_computes_what_transformers_does() {
    for name in exported_names() {
        let golden = golden(&name);
        let error = distance(&run(&mut load(&exported(&folder(), &name), Isa::detect()), &golden), &golden.rows);
        assert!(error <= 1e-3, "{name}: relative error {error:.2e}");
    }
    let tokens = golden("gpt-oss");
    let source = Checkpoint::open(&exports().join("gpt-oss-mxfp4")).unwrap();
    let truth = run(&mut load(&source, Isa::detect()), &tokens);
    let found = run(&mut load(&exported(&exports(), "gpt-oss-mxfp4"), Isa::detect()), &tokens);
    assert!(distance(&found, &truth) <= 1e-6);
}

#[test]
fn layers_that_guess_ahead_are_left_out_and_others_refused() {
    let source = Checkpoint::open(&folder().join("deepseek3")).unwrap();
    let with = |name: &str| {
        let extra = Tensor::new(name, Dtype::F32, vec![4], Bytes::from_vec(vec![0; 16])).unwrap();
        let tensors = source.tensors().iter().cloned().chain([extra]).collect();
        model::export(&source.with_tensors(tensors).unwrap(), "deepseek3")
    };
    let n = exported(&folder(), "deepseek3").tensors().len();
    assert_eq!(with("model.layers.2.eh_proj.weight").unwrap().tensors().len(), n);
    let error = with("model.layers.3.eh_proj.weight").err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("`model.layers.3.eh_proj.weight` has no name in GGUF"), "{error}");
}
