//! The engine from outside: the scheduler under a seeded simulation, and the whole loop on a toy. The loop on real models is tested
//! where those are, in `model`.

mod engine_loop;
mod generation;
mod keeping;
mod leaving;
mod ledger;
mod overlap;
mod simulation;
mod speculation;
mod toy;
mod windows;
