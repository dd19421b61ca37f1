//! Tokens a second of the engine's loop alone: a model that takes no time, greedy requests, a thread for every few
//! receivers. And of a model that takes as long as a large one on a GPU, with grammar masks that take others' time.
//! `cargo bench -p roci-engine --bench steps`

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use batch::{Batch, TokenId};
use engine::{
    Capacity, Command, EngineOptions, Event, Forward, Mask, MaskFactory, Rows, StepError, Submit, Ticket, TokenSet,
    start,
};

const N_TOKENS: usize = 512;

/// Chooses token 1 for everyone, at once.
struct Instantly {
    under_way: VecDeque<usize>,
    n_submitted: u64,
    max_in_flight: usize,
    step_time: Duration,
    /// What it takes the host to queue a step.
    submit_time: Duration,
    n_vocab: usize,
    chooses_later: bool,
    /// When the latest step is done.
    done: Instant,
}

impl Forward for Instantly {
    fn capacity(&self) -> Capacity {
        Capacity { n_vocab: self.n_vocab, n_ctx: 4096, n_blocks: 1 << 16, max_batch_tokens: 2048, max_output_rows: 512 }
    }

    fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    fn chooses(&self) -> bool {
        true
    }

    fn chooses_later(&self) -> bool {
        self.chooses_later
    }

    fn choose(&mut self, _: &Ticket, _: &Batch, n_unchosen: usize) -> Result<(), StepError> {
        if n_unchosen > 0 { Err("no mask takes that long".into()) } else { Ok(()) }
    }

    fn submit(&mut self, batch: &Batch) -> Result<Ticket, StepError> {
        spin_until(Instant::now() + self.submit_time);
        self.under_way.push_back(batch.choices.len());
        self.done = self.done.max(Instant::now()) + self.step_time;
        self.n_submitted += 1;
        Ok(Ticket(self.n_submitted))
    }

    fn wait(&mut self, _: Ticket) -> Result<Rows<'_>, StepError> {
        let n_after = self.under_way.len() as u32 - 1;
        let done = self.done - n_after * self.step_time;
        spin_until(done);
        let n = self.under_way.pop_front().unwrap_or(0);
        Ok(Rows { chosen: vec![Some(TokenId(1)); n], ..Rows::default() })
    }
}

fn spin_until(time: Instant) {
    while Instant::now() < time {
        std::hint::spin_loop();
    }
}

/// Microseconds a step, and tokens a second, of `n_streams` requests with `n_threads` threads that read them.
fn measure(n_streams: usize, n_threads: usize, max_in_flight: usize, step_time: Duration) -> (f64, f64) {
    let under_way = VecDeque::new();
    let (n_vocab, done) = (1000, Instant::now());
    let (chooses_later, submit_time) = (false, Duration::ZERO);
    let model =
        Instantly { under_way, n_submitted: 0, max_in_flight, step_time, submit_time, n_vocab, chooses_later, done };
    let options = EngineOptions { max_batch_tokens: 2048, max_running: 512, ..EngineOptions::default() };
    let handle = start(model, options, None);
    let channels: Vec<_> = (0..n_threads).map(|_| mpsc::channel()).collect();
    let begin = Instant::now();
    for i in 0..n_streams {
        let prompt = (0..16).map(|j| TokenId((i * 16 + j) as u32 % 1000)).collect();
        let submit = Submit::new(handle.next_request_id(), prompt, N_TOKENS);
        handle.send_to(Command::Submit(submit), &channels[i % n_threads].0).unwrap();
    }
    let readers: Vec<_> = channels
        .into_iter()
        .map(|(sender, events)| {
            drop(sender);
            std::thread::spawn(move || events.iter().filter(|event| matches!(event, Event::Token { .. })).count())
        })
        .collect();
    let n_tokens: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    let seconds = begin.elapsed().as_secs_f64();
    assert_eq!(n_tokens, n_streams * N_TOKENS);
    (seconds * 1e6 / N_TOKENS as f64, n_tokens as f64 / seconds)
}

