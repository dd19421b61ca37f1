//! How requests begin and end: limits, refusals, cancellation, failures of the model, masks, shutdown. Steps are held
//! at a gate where the order of things matters, so nothing here depends on time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Sender},
    },
    time::Duration,
};

use batch::{Attention, TokenId};
use engine::{
    Command, EngineOptions, Error, Event, FailureKind, FinishReason, Handle, Mask, MaskFactory, Pooling, RequestId,
    Submit, TokenSet,
};

use crate::{
    generation::{collect, expected_vector, start, vector},
    toy::{self, Poison, Toy},
};

/// An engine whose steps wait for permits.
fn gated(n_blocks: usize, options: EngineOptions) -> (Handle, Sender<()>, Arc<AtomicU64>) {
    let (permit, gate) = mpsc::channel();
    let mut toy = Toy::new(n_blocks);
    toy.gate = Some(gate);
    let n_steps = Arc::clone(&toy.n_steps);
    (engine::start(toy, options, None), permit, n_steps)
}

fn failure(event: Option<Event>) -> (FailureKind, String) {
    match event {
        Some(Event::Failed { kind, error, .. }) => (kind, error),
        other => panic!("unexpected {other:?}"),
    }
}

fn plain(handle: &Handle, seed: u64, n_prompt: usize, max_tokens: usize) -> Submit {
    Submit::new(handle.next_request_id(), toy::prompt(seed, n_prompt), max_tokens)
}

