//! What enters and leaves the prefix cache, for Dynamo's router. A thread reads the engine's log, which holds up nobody,
//! until the model is gone.

use dynamo_backend_common::KvEventPublisher;
use dynamo_kv_router::protocols::{
    BlockHashOptions, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData, KvCacheStoredBlockData,
    compute_block_hash_for_seq,
};
use engine::{KvEvent, KvLog};
use rocinante::TokenId;
use std::sync::Arc;
use std::time::Duration;

/// Tokens of a block.
pub const BLOCK_TOKENS: u32 = 16;
/// There is one engine for a model here.
pub const RANK: u32 = 0;
/// How soon the thread notices that nobody wants to know any more.
const TICK: Duration = Duration::from_secs(1);

/// Publishes what the log says for as long as the engine and the publisher's owner are there.
pub fn follow(log: KvLog, publisher: Arc<KvEventPublisher>) -> std::io::Result<()> {
    let publish = move || {
        while let Some(events) = log.wait(TICK) {
            for event in events {
                let event = KvCacheEvent { event_id: publisher.next_event_id(), data: translate(event), dp_rank: RANK };
                if publisher.publish(event).is_err() {
                    return;
                }
            }
        }
    };
    std::thread::Builder::new().name("roci-kv-events".to_owned()).spawn(publish).map(drop)
}

/// An event in Dynamo's words. Its router finds blocks by hashes of its own over their tokens; ours name sequences.
pub fn translate(event: KvEvent) -> KvCacheEventData {
    match event {
        KvEvent::Stored { hashes, parent, tokens, adapter: _ } => {
            let tokens: Vec<u32> = tokens.into_iter().map(|TokenId(id)| id).collect();
            let found = compute_block_hash_for_seq(&tokens, BLOCK_TOKENS, BlockHashOptions::default());
            let block = |(hash, tokens_hash): (u64, _)| KvCacheStoredBlockData {
                block_hash: hash.into(),
                tokens_hash,
                mm_extra_info: None,
            };
            KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: parent.map(Into::into),
                start_position: None,
                blocks: hashes.into_iter().zip(found).map(block).collect(),
            })
        }
        KvEvent::Removed { hashes } => {
            let block_hashes = hashes.into_iter().map(Into::into).collect();
            KvCacheEventData::Removed(KvCacheRemoveData { block_hashes })
        }
        KvEvent::Cleared => KvCacheEventData::Cleared,
    }
}
