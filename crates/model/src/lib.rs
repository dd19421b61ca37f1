//! Models: a `Batch` of tokens in, rows of logits out. `Batch`, its ids and [`Forward`] are re-exported from `batch`.
//!
//! Absences: this crate knows no request, no text, no sampling, no file format beyond `weights::Checkpoint`, and
//! decides nothing about who owns a KV block.
#![forbid(unsafe_code)]

mod adapter;
mod altup;
mod assistant;
mod cache_copy;
mod config;
mod decoder;
mod device;
mod error;
mod export;
mod family;
mod feed_forward;
mod forward;
mod head;
mod hub;
mod indexer;
mod keys;
mod kv_cache;
mod layer_details;
mod mla;
mod model;
mod names;
mod parts;
mod per_layer;
mod recurrent;
mod recurrent_config;
mod resident;
mod rope_scaling;
mod rope_table;
mod rwkv;
mod scratch;
mod state_pool;
mod step;
mod synthetic;
mod upload;
mod watch;

pub use adapter::{AdapterFile, AdapterLimits, merge};
pub use assistant::{AssistantConfig, ClusterCounts};
pub use batch::{
    AdapterId, AdapterSource, Adjustment, Attention, BLOCK_TOKENS, Batch, BlockId, Choice, Described, FedRow, Forward,
    PooledStates, Pooling, Rows, SeqRows, SeqState, StateId, StepLimits, TokenId,
};
pub use config::{Config, Experts, Mla, RopeConfig, Temperature};
pub use error::Error;
pub use export::export;
pub use family::{FAMILIES, Family, FamilyKind, FusedRows, Placement, Rotation, Scales, Windows};
pub use head::{YES_OR_NO_FORM, answers_yes_or_no};
pub use kv_cache::KvType;
pub use model::{
    AssistantOptions, BlasUse, CompileProgress, DeviceChoice, LoadOptions, MemoryPlan, Model, ModelPart, kv_bytes,
    missing_on_device, plan, plan_assistant,
};
pub use names::Format;
pub use ops::Numerics;
pub use recurrent_config::{LayerBlocks, Recurrent, RecurrentKind};
pub use rope_scaling::{RopeScaling, Yarn};
pub use synthetic::{Recipe, Synthetic, synthetic, synthetic_layers};
pub use upload::UploadReport;
pub use watch::{DeviceLimits, Profiler, StepProfile, Watch};
