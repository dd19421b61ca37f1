//! The tokens that come out: the same as the model alone would give, whatever shares the batch, whatever is preempted,
//! reused from the prefix index, or taken up by another engine half-way.

use batch::{Attention, PooledStates, TokenId};
use engine::{
    Dry, EngineOptions, Event, Events, FinishReason, Handle, Mirostat, Normalize, Pooling, RequestId, Reuse, Sampling,
    Submit, Usage, VectorRequest,
};

use crate::{
    engine_loop::Parities,
    toy::{self, Toy},
};

pub fn start(n_blocks: usize, options: EngineOptions) -> Handle {
    engine::start(Toy::new(n_blocks), options, None)
}

/// All tokens of a request, and how it ended.
pub fn collect(events: Events) -> (Vec<TokenId>, FinishReason, Usage) {
    let mut tokens = Vec::new();
    for event in events {
        match event {
            Event::Token { index, token, .. } => {
                assert!(tokens.is_empty() || index > 0);
                tokens.push(token);
            }
            Event::Finished { reason, usage, .. } => return (tokens, reason, usage),
            other => panic!("unexpected {other:?}"),
        }
    }
    panic!("the events end without a last one");
}

fn sampling(seed: u64) -> Sampling {
    match seed % 4 {
        0 => Sampling::default(),
        3 => Sampling {
            temperature: 0.8,
            mirostat: Some(Mirostat { tau: 3.0, eta: 0.3 }),
            dry: Dry { multiplier: 0.8, ..Dry::default() },
            seed,
            ..Sampling::default()
        },
        1 => Sampling { temperature: 0.9, seed, ..Sampling::default() },
        _ => Sampling {
            temperature: 1.3,
            top_k: 30,
            top_p: 0.95,
            min_p: 0.02,
            repetition_penalty: 1.2,
            presence_penalty: 0.3,
            frequency_penalty: 0.1,
            penalty_window: 20,
            seed,
            ..Sampling::default()
        },
    }
}

fn request(handle: &Handle, seed: u64, n_prompt: usize, max_tokens: usize) -> Submit {
    let prompt = toy::prompt(seed, n_prompt);
    Submit { sampling: sampling(seed), ..Submit::new(handle.next_request_id(), prompt, max_tokens) }
}

#[test]
fn tokens_are_those_of_the_model_alone() {
    let handle = start(64, EngineOptions::default());
    for (seed, n_prompt) in [(0, 1), (1, 15), (2, 16), (3, 17), (4, 64), (5, 65), (6, 200)] {
        let submit = request(&handle, seed, n_prompt, 40);
        let expected = toy::expected(&submit.prompt, 40, &submit.sampling);
        let (tokens, reason, usage) = collect(handle.submit(submit).unwrap());
        assert_eq!(tokens, expected, "prompt of {n_prompt}");
        assert_eq!((reason, usage.n_prompt, usage.n_generated), (FinishReason::Length, n_prompt, 40));
        assert!(usage.timings.ttft >= usage.timings.queue + usage.timings.prefill);
    }
}

#[test]
fn sixteen_together_say_what_each_says_alone() {
    // 40 blocks for 16 sequences that need up to 10 each: many are preempted on the way.
    for n_blocks in [40, 400] {
        let options = EngineOptions { max_batch_tokens: 50, prefill_chunk: 13, ..EngineOptions::default() };
        let handle = start(n_blocks, options);
        let submits: Vec<_> = (0..16).map(|seed| request(&handle, seed, 20 + 7 * seed as usize, 60)).collect();
        let all: Vec<_> = submits.iter().map(|submit| handle.submit(submit.clone()).unwrap()).collect();
        let mut n_preemptions = 0;
        for (submit, events) in submits.iter().zip(all) {
            let (tokens, _, usage) = collect(events);
            n_preemptions += usage.n_preemptions;
            assert_eq!(tokens, toy::expected(&submit.prompt, 60, &submit.sampling));
        }
        assert_eq!(n_preemptions > 0, n_blocks == 40);
        let stats = handle.stats().unwrap();
        assert_eq!((stats.n_running, stats.n_waiting, stats.n_blocks_held), (0, 0, 0));
        assert_eq!((stats.n_finished, stats.n_tokens_generated), (16, 16 * 60));
    }
}

