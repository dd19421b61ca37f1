//! The channel between an engine's thread and whoever reads an answer: one that can be waited on by a thread, with or
//! without a time limit, and polled by any executor. Nothing is lost when a reader changes from one to the other.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use engine::{Closed, Event, Sink};

#[derive(Debug, Default)]
struct SharedMailbox {
    state: Mutex<MailboxState>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct MailboxState {
    events: VecDeque<Event>,
    waker: Option<Waker>,
    is_sender_gone: bool,
    is_receiver_gone: bool,
}

/// The engine's end.
#[derive(Debug)]
pub(crate) struct Sender(Arc<SharedMailbox>);

/// The reader's end.
#[derive(Debug)]
pub(crate) struct Receiver(Arc<SharedMailbox>);

/// The outcome of a wait with a time limit.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one is moved per event, and a box would be an allocation for each")]
pub(crate) enum Waited {
    Event(Event),
    /// The sender is gone and everything was read.
    Closed,
    TimedOut,
}

pub(crate) fn mailbox() -> (Sender, Receiver) {
    let shared = Arc::new(SharedMailbox::default());
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl SharedMailbox {
    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the reader after the lock is released.
    fn notify(&self, mut state: MutexGuard<'_, MailboxState>) {
        let waker = state.waker.take();
        drop(state);
        self.arrived.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Sink for Sender {
    fn send(&self, event: Event) -> Result<(), Closed> {
        let mut state = self.0.lock();
        if state.is_receiver_gone {
            return Err(Closed);
        }
        state.events.push_back(event);
        self.0.notify(state);
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_sender_gone = true;
        self.0.notify(state);
    }
}

impl Receiver {
    /// Waits for the next event; `None` when there will be none.
    pub(crate) fn recv(&self) -> Option<Event> {
        let mut state = self.0.lock();
        loop {
            if let Some(event) = state.events.pop_front() {
                return Some(event);
            }
            if state.is_sender_gone {
                return None;
            }
            state = self.0.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn recv_timeout(&self, limit: Duration) -> Waited {
        let deadline = Instant::now() + limit;
        let mut state = self.0.lock();
        loop {
            if let Some(event) = state.events.pop_front() {
                return Waited::Event(event);
            }
            if state.is_sender_gone {
                return Waited::Closed;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Waited::TimedOut;
            }
            state = self.0.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.0.lock();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if state.is_sender_gone {
            return Poll::Ready(None);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            waker => *waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_receiver_gone = true;
        state.events.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Stats;

    fn event(n_steps: u64) -> Event {
        Event::Stats(Box::new(Stats { n_steps, ..Stats::default() }))
    }

    #[test]
    fn threads_wait_and_executors_poll() {
        let (sender, receiver) = mailbox();
        assert!(matches!(receiver.recv_timeout(Duration::ZERO), Waited::TimedOut));
        let sending = std::thread::spawn(move || {
            for i in 0..100 {
                sender.send(event(i)).unwrap();
            }
        });
        let mut seen = Vec::new();
        for i in 0.. {
            let next = match i % 2 {
                0 => receiver.recv(),
                _ => futures_executor::block_on(std::future::poll_fn(|context| receiver.poll_recv(context))),
            };
            match next {
                Some(Event::Stats(stats)) => seen.push(stats.n_steps),
                _ => break,
            }
        }
        sending.join().unwrap();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert!(matches!(receiver.recv_timeout(Duration::ZERO), Waited::Closed));
    }

    #[test]
    fn nobody_listens() {
        let (sender, receiver) = mailbox();
        drop(receiver);
        assert_eq!(sender.send(event(0)), Err(Closed));
    }
}
