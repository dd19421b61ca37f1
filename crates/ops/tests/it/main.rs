//! The op table: every op, type and odd shape, on each instruction set and each GPU this
//! machine has, against f64.

mod attention;
mod card;
mod choose;
mod clusters;
mod families;
mod fused;
mod groups;
mod invariant;
mod low_rank;
mod matmul;
mod mixtures;
mod packed;
mod quant;
mod recurrent;
mod sample;
mod support;
