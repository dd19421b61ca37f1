//! Integration tests. Those that need AMD's packages or LLVM's tools say so and skip when they are missing; with
//! `CI=true` (packages) a skip is a failure.

mod buffers;
mod coverage;
mod decode;
mod faults;
mod fidelity;
mod kernels;
mod mutation;
mod runtime;
mod sanitizer;
mod semantics;
mod tools;
