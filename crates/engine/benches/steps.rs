//! Tokens a second of the engine's loop alone: a model that takes no time, greedy requests, a thread for every few
//! receivers. `cargo bench -p engine --bench steps`

use std::{
    collections::VecDeque,
    sync::mpsc,
    time::{Duration, Instant},
};

use batch::{Batch, TokenId};
use engine::{Capacity, Command, EngineOptions, Event, Forward, Rows, StepError, Submit, Ticket, start};

const N_TOKENS: usize = 512;

/// Chooses token 1 for everyone, at once.
struct Instantly {
    under_way: VecDeque<usize>,
    n_submitted: u64,
    max_in_flight: usize,
    step_time: Duration,
    /// When the latest step is done.
    done: Instant,
}

impl Forward for Instantly {
    fn capacity(&self) -> Capacity {
        Capacity { n_vocab: 1000, n_ctx: 4096, n_blocks: 1 << 16, max_batch_tokens: 2048, max_output_rows: 512 }
    }

    fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    fn chooses(&self) -> bool {
        true
    }

    fn submit(&mut self, batch: &Batch) -> Result<Ticket, StepError> {
        self.under_way.push_back(batch.choices.len());
        self.done = self.done.max(Instant::now()) + self.step_time;
        self.n_submitted += 1;
        Ok(Ticket(self.n_submitted))
    }

    fn wait(&mut self, _: Ticket) -> Result<Rows<'_>, StepError> {
        let n_after = self.under_way.len() as u32 - 1;
        let done = self.done - n_after * self.step_time;
        while Instant::now() < done {
            std::hint::spin_loop();
        }
        let n = self.under_way.pop_front().unwrap_or(0);
        Ok(Rows { chosen: vec![Some(TokenId(1)); n], ..Rows::default() })
    }
}

/// Microseconds a step, and tokens a second, of `n_streams` requests with `n_threads` threads that read them.
fn measure(n_streams: usize, n_threads: usize, max_in_flight: usize, step_time: Duration) -> (f64, f64) {
    let under_way = VecDeque::new();
    let model = Instantly { under_way, n_submitted: 0, max_in_flight, step_time, done: Instant::now() };
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

fn main() {
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