/// Allows everything, a while after its token is known: as a mask that others compute, so many at a time.
struct Timed {
    made: Arc<AtomicU32>,
    ready: Instant,
}

/// What a mask takes of one of so many threads.
const MASK_TIME: Duration = Duration::from_micros(150);
const N_MASK_THREADS: u32 = 8;
const N_MASKED: u32 = 64;

impl Timed {
    fn begin(&mut self) {
        let n_before = self.made.fetch_add(1, Ordering::Relaxed) % N_MASKED;
        self.ready = Instant::now() + (n_before / N_MASK_THREADS + 1) * MASK_TIME;
    }
}

impl Mask for Timed {
    fn allowed(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        allowed.fill();
        Ok(())
    }

    fn is_ready_within(&mut self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        spin_until(self.ready.min(until));
        self.ready <= until
    }

    fn accept(&mut self, _: TokenId) -> Result<(), String> {
        self.begin();
        Ok(())
    }
}

struct TimedMasks(Arc<AtomicU32>);

impl MaskFactory for TimedMasks {
    fn build(&mut self, _: &str, _: usize) -> Result<Box<dyn Mask>, String> {
        let mut mask = Timed { made: Arc::clone(&self.0), ready: Instant::now() };
        mask.begin();
        Ok(Box::new(mask))
    }
}

/// Microseconds a step of 64 requests with masks over a vocabulary of 128,256.
fn measure_masked(chooses_later: bool, is_masked: bool) -> f64 {
    const N: usize = 64;
    let (step_time, n_vocab, done) = (Duration::from_millis(8), 128_256, Instant::now());
    let model = Instantly {
        under_way: VecDeque::new(),
        n_submitted: 0,
        max_in_flight: 2,
        step_time,
        submit_time: Duration::from_millis(1),
        n_vocab,
        chooses_later,
        done,
    };
    let options = EngineOptions { max_batch_tokens: 2048, max_running: 512, ..EngineOptions::default() };
    let handle = start(model, options, Some(Box::new(TimedMasks(Arc::default()))));
    let (sender, events) = mpsc::channel();
    let begin = Instant::now();
    for i in 0..N_MASKED {
        let prompt = (0..16).map(|j| TokenId((i * 16 + j) % 1000)).collect();
        let mut submit = Submit::new(handle.next_request_id(), prompt, N);
        submit.constraint = is_masked.then(String::new);
        handle.send_to(Command::Submit(submit), &sender).unwrap();
    }
    drop(sender);
    let n_tokens = events.iter().filter(|event| matches!(event, Event::Token { .. })).count();
    assert_eq!(n_tokens, N * N_MASKED as usize);
    begin.elapsed().as_secs_f64() * 1e6 / N as f64
}

fn main() {
    for (name, chooses_later, is_masked) in
        [("plain", true, false), ("masks before the step", false, true), ("masks while it is computed", true, true)]
    {
        let us = (0..3).map(|_| measure_masked(chooses_later, is_masked)).fold(f64::INFINITY, f64::min);
        println!("  64 streams, 8 ms steps, {name:<28} {us:>8.1} us a step {:>10.0} tokens/s", 64e6 / us);
    }
    for (n_streams, n_threads) in [(1, 1), (64, 1), (64, 64), (256, 1), (256, 256)] {
        for (name, max_in_flight, step_us) in [
            ("alone", 1, 0),
            ("overlapped", 2, 0),
            ("1 ms steps, single", 1, 1000),
            ("1 ms steps, overlapped", 2, 1000),
        ] {
            let (us, rate) = measure(n_streams, n_threads, max_in_flight, Duration::from_micros(step_us));
            println!(
                "{n_streams:>4} streams, {n_threads:>3} receivers, {name:<24} {us:>8.1} us a step {rate:>12.0} tokens/s"
            );
        }
    }
}
