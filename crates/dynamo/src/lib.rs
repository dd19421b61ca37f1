//! Follows the KV events of `roci serve` as NVIDIA Dynamo's router does: with Dynamo's own decoder, normalizer and index of
//! prefixes (`dynamo-kv-router`), over a subscription to the ZeroMQ stream. What it finds is which server has how much of a
//! prompt in its cache, so that requests can be sent there over HTTP.
//!
//! It is not a worker of Dynamo's: see docs/operator/server.md.

mod subscriber;

use dynamo_kv_router::RadixTree;
use dynamo_kv_router::protocols::{BlockHashOptions, WorkerWithDpRank, compute_block_hash_for_seq};
use dynamo_kv_router::zmq_wire::{ZmqEventNormalizer, decode_event_batch};
use std::io;

pub use crate::subscriber::{Message, Subscriber};

/// Tokens of a block of `roci`'s cache.
const BLOCK_TOKENS: u32 = 16;

/// What all servers have, by their events.
pub struct PrefixIndex {
    tree: RadixTree,
    normalizer: ZmqEventNormalizer,
    n_events: u64,
}

impl Default for PrefixIndex {
    fn default() -> Self {
        Self { tree: RadixTree::new(), normalizer: ZmqEventNormalizer::new(BLOCK_TOKENS), n_events: 0 }
    }
}

impl PrefixIndex {
    /// Takes a message of the server with this number. How many of its events were understood.
    pub fn take(&mut self, server: u64, message: &Message) -> io::Result<usize> {
        let batch = decode_event_batch(&message.payload).map_err(io::Error::other)?;
        let rank = u32::try_from(batch.data_parallel_rank.unwrap_or(0)).map_err(io::Error::other)?;
        let worker = WorkerWithDpRank { worker_id: server, dp_rank: rank };
        let mut n_understood = 0;
        for event in batch.events {
            self.n_events += 1;
            let placed = self.normalizer.normalize(event, self.n_events, worker);
            let Some(event) = placed.and_then(|placed| placed.into_router_event()) else { continue };
            self.tree.apply_event(event).map_err(io::Error::other)?;
            n_understood += 1;
        }
        Ok(n_understood)
    }

    /// Tokens of a prompt that a server has, counted from its beginning. `adapter` is the name that the prompt is asked
    /// under, if that means one.
    pub fn n_cached(&self, server: u64, prompt: &[u32], adapter: Option<&str>) -> usize {
        let options = BlockHashOptions { lora_name: adapter, ..BlockHashOptions::default() };
        let blocks = compute_block_hash_for_seq(prompt, BLOCK_TOKENS, options);
        let scores = self.tree.find_matches(blocks, false).scores;
        let of_server = scores.iter().filter(|(worker, _)| worker.worker_id == server);
        of_server.map(|(_, &n_blocks)| n_blocks as usize * BLOCK_TOKENS as usize).max().unwrap_or(0)
    }
}