#[test]
fn who_asks_is_told_how_much_of_the_prompt_is_computed() {
    let options = EngineOptions { max_batch_tokens: 16, prefill_chunk: 16, max_running: 1, ..EngineOptions::default() };
    let handle = engine::start(Toy::new(8), options, None);
    let progress = |asks: bool| {
        let mut submit = plain(&handle, u64::from(asks), 40, 2);
        submit.progress = asks;
        let events: Vec<Event> = handle.submit(submit).unwrap().collect();
        let told = events.iter().filter_map(|event| match event {
            Event::Progress { n_computed, n_prompt, .. } => Some((*n_computed, *n_prompt)),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(progress(true), [(16, 40), (32, 40)]);
    assert_eq!(progress(false), []);
}

#[test]
fn requests_that_are_over_at_once_cost_no_step() {
    let mut toy = Toy::new(4);
    // A gate that nobody opens: any step would fail.
    toy.gate = Some(mpsc::channel().1);
    let handle = engine::start(toy, EngineOptions::default(), None);
    let (tokens, reason, usage) = collect(handle.submit(plain(&handle, 0, 5, 0)).unwrap());
    assert_eq!((tokens, reason, usage.n_prompt, usage.n_generated), (vec![], FinishReason::Length, 5, 0));
    let check = |change: fn(&mut Submit), expected| {
        let mut submit = plain(&handle, 0, 5, 10);
        change(&mut submit);
        assert_eq!(collect(handle.submit(submit).unwrap()).1, expected);
    };
    check(|submit| submit.generated = vec![TokenId(1); 10], FinishReason::Length);
    check(|submit| submit.generated = vec![TokenId(1); 12], FinishReason::Length);
    check(
        |submit| {
            submit.generated = vec![TokenId(1), TokenId(7)];
            submit.stop_tokens = vec![TokenId(7)];
        },
        FinishReason::Stop,
    );
    check(
        |submit| {
            submit.generated = vec![TokenId(1); 60];
            submit.max_tokens = 100;
        },
        FinishReason::Context,
    );
}

#[test]
fn a_stop_token_is_the_last_token() {
    let handle = start(16, EngineOptions::default());
    let mut submit = plain(&handle, 3, 5, 50);
    let all = toy::expected(&submit.prompt, 50, &submit.sampling);
    let stop = all[20];
    let n = all.iter().position(|&token| token == stop).unwrap() + 1;
    submit.stop_tokens = vec![TokenId(1000), stop];
    let (tokens, reason, usage) = collect(handle.submit(submit).unwrap());
    assert_eq!((tokens.as_slice(), reason, usage.n_generated), (&all[..n], FinishReason::Stop, n));
}

#[test]
fn the_context_and_the_pool_end_a_sequence() {
    for (n_blocks, n_ctx, n_total) in [(4, None, 64), (16, Some(50), 50), (4, Some(10_000), 64)] {
        let handle = start(n_blocks, EngineOptions { n_ctx, ..EngineOptions::default() });
        let (tokens, reason, _) = collect(handle.submit(plain(&handle, 1, 20, usize::MAX)).unwrap());
        assert_eq!((tokens.len(), reason), (n_total - 20, FinishReason::Context));
    }
    let handle = start(4, EngineOptions::default());
    let error = handle.submit(plain(&handle, 1, 64, 1)).unwrap_err();
    assert_eq!(error, Error::PoolTooSmall { id: RequestId(0), n_tokens: 65, n_needed: 5, n_blocks: 4 });
    let error = handle.submit(plain(&handle, 1, 5000, 1)).unwrap_err();
    assert_eq!(error, Error::ContextTooSmall { id: RequestId(1), n_tokens: 5000, n_ctx: 4096 });
}

#[test]
fn the_queue_is_bounded_and_opens_again() {
    let options = EngineOptions { max_running: 1, max_queue: 3, ..EngineOptions::default() };
    let (handle, permit, _) = gated(16, options);
    let mut running = handle.submit(plain(&handle, 0, 5, 2)).unwrap();
    permit.send(()).unwrap();
    assert!(running.next().is_some());
    // One runs and has given up its place; three wait.
    let waiting: Vec<_> = (1..4).map(|seed| handle.submit(plain(&handle, seed, 5, 2)).unwrap()).collect();
    let refused = handle.submit(plain(&handle, 4, 5, 2)).unwrap_err();
    assert_eq!(refused, Error::QueueFull { max_queue: 3 });
    (0..7).for_each(|_| permit.send(()).unwrap());
    waiting.into_iter().for_each(|events| assert_eq!(collect(events).0.len(), 2));
    drop(permit);
    let (kind, _) = failure(handle.submit(plain(&handle, 9, 5, 2)).unwrap().next());
    assert_eq!(kind, FailureKind::Forward, "taken again, by a model that is gone");
}

#[test]
fn a_cancelled_request_ends_and_frees_its_blocks() {
    let (handle, permit, _) = gated(16, EngineOptions::default());
    let submit = plain(&handle, 1, 20, 1000);
    let id = submit.id;
    let mut events = handle.submit(submit).unwrap();
    permit.send(()).unwrap();
    assert!(matches!(events.next(), Some(Event::Token { index: 0, .. })));
    // The engine is in its second step, or about to be; the message is read right after it.
    handle.cancel(id).unwrap();
    permit.send(()).unwrap();
    permit.send(()).unwrap();
    let (tokens, reason, usage) = collect(events);
    assert!(tokens.len() <= 2, "went on for {} tokens", tokens.len());
    assert_eq!((reason, usage.n_generated), (FinishReason::Cancelled, 1 + tokens.len()));
    let stats = handle.stats().unwrap();
    assert_eq!((stats.n_running, stats.n_waiting, stats.n_blocks_held), (0, 0, 0));
    handle.cancel(RequestId(12345)).unwrap();
}

#[test]
fn a_receiver_that_goes_away_frees_its_request_running_or_waiting() {
    let options = EngineOptions { max_running: 1, ..EngineOptions::default() };
    let (handle, permit, n_steps) = gated(16, options);
    let mut running = handle.submit(plain(&handle, 1, 20, 1000)).unwrap();
    let waiting = handle.submit(plain(&handle, 2, 20, 1000)).unwrap();
    permit.send(()).unwrap();
    assert!(running.next().is_some());
    drop(waiting);
    drop(running);
    // At most the step that was under way, and one more.
    (0..10).for_each(|_| permit.send(()).unwrap());
    let stats = handle.stats().unwrap();
    assert_eq!((stats.n_running, stats.n_waiting, stats.n_blocks_held), (0, 0, 0));
    assert!(n_steps.load(Ordering::SeqCst) <= 3, "{n_steps:?} steps");
    // A plain channel has no such message: the engine notices when it sends.
    let sink = mpsc::channel().0;
    handle.send_to(Command::Submit(plain(&handle, 3, 5, 1000)), &sink).unwrap();
    collect(handle.submit(plain(&handle, 4, 5, 2)).unwrap());
    assert_eq!(handle.stats().unwrap().n_blocks_held, 0);
}

#[test]
fn one_sink_can_serve_many_requests() {
    let handle = start(32, EngineOptions::default());
    let (sink, events) = mpsc::channel();
    let submits: Vec<_> = (0..5).map(|seed| plain(&handle, seed, 10, 8)).collect();
    for submit in &submits {
        handle.send_to(Command::Submit(submit.clone()), &sink).unwrap();
    }
    handle.send_to(Command::Stats, &sink).unwrap();
    drop(sink);
    let events: Vec<Event> = events.iter().collect();
    for submit in &submits {
        let tokens: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Token { id, token, .. } if *id == submit.id => Some(*token),
                _ => None,
            })
            .collect();
        assert_eq!(tokens, toy::expected(&submit.prompt, 8, &submit.sampling));
    }
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Stats(_))).count(), 1);
    assert_eq!(handle.send(Command::Stats), Err(Error::NoReceiver));
}

