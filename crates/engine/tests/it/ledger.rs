//! The ledger with engines that die at every moment: every client gets each token once, in order, and a request that
//! kills engines is found.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, Sender, channel},
    time::Instant,
};

use batch::TokenId;
use engine::{
    Command, Event, FailureKind, FinishReason, ReplyTo, RequestId, Submit, Usage,
    ledger::{Blame, Ledger, ProtocolFault},
    sequence::SeqId,
};
use test_support::Random;

/// Steps that compute this prompt end the engine.
const POISON: u32 = 666;

fn token(prompt: u32, index: usize) -> TokenId {
    TokenId(prompt * 1000 + index as u32)
}

/// An engine of nothing but rules: a step gives everyone one token, and the first two in the queue start.
#[derive(Default)]
struct Rules {
    requests: BTreeMap<RequestId, Submit>,
    started: Vec<RequestId>,
    n_steps: usize,
    /// The step that it does not survive, whatever it computes.
    last_step: Option<usize>,
}

impl Rules {
    fn take(&mut self, commands: Vec<Command>, ledger: &mut Ledger) {
        for command in commands {
            match command {
                Command::Submit(submit) => assert!(self.requests.insert(submit.id, submit).is_none(), "sent twice"),
                Command::Cancel(id) => {
                    self.started.retain(|&other| other != id);
                    if self.requests.remove(&id).is_some() {
                        let event = Event::Finished { id, reason: FinishReason::Cancelled, usage: Usage::default() };
                        let more = ledger.pass_on(event).unwrap();
                        self.take(more, ledger);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Whether it survives.
    fn step(&mut self, ledger: &mut Ledger) -> bool {
        let new = self.requests.keys().filter(|id| !self.started.contains(id)).take(2).copied();
        for id in new.collect::<Vec<_>>() {
            self.started.push(id);
            ledger.started(id);
        }
        self.n_steps += 1;
        let is_poisoned = self.started.iter().any(|id| self.requests[id].prompt[0].0 == POISON);
        if is_poisoned || self.last_step == Some(self.n_steps) {
            return false;
        }
        for id in self.started.clone() {
            let Some(submit) = self.requests.get_mut(&id) else { continue };
            let index = submit.generated.len();
            let token = token(submit.prompt[0].0, index);
            submit.generated.push(token);
            let is_over = submit.generated.len() >= submit.max_tokens;
            let commands =
                ledger.pass_on(Event::Token { id, index, token, logprob: f32::NAN, top: Vec::new() }).unwrap();
            self.take(commands, ledger);
            if is_over {
                self.requests.remove(&id);
                self.started.retain(|&other| other != id);
                let event = Event::Finished { id, reason: FinishReason::Length, usage: Usage::default() };
                let commands = ledger.pass_on(event).unwrap();
                self.take(commands, ledger);
            }
        }
        true
    }
}

struct Asked {
    prompt: u32,
    max_tokens: usize,
    events: Receiver<Event>,
}

fn ask(ledger: &mut Ledger, n: u64, prompt: u32, max_tokens: usize) -> (Asked, Vec<Command>) {
    let (sink, events): (Sender<Event>, _) = channel();
    // Ids of callers have nothing to do with sequence numbers.
    let submit = Submit::new(RequestId(1_000_000 - n), vec![TokenId(prompt)], max_tokens);
    let reply_to = ReplyTo { seq: SeqId(n), sink: Box::new(sink), slot: None, at: Instant::now() };
    let commands = ledger.submit(submit, reply_to);
    (Asked { prompt, max_tokens, events }, commands)
}

#[test]
fn everyone_gets_each_token_once_whenever_engines_die() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut ledger = Ledger::default();
        let mut asked = Vec::new();
        let mut engine: Option<Rules> = None;
        let mut n_deaths = 0;
        for tick in 0..2000_u64 {
            if tick < 40 && random.bits().is_multiple_of(2) {
                let (one, commands) = ask(&mut ledger, tick, 1 + tick as u32, 1 + (random.bits() % 9) as usize);
                asked.push(one);
                if let Some(engine) = &mut engine {
                    engine.take(commands, &mut ledger);
                }
            }
            match (&mut engine, random.bits() % 10) {
                (None, _) => {
                    let mut new = Rules::default();
                    let commands = ledger.engine_up();
                    new.take(commands, &mut ledger);
                    engine = Some(new);
                }
                // From outside, so that nobody is to blame.
                (Some(_), 0) if tick < 500 => {
                    engine = None;
                    n_deaths += 1;
                    assert_eq!(ledger.engine_down(Blame::Nobody, "killed").n_refused, 0);
                }
                (Some(engine), _) => assert!(engine.step(&mut ledger)),
            }
        }
        assert!(ledger.is_empty() && n_deaths > 5, "seed {seed}: {} left, {n_deaths} deaths", ledger.len());
        for Asked { prompt, max_tokens, events } in asked {
            let mut n = 0;
            for event in &events {
                match event {
                    Event::Token { index, token: found, id, .. } => {
                        assert_eq!((index, found), (n, token(prompt, n)), "seed {seed}");
                        assert_eq!(id.0, 1_000_000 - u64::from(prompt - 1), "the caller's id");
                        n += 1;
                    }
                    Event::Finished { reason, .. } => assert_eq!((reason, n), (FinishReason::Length, max_tokens)),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(n, max_tokens, "seed {seed}");
        }
    }
}

/// Runs engines until every request has ended: how many broke down, and how many requests were refused for it.
fn run_to_the_end(ledger: &mut Ledger, last_step: Option<usize>) -> (usize, usize) {
    let (mut n_deaths, mut n_refused) = (0, 0);
    while !ledger.is_empty() {
        let mut engine = Rules { last_step, ..Rules::default() };
        let commands = ledger.engine_up();
        engine.take(commands, ledger);
        while !ledger.is_empty() {
            if !engine.step(ledger) {
                n_deaths += 1;
                assert!(n_deaths < 100, "engines break down for ever");
                n_refused += ledger.engine_down(Blame::Running, "it broke").n_refused;
                break;
            }
        }
    }
    (n_deaths, n_refused)
}

/// Two breakdowns find it, or three where others that were new came to trial before it and ran beside it.
#[test]
fn breakdowns_find_the_request_that_causes_them() {
    for (poisoned, n_deaths) in [(4, 2), (5, 3)] {
        find(poisoned, n_deaths);
    }
}

fn find(poisoned: u64, n_deaths: usize) {
    let mut ledger = Ledger::default();
    let mut asked = Vec::new();
    for n in 0..8 {
        asked.push(ask(&mut ledger, n, if n == poisoned { POISON } else { n as u32 + 1 }, 6).0);
    }
    assert_eq!(run_to_the_end(&mut ledger, None), (n_deaths, 1));
    for Asked { prompt, max_tokens, events } in asked {
        let events: Vec<Event> = events.iter().collect();
        match (prompt, events.last()) {
            (POISON, Some(Event::Failed { kind: FailureKind::Forward, error, .. })) => {
                assert!(error.contains("broke down twice") && error.contains("it broke"), "{error}");
            }
            (_, Some(Event::Finished { .. })) => assert_eq!(events.len(), max_tokens + 1),
            (_, other) => panic!("{prompt}: {other:?}"),
        }
    }
}

/// A device that fails after a while, whatever the requests: none of them is to blame.
#[test]
fn engines_that_break_down_at_the_same_step_lose_nobody() {
    for last_step in 3..8 {
        let mut ledger = Ledger::default();
        let asked: Vec<Asked> = (0..8).map(|n| ask(&mut ledger, n, n as u32 + 1, 6).0).collect();
        let (n_deaths, n_refused) = run_to_the_end(&mut ledger, Some(last_step));
        assert!(n_deaths > 0 && n_refused == 0, "step {last_step}: {n_deaths} deaths, {n_refused} refused");
        for Asked { max_tokens, events, .. } in asked {
            assert_eq!(events.iter().count(), max_tokens + 1);
        }
    }
}

#[test]
fn an_engine_that_repeats_or_skips_a_token_is_not_believed() {
    let mut ledger = Ledger::default();
    ledger.engine_up();
    let (asked, _) = ask(&mut ledger, 3, 1, 5);
    let event = |index| Event::Token { id: RequestId(3), index, token: TokenId(9), logprob: 0.0, top: Vec::new() };
    assert_eq!(ledger.pass_on(event(0)), Ok(Vec::new()));
    assert_eq!(ledger.pass_on(event(0)), Err(ProtocolFault::OutOfOrder { index: 0, expected: 1 }));
    assert_eq!(ledger.pass_on(event(2)), Err(ProtocolFault::OutOfOrder { index: 2, expected: 1 }));
    let failed = Event::Failed { id: RequestId(3), kind: FailureKind::Forward, error: "lost".into() };
    assert_eq!(ledger.pass_on(failed), Err(ProtocolFault::Forward("lost".into())), "not for the client's ears");
    assert_eq!(asked.events.try_iter().count(), 1);
}

#[test]
fn who_leaves_or_cancels_between_two_engines_is_not_resumed() {
    let mut ledger = Ledger::default();
    ledger.engine_up();
    let (first, _) = ask(&mut ledger, 0, 1, 5);
    let (second, _) = ask(&mut ledger, 1, 2, 5);
    let (third, _) = ask(&mut ledger, 2, 3, 5);
    assert_eq!(ledger.cancel(RequestId(1_000_000 - 2)), Some(Command::Cancel(RequestId(2))));
    ledger.engine_down(Blame::Nobody, "killed");
    assert!(matches!(third.events.recv(), Ok(Event::Finished { reason: FinishReason::Cancelled, .. })), "it was asked");
    assert_eq!(ledger.cancel(RequestId(1_000_000)), None);
    assert!(matches!(first.events.recv(), Ok(Event::Finished { reason: FinishReason::Cancelled, .. })));
    drop(second);
    assert_eq!(ledger.gone(SeqId(1)), []);
    assert_eq!(ledger.engine_up(), []);
}