/// A prompt's scores make the engine look at every row, also at those of its own tokens when a preempted sequence is
/// computed again. Its mask and mirostat's state have seen these.
#[test]
fn a_scored_request_sees_each_of_its_tokens_once() {
    let play = |n_blocks: usize| {
        let handle = engine::start(Toy::new(n_blocks), EngineOptions::default(), Some(Box::new(Parities)));
        let submit = |seed: u64| {
            let mut submit = request(&handle, seed, 20 + seed as usize, 60);
            submit.sampling = sampling(3 + 4 * seed);
            (submit.prompt_logprobs, submit.constraint) = (true, Some("odd".into()));
            handle.submit(submit).unwrap()
        };
        let events: Vec<_> = (0..12).map(submit).collect();
        let mut n_preemptions = 0;
        let answers: Vec<Vec<TokenId>> = events
            .into_iter()
            .map(|mut events| {
                assert!(matches!(events.next(), Some(Event::Prompt { .. })));
                let (tokens, reason, usage) = collect(events);
                n_preemptions += usage.n_preemptions;
                assert_eq!((tokens.len(), reason), (60, FinishReason::Length));
                tokens
            })
            .collect();
        (answers, n_preemptions)
    };
    let (roomy, tight) = (play(200), play(24));
    assert!(roomy.1 == 0 && tight.1 > 0, "{} and {} preemptions", roomy.1, tight.1);
    assert_eq!(roomy.0, tight.0);
}

#[test]
fn a_sequence_taken_up_at_any_point_goes_on_as_it_would_have() {
    for seed in [0, 1, 2] {
        let whole = {
            let handle = start(64, EngineOptions::default());
            let submit = request(&handle, seed, 21, 40);
            collect(handle.submit(submit).unwrap()).0
        };
        for n_done in 0..=whole.len() {
            let handle = start(64, EngineOptions::default());
            let mut submit = request(&handle, seed, 21, 40);
            submit.generated = whole[..n_done].to_vec();
            let mut indices = n_done..;
            let mut rest = Vec::new();
            for event in handle.submit(submit).unwrap() {
                match event {
                    Event::Token { index, token, .. } => {
                        assert_eq!(Some(index), indices.next());
                        rest.push(token);
                    }
                    Event::Finished { reason, usage, .. } => {
                        assert_eq!((reason, usage.n_prompt, usage.n_generated), (FinishReason::Length, 21, 40));
                    }
                    other => panic!("unexpected {other:?}"),
                }
            }
            assert_eq!(rest, whole[n_done..], "taken up after {n_done} tokens");
        }
    }
}

#[test]
fn a_known_prefix_is_not_computed_again_and_changes_nothing() {
    let without = start(64, EngineOptions { reuse: Reuse::Off, ..EngineOptions::default() });
    let with = start(64, EngineOptions::default());
    // (prompt length, tokens that the second run finds): the last token is always computed.
    for (n_prompt, n_cached) in [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32), (100, 96)] {
        let seed = n_prompt as u64;
        let submit = request(&with, seed, n_prompt, 20);
        let (first, _, usage) = collect(with.submit(submit.clone()).unwrap());
        assert_eq!(usage.n_cached_prompt, 0);
        let (second, _, usage) = collect(with.submit(submit.clone()).unwrap());
        assert_eq!(usage.n_cached_prompt, n_cached, "prompt of {n_prompt}");
        let (plain, _, usage) = collect(without.submit(submit.clone()).unwrap());
        assert_eq!(usage.n_cached_prompt, 0);
        assert_eq!(first, plain);
        assert_eq!(second, plain);
        // A conversation continues: prompt, answer, more. The blocks of the answer are found as well.
        let mut longer = submit;
        longer.prompt.extend(&first);
        longer.prompt.extend(toy::prompt(seed + 1, 9));
        let n_known = (n_prompt + 19) / 16 * 16;
        let (tokens, _, usage) = collect(with.submit(longer.clone()).unwrap());
        assert_eq!(usage.n_cached_prompt, n_known, "prompt of {n_prompt} with its answer");
        assert_eq!(tokens, toy::expected(&longer.prompt, 20, &longer.sampling));
    }
}

