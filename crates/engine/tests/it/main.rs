//! The engine from outside: the scheduler under a seeded simulation, and the whole loop on a toy and on a small real model.

mod card;
mod encoders;
mod engine_loop;
mod generation;
mod leaving;
mod simulation;
mod tiny_model;
mod toy;
