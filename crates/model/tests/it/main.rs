//! The model against other programs' numbers and against itself under other batches.

mod card;
mod families;
mod support;
mod tiny;
mod truth;
