//! Speculation: whatever a drafter proposes, an engine says what it would have said without, token by token, with its
//! log-probabilities and its reasons to stop. Only the number of steps changes.

use std::collections::HashMap;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use batch::{Forward, TokenId};
use engine::{
    Draft, DraftLength, DraftModel, DraftRequest, DraftSource, Drafter, Drafting, EngineOptions, FinishReason, Handle,
    Lookup, Reuse, Sampling, Submit, draw,
    sampler::{Sampler, SamplerState},
    sequence::SeqId,
};

use crate::{
    engine_loop::Parities,
    generation::{collect, expected_vector},
    overlap::{Ask, Random, Seen, describe, play, scenario},
    toy::{self, N_VOCAB, Toy},
};

/// Knows the toy, and so what it says next if nothing but its sampling decides; every so often it lies.
struct Oracle {
    /// One in so many tokens is wrong; 1: all are.
    lies: u64,
    is_free: bool,
    n_asks: Arc<AtomicU64>,
}

impl Oracle {
    fn boxed(lies: u64, is_free: bool) -> (Box<dyn Drafter>, Arc<AtomicU64>) {
        let n_asks = Arc::<AtomicU64>::default();
        (Box::new(Self { lies, is_free, n_asks: Arc::clone(&n_asks) }), n_asks)
    }
}

impl Drafter for Oracle {
    fn draft(&mut self, asks: &[DraftRequest], _model: &mut dyn Forward) -> Vec<Draft> {
        self.n_asks.fetch_add(asks.len() as u64, Ordering::Relaxed);
        let mut sampler = Sampler::new(N_VOCAB);
        let mut one = |ask: &DraftRequest| {
            let mut tokens = ask.tokens.to_vec();
            for _ in 0..ask.max_len {
                let row: Vec<f32> = toy::logits(toy::hash(tokens.iter().copied())).collect();
                let mut state = SamplerState::new(ask.sampling);
                let sampled = sampler.sample_with(&mut state, &row, &tokens, ask.sampling, None, None);
                let token = sampled.map_or(TokenId(0), |sampled| sampled.token);
                let is_lie = draw::bits(7, tokens.len() as u64 ^ ask.seq.0 << 20).is_multiple_of(self.lies);
                tokens.push(if is_lie { TokenId((token.0 + 1) % N_VOCAB as u32) } else { token });
            }
            Draft { tokens: tokens.split_off(ask.tokens.len()), source: DraftSource::Model }
        };
        asks.iter().map(&mut one).collect()
    }

    fn end(&mut self, _: SeqId) {}

    fn is_free(&self) -> bool {
        self.is_free
    }
}

/// As the oracle, and reads hidden states: those of known tokens must be what the toy makes of them.
struct Listener {
    oracle: Box<dyn Drafter>,
    heard: HashMap<(SeqId, usize), Vec<f32>>,
    n_checked: Arc<AtomicU64>,
}

