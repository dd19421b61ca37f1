//! Models by name: the well-known names ([`library`]), the store on this machine ([`Store`]), how a model gets into it
//! from the Hub or a registry ([`Fetcher`]), and Modelfiles of custom models ([`Modelfile`]).
//!
//! What this crate does not know: the contents of a model file, commands, terminals, a server. It prints nothing;
//! callers follow its progress through an [`Observer`]. Everything here blocks: an async caller needs a thread for it.

#![forbid(unsafe_code)]

mod choice;
pub mod disk;
mod download;
mod event;
pub mod folders;
pub mod hint;
mod http;
pub mod library;
pub mod modelfile;
mod named;
mod npm;
mod pull;
mod registry;
mod release;
mod repo;
mod search;
mod settings;
mod store;
pub mod suggest;
#[cfg(test)]
mod tests;
mod wheel;

pub use choice::MemoryBudget;
pub use disk::DiskFull;
pub use download::sha256_of;
pub use event::{Observer, PullEvent, SilentObserver};
pub use folders::Folders;
pub use library::ModelLibrary;
pub use modelfile::Modelfile;
pub use named::{ExampleMessage, Named, Parameters};
pub use pull::{Fetcher, NotFound, Resolved};
pub use release::{Release, latest_release};
pub use search::{Hit, search};
pub use store::{Store, StoredModel, normal_name};
