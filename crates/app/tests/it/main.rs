//! The binary as a user meets it: one test program, one module per subject.

mod chat;
mod cli;
mod fetch;
mod model_run;
mod roci;
mod rocm;
mod serve;
mod server;
mod standin;
mod tiny;
mod truth;
