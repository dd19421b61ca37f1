//! Answers that do not depend on who else is asking, on every GPU that is here.

use engine::{EngineOptions, Handle, Reuse, draw, start};
use model::{DeviceChoice, LoadOptions, Model, Numerics, Recipe, Synthetic, synthetic};
use weights::Dtype;

use crate::deterministic::{Answer, ask, collect, in_chunks};
use crate::families::forms;

/// A dense model and a mixture on every GPU: rows in one step, in chunks and one by one, and through the engine, where steps
/// are captured, replayed and queued ahead.
#[test]
fn tiny_models_on_gpus_answer_alike_whoever_else_asks() {
    for (vendor, ordinal) in test_support::gpus::all() {
        let device = DeviceChoice::Gpu { vendor, ordinal };
        let dense = synthetic(Synthetic::Tiny, Recipe::Uniform(Dtype::Q4_0), 7).unwrap();
        let (_, mixture) = forms("qwen3moe").into_iter().next_back().unwrap();
        for checkpoint in [&dense, &mixture] {
            let options = LoadOptions {
                device,
                n_blocks: 32,
                max_batch_tokens: 64,
                numerics: Numerics::RowInvariant,
                ..LoadOptions::default()
            };
            let model = || Model::load(checkpoint, options).unwrap();
            let n_vocab = model().config().n_vocab as u64;
            let tokens: Vec<u32> = (0..40).map(|i| (draw::bits(5, i) % n_vocab) as u32).collect();
            let alone = in_chunks(&mut model(), &tokens, 1);
            for chunk in [7, 40] {
                assert!(in_chunks(&mut model(), &tokens, chunk) == alone, "chunks of {chunk}");
            }
            let lengths = [21, 33, 5, 24];
            let ask_all = |handle: &Handle, together: bool| -> Vec<Answer> {
                let ask = |(seed, n): (u64, usize)| ask(handle, seed, n, n_vocab as usize);
                let asks = (0..).zip(lengths);
                match together {
                    true => asks.map(ask).collect::<Vec<_>>().into_iter().map(|events| collect(events).0).collect(),
                    false => asks.map(|one| collect(ask(one)).0).collect(),
                }
            };
            let off = EngineOptions { reuse: Reuse::Off, max_batch_tokens: 64, ..EngineOptions::default() };
            let one_by_one = start(model(), off, None);
            let expected = ask_all(&one_by_one, false);
            one_by_one.shutdown();
            let together = start(model(), EngineOptions { prefill_chunk: 7, reuse: Reuse::On, ..off }, None);
            for _ in 0..2 {
                assert_eq!(ask_all(&together, true), expected);
            }
            together.shutdown();
        }
    }
}