#[test]
fn a_failed_step_fails_its_requests_and_no_others() {
    for (poison, expected) in [
        (Poison::Error, (FailureKind::Forward, "the forward pass failed: the toy was told to fail")),
        (Poison::NaN, (FailureKind::Numeric, "the model gave logits that are NaN or infinite at position 3")),
    ] {
        let mut toy = Toy::new(16);
        // A token that the good prompt does not hold.
        let bad = TokenId(96);
        toy.poison = Some((bad, poison));
        let handle = engine::start(toy, EngineOptions::default(), None);
        let mut submit = plain(&handle, 0, 3, 5);
        submit.prompt = vec![TokenId(1), TokenId(2), bad];
        let (kind, error) = failure(handle.submit(submit.clone()).unwrap().next());
        assert_eq!((kind, error.as_str()), expected);
        // What the failed step wrote is not reused, and the engine keeps running.
        let mut good = plain(&handle, 0, 3, 1);
        good.prompt = vec![TokenId(1), TokenId(2), TokenId(3)];
        let expected = toy::expected(&good.prompt, 1, &good.sampling);
        assert_eq!(collect(handle.submit(good).unwrap()).0, expected);
        let stats = handle.stats().unwrap();
        assert_eq!((stats.n_failed, stats.n_finished, stats.n_blocks_held), (1, 1, 0));
    }
}

/// The request of the fatal step, one that runs beside it and one that only waits all observe of it; so does the next.
#[test]
fn a_lost_device_fails_everyone_and_ends_the_engine() {
    let (permit, gate) = mpsc::channel();
    let mut toy = Toy::new(16);
    (toy.gate, toy.poison) = (Some(gate), Some((TokenId(96), Poison::Fault)));
    let n_steps = Arc::clone(&toy.n_steps);
    let options = EngineOptions { max_running: 1, ..EngineOptions::default() };
    let handle = engine::start(toy, options, None);
    let mut bad = plain(&handle, 0, 3, 5);
    bad.prompt = vec![TokenId(96)];
    let mut bad = handle.submit(bad).unwrap();
    let mut waiting = handle.submit(plain(&handle, 7, 9, 1)).unwrap();
    (0..5).for_each(|_| permit.send(()).unwrap());
    let (kind, error) = failure(bad.next());
    assert_eq!(
        (kind, error.as_str()),
        (FailureKind::Forward, "the forward pass failed: the toy was told to lose its device")
    );
    let (kind, error) = failure(waiting.next());
    assert_eq!((kind, error.as_str()), (FailureKind::Forward, "the device is lost: the toy lost its device"));
    handle.shutdown();
    assert_eq!(n_steps.load(Ordering::SeqCst), 1, "no step follows the fatal one");
    let reason = "the device is lost: the toy lost its device".to_owned();
    assert_eq!(handle.submit(plain(&handle, 0, 3, 1)).map(drop).unwrap_err(), Error::Stopped { reason });
}

#[test]
fn bad_logits_of_one_request_leave_its_neighbours_alone() {
    let (permit, gate) = mpsc::channel();
    let mut toy = Toy::new(16);
    (toy.gate, toy.poison) = (Some(gate), Some((TokenId(96), Poison::NaN)));
    let handle = engine::start(toy, EngineOptions::default(), None);
    let first = handle.submit(plain(&handle, 5, 4, 1)).unwrap();
    let mut bad = plain(&handle, 0, 3, 5);
    bad.prompt = vec![TokenId(96)];
    let mut bad = handle.submit(bad).unwrap();
    let good = plain(&handle, 7, 9, 1);
    let expected = toy::expected(&good.prompt, 1, &good.sampling);
    let good = handle.submit(good).unwrap();
    // The first step holds the first request, the second step the other two.
    (0..3).for_each(|_| permit.send(()).unwrap());
    assert_eq!(failure(bad.next()).0, FailureKind::Numeric);
    assert_eq!(collect(good).0, expected);
    assert_eq!(collect(first).0.len(), 1);
}

