//! The model against other programs' numbers and against itself under other batches.

mod card;
mod export;
mod faithful;
mod families;
mod gpu_runs;
mod models_page;
mod real;
mod support;
mod tiny;
mod truth;
mod wide;
