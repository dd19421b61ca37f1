//! Steps that overlap: an engine over a toy that is a device (it chooses tokens, and takes a step before the last is
//! read) says what an engine over a toy that is not says, whoever stops, leaves or is pushed out in between.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use batch::{Attention, TokenId};
use engine::{
    EngineOptions, Event, FailureKind, FinishReason, Handle, Mask, MaskFactory, Mirostat, Normalize, Pooling, Reuse,
    Sampling, Stats, Submit, TokenSet, VectorRequest, draw,
};

use crate::{
    engine_loop::Parities,
    generation::{collect, expected_vector},
    toy::{self, N_VOCAB, Poison, Toy},
};

pub struct Random {
    pub seed: u64,
    pub n: u64,
}

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.n += 1;
        (draw::bits(self.seed, self.n) % n.max(1) as u64) as usize
    }
}

/// One request of a scenario, and after how many tokens its client leaves.
#[derive(Clone)]
pub enum Ask {
    Tokens { submit: Box<Submit>, leaves_after: Option<Leave> },
    Vector(VectorRequest),
}

#[derive(Copy, Clone)]
pub struct Leave {
    n_tokens: usize,
    how: How,
}

#[derive(Copy, Clone)]
pub enum How {
    Cancel,
    Drop,
}

/// What a client saw of one request.
#[derive(PartialEq, Debug)]
pub enum Seen {
    Tokens(Vec<Told>, Option<Result<FinishReason, FailureKind>>),
    Vector(Vec<f32>),
}

/// A token, with its log-probability (as bits, or 0) and the best ones.
pub type Told = (TokenId, u32, Vec<(TokenId, f32)>);

fn sampling(random: &mut Random) -> Sampling {
    let base = Sampling { temperature: 0.9, seed: random.below(1000) as u64, ..Sampling::default() };
    let some = |random: &mut Random| (0..20).map(|_| TokenId(random.below(N_VOCAB) as u32)).collect::<Vec<_>>();
    match random.below(13) {
        0 | 1 => Sampling::default(),
        2 => base,
        3 => Sampling { top_k: 20, top_p: 0.9, ..base },
        4 => Sampling { min_p: 0.1, ..base },
        // What only the host can do.
        5 => Sampling { mirostat: Some(Mirostat { tau: 3.0, eta: 0.3 }), ..base },
        6 => Sampling { repetition_penalty: 1.3, frequency_penalty: 0.2, ..base },
        7 => Sampling { presence_penalty: 0.7, penalty_window: 1 + random.below(5), temperature: 0.0, ..base },
        8 => Sampling { frequency_penalty: 0.3, penalty_window: usize::MAX, top_k: 30, ..base },
        9 => Sampling { banned: some(random), logit_bias: vec![(TokenId(3), 4.0)], ..base },
        10 => Sampling { allowed: Some(some(random)), repetition_penalty: 1.5, ..base },
        11 => Sampling { min_tokens: random.below(20), ..base },
        _ => Sampling { typical_p: 0.8, ..base },
    }
}

pub fn scenario(random: &mut Random, handle: &Handle) -> Vec<Ask> {
    // Few beginnings, so that blocks are shared.
    let prompt = |random: &mut Random| {
        let mut prompt = toy::prompt(random.below(3) as u64, 40);
        prompt.truncate(1 + random.below(40));
        let n_more = random.below(30);
        prompt.extend(toy::prompt(random.below(100) as u64, n_more));
        prompt
    };
    (0..30)
        .map(|_| {
            if random.below(8) == 0 {
                let pooling = [Pooling::Mean, Pooling::Last, Pooling::First][random.below(3)];
                let (mut tokens, attention) = (prompt(random), Attention::Causal);
                let attention = if random.below(2) == 0 { Attention::Full } else { attention };
                tokens.truncate(20);
                let (id, normalize) = (handle.next_request_id(), Normalize::None);
                return Ask::Vector(VectorRequest { id, tokens, pooling, attention, normalize, priority: 0, group: 0 });
            }
            let max_tokens = 1 + random.below(60);
            let mut submit = Submit::new(handle.next_request_id(), prompt(random), max_tokens);
            submit.sampling = sampling(random);
            submit.priority = random.below(3) as i32;
            submit.logprobs = (random.below(6) == 0).then_some(2);
            submit.constraint = match random.below(5) {
                0 => Some(["even", "odd"][random.below(2)].into()),
                _ => None,
            };
            submit.prompt_logprobs = random.below(12) == 0;
            submit.stop_tokens = (0..random.below(3)).map(|_| TokenId(random.below(N_VOCAB) as u32)).collect();
            let how = if random.below(2) == 0 { How::Cancel } else { How::Drop };
            let leaves_after = (random.below(4) == 0).then(|| Leave { n_tokens: random.below(max_tokens), how });
            Ask::Tokens { submit: Box::new(submit), leaves_after }
        })
        .collect()
}

