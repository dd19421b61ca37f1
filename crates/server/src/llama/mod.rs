//! llama.cpp's own API: `/completion`, `/infill`, `/apply-template`, `/props`, `/slots`, `/lora-adapters` and
//! `/embedding`, with its fields, its defaults and its way to stream. Slots are what it calls places for requests; here
//! any request takes the next one.

mod about;
mod answer;
pub mod completion;
pub mod embedding;
pub mod infill;
mod metrics;

pub use about::{apply_template, lora_adapters, props, set_lora_adapters, slots};
pub use answer::timings;
pub use completion::completion;
pub use embedding::embedding;
pub use infill::{encode as encode_middle, encode_in_words, infill};
pub use metrics::TOTALS;

/// llama.cpp's own defaults.
const TEMPERATURE: f32 = 0.8;
const TOP_K: i64 = 40;
const TOP_P: f32 = 0.95;
const MIN_P: f32 = 0.05;
/// Its way to say that every request gets a seed of its own.
const RANDOM_SEED: u64 = u32::MAX as u64;
