//! The runtime as a Rust program meets it: one test program, one module per subject.

mod answers;
mod folder;
mod opening;
mod real;
mod speculation;
mod vectors;