#[test]
fn a_vector_preempted_half_way_is_pooled_from_the_start() {
    let options = EngineOptions { max_running: 1, ..EngineOptions::default() };
    let (handle, permit, n_steps) = gated(16, options);
    let embed = vector(&handle, &toy::prompt(1, 90), Pooling::Mean, Attention::Causal);
    let mut events = handle.embed(embed.clone()).unwrap();
    // 24 rows of output a step: four steps in all, one of them done before the other request is read.
    permit.send(()).unwrap();
    while n_steps.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let urgent = handle.submit(Submit { priority: 1, ..plain(&handle, 2, 5, 2) }).unwrap();
    (0..20).for_each(|_| permit.send(()).unwrap());
    collect(urgent);
    let Some(Event::Vector { vector, usage, .. }) = events.next() else { panic!("no vector") };
    assert_eq!(usage.n_preemptions, 1);
    for (a, b) in vector.iter().zip(expected_vector(&embed)) {
        assert!((a - b).abs() < 1e-6);
    }
}

#[test]
fn an_id_in_flight_is_not_given_twice() {
    let (handle, permit, _) = gated(16, EngineOptions::default());
    let submit = plain(&handle, 1, 5, 2);
    let first = handle.submit(submit.clone()).unwrap();
    let mut second = handle.submit(submit.clone()).unwrap();
    // Read before the first step or after it; the first request needs two.
    permit.send(()).unwrap();
    let (kind, error) = failure(second.next());
    assert_eq!((kind, error.as_str()), (FailureKind::Request, "request 0: another request with this id is in flight"));
    drop(second);
    permit.send(()).unwrap();
    assert_eq!(collect(first).0.len(), 2, "the end of the second does not touch the first");
}

#[test]
fn shutdown_answers_everyone() {
    let options = EngineOptions { max_running: 2, ..EngineOptions::default() };
    let (handle, permit, _) = gated(16, options);
    let all: Vec<_> = (0..5).map(|seed| handle.submit(plain(&handle, seed, 5, 1000)).unwrap()).collect();
    handle.send(Command::Shutdown).unwrap();
    // For a step that was under way; there may be none.
    let _ = permit.send(());
    handle.shutdown();
    for events in all {
        assert_eq!(collect(events).1, FinishReason::Cancelled);
    }
    let stopped = Error::Stopped { reason: "it was shut down".into() };
    assert_eq!(handle.stats(), Err(stopped.clone()));
    assert_eq!(handle.submit(plain(&handle, 1, 5, 5)).unwrap_err(), stopped);
}

#[test]
fn a_model_that_panics_ends_the_engine_with_its_reason() {
    let mut toy = Toy::new(16);
    toy.poison = Some((TokenId(96), Poison::Panic));
    let handle = engine::start(toy, EngineOptions::default(), None);
    let mut submit = plain(&handle, 0, 3, 5);
    submit.prompt = vec![TokenId(96)];
    let mut events = handle.submit(submit).unwrap();
    assert_eq!(events.next(), None);
    handle.shutdown();
    let stopped = Error::Stopped { reason: "it failed: the toy was told to panic".into() };
    assert_eq!(handle.stats(), Err(stopped));
}

/// Allows every other token, beginning with the parity of the constraint, and turns after each.
struct Parity {
    odd: u32,
    n_seen: u32,
    n_asked: u32,
}

impl Mask for Parity {
    /// Every third is late: known when it was asked for five times.
    fn is_ready_within(&mut self, _: Duration) -> bool {
        self.n_asked += 1;
        self.n_seen % 3 != 2 || self.n_asked > 5
    }

    fn allowed(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        (0..allowed.n_vocab() as u32).filter(|i| i % 2 == self.odd).for_each(|i| allowed.insert(TokenId(i)));
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        if token.0 % 2 != self.odd {
            return Err(format!("token {} has the wrong parity", token.0));
        }
        self.odd = 1 - self.odd;
        self.n_seen += 1;
        self.n_asked = 0;
        Ok(())
    }
}

pub struct Parities;

