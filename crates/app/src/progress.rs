//! Progress at a terminal: one style of bar for everything that takes time. On standard error, hidden where that is no
//! terminal and with `--quiet`.

use crate::report;
use hub::{Observer, PullEvent};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rocinante::human_bytes;
use std::sync::Mutex;
use std::time::Duration;

const WIDTH: usize = 24;

/// What a bar counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    Bytes,
    Things,
}

/// A bar: `LABEL [=====>    ] 3.1 GB/5.0 GB, 4s left  MESSAGE`.
pub fn bar(label: impl Into<String>, n_total: Option<u64>, counts: Counted) -> ProgressBar {
    let target = if report::is_quiet() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(n_total, target);
    let figures = match counts {
        Counted::Bytes => "{decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}",
        Counted::Things => "{human_pos}/{human_len}",
    };
    let style = format!("{{prefix}} [{{bar:{WIDTH}}}] {figures}, {{eta}} left{{msg}}");
    bar.set_style(ProgressStyle::with_template(&style).expect("a constant template").progress_chars("=> "));
    bar.set_prefix(label.into());
    bar
}

/// A spinner for what has no known end: `| LABEL`.
pub fn spinner(label: impl Into<String>) -> ProgressBar {
    let target = if report::is_quiet() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let spinner = ProgressBar::with_draw_target(None, target);
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("a constant template");
    spinner.set_style(style.tick_chars("|/-\\ "));
    spinner.set_message(label.into());
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

/// A download, drawn.
#[derive(Default)]
pub struct Terminal {
    bar: Mutex<Option<ProgressBar>>,
}

impl Observer for Terminal {
    fn on(&self, event: PullEvent<'_>) {
        let mut bar = self.bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match event {
            PullEvent::Note(text) => match &*bar {
                Some(bar) => bar.suspend(|| report::note_line(text)),
                None => report::note_line(text),
            },
            PullEvent::Begin { label, n_total, host, .. } => {
                let new = self::bar(label, n_total, Counted::Bytes);
                if new.is_hidden() {
                    let size = n_total.map(|n| format!(" ({})", human_bytes(n))).unwrap_or_default();
                    report::note_line(&format!("fetching {label}{size} from {host}"));
                }
                *bar = Some(new);
            }
            PullEvent::Progress { n_done, n_total } => {
                if let Some(bar) = &*bar {
                    if let Some(n_total) = n_total {
                        bar.set_length(n_total.max(n_done));
                    }
                    bar.set_position(n_done);
                }
            }
            PullEvent::End => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A download that failed leaves no half of a bar before the error.
        self.on(PullEvent::End);
    }
}
