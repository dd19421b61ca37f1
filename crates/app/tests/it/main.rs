//! The binary as a user meets it: one test program, one module per subject.

mod chat;
mod cli;
mod docs;
mod doctor_page;
mod fetch;
#[path = "../../../rocinante/tests/it/folder.rs"]
mod folder;
mod habits;
mod model_run;
mod perplexity;
mod quantize;
mod rerank;
mod roci;
mod rocm;
mod serve;
mod serve_adapters;
mod serve_deaths;
mod serve_deterministic;
mod serve_excess;
mod serve_fairness;
mod serve_families;
mod serve_folder;
mod serve_hostile;
mod serve_kept;
mod serve_library;
mod serve_llama;
mod serve_models;
mod serve_operator;
mod serve_outside;
mod serve_restart;
mod serve_scores;
mod serve_speculation;
mod server;
use test_support::standin;
mod tiny;
mod truth;
