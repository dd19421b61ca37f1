//! Changes of the prefix caches as a ZeroMQ stream in vLLM's format, for routers that send a request to the server that
//! has computed its beginning before. A PUB socket sends batches, a ROUTER socket repeats those a reader has missed.
//!
//! Nothing here can hold up an engine: each engine's log is read by a thread of its own, batches are of bounded size, and
//! a reader that is too slow misses some and sees that by their numbers.

mod batch;
mod peer;
mod zmtp;

use crate::hint::HintExt;
use anyhow::{Context, Result};
use engine::{AdapterId, KvEvent, KvLog};
use metrics::counter;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, broadcast};

/// Batches that are kept to be repeated, and their size in all.
const MAX_KEPT: usize = 10_000;
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Batches that a reader may be behind.
const MAX_BEHIND: usize = 1024;
/// Readers at a time, of both sockets together.
const MAX_PEERS: usize = 64;
/// How often a thread that waits for events looks up.
const LOOK: Duration = Duration::from_secs(5);

/// What an operator says about it.
#[derive(Clone, Debug)]
pub struct KvEventSettings {
    /// Where batches are published, such as `tcp://127.0.0.1:5557`.
    pub address: String,
    /// Where they are repeated.
    pub replay: Option<String>,
    /// What each batch begins with; `{address}` and `{model}` are filled in.
    pub topic: String,
}

/// One batch as it is sent.
#[derive(Debug)]
struct EventBatch {
    topic: String,
    number: u64,
    payload: Vec<u8>,
}

#[derive(Debug)]
pub struct Publisher {
    topic: String,
    sender: broadcast::Sender<Arc<EventBatch>>,
    kept: Mutex<KeptBatches>,
    peers: Arc<Semaphore>,
}

/// The last batches.
#[derive(Debug, Default)]
struct KeptBatches {
    next_number: u64,
    batches: VecDeque<Arc<EventBatch>>,
    n_bytes: usize,
}

impl Publisher {
    /// Opens the sockets and takes readers from now on. `server` is where requests are answered.
    pub async fn bind(settings: &KvEventSettings, server: SocketAddr) -> Result<Arc<Self>> {
        let publisher = Arc::new(Self {
            topic: settings.topic.replace("{address}", &server.to_string()),
            sender: broadcast::Sender::new(MAX_BEHIND),
            kept: Mutex::default(),
            peers: Arc::new(Semaphore::new(MAX_PEERS)),
        });
        let listener = listen(&settings.address).await?;
        let address = listener.local_addr()?;
        tracing::info!("KV events at tcp://{address}");
        if !address.ip().is_loopback() {
            tracing::warn!("whoever reaches tcp://{address} can read the tokens of all prompts: KV events need no key");
        }
        tokio::spawn(peer::accept(listener, Arc::clone(&publisher), peer::SocketRole::Publish));
        if let Some(replay) = &settings.replay {
            let listener = listen(replay).await?;
            tracing::info!("KV events are repeated at tcp://{}", listener.local_addr()?);
            tokio::spawn(peer::accept(listener, Arc::clone(&publisher), peer::SocketRole::Replay));
        }
        Ok(publisher)
    }

    /// Publishes an engine's cache events until the engine ends. `name_of` says what an adapter is called.
    pub fn follow(
        self: &Arc<Self>,
        model: &str,
        log: KvLog,
        name_of: impl Fn(AdapterId) -> Option<String> + Send + 'static,
    ) {
        let (publisher, topic) = (Arc::clone(self), self.topic.replace("{model}", model));
        let follow = move || {
            publisher.publish(&topic, vec![KvEvent::Cleared], &name_of);
            while let Some(events) = log.wait(LOOK) {
                publisher.publish(&topic, events, &name_of);
            }
            publisher.publish(&topic, vec![KvEvent::Cleared], &name_of);
        };
        if let Err(error) = std::thread::Builder::new().name("kv-events".into()).spawn(follow) {
            tracing::error!(model, %error, "its KV events are not published");
        }
    }

    fn publish(&self, topic: &str, events: Vec<KvEvent>, name_of: &impl Fn(AdapterId) -> Option<String>) {
        counter!("roci_kv_events_total").increment(events.len() as u64);
        for payload in batch::encode(events, name_of) {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let sent = Arc::new(EventBatch { topic: topic.to_owned(), number: kept.next_number, payload });
            kept.push(Arc::clone(&sent));
            // Under the lock, so that numbers are sent in order. Nobody may be listening.
            let _ = self.sender.send(sent);
        }
    }

    /// The batches that are kept, from this number on.
    fn kept_from(&self, number: u64) -> Vec<Arc<EventBatch>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.batches.iter().filter(|batch| batch.number >= number).cloned().collect()
    }
}

impl KeptBatches {
    fn push(&mut self, batch: Arc<EventBatch>) {
        self.next_number = batch.number + 1;
        self.n_bytes += batch.payload.len();
        self.batches.push_back(batch);
        while self.batches.len() > MAX_KEPT || self.n_bytes > MAX_KEPT_BYTES {
            let Some(oldest) = self.batches.pop_front() else { return };
            self.n_bytes -= oldest.payload.len();
        }
    }
}

/// `tcp://HOST:PORT`, as ZeroMQ writes it; `*` is every address of this machine.
async fn listen(address: &str) -> Result<TcpListener> {
    let plain = address.strip_prefix("tcp://").unwrap_or(address);
    let plain = plain.strip_prefix('*').map_or_else(|| plain.to_owned(), |port| format!("0.0.0.0{port}"));
    let listener = TcpListener::bind(&plain).await.with_context(|| format!("cannot publish KV events at `{address}`"));
    listener.hint("give an address such as tcp://127.0.0.1:5557, or tcp://*:5557 for all networks")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publisher() -> Publisher {
        Publisher {
            topic: "kv@{model}".to_owned(),
            sender: broadcast::Sender::new(MAX_BEHIND),
            kept: Mutex::default(),
            peers: Arc::new(Semaphore::new(MAX_PEERS)),
        }
    }

    #[test]
    fn the_last_batches_are_kept_and_numbered() {
        let publisher = publisher();
        for _ in 0..MAX_KEPT + 5 {
            publisher.publish("t", vec![KvEvent::Cleared], &|_| None);
        }
        let kept = publisher.kept_from(0);
        assert_eq!((kept.len(), kept[0].number), (MAX_KEPT, 5));
        let last: Vec<u64> = publisher.kept_from(MAX_KEPT as u64 + 3).iter().map(|batch| batch.number).collect();
        assert_eq!(last, [MAX_KEPT as u64 + 3, MAX_KEPT as u64 + 4]);
    }

    #[test]
    fn what_is_kept_has_a_size() {
        let mut kept = KeptBatches::default();
        for number in 0..9 {
            kept.push(Arc::new(EventBatch { topic: String::new(), number, payload: vec![0; MAX_KEPT_BYTES / 4] }));
        }
        let numbers: Vec<u64> = kept.batches.iter().map(|batch| batch.number).collect();
        assert_eq!(numbers, [5, 6, 7, 8]);
    }
}
