//! How full the engine is, told once a second for Dynamo's router and its gauges.

use dynamo_backend_common::{ComponentSnapshot, SnapshotPublisher};
use rocinante::Model;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cache::RANK;

const EVERY: Duration = Duration::from_secs(1);

/// Publishes for as long as the model is there.
pub fn follow(model: Weak<Model>, publisher: Arc<SnapshotPublisher>) -> std::io::Result<()> {
    let publish = move || {
        while let Some(model) = model.upgrade() {
            publisher.publish(RANK, snapshot(&model));
            drop(model);
            std::thread::sleep(EVERY);
        }
    };
    std::thread::Builder::new().name("roci-load".to_owned()).spawn(publish).map(drop)
}

fn snapshot(model: &Model) -> ComponentSnapshot {
    let stats = model.engine().latest_stats();
    let n_read = stats.n_tokens_computed + stats.n_tokens_cached;
    ComponentSnapshot {
        kv_used_blocks: stats.n_blocks_held as u64,
        kv_total_blocks: stats.n_blocks as u64,
        gpu_cache_usage: stats.n_blocks_held as f32 / stats.n_blocks.max(1) as f32,
        kv_cache_hit_rate: (n_read > 0).then(|| stats.n_tokens_cached as f32 / n_read as f32),
        dp_rank: RANK,
    }
}
