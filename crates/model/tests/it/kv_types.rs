//! Quantized keys and values: wide checkpoints give nearly what they give with f32 ones, compressed attention included, and
//! heads that do not fill groups are refused.

use model::{Error, KvType, LoadOptions, Model};
use weights::{Checkpoint, Dtype};

use crate::families::{distance, forms, golden, run};
use crate::wide::widen;

fn load(checkpoint: &Checkpoint, kv_type: KvType) -> Result<Model, Error> {
    let options = LoadOptions {
        kv_type,
        n_blocks: 24,
        n_states: 4,
        max_batch_tokens: 64,
        max_logits_rows: 64,
        n_threads: 2,
        ..LoadOptions::default()
    };
    Model::load(checkpoint, options)
}

#[test]
fn quantized_keys_and_values_give_nearly_the_same() {
    // Plain, with a bias of keys, a window with a cap, sinks, compressed.
    for name in ["llama", "qwen2", "gemma2", "gpt-oss", "deepseek2", "minicpm3"] {
        let (checkpoint, _) = widen(&forms(name).pop().unwrap().1, Dtype::Q8_0, 3);
        let golden = golden(name);
        let logits = |kv_type| run(&mut load(&checkpoint, kv_type).unwrap(), &golden);
        let truth = logits(KvType::F32);
        for (kv_type, bound) in [(KvType::Q8_0, 0.03), (KvType::Q4_0, 0.5)] {
            let away = distance(&logits(kv_type), &truth);
            println!("{name} {kv_type:?}: {away:.2e}");
            assert!(away > 0.0 && away <= bound, "{name} {kv_type:?}: {away:.2e}");
        }
    }
}

#[test]
fn heads_that_do_not_fill_groups_are_refused() {
    // Heads of 8, of 48 in compressed attention, and of 8 and 16 by layers.
    for (name, head_dim) in [("llama", 8), ("deepseek2", 48), ("gemma4", 8)] {
        let checkpoint = forms(name).remove(0).1;
        let refused = load(&checkpoint, KvType::Q8_0).err().unwrap().to_string();
        assert!(refused.contains(&format!("its heads have {head_dim} numbers")), "{name}: {refused}");
        assert!(refused.contains("no multiple of 32 (f16 takes any)"), "{name}: {refused}");
    }
}
