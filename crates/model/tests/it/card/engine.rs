//! On each GPU that is here: tokens that the model chooses there are those that the engine's own sampler chooses from
//! its logits. None is a skip with the reason, or a failure with `ROCI_REQUIRE_GPU=1`.

use engine::{EngineOptions, Sampling, Submit, sampler, sampler::Sampler, start};
use model::{Batch, BlockId, DeviceChoice, LoadOptions, Model, Recipe, SeqRows, Synthetic, TokenId, synthetic};
use weights::Dtype;

use crate::support::collect;

fn models() -> Vec<Model> {
    let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(Dtype::Q8_0), 7).unwrap();
    let (mut models, mut reasons) = (Vec::new(), Vec::new());
    for vendor in gpu::Vendor::ALL {
        match gpu::Device::count(vendor) {
            Ok(n) => models.extend((0..n).map(|ordinal| {
                let device = DeviceChoice::Gpu { vendor, ordinal };
                let options = LoadOptions { device, n_blocks: 24, max_batch_tokens: 64, ..LoadOptions::default() };
                Model::load(&checkpoint, options).unwrap()
            })),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    if models.is_empty() {
        let is_required = std::env::var("ROCI_REQUIRE_GPU").is_ok_and(|value| value == "1");
        assert!(!is_required, "ROCI_REQUIRE_GPU=1 and no GPU: {}", reasons.join("; "));
        eprintln!("skipped on GPUs: {}", reasons.join("; "));
    }
    models
}

fn samplings() -> Vec<Sampling> {
    let base = Sampling { temperature: 0.9, ..Sampling::default() };
    let kinds = [
        Sampling::default(),
        base.clone(),
        Sampling { top_k: 40, ..base.clone() },
        Sampling { top_p: 0.8, ..base.clone() },
        Sampling { min_p: 0.2, ..base.clone() },
        Sampling { top_k: 40, top_p: 0.95, min_p: 0.05, temperature: 0.7, ..base },
    ];
    (0..60).map(|seed| Sampling { seed, ..kinds[seed as usize % kinds.len()].clone() }).collect()
}

#[test]
fn a_device_chooses_what_the_sampler_chooses() {
    for mut model in models() {
        let tokens: Vec<TokenId> = (0..60).map(|i| TokenId(i * 37 % 320)).collect();
        let samplings = samplings();
        let choices = samplings.iter().enumerate().map(|(row, sampling)| sampler::choice(sampling, row + 1).unwrap());
        let mut batch = Batch {
            tokens: tokens.clone(),
            positions: (0..60).collect(),
            seqs: vec![SeqRows { first_row: 0, n_rows: 60, block_table: (0..4).map(BlockId).collect() }],
            logits_rows: (0..60).collect(),
            ..Batch::default()
        };
        let n_vocab = model.config().n_vocab;
        let mut own = Sampler::new(n_vocab);
        let output = model.forward(&batch).unwrap();
        let truth: Vec<TokenId> = output
            .logits
            .chunks(n_vocab)
            .zip(&samplings)
            .enumerate()
            .map(|(row, (logits, sampling))| own.sample(logits, &tokens[..=row], sampling, None, None).unwrap().token)
            .collect();
        batch.choices = choices.collect();
        let output = model.forward(&batch).unwrap();
        assert!(output.logits.is_empty(), "no logits travel");
        let found: Vec<TokenId> = output.chosen.iter().map(|token| token.unwrap()).collect();
        assert_eq!(found, truth);
    }
}

/// The loop itself: a decode step reads back one word a sequence and nothing else.
#[test]
fn a_step_reads_one_token_back() {
    for model in models() {
        let (device, vocab_bytes) = (model.device(), 4 * model.config().n_vocab as u64);
        let before = model.counters().unwrap();
        let counters = |handle: &engine::Handle| handle.stats().unwrap();
        let handle = start(model, EngineOptions::default(), None);
        let submit = Submit::new(handle.next_request_id(), vec![TokenId(5), TokenId(9)], 8);
        let (tokens, ..) = collect(handle.submit(submit).unwrap());
        assert_eq!((tokens.len(), counters(&handle).n_tokens_generated), (8, 8));
        drop(handle);
        let vendor = gpu::Vendor::ALL.into_iter().find(|vendor| device.starts_with(vendor.word())).unwrap();
        let after = gpu::Device::open(vendor, 0).unwrap().counters();
        let moved = (after - before).bytes_to_host;
        assert!(moved <= 8 * 4, "{moved} bytes came back for 8 tokens, a row of logits has {vocab_bytes}");
    }
}
