//! A software AMD GPU: an emulator of AMD machine code, and the plug-in that puts it under AMD's own runtime.
//!
//! Test-only. Nothing links this crate; tests load `libgfx_model.so` through ROCr's `HSA_MODEL_LIB`.
//! It knows no tensor, no model and no HIP: it sees memory, queues of AQL packets and instructions. It does not know
//! time: clocks, caches, waits, DMA engines and firmware are absent, and so is speed. Rounding of transcendentals and
//! of matrix products is its own. What it cannot execute it names and refuses; it never guesses.

#![allow(clippy::needless_range_loop, reason = "a lane number indexes several rows at once")]
#![allow(clippy::precedence, reason = "bit fields are written as in AMD's manuals")]

pub mod bare;
pub mod chip;
pub mod code_object;
pub mod dispatch;
pub mod emulator;
pub mod error;
pub mod exec;
pub mod fidelity;
pub mod isa;
pub mod kernel;
pub mod memory;
pub mod plugin;
mod pool;
pub mod program;
pub mod sanitize;
pub mod topology;

pub use emulator::{Emulator, Report};
pub use error::Error;