impl Drafter for Listener {
    fn draft(&mut self, asks: &[DraftRequest], model: &mut dyn Forward) -> Vec<Draft> {
        for ask in asks {
            // The last token is not computed yet; of one that was, the state may have been left out.
            for i in 0..ask.tokens.len() - 1 {
                let Some(found) = self.heard.remove(&(ask.seq, i)) else { continue };
                let expected: Vec<f32> = toy::hidden(toy::hash(ask.tokens[..=i].iter().copied())).collect();
                assert_eq!(found, expected, "token {i} of {:?}", ask.seq);
                self.n_checked.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.oracle.draft(asks, model)
    }

    fn end(&mut self, seq: SeqId) {
        self.heard.retain(|(other, _), _| *other != seq);
    }

    fn is_free(&self) -> bool {
        true
    }

    fn reads_hidden(&self) -> bool {
        true
    }

    fn observe(&mut self, seq: SeqId, first: usize, hidden: &[f32]) {
        let rows = hidden.chunks_exact(toy::N_EMBD).zip(first..);
        self.heard.extend(rows.map(|(row, i)| ((seq, i), row.to_vec())));
    }
}

/// Beside requests for vectors, whose rows are limited too, and in steps that overlap.
#[test]
fn a_drafter_hears_the_states_of_tokens() {
    let n_checked = Arc::<AtomicU64>::default();
    for seed in 0..12 {
        let mut random = Random { seed: seed + 5000, n: 0 };
        let options = EngineOptions {
            max_batch_tokens: 40,
            max_running: 1 + random.below(16),
            prefill_chunk: 5 + random.below(30),
            n_ctx: Some(100),
            drafting: fixed(3),
            ..EngineOptions::default()
        };
        let toy = if seed % 2 == 0 { Toy::new(20) } else { Toy::device(20) };
        let toy = toy.with_states(if seed % 3 == 0 { 12 } else { 0 });
        let oracle = Oracle::boxed(4, true).0;
        let drafter = Listener { oracle, heard: HashMap::new(), n_checked: Arc::clone(&n_checked) };
        let plain = engine::start(Toy::new(20), options, Some(Box::new(Parities)));
        let listening = engine::start_speculating(toy, options, Some(Box::new(Parities)), Some(Box::new(drafter)));
        let asks = scenario(&mut random, &plain);
        let (found, _) = play(&listening, &asks);
        for (ask, found) in asks.iter().zip(&found) {
            if let (Ask::Vector(embed), Seen::Vector(found)) = (ask, found) {
                let is_same = found.iter().zip(expected_vector(embed)).all(|(a, b)| (a - b).abs() < 1e-6);
                assert!(is_same, "seed {seed}: {embed:?}");
            }
        }
    }
    assert!(n_checked.load(Ordering::Relaxed) > 1000, "{n_checked:?}");
}

fn fixed(len: usize) -> Drafting {
    Drafting { length: DraftLength::Fixed(len), ..Drafting::default() }
}

fn with(toy: Toy, drafting: Drafting, drafter: Box<dyn Drafter>) -> Handle {
    let options = EngineOptions { drafting, ..EngineOptions::default() };
    engine::start_speculating(toy, options, Some(Box::new(Parities)), Some(drafter))
}

/// Penalties, masks, mirostat, logprobs, scored prompts, stop tokens, small pools, chunked prompts, clients that leave:
/// all at once, on a host and on a device whose steps overlap, with recurrent states and without.
#[test]
fn drafts_change_no_token() {
    let (mut n_preemptions, mut n_accepted, mut n_rejected) = (0, 0, 0);
    for seed in 0..30 {
        let mut random = Random { seed: seed + 1000, n: 0 };
        let (n_blocks, n_ctx) = (8 + random.below(20), 75 + random.below(70));
        let options = EngineOptions {
            max_batch_tokens: 40,
            max_running: 1 + random.below(16),
            prefill_chunk: 5 + random.below(30),
            n_ctx: Some(n_ctx),
            reuse: if random.below(4) == 0 { Reuse::Off } else { Reuse::On },
            drafting: if random.below(4) == 0 { Drafting::default() } else { fixed(1 + random.below(9)) },
            ..EngineOptions::default()
        };
        let plain = engine::start(Toy::new(n_blocks), options, Some(Box::new(Parities)));
        let toy = if random.below(2) == 0 { Toy::new(n_blocks) } else { Toy::device(n_blocks) };
        // Every third has a recurrent state, which has to be taken back.
        let n_states = if seed % 3 == 2 { 3 + random.below(30) } else { 0 };
        let mut toy = toy.with_states(n_states);
        // Every other has windows, whose edges drafts cross and come back over.
        if seed % 2 == 1 {
            let window = 1 + random.below(60);
            toy = toy.with_windows(window, window.max(17).div_ceil(16) + 2 + random.below(12));
        }
        let (drafter, _) = Oracle::boxed(2 + random.below(6) as u64, random.below(2) == 0);
        let speculating = engine::start_speculating(toy, options, Some(Box::new(Parities)), Some(drafter));
        let asks = scenario(&mut random, &plain);
        let (truth, _) = play(&plain, &asks);
        let (found, stats) = play(&speculating, &asks);
        n_preemptions += stats.n_preemptions;
        n_accepted += stats.drafted.n_accepted;
        n_rejected += stats.drafted.n_tokens - stats.drafted.n_accepted;
        for ((ask, truth), found) in asks.iter().zip(&truth).zip(&found) {
            match (ask, truth, found) {
                (Ask::Vector(embed), _, Seen::Vector(found)) => {
                    for (a, b) in found.iter().zip(expected_vector(embed)) {
                        assert!((a - b).abs() < 1e-6, "seed {seed}: {embed:?}");
                    }
                }
                (Ask::Tokens { leaves_after: None, .. }, truth, found) => {
                    assert_eq!(found, truth, "seed {seed}: {}", describe(ask));
                }
                // How far it gets before this is noticed depends on timing: one text is a prefix of the other.
                (Ask::Tokens { .. }, Seen::Tokens(truth, _), Seen::Tokens(found, _)) => {
                    let n = truth.len().min(found.len());
                    assert_eq!(found[..n], truth[..n], "seed {seed}: {}", describe(ask));
                }
                other => panic!("seed {seed}: unexpected {:?}", (other.1, other.2)),
            }
        }
        assert_eq!((stats.n_running, stats.n_waiting, stats.n_blocks_held), (0, 0, 0), "seed {seed}");
    }
    assert!(n_preemptions > 5 && n_accepted > 200 && n_rejected > 200, "{n_preemptions} {n_accepted} {n_rejected}");
}

#[test]
fn right_drafts_save_steps_and_are_counted() {
    for toy in [Toy::new(64), Toy::device(64)] {
        let handle = with(toy, fixed(5), Oracle::boxed(u64::MAX, true).0);
        let prompt = toy::prompt(3, 20);
        let submit = Submit::new(handle.next_request_id(), prompt.clone(), 60);
        let (tokens, reason, usage) = collect(handle.submit(submit).unwrap());
        assert_eq!((tokens, reason), (toy::expected(&prompt, 60, &Sampling::default()), FinishReason::Length));
        let stats = handle.stats().unwrap();
        assert!(stats.n_steps <= 13, "{} steps for 60 tokens", stats.n_steps);
        assert_eq!((stats.drafted, stats.drafted.n_accepted), (usage.drafted, stats.drafted.n_tokens));
        assert!(usage.drafted.n_drafts >= 9 && usage.drafted.n_accepted >= 45, "{:?}", usage.drafted);
    }
}

/// What is drafted beyond the end of an answer is never computed.
#[test]
fn the_end_of_an_answer_bounds_its_drafts() {
    for max_tokens in [1, 2, 3, 7] {
        let handle = with(Toy::new(64), fixed(16), Oracle::boxed(u64::MAX, true).0);
        let submit = Submit::new(handle.next_request_id(), toy::prompt(3, 10), max_tokens);
        let (tokens, reason, _) = collect(handle.submit(submit).unwrap());
        assert_eq!((tokens.len(), reason), (max_tokens, FinishReason::Length));
        assert_eq!(handle.stats().unwrap().n_tokens_computed, (10 + max_tokens - 1) as u64);
    }
}

/// Blocks with drafted tokens are known to the prefix index once those are part of the text, and never with others: the
/// next sequence with the same beginning would read what was written for them.
#[test]
fn only_accepted_tokens_are_published() {
    for (seed, lies) in (0..30).map(|seed| (seed, 2 + seed % 4)) {
        let handle = with(Toy::new(64), fixed(1 + seed as usize % 8), Oracle::boxed(lies, true).0);
        let prompt = toy::prompt(seed, 20 + seed as usize);
        let all = toy::expected(&prompt, 40, &Sampling::default());
        let submit = Submit::new(handle.next_request_id(), prompt.clone(), 40);
        assert_eq!(collect(handle.submit(submit).unwrap()).0, all);
        let mut longer: Vec<TokenId> = prompt.iter().chain(&all).copied().collect();
        let n_computed = longer.len() - 1;
        longer.extend(toy::prompt(77, 9));
        let submit = Submit::new(handle.next_request_id(), longer.clone(), 10);
        let (tokens, _, usage) = collect(handle.submit(submit).unwrap());
        assert_eq!(usage.n_cached_prompt, n_computed / 16 * 16);
        assert_eq!(tokens, toy::expected(&longer, 10, &Sampling::default()));
    }
}

/// A new engine that is given the tokens so far continues as the old one would have, drafts or not.
#[test]
fn a_resumed_answer_goes_on_with_drafts() {
    let sampling = Sampling { temperature: 0.8, repetition_penalty: 1.2, seed: 5, ..Sampling::default() };
    let prompt = toy::prompt(9, 33);
    let all = toy::expected(&prompt, 40, &sampling);
    for n_done in [0, 1, 15, 39] {
        let handle = with(Toy::device(64), fixed(4), Oracle::boxed(3, false).0);
        let mut submit = Submit::new(handle.next_request_id(), prompt.clone(), 40);
        (submit.sampling, submit.generated) = (sampling.clone(), all[..n_done].to_vec());
        assert_eq!(collect(handle.submit(submit).unwrap()).0, all[n_done..]);
    }
}

/// A drafter that costs something and is always wrong is soon not asked any more, and then rarely.
#[test]
fn a_drafter_without_luck_is_left_alone() {
    let (drafter, n_asks) = Oracle::boxed(1, false);
    let handle = with(Toy::new(64), Drafting::default(), drafter);
    let prompt = toy::prompt(3, 20);
    let submit = Submit::new(handle.next_request_id(), prompt.clone(), 900);
    let (tokens, _, usage) = collect(handle.submit(submit).unwrap());
    assert_eq!(tokens, toy::expected(&prompt, 900, &Sampling::default()));
    let n_asks = n_asks.load(Ordering::Relaxed);
    assert!(n_asks < 60 && usage.drafted.n_accepted == 0, "{n_asks} {:?}", usage.drafted);
}

/// A request may forbid drafts, or allow short ones only.
#[test]
fn a_request_bounds_its_drafts() {
    for (max_draft, n_most) in [(Some(0), 0), (Some(2), 2), (None, 16)] {
        let handle = with(Toy::new(64), fixed(16), Oracle::boxed(u64::MAX, true).0);
        let submit = Submit::new(handle.next_request_id(), toy::prompt(3, 20), 50);
        let (_, _, usage) = collect(handle.submit(Submit { max_draft, ..submit }).unwrap());
        let drafted = usage.drafted;
        assert!(
            drafted.n_tokens <= drafted.n_drafts * n_most && (drafted.n_drafts == 0) == (n_most == 0),
            "{drafted:?}"
        );
    }
}

/// A client that knows the answer gets it in a few steps; one that knows most of it, in a few more.
#[test]
fn a_prediction_is_looked_up() {
    let prompt = toy::prompt(3, 20);
    let all = toy::expected(&prompt, 120, &Sampling::default());
    let mut edited = all.clone();
    edited.remove(60);
    for (prediction, n_steps) in [(all.clone(), 25), (edited, 35), (Vec::new(), usize::MAX)] {
        let handle = with(Toy::new(64), fixed(8), Box::<Lookup>::default());
        let submit = Submit::new(handle.next_request_id(), prompt.clone(), 120);
        let (tokens, _, _) = collect(handle.submit(Submit { prediction, ..submit }).unwrap());
        assert_eq!(tokens, all);
        let found = handle.stats().unwrap().n_steps as usize;
        assert!(found <= n_steps, "{found} steps");
    }
    let handle = with(Toy::new(64), fixed(8), Box::<Lookup>::default());
    let mut submit = Submit::new(handle.next_request_id(), prompt, 10);
    submit.prediction = vec![TokenId(N_VOCAB as u32)];
    assert!(handle.submit(submit).unwrap_err().to_string().contains("the prediction"));
}

/// The same model as its own draft model is always right, also when it samples: both draw with the same numbers.
#[test]
fn a_draft_model_draws_as_the_model_does() {
    for toy in [Toy::new(64), Toy::device(64)] {
        let draft = if toy.max_in_flight == 1 { Toy::new(64) } else { Toy::device(64) };
        let handle = with(toy, fixed(4), Box::new(DraftModel::new(draft)));
        let both = [Sampling::default(), Sampling { temperature: 0.9, top_k: 30, seed: 8, ..Sampling::default() }];
        let events = both.clone().map(|sampling| {
            let submit = Submit::new(handle.next_request_id(), toy::prompt(3, 20), 60);
            handle.submit(Submit { sampling, ..submit }).unwrap()
        });
        for (events, sampling) in events.into_iter().zip(&both) {
            let (tokens, _, usage) = collect(events);
            assert_eq!(tokens, toy::expected(&toy::prompt(3, 20), 60, sampling));
            assert!(usage.drafted.n_accepted >= 40, "{:?}", usage.drafted);
            assert_eq!(usage.drafted.n_accepted, usage.drafted.n_tokens);
        }
    }
}

/// One with recurrent layers goes back to the state after what was right; one whose slots are taken drafts nothing.
#[test]
fn a_draft_model_with_states_draws_as_the_model_does() {
    fn asks(handle: &Handle, n_ctx: usize) -> Vec<(Vec<TokenId>, Sampling, u64)> {
        let sampled = Sampling { temperature: 0.9, top_k: 30, seed: 8, ..Sampling::default() };
        let penalized = Sampling { repetition_penalty: 1.3, ..sampled.clone() };
        let all = [Sampling::default(), sampled, penalized].map(|sampling| {
            let submit = Submit::new(handle.next_request_id(), toy::prompt(3, 300), n_ctx);
            (handle.submit(Submit { sampling: sampling.clone(), ..submit }).unwrap(), sampling)
        });
        let answer = |(events, sampling)| {
            let (tokens, _, usage) = collect(events);
            (tokens, sampling, usage.drafted.n_accepted)
        };
        all.into_iter().map(answer).collect()
    }
    for (n_slots, n_drafting) in [(6, 3), (5, 2), (1, 0)] {
        let handle = with(Toy::new(256), fixed(4), Box::new(DraftModel::new(Toy::new(256).with_states(n_slots))));
        let found = asks(&handle, 60);
        for (tokens, sampling, _) in &found {
            assert_eq!(*tokens, toy::expected(&toy::prompt(3, 300), 60, sampling), "{n_slots} slots");
        }
        let accepted: Vec<u64> = found.iter().map(|(_, _, n_accepted)| *n_accepted).collect();
        let n_lucky = accepted.iter().filter(|n| **n > 5).count();
        assert!(n_lucky >= n_drafting.min(2), "{n_slots} slots: {accepted:?}");
        assert_eq!(accepted.iter().any(|n| *n > 0), n_drafting > 0, "{n_slots} slots: {accepted:?}");
    }
}

/// A draft model whose pool is too small for all drafts for those that it has room for.
#[test]
fn a_draft_model_without_room_drafts_less() {
    let handle = with(Toy::new(64), fixed(4), Box::new(DraftModel::new(Toy::new(3))));
    for n_prompt in [20, 60, 20] {
        let prompt = toy::prompt(n_prompt as u64, n_prompt);
        let submit = Submit::new(handle.next_request_id(), prompt.clone(), 40);
        let (tokens, _, usage) = collect(handle.submit(submit).unwrap());
        assert_eq!(tokens, toy::expected(&prompt, 40, &Sampling::default()));
        assert_eq!(usage.drafted.n_drafts > 0, n_prompt == 20, "{:?}", usage.drafted);
    }
}

/// Over many seeds, tokens are as frequent as the model says they are. Drafts are drawn with the same numbers, which
/// must not favour anything.
#[test]
fn sampled_tokens_follow_the_models_distribution() {
    let prompt = toy::prompt(3, 20);
    let chances = |tokens: &[TokenId]| {
        let row: Vec<f64> = toy::logits(toy::hash(tokens.iter().copied())).map(|x| f64::from(x).exp()).collect();
        let sum: f64 = row.iter().sum();
        row.into_iter().map(|x| x / sum).collect::<Vec<_>>()
    };
    // Of the second token, whatever the first is.
    let mut expected = vec![0.0; N_VOCAB];
    for (first, p) in chances(&prompt).into_iter().enumerate() {
        let mut tokens = prompt.clone();
        tokens.push(TokenId(first as u32));
        chances(&tokens).into_iter().zip(&mut expected).for_each(|(q, sum)| *sum += p * q);
    }
    let n = 2500;
    let (handle, mut counts) = (with(Toy::new(64), fixed(3), Oracle::boxed(3, true).0), vec![0.0; N_VOCAB]);
    for seed in 0..n {
        let mut submit = Submit::new(handle.next_request_id(), prompt.clone(), 3);
        submit.sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
        counts[collect(handle.submit(submit).unwrap()).0[1].0 as usize] += 1.0;
    }
    let terms =
        counts.iter().zip(&expected).map(|(count, p): (&f64, &f64)| (count - p * n as f64).powi(2) / (p * n as f64));
    let chi_square: f64 = terms.sum();
    // 96 degrees of freedom: the 99.99th percentile is 154.
    assert!(chi_square < 154.0, "{chi_square}");
    assert!(handle.stats().unwrap().drafted.n_accepted > n / 2, "{:?}", handle.stats().unwrap().drafted);
}