#[test]
fn many_at_once_share_a_prefix() {
    let handle = start(30, EngineOptions::default());
    let common = toy::prompt(9, 64);
    // The first one leaves the prefix behind.
    collect(handle.submit(Submit::new(handle.next_request_id(), common.clone(), 1)).unwrap());
    let submits: Vec<_> = (0..12)
        .map(|seed| {
            let mut submit = request(&handle, seed, 5, 30);
            submit.prompt.splice(0..0, common.iter().copied());
            submit
        })
        .collect();
    let all: Vec<_> = submits.iter().map(|submit| handle.submit(submit.clone()).unwrap()).collect();
    for (submit, events) in submits.iter().zip(all) {
        let (tokens, _, usage) = collect(events);
        assert_eq!(tokens, toy::expected(&submit.prompt, 30, &submit.sampling));
        assert_eq!(usage.n_cached_prompt, 64);
    }
}

#[test]
fn several_answers_share_the_blocks_of_their_prompt() {
    let handle = start(64, EngineOptions::default());
    let prompt = toy::prompt(9, 100);
    let answers: Vec<_> = (0..4)
        .map(|seed| {
            let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
            let submit = Submit { sampling, ..Submit::new(handle.next_request_id(), prompt.clone(), 20) };
            handle.submit(submit).unwrap()
        })
        .collect();
    let mut n_cached = Vec::new();
    for (seed, events) in (0..).zip(answers) {
        let (tokens, _, usage) = collect(events);
        let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
        assert_eq!(tokens, toy::expected(&prompt, 20, &sampling));
        n_cached.push(usage.n_cached_prompt);
    }
    // Six full blocks of the prompt's 100 tokens; the first answer computes them, whichever that is.
    n_cached.sort_unstable();
    assert_eq!(n_cached, [0, 96, 96, 96]);
    assert_eq!(handle.stats().unwrap().n_tokens_computed, 100 + 3 * 4 + 4 * 19);
}

#[test]
fn a_stop_token_waits_for_the_shortest_answer() {
    let handle = start(64, EngineOptions::default());
    let free = toy::expected(&toy::prompt(4, 20), 30, &Sampling::default());
    let mut submit = Submit::new(handle.next_request_id(), toy::prompt(4, 20), 30);
    submit.stop_tokens = free.clone();
    assert_eq!(collect(handle.submit(submit.clone()).unwrap()).0.len(), 1);
    submit.sampling.min_tokens = 12;
    submit.id = handle.next_request_id();
    let (tokens, reason, _) = collect(handle.submit(submit).unwrap());
    assert!(tokens[..12].iter().all(|token| !free.contains(token)), "{tokens:?}");
    assert!(reason == FinishReason::Stop && tokens.len() >= 13 || tokens.len() == 30, "{tokens:?}");
}

#[test]
fn logprobs_come_with_the_tokens_that_asked() {
    let handle = start(8, EngineOptions::default());
    let mut submit = request(&handle, 0, 5, 3);
    submit.logprobs = Some(4);
    let mut tokens = submit.prompt.clone();
    for event in handle.submit(submit).unwrap() {
        let Event::Token { token, logprob, top, .. } = event else { continue };
        let row: Vec<f32> = toy::logits(toy::hash(tokens.iter().copied())).collect();
        let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        assert_eq!((top.len(), top[0]), (4, (token, logprob)));
        for (token, logprob) in top {
            let truth = (f64::from(row[token.0 as usize]).exp() / total).ln();
            assert!((f64::from(logprob) - truth).abs() < 1e-5);
        }
        tokens.push(token);
    }
    assert_eq!(tokens.len(), 8);
}