/// Sends everything, reads it all on as many threads, and looks at the engine afterwards.
pub fn play(handle: &Handle, asks: &[Ask]) -> (Vec<Seen>, Stats) {
    let seen = std::thread::scope(|scope| {
        let clients: Vec<_> = asks
            .iter()
            .map(|ask| match ask.clone() {
                Ask::Vector(embed) => {
                    let mut events = handle.embed(embed).unwrap();
                    scope.spawn(move || match events.next() {
                        Some(Event::Vector { vector, .. }) => Seen::Vector(vector),
                        other => panic!("unexpected {other:?}"),
                    })
                }
                Ask::Tokens { submit, leaves_after } => {
                    let id = submit.id;
                    let events = handle.submit(*submit).unwrap();
                    scope.spawn(move || read(handle, id, events, leaves_after))
                }
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    (seen, handle.stats().unwrap())
}

fn read(handle: &Handle, id: engine::RequestId, events: engine::Events, leave: Option<Leave>) -> Seen {
    let mut tokens = Vec::new();
    let mut is_cancelled = false;
    while let Ok(event) = events.recv() {
        match event {
            Event::Token { index, token, logprob, top, .. } => {
                assert_eq!(index, tokens.len(), "no token is left out or sent twice");
                tokens.push((token, if logprob.is_nan() { 0 } else { logprob.to_bits() }, top));
                match leave {
                    Some(Leave { n_tokens, how: How::Cancel }) if tokens.len() > n_tokens && !is_cancelled => {
                        handle.cancel(id).unwrap();
                        is_cancelled = true;
                    }
                    Some(Leave { n_tokens, how: How::Drop }) if tokens.len() > n_tokens => break,
                    _ => {}
                }
            }
            Event::Prompt { .. } => assert!(tokens.is_empty()),
            Event::Finished { reason, .. } => {
                assert!(events.recv().is_err(), "nothing comes after the end");
                return Seen::Tokens(tokens, Some(Ok(reason)));
            }
            // Bans and a constraint together may leave nothing.
            Event::Failed { kind, .. } => return Seen::Tokens(tokens, Some(Err(kind))),
            other => panic!("unexpected {other:?}"),
        }
    }
    Seen::Tokens(tokens, None)
}

#[test]
fn overlapped_steps_say_what_single_steps_say() {
    let (mut n_preemptions, mut n_cut, mut n_left) = (0, 0, 0);
    for seed in 0..40 {
        let mut random = Random { seed, n: 0 };
        // From hardly enough for one sequence to enough for a few.
        let (n_blocks, n_ctx) = (8 + random.below(20), 75 + random.below(70));
        let reuse = if random.below(4) == 0 { Reuse::Off } else { Reuse::On };
        let prefill_chunk = 5 + random.below(30);
        let options = EngineOptions {
            max_batch_tokens: 40,
            max_running: 1 + random.below(24),
            prefill_chunk,
            n_ctx: Some(n_ctx),
            reuse,
            ..EngineOptions::default()
        };
        let single = engine::start(Toy::new(n_blocks), options, Some(Box::new(Parities)));
        let overlapped = engine::start(Toy::device(n_blocks), options, Some(Box::new(SomeLate { seed })));
        let asks = scenario(&mut random, &single);
        let (truth, _) = play(&single, &asks);
        let (found, stats) = play(&overlapped, &asks);
        n_preemptions += stats.n_preemptions;
        for ((ask, truth), found) in asks.iter().zip(&truth).zip(&found) {
            match (ask, truth, found) {
                (Ask::Vector(embed), _, Seen::Vector(found)) => {
                    for (a, b) in found.iter().zip(expected_vector(embed)) {
                        assert!((a - b).abs() < 1e-6, "seed {seed}: {embed:?}");
                    }
                }
                (Ask::Tokens { leaves_after: None, .. }, truth, found) => {
                    n_cut += usize::from(matches!(found, Seen::Tokens(_, Some(Ok(FinishReason::Stop)))));
                    assert_eq!(found, truth, "seed {seed}: {ask:?}", ask = describe(ask));
                }
                // How far it gets before this is noticed depends on timing: one text is a prefix of the other.
                (Ask::Tokens { .. }, Seen::Tokens(truth, _), Seen::Tokens(found, _)) => {
                    n_left += 1;
                    let n = truth.len().min(found.len());
                    assert_eq!(found[..n], truth[..n], "seed {seed}: {ask:?}", ask = describe(ask));
                }
                other => panic!("seed {seed}: unexpected {:?}", (other.1, other.2)),
            }
        }
        assert_eq!((stats.n_running, stats.n_waiting, stats.n_blocks_held), (0, 0, 0), "seed {seed}");
    }
    assert!(n_preemptions > 10 && n_cut > 50 && n_left > 50, "{n_preemptions} {n_cut} {n_left}");
}

pub fn describe(ask: &Ask) -> String {
    match ask {
        Ask::Tokens { submit, .. } => format!("{submit:?}"),
        Ask::Vector(embed) => format!("{embed:?}"),
    }
}

/// What a stopped sequence left in the pool serves the next one with the same beginning, and nothing beyond the stop
/// does: the row that was computed after it is not published.
#[test]
fn nothing_beyond_a_stop_is_published() {
    for n_prompt in 20..40 {
        let handle = engine::start(Toy::device(64), EngineOptions::default(), None);
        let prompt = toy::prompt(n_prompt as u64, n_prompt);
        let all = toy::expected(&prompt, 30, &Sampling::default());
        let stop = all[11];
        let n = all.iter().position(|&token| token == stop).unwrap() + 1;
        let mut submit = Submit::new(handle.next_request_id(), prompt.clone(), 30);
        submit.stop_tokens = vec![stop];
        let (tokens, reason, usage) = collect(handle.submit(submit).unwrap());
        assert_eq!((tokens.as_slice(), reason, usage.n_generated), (&all[..n], FinishReason::Stop, n));
        let mut longer: Vec<TokenId> = prompt.iter().chain(&all).copied().collect();
        longer.extend(toy::prompt(77, 9));
        let n_computed = n_prompt + n - 1;
        let submit = Submit::new(handle.next_request_id(), longer.clone(), 10);
        let (tokens, _, usage) = collect(handle.submit(submit).unwrap());
        assert_eq!(usage.n_cached_prompt, n_computed / 16 * 16, "prompt of {n_prompt}, stopped after {n}");
        assert_eq!(tokens, toy::expected(&longer, 10, &Sampling::default()));
    }
}

/// A request that ends by its own count of tokens, or by the context, has no row computed for nothing.
#[test]
fn known_ends_cost_no_row() {
    for max_tokens in [1, 2, 17] {
        let handle = engine::start(Toy::device(64), EngineOptions::default(), None);
        let submit = Submit::new(handle.next_request_id(), toy::prompt(3, 10), max_tokens);
        let (tokens, reason, _) = collect(handle.submit(submit).unwrap());
        assert_eq!((tokens.len(), reason), (max_tokens, FinishReason::Length));
        assert_eq!(handle.stats().unwrap().n_tokens_computed, (10 + max_tokens - 1) as u64);
    }
}

/// A step that fails ends its own requests, with the tokens of the step before, and the rest continue.
#[test]
fn a_failed_step_among_overlapped_ones_fails_its_requests_only() {
    for (poison, expected) in [(Poison::Error, FailureKind::Forward), (Poison::NaN, FailureKind::Numeric)] {
        let prompt = toy::prompt(5, 10);
        let all = toy::expected(&prompt, 20, &Sampling::default());
        // A token that comes up for the first time in the middle.
        let at = (8..20).find(|&at| !prompt.contains(&all[at]) && !all[..at].contains(&all[at])).unwrap();
        let mut toy = Toy::device(64);
        toy.poison = Some((all[at], poison));
        let handle = engine::start(toy, EngineOptions::default(), None);
        let events = handle.submit(Submit::new(handle.next_request_id(), prompt.clone(), 20)).unwrap();
        let mut seen = HashMap::new();
        let mut failure = None;
        for event in events {
            match event {
                Event::Token { index, token, .. } => drop(seen.insert(index, token)),
                Event::Failed { kind, .. } => failure = Some(kind),
                other => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(failure, Some(expected));
        assert_eq!((0..=at).map(|i| seen[&i]).collect::<Vec<_>>(), all[..=at], "every token before the failure");
        assert_eq!(seen.len(), at + 1);
        let stats = handle.stats().unwrap();
        assert_eq!((stats.n_running, stats.n_blocks_held), (0, 0));
    }
}

/// Masks that are sometimes known at once, sometimes when they are asked for again, and sometimes much later.
struct SomeLate {
    seed: u64,
}

struct Late {
    inner: Box<dyn Mask>,
    random: Random,
    /// How often it says that it is not known yet.
    n_more: usize,
}

impl Late {
    fn begin(&mut self) {
        self.n_more = [0, 0, 1, 1, 2, 3, 8][self.random.below(7)];
    }
}

impl Mask for Late {
    fn is_ready_within(&mut self, _: Duration) -> bool {
        let is_ready = self.n_more == 0;
        self.n_more = self.n_more.saturating_sub(1);
        is_ready
    }

    fn allowed(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        self.inner.allowed(allowed)
    }

    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        self.begin();
        self.inner.accept(token)
    }
}

impl MaskFactory for SomeLate {
    fn build(&mut self, constraint: &str, n_vocab: usize) -> Result<Box<dyn Mask>, String> {
        self.seed += 100;
        let random = Random { seed: self.seed, n: 0 };
        let mut mask = Late { inner: Parities.build(constraint, n_vocab)?, random, n_more: 0 };
        mask.begin();
        Ok(Box::new(mask))
    }
}

/// A mask that is never known when a step is planned, and always when it was submitted: known when it was asked for twice.
struct SecondAsked {
    inner: Box<dyn Mask>,
    was_asked: bool,
}

impl Mask for SecondAsked {
    fn is_ready_within(&mut self, _: Duration) -> bool {
        std::mem::replace(&mut self.was_asked, true)
    }

    fn allowed(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        self.inner.allowed(allowed)
    }

    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        self.was_asked = false;
        self.inner.accept(token)
    }
}

struct SecondAskedMasks;

impl MaskFactory for SecondAskedMasks {
    fn build(&mut self, constraint: &str, n_vocab: usize) -> Result<Box<dyn Mask>, String> {
        Ok(Box::new(SecondAsked { inner: Parities.build(constraint, n_vocab)?, was_asked: false }))
    }
}

/// A step waits neither for its masks nor for the tokens that these follow from before it is submitted, and no logits travel
/// where they are known in time.
#[test]
fn masks_are_made_while_the_device_computes() {
    let device = Toy::device(64);
    let (n_logits, n_fed) = (Arc::clone(&device.n_logits_given), Arc::clone(&device.n_fed));
    let submits = |handle: &Handle| -> Vec<Vec<TokenId>> {
        let submit = |seed: u64| {
            let mut submit = Submit::new(handle.next_request_id(), toy::prompt(seed, 10), 20);
            submit.constraint = (!seed.is_multiple_of(4)).then(|| ["even", "odd"][seed as usize % 2].into());
            submit.sampling = Sampling { temperature: 0.8, seed, ..Sampling::default() };
            handle.submit(submit).unwrap()
        };
        let all: Vec<_> = (0..8).map(submit).collect();
        all.into_iter().map(|events| collect(events).0).collect()
    };
    let handle = engine::start(device, EngineOptions::default(), Some(Box::new(SecondAskedMasks)));
    let found = submits(&handle);
    let truth = submits(&engine::start(Toy::new(64), EngineOptions::default(), Some(Box::new(Parities))));
    assert_eq!(found, truth);
    assert_eq!(n_logits.load(Ordering::SeqCst), 0);
    // Of the 20 tokens of an answer, the last is not computed, and every other one is taken from where it was chosen.
    assert_eq!(n_fed.load(Ordering::SeqCst), 8 * 19);
    let stats = handle.stats().unwrap();
    assert_eq!((stats.masks.n_rows, stats.masks.n_late, stats.n_logits_read), (6 * 20, 0, 0));
}

/// A mask that never comes in time costs its own request a step now and then, and no other one anything.
#[test]
fn late_masks_hold_up_nobody_else() {
    let device = Toy::device(64);
    let (n_logits, n_fed) = (Arc::clone(&device.n_logits_given), Arc::clone(&device.n_fed));
    struct Never;
    impl MaskFactory for Never {
        fn build(&mut self, constraint: &str, n_vocab: usize) -> Result<Box<dyn Mask>, String> {
            let random = Random { seed: 0, n: 0 };
            Ok(Box::new(Late { inner: Parities.build(constraint, n_vocab)?, random, n_more: usize::MAX }))
        }
    }
    let handle = engine::start(device, EngineOptions::default(), Some(Box::new(Never)));
    let submit = |seed: u64, constraint: Option<&str>| {
        let mut submit = Submit::new(handle.next_request_id(), toy::prompt(seed, 10), 20);
        submit.constraint = constraint.map(str::to_owned);
        let id = submit.id;
        (id, handle.submit(submit).unwrap())
    };
    let (masked, events) = submit(0, Some("even"));
    let others: Vec<_> = (1..5).map(|seed| submit(seed, None).1).collect();
    for (seed, events) in (1..5).zip(others) {
        assert_eq!(collect(events).0, toy::expected(&toy::prompt(seed, 10), 20, &Sampling::default()));
    }
    handle.cancel(masked).unwrap();
    assert!(matches!(events.into_iter().last(), Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    assert_eq!(n_fed.load(Ordering::SeqCst), 4 * 19);
    assert_eq!((n_logits.load(Ordering::SeqCst), handle.stats().unwrap().masks.n_late), (1, 1));
}
