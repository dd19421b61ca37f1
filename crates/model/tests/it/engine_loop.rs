//! The loop on the real decoder with random weights: what holds for the toy holds for arithmetic. The KV cache is f32
//! and greedy choices are compared, so a difference means a block or a row mixed up, not rounding.

use engine::{EngineOptions, Handle, Reuse, Sampling, Submit, draw, sampler::Sampler, start};
use model::{BLOCK_TOKENS, Batch, BlockId, KvType, LoadOptions, Model, Recipe, SeqRows, Synthetic, TokenId, synthetic};
use weights::Dtype;

use crate::support::collect;

fn load(n_blocks: usize) -> Model {
    let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(Dtype::F32), 7).unwrap();
    let options = LoadOptions {
        kv_type: KvType::F32,
        n_blocks,
        max_batch_tokens: 64,
        max_logits_rows: 16,
        n_threads: 1,
        ..LoadOptions::default()
    };
    Model::load(&checkpoint, options).unwrap()
}

fn prompt(model: &Model, seed: u64, n: usize) -> Vec<TokenId> {
    let n_vocab = model.config().n_vocab as u64;
    (0..n as u64).map(|i| TokenId((draw::bits(seed, i) % n_vocab) as u32)).collect()
}

fn sampling(seed: u64) -> Sampling {
    match seed % 2 {
        0 => Sampling::default(),
        _ => Sampling { temperature: 0.8, top_k: 50, top_p: 0.95, seed, ..Sampling::default() },
    }
}

/// What the model says with no engine around it: one token a step, blocks in order.
fn alone(model: &mut Model, prompt: &[TokenId], n: usize, sampling: &Sampling) -> Vec<TokenId> {
    let mut sampler = Sampler::new(model.config().n_vocab);
    let mut tokens = prompt.to_vec();
    for position in 0..prompt.len() + n - 1 {
        let table = (0..=position / BLOCK_TOKENS).map(|i| BlockId(i as u32)).collect();
        let batch = Batch {
            tokens: vec![tokens[position]],
            positions: vec![position as u32],
            seqs: vec![SeqRows { first_row: 0, n_rows: 1, block_table: table }],
            logits_rows: vec![0],
            ..Batch::default()
        };
        let output = model.forward(&batch).unwrap();
        if position + 1 == tokens.len() {
            tokens.push(sampler.sample(output.logits, &tokens, sampling, None, None).unwrap().token);
        }
    }
    tokens.split_off(prompt.len())
}

fn submit(handle: &Handle, seed: u64, prompt: &[TokenId], n: usize) -> Submit {
    Submit { sampling: sampling(seed), ..Submit::new(handle.next_request_id(), prompt.to_vec(), n) }
}

#[test]
fn sixteen_together_say_what_each_says_alone() {
    let mut model = load(20);
    let prompts: Vec<_> = (0..16).map(|seed| prompt(&model, seed, 5 + 6 * seed as usize)).collect();
    let expected: Vec<_> =
        (0..).zip(&prompts).map(|(seed, prompt)| alone(&mut model, prompt, 24, &sampling(seed))).collect();
    let handle = start(model, EngineOptions { prefill_chunk: 20, ..EngineOptions::default() }, None);
    let submits = (0..).zip(&prompts).map(|(seed, prompt)| submit(&handle, seed, prompt, 24));
    let all: Vec<_> = submits.map(|submit| handle.submit(submit).unwrap()).collect();
    let mut n_preemptions = 0;
    for ((seed, expected), events) in (0..).zip(&expected).zip(all) {
        let (tokens, _, usage) = collect(events);
        n_preemptions += usage.n_preemptions;
        assert_eq!(&tokens, expected, "sequence {seed}");
    }
    assert!(n_preemptions > 0, "the pool was meant to be too small");
}

#[test]
fn prefix_reuse_and_resuming_change_nothing() {
    let mut model = load(64);
    let prompt = prompt(&model, 3, 70);
    let expected = alone(&mut model, &prompt, 20, &sampling(1));
    let plain = start(load(64), EngineOptions { reuse: Reuse::Off, ..EngineOptions::default() }, None);
    assert_eq!(collect(plain.submit(submit(&plain, 1, &prompt, 20)).unwrap()).0, expected);
    let handle = start(model, EngineOptions::default(), None);
    for n_cached in [0, 64, 64] {
        let (tokens, _, usage) = collect(handle.submit(submit(&handle, 1, &prompt, 20)).unwrap());
        assert_eq!((tokens.as_slice(), usage.n_cached_prompt), (expected.as_slice(), n_cached));
    }
    for n_done in [1, 7, 19] {
        let fresh = start(load(64), EngineOptions::default(), None);
        let resumed = Submit { generated: expected[..n_done].to_vec(), ..submit(&fresh, 1, &prompt, 20) };
        assert_eq!(collect(fresh.submit(resumed).unwrap()).0, expected[n_done..]);
    }
}
