//! The flags of `roci serve` for KV events: where changes of the prefix caches are published.

use server::kv_events::KvEventSettings;

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "KV events")]
pub struct KvArgs {
    /// Publish what enters and leaves the prefix caches at this address (ZeroMQ, in vLLM's format), for routers; such as
    /// tcp://127.0.0.1:5557, or tcp://*:5557 for all networks. Readers see the tokens of all prompts
    #[arg(long, value_name = "ADDRESS")]
    pub kv_events: Option<String>,
    /// Let readers fetch events that they missed from this address
    #[arg(long, value_name = "ADDRESS", requires = "kv_events")]
    pub kv_events_replay: Option<String>,
    /// Topic of the events; {address} is where this server listens, {model} the model's name
    #[arg(long, value_name = "TOPIC", default_value = "kv@{address}@{model}")]
    pub kv_events_topic: String,
}

impl KvArgs {
    pub fn settings(&self) -> Option<KvEventSettings> {
        let address = self.kv_events.clone()?;
        Some(KvEventSettings { address, replay: self.kv_events_replay.clone(), topic: self.kv_events_topic.clone() })
    }
}
