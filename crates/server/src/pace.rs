//! How fast a model has been lately: percentiles of the time to the first token and between tokens, and tokens per
//! second, over the last minutes. This is for people who look at the dashboard; `/metrics` has histograms since the
//! start.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far back it looks.
const SPAN: Duration = Duration::from_secs(300);
/// Times that are kept, at most.
const MAX_TIMES: usize = 4096;
/// Seconds over which tokens are counted.
const RATE_S: usize = 10;

#[derive(Debug, Default)]
pub struct Pace(Mutex<PaceState>);

#[derive(Debug, Default)]
struct PaceState {
    first: RecentTimes,
    between: RecentTimes,
    /// Tokens in each of the last seconds, the newest last, with the second since the start.
    seconds: VecDeque<(u64, u64)>,
    start: Option<Instant>,
}

#[derive(Debug, Default)]
struct RecentTimes(VecDeque<(Instant, f32)>);

impl RecentTimes {
    fn add(&mut self, now: Instant, time: Duration) {
        if self.0.len() == MAX_TIMES {
            self.0.pop_front();
        }
        self.0.push_back((now, time.as_secs_f32() * 1e3));
    }

    /// In milliseconds; null where nothing was measured.
    fn percentiles(&self, now: Instant) -> Value {
        let recent = self.0.iter().filter(|(at, _)| now.saturating_duration_since(*at) < SPAN);
        let mut times: Vec<f32> = recent.map(|&(_, ms)| ms).collect();
        times.sort_unstable_by(f32::total_cmp);
        let at = |share: f64| {
            let idx = (times.len() as f64 * share).ceil() as usize;
            times.get(idx.clamp(1, times.len().max(1)) - 1).map(|ms| (f64::from(*ms) * 1e3).round() / 1e3)
        };
        json!({"n": times.len(), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99)})
    }
}

impl Pace {
    /// The first token of an answer.
    pub fn first(&self, after: Duration) {
        self.add(Instant::now(), |inner, now| inner.first.add(now, after));
    }

    /// A later one.
    pub fn next(&self, after: Duration) {
        self.add(Instant::now(), |inner, now| inner.between.add(now, after));
    }

    fn add(&self, now: Instant, note: impl FnOnce(&mut PaceState, Instant)) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        note(&mut inner, now);
        let second = now.saturating_duration_since(*inner.start.get_or_insert(now)).as_secs();
        match inner.seconds.back_mut() {
            Some((at, n)) if *at == second => *n += 1,
            _ => inner.seconds.push_back((second, 1)),
        }
        while inner.seconds.len() > RATE_S + 1 {
            inner.seconds.pop_front();
        }
    }

    pub fn show(&self) -> Value {
        self.show_at(Instant::now())
    }

    fn show_at(&self, now: Instant) -> Value {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let second = inner.start.map_or(0, |start| now.saturating_duration_since(start).as_secs());
        // The running second is not over.
        let is_recent = |at: u64| at < second && at + RATE_S as u64 >= second;
        let n_tokens: u64 = inner.seconds.iter().filter(|(at, _)| is_recent(*at)).map(|(_, n)| n).sum();
        let n_seconds = second.clamp(1, RATE_S as u64);
        json!({
            "time_to_first_token_ms": inner.first.percentiles(now),
            "inter_token_ms": inner.between.percentiles(now),
            "tokens_per_second": n_tokens as f64 / n_seconds as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_the_last_minutes() {
        let pace = Pace::default();
        let start = Instant::now();
        assert_eq!(pace.show_at(start)["inter_token_ms"], json!({"n": 0, "p50": null, "p90": null, "p99": null}));
        for ms in 1..=100 {
            pace.add(start, |inner, now| inner.between.add(now, Duration::from_millis(ms)));
        }
        let shown = pace.show_at(start + Duration::from_secs(1));
        assert_eq!(shown["inter_token_ms"], json!({"n": 100, "p50": 50.0, "p90": 90.0, "p99": 99.0}));
        assert_eq!(shown["tokens_per_second"], 100.0);
        let later = pace.show_at(start + Duration::from_secs(400));
        assert_eq!((&later["inter_token_ms"]["n"], &later["tokens_per_second"]), (&json!(0), &json!(0.0)));
    }
}
