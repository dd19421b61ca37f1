//! Points in a queue's work: recorded, then asked, waited for, or timed. Pooled by the queue, since
//! creating one costs a driver call.
//!
//! The kind is a type: only `Event<Timed>` can be subtracted, so that nobody reads a time from an
//! event that never took one.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::raw;
use crate::shared::QueueShared;
use crate::vendor::STATUS_NOT_READY;

/// An event that only orders.
#[derive(Clone, Copy, Debug)]
pub enum Untimed {}
/// An event that also takes the time.
#[derive(Clone, Copy, Debug)]
pub enum Timed {}

mod sealed {
    use crate::shared::Timing;

    pub trait EventKind {
        const TIMING: Timing;
    }
    impl EventKind for super::Untimed {
        const TIMING: Timing = Timing::Off;
    }
    impl EventKind for super::Timed {
        const TIMING: Timing = Timing::On;
    }
}

/// `Untimed` or `Timed`.
pub trait EventKind: sealed::EventKind + 'static {}
impl EventKind for Untimed {}
impl EventKind for Timed {}

/// A point in a queue's work.
pub struct Event<K: EventKind = Untimed> {
    shared: Arc<QueueShared>,
    raw: raw::Event,
    kind: PhantomData<K>,
}

impl<K: EventKind> Event<K> {
    /// Recorded at the end of what the queue has been given so far.
    #[track_caller]
    pub(crate) fn record(shared: &Arc<QueueShared>) -> Result<Self> {
        let driver = shared.ready_outside_capture("an event")?;
        let raw = shared.take_event(K::TIMING)?;
        let event = Event { shared: shared.clone(), raw, kind: PhantomData };
        // SAFETY: event and stream belong to the same device and live in `shared`.
        shared.judge(unsafe { driver.event_record(raw, shared.stream) })?;
        Ok(event)
    }

    /// Whether the work before it is done. Does not wait.
    #[track_caller]
    pub fn is_done(&self) -> Result<bool> {
        let driver = self.shared.ready()?;
        // SAFETY: a live event.
        let reply = unsafe { driver.event_query(self.raw) };
        if reply.value == STATUS_NOT_READY {
            return Ok(false);
        }
        self.shared.judge(reply).map(|()| true)
    }

    /// Waits until the work before it is done.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        // SAFETY: a live event.
        self.shared.wait_until("an event", |driver| unsafe { driver.event_query(self.raw) })
    }

    pub(crate) fn raw(&self) -> raw::Event {
        self.raw
    }
}

impl Event<Timed> {
    /// Device time from `earlier` to this event. Waits for both.
    #[track_caller]
    pub fn since(&self, earlier: &Event<Timed>) -> Result<Duration> {
        if self.shared.id != earlier.shared.id {
            let (owner, user) = (earlier.shared.id.0, self.shared.id.0);
            return Err(Error::Foreign { what: "an event", owner, user, at: std::panic::Location::caller() });
        }
        earlier.wait()?;
        self.wait()?;
        let driver = self.shared.ready()?;
        let mut ms = 0f32;
        // SAFETY: both events were recorded with timing on one device and are complete.
        self.shared.judge(unsafe { driver.event_elapsed(&mut ms, earlier.raw, self.raw) })?;
        Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }
}

impl<K: EventKind> Drop for Event<K> {
    fn drop(&mut self) {
        self.shared.give_event(self.raw, K::TIMING);
    }
}
