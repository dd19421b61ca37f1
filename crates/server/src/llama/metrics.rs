//! The metrics that llama.cpp's server has, under its names, for dashboards that were made for it: sums over all models
//! since the start, without labels.

use crate::App;
use rocinante::AnswerUsage;
use std::fmt::Write;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What answers and vectors took.
pub struct LlamaTotals {
    /// Tokens of prompts that were computed, and those that were in a cache instead.
    n_read: AtomicU64,
    n_cached: AtomicU64,
    read_us: AtomicU64,
    n_generated: AtomicU64,
    /// Of those, the ones after the first of an answer: they took the time of the answer.
    n_decoded: AtomicU64,
    decode_us: AtomicU64,
    /// The longest prompt with its answer.
    max_tokens: AtomicU64,
    start_s: u64,
}

pub static TOTALS: LazyLock<LlamaTotals> = LazyLock::new(|| LlamaTotals {
    n_read: AtomicU64::new(0),
    n_cached: AtomicU64::new(0),
    read_us: AtomicU64::new(0),
    n_generated: AtomicU64::new(0),
    n_decoded: AtomicU64::new(0),
    decode_us: AtomicU64::new(0),
    max_tokens: AtomicU64::new(0),
    start_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
});

fn add(total: &AtomicU64, n: u64) {
    total.fetch_add(n, Ordering::Relaxed);
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl LlamaTotals {
    pub fn start_s(&self) -> u64 {
        self.start_s
    }

    /// An answer ended.
    pub fn answered(&self, usage: &AnswerUsage) {
        self.read(usage.n_prompt.saturating_sub(usage.n_cached), usage.timings.prefill);
        add(&self.n_cached, usage.n_cached as u64);
        add(&self.n_generated, usage.n_generated as u64);
        add(&self.n_decoded, usage.n_generated.saturating_sub(1) as u64);
        add(&self.decode_us, micros(usage.timings.decode));
        self.max_tokens.fetch_max((usage.n_prompt + usage.n_generated) as u64, Ordering::Relaxed);
    }

    /// So many tokens of a prompt were read.
    pub fn read(&self, n_tokens: usize, time: Duration) {
        add(&self.n_read, n_tokens as u64);
        add(&self.read_us, micros(time));
    }

    /// In Prometheus's words.
    pub fn render(&self, app: &App) -> String {
        let get = |total: &AtomicU64| total.load(Ordering::Relaxed) as f64;
        let rate = |n: f64, seconds: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        let (read_s, decode_s) = (get(&self.read_us) / 1e6, get(&self.decode_us) / 1e6);
        let (mut n_running, mut n_waiting) = (0, 0);
        for model in app.models.loaded() {
            let stats = model.engine().latest_stats();
            (n_running, n_waiting) = (n_running + stats.n_running, n_waiting + stats.n_waiting);
        }
        let engine::Stats { n_steps, drafted, .. } = app.models.counters();
        let engine::Drafted { n_drafts, n_tokens: n_drafted, n_accepted } = drafted;
        let counters = [
            ("prompt_tokens_total", "Prompt tokens computed", get(&self.n_read)),
            ("prompt_tokens_cached_total", "Prompt tokens found in a cache", get(&self.n_cached)),
            ("prompt_seconds_total", "Time for prompts", read_s),
            ("tokens_predicted_total", "Tokens generated", get(&self.n_generated)),
            ("tokens_predicted_seconds_total", "Time for tokens after the first of an answer", decode_s),
            ("n_decode_total", "Passes through the model", n_steps as f64),
            ("n_tokens_max", "Longest prompt with its answer, in tokens", get(&self.max_tokens)),
            ("spec_decode_num_drafts_total", "Guesses of tokens ahead", n_drafts as f64),
            ("spec_decode_num_draft_tokens_total", "Tokens guessed ahead", n_drafted as f64),
            ("spec_decode_num_accepted_tokens_total", "Tokens guessed right", n_accepted as f64),
        ];
        let gauges = [
            ("prompt_tokens_seconds", "Prompt tokens per second, on average", rate(get(&self.n_read), read_s)),
            (
                "predicted_tokens_seconds",
                "Tokens per second of an answer, on average",
                rate(get(&self.n_decoded), decode_s),
            ),
            ("requests_processing", "Requests generating now", n_running as f64),
            ("requests_deferred", "Requests waiting now", n_waiting as f64),
            (
                "n_busy_slots_per_decode",
                "Tokens generated per pass, on average",
                rate(get(&self.n_generated), n_steps as f64),
            ),
        ];
        let mut text = String::new();
        for (kind, metrics) in [("counter", &counters[..]), ("gauge", &gauges[..])] {
            for (name, help, value) in metrics {
                let name = format!("llamacpp:{name}");
                // Writing to a string does not fail.
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
            }
        }
        text
    }
}
