//! How long a request waits for room in memory. Loading a large model takes longer than anybody would wait for a
//! request to end, so time in which a model is being loaded does not count.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Adds up the time that was spent loading models.
#[derive(Debug, Default)]
pub struct LoadClock(Mutex<Loads>);

#[derive(Debug, Default)]
struct Loads {
    past: Duration,
    since: Option<Instant>,
}

/// A load that is running; it ends when dropped.
#[derive(Debug)]
pub struct RunningLoad<'a>(&'a LoadClock);

impl LoadClock {
    /// A load begins. There is one at a time.
    pub fn begin(&self) -> RunningLoad<'_> {
        self.lock().since = Some(Instant::now());
        RunningLoad(self)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Loads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn total(&self, now: Instant) -> Duration {
        let loads = self.lock();
        loads.past + loads.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl Drop for RunningLoad<'_> {
    fn drop(&mut self) {
        let mut loads = self.0.lock();
        let since = loads.since.take();
        loads.past += since.map_or(Duration::ZERO, |since| since.elapsed());
    }
}

/// Limits how long one request waits.
#[derive(Debug)]
pub struct WaitTimer<'a> {
    clock: &'a LoadClock,
    start: Instant,
    loaded_before: Duration,
    limit: Duration,
}

impl<'a> WaitTimer<'a> {
    pub fn new(clock: &'a LoadClock, limit: Duration) -> Self {
        let start = Instant::now();
        Self { clock, start, loaded_before: clock.total(start), limit }
    }

    fn left(&self, now: Instant) -> Duration {
        let loading = self.clock.total(now).saturating_sub(self.loaded_before);
        self.limit.saturating_add(loading).saturating_sub(now.saturating_duration_since(self.start))
    }

    pub fn is_over(&self) -> bool {
        self.left(Instant::now()).is_zero()
    }

    /// What `work` gives, unless patience runs out before.
    pub async fn wait_for<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let left = self.left(Instant::now());
            match tokio::time::timeout(left, &mut work).await {
                Ok(value) => return Some(value),
                Err(_) if self.is_over() => return None,
                // A load ran meanwhile, which did not count.
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_without_a_load_counts() {
        let clock = LoadClock::default();
        let timer = WaitTimer::new(&clock, Duration::from_secs(30));
        let at = |seconds: u64| timer.start + Duration::from_secs(seconds);
        assert_eq!(timer.left(at(10)), Duration::from_secs(20));
        // A load from second 10 on, under way.
        clock.lock().since = Some(at(10));
        assert_eq!(timer.left(at(100)), Duration::from_secs(20));
        // It ended at second 110.
        *clock.lock() = Loads { past: Duration::from_secs(100), since: None };
        assert_eq!(timer.left(at(120)), Duration::from_secs(10));
        assert_eq!(timer.left(at(130)), Duration::ZERO);
        // Who comes later gains nothing from loads that were before.
        let later = WaitTimer::new(&clock, Duration::from_secs(30));
        assert_eq!(later.left(later.start + Duration::from_secs(30)), Duration::ZERO);
    }
}
