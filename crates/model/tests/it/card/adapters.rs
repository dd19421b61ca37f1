//! Adapters on GPUs: PEFT's numbers, in batches with several of them, and from captured steps.

use model::{AdapterFile, AdapterSource, Batch, LoadOptions, Model};

use super::devices;
use crate::adapters::{adapter_forms, base_of, folder, golden, names, options, ready};
use crate::families::{distance, forms};
use crate::support::{batch, table};

#[test]
fn adapters_equal_peft() {
    for device in devices() {
        // One of each kind; a software GPU takes its time.
        let few = [
            "llama-lora",
            "llama-f32",
            "llama-dora",
            "phi3-lora",
            "qwen3moe-experts",
            "gpt-oss-experts",
            "qwen2moe-lora",
            "jamba-lora",
            "qwen35-dora",
            "lfm2-lora",
            "kimi-linear-lora",
        ];
        for name in names().into_iter().filter(|name| few.contains(&name.as_str())) {
            let (tokens, truth) = golden(&name);
            for (form, checkpoint) in forms(base_of(&name)) {
                let mut model = Model::load(&checkpoint, LoadOptions { device, ..options() }).unwrap();
                for path in adapter_forms(&name) {
                    let id = ready(&mut model, &path);
                    let whole = batch(&tokens, 0, &table(0, tokens.len()), true);
                    let found = model.forward(&Batch { adapters: vec![Some(id)], ..whole }).unwrap().logits.to_vec();
                    let error = distance(&found, &truth);
                    assert!(error < 1e-3, "{} on {form}: {error:.2e}", path.display());
                }
            }
        }
    }
}

/// Decoding is captured: another adapter, a plain step and an adapter that was loaded later must not replay the wrong one.
#[test]
fn captured_steps_follow_the_adapter() {
    for device in devices() {
        let (_, checkpoint) = forms("llama").remove(1);
        let mut model = Model::load(&checkpoint, LoadOptions { device, ..options() }).unwrap();
        let kinds = ["llama-lora", "llama-other", "llama-dora"];
        let truths = kinds.map(golden);
        let tokens = truths[0].0.clone();
        let n_vocab = truths[0].1.len() / tokens.len();
        // Room for two: the third displaces the first, whose graphs must go with it.
        for name in [0, 1, 0, 2, 1] {
            let path = folder().join(kinds[name]);
            let id = AdapterFile::open(&path).unwrap().id;
            model.load_adapter(&AdapterSource { id, path }, &[]).unwrap();
            for (i, truth) in truths[name].1.chunks(n_vocab).enumerate().take(6) {
                let one = batch(&tokens[i..=i], i, &table(0, tokens.len()), true);
                let found = model.forward(&Batch { adapters: vec![Some(id)], ..one }).unwrap().logits.to_vec();
                let error = distance(&found, truth);
                assert!(error < 1e-3, "{} token {i}: {error:.2e}", kinds[name]);
            }
        }
    }
}