impl MaskFactory for Parities {
    fn build(&mut self, constraint: &str, _: usize) -> Result<Box<dyn Mask>, String> {
        match constraint {
            "even" => Ok(Box::new(Parity { odd: 0, n_seen: 0, n_asked: 0 })),
            "odd" => Ok(Box::new(Parity { odd: 1, n_seen: 0, n_asked: 0 })),
            "none" => Ok(Box::new(Parity { odd: 2, n_seen: 0, n_asked: 0 })),
            other => Err(format!("`{other}` is no parity")),
        }
    }
}

#[test]
fn masks_are_kept_and_rebuilt() {
    let start = || engine::start(Toy::new(16), EngineOptions::default(), Some(Box::new(Parities)));
    let handle = start();
    let mut submit = plain(&handle, 1, 10, 20);
    submit.sampling.temperature = 1.0;
    submit.constraint = Some("odd".into());
    let whole = collect(handle.submit(submit.clone()).unwrap()).0;
    assert_eq!(whole.len(), 20);
    assert!(whole.iter().enumerate().all(|(i, token)| token.0 as usize % 2 == (i + 1) % 2));
    for n_done in [1, 2, 13] {
        let submit = Submit { generated: whole[..n_done].to_vec(), ..submit.clone() };
        assert_eq!(collect(start().submit(submit).unwrap()).0, whole[n_done..]);
    }
    let fail = |constraint: &str, generated| {
        let submit = Submit { constraint: Some(constraint.into()), generated, ..submit.clone() };
        failure(handle.submit(submit).unwrap().next())
    };
    assert_eq!(fail("blue", vec![]), (FailureKind::Constraint, "`blue` is no parity".into()));
    assert_eq!(fail("even", vec![TokenId(3)]), (FailureKind::Constraint, "token 3 has the wrong parity".into()));
    let (kind, error) = fail("none", vec![]);
    assert_eq!(
        (kind, error.as_str()),
        (FailureKind::Constraint, "the constraint, the bans and the logit bias allow no token at position 10")
    );
    let handle = engine::start(Toy::new(4), EngineOptions::default(), None);
    assert_eq!(handle.submit(submit).unwrap_err(), Error::NoConstraints { id: RequestId(0) });
}

/// A mask that is not known until it is told so. Asking for it before would hang the engine, so that fails.
struct Held(Arc<AtomicU64>);

impl Mask for Held {
    fn is_ready_within(&mut self, _: Duration) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    fn allowed(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        allowed.fill();
        if self.0.load(Ordering::Acquire) > 0 { Ok(()) } else { Err("the engine did not wait".into()) }
    }

    fn accept(&mut self, _: TokenId) -> Result<(), String> {
        Ok(())
    }
}

struct HeldMasks(Arc<AtomicU64>);

impl MaskFactory for HeldMasks {
    fn build(&mut self, _: &str, _: usize) -> Result<Box<dyn Mask>, String> {
        Ok(Box::new(Held(Arc::clone(&self.0))))
    }
}

/// A request whose mask is late holds up nobody but itself, and continues when the mask is known.
#[test]
fn a_late_mask_holds_up_nobody_else() {
    let is_known = Arc::new(AtomicU64::new(0));
    let masks = HeldMasks(Arc::clone(&is_known));
    let handle = engine::start(Toy::new(32), EngineOptions::default(), Some(Box::new(masks)));
    let free = collect(handle.submit(plain(&handle, 1, 10, 20)).unwrap()).0;
    let mut submit = plain(&handle, 1, 10, 20);
    submit.constraint = Some("any".into());
    let mut held = handle.submit(submit.clone()).unwrap();
    for seed in 2..5 {
        let (tokens, reason, _) = collect(handle.submit(plain(&handle, seed, 10, 30)).unwrap());
        assert_eq!((tokens.len(), reason), (30, FinishReason::Length));
    }
    // One that waits can be cancelled.
    let id = handle.next_request_id();
    let other = handle.submit(Submit { id, ..submit }).unwrap();
    handle.send(Command::Cancel(id)).unwrap();
    assert_eq!(collect(other).1, FinishReason::Cancelled);
    is_known.store(1, Ordering::Release);
    let first = held.next();
    assert!(matches!(first, Some(Event::Token { token, .. }) if token == free[0]), "{first:?}");
    assert_eq!(collect(held).0, free[1..]);
    let stats = handle.stats().unwrap();
    assert_eq!(stats.n_steps_by_rows.iter().sum::<u64>(), stats.n_steps);
}
