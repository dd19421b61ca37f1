//! The model against other programs' numbers and against itself under other batches, alone and behind the
//! engine.

mod adapters;
mod assistant;
mod card;
mod deterministic;
mod engine_encoders;
mod engine_loop;
mod export;
mod faithful;
mod families;
mod gpu_runs;
mod hybrids;
mod keeping;
mod kv_types;
mod models_page;
mod next_token;
mod real;
mod support;
mod tiny;
mod truth;
mod wide;
mod windows;