/// The prompt's tokens as the toy itself scores them, alone and among others that push them out on the way.
#[test]
fn prompts_are_scored() {
    for n_blocks in [20, 400] {
        let options = EngineOptions { max_batch_tokens: 50, prefill_chunk: 13, ..EngineOptions::default() };
        let handle = start(n_blocks, options);
        let others: Vec<_> = (0..6).map(|seed| handle.submit(request(&handle, seed, 30, 60)).unwrap()).collect();
        for (n_prompt, max_tokens) in [(1, 0), (1, 2), (40, 0), (100, 3)] {
            let mut submit = Submit::new(handle.next_request_id(), toy::prompt(9, n_prompt), max_tokens);
            (submit.logprobs, submit.prompt_logprobs) = (Some(2), true);
            let (mut scored, mut n_tokens) = (None, 0);
            for event in handle.submit(submit.clone()).unwrap() {
                match event {
                    Event::Prompt { tokens, .. } => assert!(scored.replace(tokens).is_none() && n_tokens == 0),
                    Event::Token { .. } => n_tokens += 1,
                    Event::Finished { reason, .. } => assert_eq!(reason, FinishReason::Length),
                    other => panic!("unexpected {other:?}"),
                }
            }
            let scored = scored.expect("the prompt was not scored");
            assert_eq!((scored.len(), n_tokens), (n_prompt - 1, max_tokens));
            for (at, one) in scored.iter().enumerate() {
                let row: Vec<f32> = toy::logits(toy::hash(submit.prompt[..=at].iter().copied())).collect();
                let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
                let truth = |token: TokenId| (f64::from(row[token.0 as usize]).exp() / total).ln();
                assert_eq!((one.token, one.top.len()), (submit.prompt[at + 1], 2));
                assert!((f64::from(one.logprob) - truth(one.token)).abs() < 1e-5);
                assert!((f64::from(one.top[0].1) - truth(one.top[0].0)).abs() < 1e-5);
            }
        }
        assert_eq!(others.into_iter().map(|events| collect(events).0.len()).sum::<usize>(), 6 * 60);
    }
}

pub fn vector(handle: &Handle, tokens: &[TokenId], pooling: Pooling, attention: Attention) -> VectorRequest {
    let id = handle.next_request_id();
    VectorRequest { id, tokens: tokens.to_vec(), pooling, attention, normalize: Normalize::None, priority: 0, group: 0 }
}

pub fn expected_vector(embed: &VectorRequest) -> Vec<f32> {
    let n = embed.tokens.len();
    let states: Vec<Vec<f32>> = (0..n)
        .map(|i| {
            let n_seen = if embed.attention == Attention::Full { n } else { i + 1 };
            toy::hidden(toy::hash(embed.tokens[..n_seen].iter().copied())).collect()
        })
        .collect();
    match embed.pooling.states() {
        PooledStates::First => states[0].clone(),
        PooledStates::Last => states[n - 1].clone(),
        PooledStates::Mean => (0..toy::N_EMBD)
            .map(|d| (states.iter().map(|state| f64::from(state[d])).sum::<f64>() / n as f64) as f32)
            .collect(),
    }
}

#[test]
fn vectors_are_pooled_right_beside_generation_and_preemption() {
    let handle = start(20, EngineOptions { max_batch_tokens: 30, prefill_chunk: 7, ..EngineOptions::default() });
    let talkers: Vec<_> = (0..6).map(|seed| request(&handle, seed, 40, 50)).collect();
    let talking: Vec<_> = talkers.iter().map(|submit| handle.submit(submit.clone()).unwrap()).collect();
    let mut embeds = Vec::new();
    for pooling in [Pooling::First, Pooling::Last, Pooling::Mean] {
        for (attention, n_tokens) in
            [(Attention::Causal, 1), (Attention::Causal, 90), (Attention::Full, 1), (Attention::Full, 22)]
        {
            let tokens = toy::prompt(n_tokens as u64, n_tokens);
            // More important than the talkers, so that these are preempted for them.
            embeds.push(VectorRequest { priority: 1, ..vector(&handle, &tokens, pooling, attention) });
        }
    }
    let waiting: Vec<_> = embeds.iter().map(|embed| handle.embed(embed.clone()).unwrap()).collect();
    for (embed, mut events) in embeds.iter().zip(waiting) {
        let Some(Event::Vector { vector, usage, .. }) = events.next() else { panic!("no vector") };
        assert_eq!(usage.n_prompt, embed.tokens.len());
        for (a, b) in vector.iter().zip(expected_vector(embed)) {
            assert!((a - b).abs() < 1e-6, "{:?} {:?}", embed.pooling, embed.attention);
        }
        assert_eq!(vector.len(), toy::N_EMBD);
    }
    for (submit, events) in talkers.iter().zip(talking) {
        assert_eq!(collect(events).0, toy::expected(&submit.prompt, 50, &submit.sampling));
    }
    let unit = VectorRequest {
        normalize: Normalize::Unit,
        ..vector(&handle, &toy::prompt(3, 9), Pooling::Mean, Attention::Causal)
    };
    let Some(Event::Vector { vector, id, .. }) = handle.embed(unit.clone()).unwrap().next() else { panic!() };
    assert_eq!(id, RequestId(unit.id.0));
    assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
}
