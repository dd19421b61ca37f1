//! The real model against llama.cpp. The truth for a quantised file is f32 arithmetic on its weights:
//! the same file dequantised to F32 must give llama.cpp's tokens and log-probabilities, and the file as
//! shipped the same tokens. The golden data are llama.cpp's (testdata/README.md).
//!
//! Needs ROCI_SMOLLM2 (see `smollm2`) and 540 MB of temporary disk space.

use crate::roci::Roci;
use serde_json::Value;
use std::path::{Path, PathBuf};
use weights::gguf::TensorInfo;
use weights::{Checkpoint, Dtype, GgufWriter, Metadata};

const GOLDEN: &str = include_str!("../../testdata/smollm2-F32-kvf32-nofa.json");
/// Two best log-probabilities closer than this are a tie that rounding may turn.
const TIE: f64 = 0.05;
const MAX_LOGPROB_ERROR: f64 = 0.02;
const MAX_MEAN_DIVERGENCE: f64 = 0.0005;

/// The path in ROCI_SMOLLM2; without it the test is skipped, or fails where ROCI_REQUIRE_MODEL=1.
pub fn smollm2() -> Option<String> {
    test_support::fetched::path(test_support::fetched::SMOLLM2).map(|path| path.to_str().unwrap().to_owned())
}

/// Writes the same weights as F32.
fn dequantize(source: &Path, folder: &Path) -> PathBuf {
    let checkpoint = Checkpoint::open(source).unwrap();
    let mut metadata = Metadata::new();
    checkpoint.metadata().iter().for_each(|(key, value)| drop(metadata.set(key, value.clone())));
    metadata.set("general.file_type", 0u32);
    let info = |t: &weights::Tensor| TensorInfo { name: t.name.clone(), dtype: Dtype::F32, shape: t.shape.clone() };
    let infos: Vec<TensorInfo> = checkpoint.tensors().iter().map(info).collect();
    let path = folder.join("f32.gguf");
    let mut writer = GgufWriter::create(&path, &metadata, &infos).unwrap();
    for tensor in checkpoint.tensors() {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut values);
        let bytes: Vec<u8> = values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        writer.tensor(&bytes).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn answer(roci: &Roci, model: &Path, question: &str) -> Value {
    let model = model.to_str().unwrap();
    let args = ["run", model, question, "--temperature", "0", "--max-tokens", "64", "--kv-type", "f32"];
    roci.run(&[&args[..], &["--output", "json", "--logprobs", "10", "--context", "512"]].concat()).json()
}

fn check_logprobs(found: &Value, golden: &Value, at: &str) {
    // The golden list ends with its tenth best, so only what both lists hold is compared.
    for best in golden["top"].as_array().unwrap() {
        let own = found["top"].as_array().unwrap().iter().find(|own| own["token"] == best[0]);
        let Some(own) = own else { continue };
        let error = (own["logprob"].as_f64().unwrap() - best[1].as_f64().unwrap()).abs();
        assert!(error <= MAX_LOGPROB_ERROR, "{at}: token {} is off by {error}", best[0]);
    }
    let (own, golden) = (found["logprob"].as_f64().unwrap(), golden["logprob"].as_f64().unwrap());
    assert!((own - golden).abs() <= MAX_LOGPROB_ERROR, "{at}: {own} and {golden}");
}

/// Whether the truth's two best tokens at a step lie so close that either may be taken.
fn is_tie(truth: &Value, step: usize) -> bool {
    let top = &truth["logprobs"][step]["top"];
    top[0]["logprob"].as_f64().unwrap() - top[1]["logprob"].as_f64().unwrap() < TIE
}

#[test]
fn smollm2_says_what_llama_cpp_says() {
    let Some(shipped) = smollm2().map(PathBuf::from) else { return };
    let roci = Roci::new();
    let exact = dequantize(&shipped, roci.home.path());
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    for result in golden["results"].as_array().unwrap() {
        let question = result["user"].as_str().unwrap();
        let truth = answer(&roci, &exact, question);
        assert_eq!(truth["prompt_tokens"], result["prompt_ids"], "{question}");
        assert_eq!(truth["tokens"], result["out_ids"], "{question}");
        assert_eq!(truth["text"], result["out_text"], "{question}");
        for (i, step) in result["top10_first16"].as_array().unwrap().iter().enumerate() {
            if !step.is_null() {
                check_logprobs(&truth["logprobs"][i], step, &format!("{question} step {i}"));
            }
        }
        let quantised = answer(&roci, &shipped, question);
        let (own, theirs) = (quantised["tokens"].as_array().unwrap(), truth["tokens"].as_array().unwrap());
        let differs = (0..own.len().max(theirs.len())).find(|&i| own.get(i) != theirs.get(i));
        if let Some(step) = differs {
            assert!(is_tie(&truth, step), "{question}: the Q4_1 file differs at step {step}");
            eprintln!("{question}: the Q4_1 file differs at step {step}, a tie in the truth");
        }
    }
}

#[test]
fn shipped_file_is_faithful_to_its_weights() {
    let Some(shipped) = smollm2().map(PathBuf::from) else { return };
    let roci = Roci::new();
    let exact = dequantize(&shipped, roci.home.path());
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let texts =
        golden["results"].as_array().unwrap().iter().map(|result| {
            format!("{}\n{}\n\n", result["user"].as_str().unwrap(), result["out_text"].as_str().unwrap())
        });
    std::fs::write(roci.home.path().join("text.txt"), texts.collect::<String>()).unwrap();
    let measure = |model: &Path, more: [&str; 2]| {
        let args = ["perplexity", model.to_str().unwrap(), "text.txt", "--chunk", "96", "--kv-type", "f32"];
        roci.run(&[&args[..], &["--output", "json"], &more[..]].concat()).json()
    };
    measure(&exact, ["--save-logits", "base.kld"]);
    let kl = &measure(&shipped, ["--kl-base", "base.kld"])["kl"];
    let mean = kl["mean"].as_f64().unwrap();
    assert!((0.0..=MAX_MEAN_DIVERGENCE).contains(&mean), "{kl}");
}
