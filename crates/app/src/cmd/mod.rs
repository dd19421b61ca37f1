//! One file per command. Each has its arguments as `Args` and its work as `main`.

pub mod bench;
pub mod completions;
pub mod devices;
pub mod doctor;
pub mod embed;
pub mod engine;
pub mod imatrix;
pub mod inspect;
pub mod kernels;
pub mod key;
pub mod list;
pub mod man;
pub mod perplexity;
pub mod pull;
pub mod quantize;
pub mod rerank;
pub mod rm;
pub mod run;
pub mod serve;
pub mod tokenize;
