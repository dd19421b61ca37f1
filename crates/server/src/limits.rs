//! How much one client may ask: a bucket of requests that fills by the minute, and a number of requests at once. Pure
//! but for the clock that is passed in. Limits can change while requests run.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// One client's limits and where it stands.
#[derive(Debug)]
pub struct Limiter {
    /// 0: no limit.
    rate: AtomicU32,
    concurrent: AtomicU32,
    bucket: Mutex<Bucket>,
    n_running: AtomicU32,
}

#[derive(Debug)]
struct Bucket {
    level: f64,
    filled: Instant,
}

/// A running request's place; given back when dropped.
#[derive(Debug)]
pub struct RequestPlace(Arc<Limiter>);

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum OverLimit {
    /// Requests a minute, and seconds until the next one is free.
    Rate {
        rate: u32,
        retry_after_s: u64,
    },
    Concurrent(u32),
    /// Tokens that were allowed, for how long, and seconds until there are new ones.
    Quota {
        tokens: u64,
        period: &'static str,
        retry_after_s: u64,
    },
}

impl Limiter {
    /// A full bucket: the first minute's requests may come at once.
    pub fn new(rate: Option<u32>, concurrent: Option<u32>, now: Instant) -> Self {
        let level = f64::from(rate.unwrap_or(0));
        Self {
            rate: AtomicU32::new(rate.unwrap_or(0)),
            concurrent: AtomicU32::new(concurrent.unwrap_or(0)),
            bucket: Mutex::new(Bucket { level, filled: now }),
            n_running: AtomicU32::new(0),
        }
    }

    /// Other limits from now on; running requests keep their places.
    pub fn set(&self, rate: Option<u32>, concurrent: Option<u32>) {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.rate.swap(rate.unwrap_or(0), Ordering::AcqRel);
        if before == 0 {
            bucket.level = f64::from(rate.unwrap_or(0));
        }
        self.concurrent.store(concurrent.unwrap_or(0), Ordering::Release);
    }

    /// Requests a minute, and requests at once.
    pub fn limits(&self) -> (Option<u32>, Option<u32>) {
        let limit = |limit: &AtomicU32| Some(limit.load(Ordering::Acquire)).filter(|&n| n > 0);
        (limit(&self.rate), limit(&self.concurrent))
    }

    pub fn n_running(&self) -> u32 {
        self.n_running.load(Ordering::Acquire)
    }

    pub fn enter(self: &Arc<Self>, now: Instant) -> Result<RequestPlace, OverLimit> {
        let (rate, concurrent) = self.limits();
        let max = concurrent.unwrap_or(u32::MAX);
        let entered = self.n_running.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < max).then_some(n + 1));
        if entered.is_err() {
            return Err(OverLimit::Concurrent(max));
        }
        let place = RequestPlace(Arc::clone(self));
        if let Some(rate) = rate {
            let per_second = f64::from(rate) / 60.0;
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            let seconds = now.saturating_duration_since(bucket.filled).as_secs_f64();
            bucket.level = (bucket.level + seconds * per_second).min(f64::from(rate));
            bucket.filled = now;
            if bucket.level < 1.0 {
                let retry_after_s = ((1.0 - bucket.level) / per_second).ceil() as u64;
                return Err(OverLimit::Rate { rate, retry_after_s });
            }
            bucket.level -= 1.0;
        }
        Ok(place)
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        self.0.n_running.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bucket_empties_and_fills() {
        let start = Instant::now();
        let limiter = Arc::new(Limiter::new(Some(6), None, start));
        for _ in 0..6 {
            limiter.enter(start).unwrap();
        }
        assert_eq!(limiter.enter(start).unwrap_err(), OverLimit::Rate { rate: 6, retry_after_s: 10 });
        let later = start + Duration::from_secs(4);
        assert_eq!(limiter.enter(later).unwrap_err(), OverLimit::Rate { rate: 6, retry_after_s: 6 });
        limiter.enter(start + Duration::from_secs(10)).unwrap();
        let much_later = start + Duration::from_secs(3600);
        assert_eq!((0..10).filter(|_| limiter.enter(much_later).is_ok()).count(), 6, "no more than a minute's worth");
    }

    #[test]
    fn places_come_back() {
        let now = Instant::now();
        let limiter = Arc::new(Limiter::new(None, Some(2), now));
        let first = limiter.enter(now).unwrap();
        let _second = limiter.enter(now).unwrap();
        assert_eq!(limiter.enter(now).unwrap_err(), OverLimit::Concurrent(2));
        drop(first);
        assert!(limiter.enter(now).is_ok());
    }

    #[test]
    fn limits_change_while_requests_run() {
        let now = Instant::now();
        let limiter = Arc::new(Limiter::new(None, Some(2), now));
        let _running = [limiter.enter(now).unwrap(), limiter.enter(now).unwrap()];
        limiter.set(Some(1), Some(3));
        assert_eq!((limiter.limits(), limiter.n_running()), ((Some(1), Some(3)), 2));
        let _third = limiter.enter(now).unwrap();
        limiter.set(Some(1), None);
        assert!(matches!(limiter.enter(now), Err(OverLimit::Rate { .. })));
    }

    #[test]
    fn a_refused_request_holds_no_place() {
        let now = Instant::now();
        let limiter = Arc::new(Limiter::new(Some(1), Some(1), now));
        drop(limiter.enter(now).unwrap());
        assert!(matches!(limiter.enter(now), Err(OverLimit::Rate { .. })));
        assert!(limiter.enter(now + Duration::from_secs(60)).is_ok());
    }
}
