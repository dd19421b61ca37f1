//! Events in vLLM's words: a batch is `[time, [event, ...], rank]` in MessagePack, an event a map with its `type`
//! (vLLM's `kv_events.py` since June 2026).

use engine::{AdapterId, KvEvent};
use model::BLOCK_TOKENS;
use rocinante::TokenId;
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Blocks in one batch: 25 kB, so that what is kept for readers that are behind has a bound.
const MAX_BLOCKS: usize = 256;
/// The tier that an engine computes from, on a CPU too. vLLM calls it so, and routers weigh tiers by this word.
const MEDIUM: &str = "GPU";
/// There is one engine for a model here.
const RANK: u32 = 0;

#[derive(Serialize)]
#[serde(tag = "type")]
enum WireEvent<'a> {
    BlockStored {
        block_hashes: &'a [u64],
        parent_block_hash: Option<u64>,
        token_ids: &'a [TokenId],
        block_size: usize,
        lora_id: Option<u64>,
        medium: &'a str,
        lora_name: Option<String>,
    },
    BlockRemoved {
        block_hashes: &'a [u64],
        medium: &'a str,
    },
    AllBlocksCleared,
}

/// The payloads of as many batches as the events need. `name_of` says what an adapter is called.
pub fn encode(events: Vec<KvEvent>, name_of: impl Fn(AdapterId) -> Option<String>) -> Vec<Vec<u8>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let events: Vec<KvEvent> = events.into_iter().flat_map(pieces).collect();
    let mut batches: Vec<Vec<WireEvent>> = Vec::new();
    let mut n_blocks = MAX_BLOCKS;
    for event in &events {
        n_blocks += blocks(event);
        if n_blocks > MAX_BLOCKS || batches.is_empty() {
            batches.push(Vec::new());
            n_blocks = blocks(event);
        }
        batches.last_mut().into_iter().for_each(|batch| batch.push(spoken(event, &name_of)));
    }
    // Numbers, strings and lists: nothing here that could not be written.
    batches.iter().filter_map(|batch| rmp_serde::to_vec_named(&(now, batch, RANK)).ok()).collect()
}

fn blocks(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { hashes, .. } | KvEvent::Removed { hashes } => hashes.len(),
        KvEvent::Cleared => 1,
    }
}

/// The same as events of at most [`MAX_BLOCKS`] blocks.
fn pieces(event: KvEvent) -> Vec<KvEvent> {
    match event {
        KvEvent::Stored { hashes, mut parent, tokens, adapter } if hashes.len() > MAX_BLOCKS => {
            let cut = hashes.chunks(MAX_BLOCKS).zip(tokens.chunks(MAX_BLOCKS * BLOCK_TOKENS));
            let piece = |(hashes, tokens): (&[u64], &[TokenId])| {
                let before = std::mem::replace(&mut parent, hashes.last().copied());
                KvEvent::Stored { hashes: hashes.to_vec(), parent: before, tokens: tokens.to_vec(), adapter }
            };
            cut.map(piece).collect()
        }
        KvEvent::Removed { hashes } if hashes.len() > MAX_BLOCKS => {
            hashes.chunks(MAX_BLOCKS).map(|hashes| KvEvent::Removed { hashes: hashes.to_vec() }).collect()
        }
        event => vec![event],
    }
}

fn spoken(event: &KvEvent, name_of: impl Fn(AdapterId) -> Option<String>) -> WireEvent<'_> {
    match event {
        KvEvent::Stored { hashes, parent, tokens, adapter } => WireEvent::BlockStored {
            block_hashes: hashes,
            parent_block_hash: *parent,
            token_ids: tokens,
            block_size: BLOCK_TOKENS,
            lora_id: adapter.map(|adapter| adapter.0),
            medium: MEDIUM,
            lora_name: adapter.and_then(name_of),
        },
        KvEvent::Removed { hashes } => WireEvent::BlockRemoved { block_hashes: hashes, medium: MEDIUM },
        KvEvent::Cleared => WireEvent::AllBlocksCleared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(payload: &[u8]) -> Value {
        rmp_serde::from_slice(payload).unwrap()
    }

    fn stored(n_blocks: u64) -> KvEvent {
        let tokens = (0..n_blocks as u32 * BLOCK_TOKENS as u32).map(TokenId).collect();
        KvEvent::Stored { hashes: (1..=n_blocks).collect(), parent: None, tokens, adapter: None }
    }

    #[test]
    fn events_are_maps_in_a_list_with_time_and_rank() {
        let events = vec![stored(2), KvEvent::Removed { hashes: vec![u64::MAX] }, KvEvent::Cleared];
        let batches = encode(events, |_| None);
        assert_eq!(batches.len(), 1);
        let batch = read(&batches[0]);
        assert!(batch[0].as_f64().is_some_and(|time| time > 1.7e9), "{batch}");
        let tokens: Vec<u32> = (0..32).collect();
        assert_eq!(
            batch[1],
            json!([
                {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null, "token_ids": tokens,
                 "block_size": 16, "lora_id": null, "medium": "GPU", "lora_name": null},
                {"type": "BlockRemoved", "block_hashes": [u64::MAX], "medium": "GPU"},
                {"type": "AllBlocksCleared"},
            ])
        );
        assert_eq!(batch[2], 0);
    }

    #[test]
    fn blocks_of_an_adapter_carry_its_name_in_every_part() {
        let KvEvent::Stored { hashes, parent, tokens, .. } = stored(300) else { unreachable!() };
        let event = KvEvent::Stored { hashes, parent, tokens, adapter: Some(AdapterId(7)) };
        let batches = encode(vec![event], |id| (id == AdapterId(7)).then(|| "poet".to_owned()));
        assert_eq!(batches.len(), 2);
        for batch in batches.iter().map(|payload| read(payload)) {
            assert_eq!((&batch[1][0]["lora_id"], &batch[1][0]["lora_name"]), (&json!(7), &json!("poet")));
        }
    }

    #[test]
    fn long_events_are_cut_where_their_parts_follow_one_another() {
        let batches: Vec<Value> = encode(vec![stored(600)], |_| None).iter().map(|payload| read(payload)).collect();
        assert_eq!(batches.len(), 3);
        let parents: Vec<&Value> = batches.iter().map(|batch| &batch[1][0]["parent_block_hash"]).collect();
        assert_eq!(parents, [&Value::Null, &json!(256), &json!(512)]);
        let n_tokens: usize = batches.iter().map(|batch| batch[1][0]["token_ids"].as_array().unwrap().len()).sum();
        assert_eq!(n_tokens, 600 * BLOCK_TOKENS);
    }
}
