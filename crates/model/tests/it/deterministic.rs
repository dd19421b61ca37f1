//! Answers that do not depend on who else is asking: with `Numerics::RowInvariant` tokens and log-probabilities are the
//! same bit for bit, whatever the batch, the cutting of prompts, the prefix cache and preemption do.

use engine::{EngineOptions, Event, Handle, Reuse, Sampling, Submit, draw, start};
use model::{Config, KvType, LoadOptions, Model, Numerics, TokenId};
use weights::Checkpoint;

use crate::families::{forms, names};
use crate::support::{batch, smollm2, table};

const N_TOKENS: usize = 8;

/// Tokens with the bits of their log-probabilities and of the best ones'.
pub type Answer = Vec<(TokenId, u32, Vec<(TokenId, u32)>)>;

fn load(checkpoint: &Checkpoint, numerics: Numerics, n_blocks: usize) -> Model {
    let options = LoadOptions { n_blocks, max_batch_tokens: 528, n_threads: 2, numerics, ..LoadOptions::default() };
    Model::load(checkpoint, options).unwrap()
}

pub fn ask(handle: &Handle, seed: u64, n_prompt: usize, n_vocab: usize) -> engine::Events {
    ask_for(handle, seed, n_prompt, n_vocab, N_TOKENS)
}

fn ask_for(handle: &Handle, seed: u64, n_prompt: usize, n_vocab: usize, n_tokens: usize) -> engine::Events {
    // The first tokens are those of all others, so that there is something to find in the prefix index.
    let token = |i: u64| TokenId((draw::bits(if i < 20 { 0 } else { seed }, i) % n_vocab as u64) as u32);
    let prompt = (0..n_prompt as u64).map(token).collect();
    let sampling = match seed % 2 {
        0 => Sampling::default(),
        _ => Sampling { temperature: 0.9, top_p: 0.95, seed, ..Sampling::default() },
    };
    let submit = Submit { sampling, logprobs: Some(3), ..Submit::new(handle.next_request_id(), prompt, n_tokens) };
    handle.submit(submit).unwrap()
}

/// The answer, how much of the prompt was found in the prefix index, and how often the request was preempted.
pub fn collect(events: engine::Events) -> (Answer, usize, usize) {
    let mut answer = Answer::new();
    for event in events {
        match event {
            Event::Token { token, logprob, top, .. } => {
                answer.push((token, logprob.to_bits(), top.into_iter().map(|(t, p)| (t, p.to_bits())).collect()));
            }
            Event::Finished { usage, .. } => {
                return (answer, usage.n_cached_prompt, usage.n_preemptions);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    panic!("the events end without a last one");
}

/// Lengths of prompts: on both sides of a block, of the kernels' thresholds and of a part of a context.
fn n_prompt(seed: u64) -> usize {
    [21, 33, 40, 26, 24, 48, 20, 280, 65, 31, 22, 47, 30, 23, 39, 32][seed as usize % 16]
}

fn all_at_once(model: Model, options: EngineOptions, n: u64, n_tokens: usize) -> Vec<(Answer, usize, usize)> {
    let n_vocab = model.config().n_vocab;
    let handle = start(model, options, None);
    let asked: Vec<_> = (0..n).map(|seed| ask_for(&handle, seed, n_prompt(seed), n_vocab, n_tokens)).collect();
    asked.into_iter().map(collect).collect()
}

fn one_by_one(model: Model, n: u64) -> Vec<Answer> {
    let n_vocab = model.config().n_vocab;
    let handle = start(model, EngineOptions { reuse: Reuse::Off, ..EngineOptions::default() }, None);
    (0..n).map(|seed| collect(ask(&handle, seed, n_prompt(seed), n_vocab)).0).collect()
}

#[test]
fn smollm2_answers_alike_whoever_else_asks() {
    let Some(checkpoint) = smollm2() else { return };
    let invariant = |n_blocks| load(&checkpoint, Numerics::RowInvariant, n_blocks);
    let alone = one_by_one(invariant(40), 16);
    let options = |prefill_chunk: usize| EngineOptions { prefill_chunk, ..EngineOptions::default() };
    // The second pool is too small for answers that grow longer, so some are preempted.
    for (prefill_chunk, n_blocks, n_tokens) in [(7, 200, N_TOKENS), (64, 24, 5 * N_TOKENS), (512, 200, N_TOKENS)] {
        let found = all_at_once(invariant(n_blocks), options(prefill_chunk), 16, n_tokens);
        for (seed, ((answer, _, _), alone)) in found.iter().zip(&alone).enumerate() {
            assert!(answer.len() <= n_tokens);
            assert_eq!(
                answer[..alone.len().min(answer.len())],
                alone[..],
                "request {seed}, chunks of {prefill_chunk}, {n_blocks} blocks"
            );
        }
        let n_cached: usize = found.iter().map(|(_, n_cached, _)| n_cached).sum();
        assert!(n_cached > 0 || n_blocks < 100, "the prefix index was meant to be used");
        let n_preemptions: usize = found.iter().map(|(_, _, n)| n).sum();
        assert!(n_preemptions > 0 || n_blocks > 100, "the pool was meant to be too small");
    }
}

/// The bits of every row's logits, in steps of so many rows.
pub fn in_chunks(model: &mut Model, tokens: &[u32], chunk: usize) -> Vec<u32> {
    let blocks = table(0, tokens.len());
    let mut bits = Vec::new();
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let rows = model.forward(&batch(part, i * chunk, &blocks, true)).unwrap();
        bits.extend(rows.logits.iter().map(|x| x.to_bits()));
    }
    bits
}

/// Otherwise the test above would pass with any kernel.
#[test]
fn smollm2_answers_otherwise_without_the_mode() {
    let Some(checkpoint) = smollm2() else { return };
    let alone = one_by_one(load(&checkpoint, Numerics::Fastest, 40), 8);
    let options = EngineOptions { prefill_chunk: 7, ..EngineOptions::default() };
    let found = all_at_once(load(&checkpoint, Numerics::Fastest, 100), options, 8, N_TOKENS);
    assert!(found.iter().zip(&alone).any(|((answer, _, _), alone)| answer != alone));
}

/// Mixtures, windows, caps, sinks, compressed attention: every family that generates, each row's logits in one step, in
/// chunks of seven and one by one.
#[test]
fn every_family_gives_a_row_the_bits_it_has_alone() {
    let mut n_mixtures = 0;
    for name in names() {
        let Some((_, checkpoint)) = forms(&name).into_iter().next_back() else { continue };
        let config = Config::from_checkpoint(&checkpoint).unwrap();
        if config.is_encoder() {
            continue;
        }
        n_mixtures += usize::from(config.experts.is_some());
        let tokens: Vec<u32> = (0..90).map(|i| (draw::bits(5, i) % config.n_vocab as u64) as u32).collect();
        let logits = |chunk: usize| -> Vec<u32> {
            let options = LoadOptions {
                kv_type: KvType::F16,
                n_blocks: 8,
                max_batch_tokens: 96,
                max_logits_rows: 96,
                n_threads: if chunk == 1 { 1 } else { 3 },
                numerics: Numerics::RowInvariant,
                ..LoadOptions::default()
            };
            in_chunks(&mut Model::load(&checkpoint, options).unwrap(), &tokens, chunk)
        };
        let alone = logits(1);
        for chunk in [7, 90] {
            assert!(logits(chunk) == alone, "{name}: chunks of {chunk}");
        }
    }
    assert!(n_mixtures > 2, "{n_mixtures} mixtures");
}
