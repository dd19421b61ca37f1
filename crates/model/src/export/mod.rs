//! A checkpoint from safetensors in GGUF's words and conventions: names, metadata, the order of rows that GGUF's rope
//! wants, norms with their offset, experts in stacks. What llama.cpp's converter writes is the measure
//! (`tests/it/export.rs` compares tensor by tensor). Tokenizers are not looked at here.
//!
//! Numbers that must be moved are moved when they are first read, one tensor at a time.

mod keys;
mod split;
mod tensors;

use ops::Layout;
use weights::Checkpoint;

use crate::head::answers_yes_or_no;
use crate::names::{Format, Names};
use crate::parts::parts;
use crate::{Config, Error};

/// The same model as a GGUF checkpoint in memory, without a vocabulary. `name` becomes `general.name`.
pub fn export(checkpoint: &Checkpoint, name: &str) -> Result<Checkpoint, Error> {
    let refused = |what: String| Err(Error::NotInGguf { what });
    let Some(hub) = checkpoint.hub() else {
        return refused("there is no config.json beside the weights".into());
    };
    let config = Config::from_checkpoint(checkpoint)?;
    if !config.family.is_exported {
        let family = config.family.name;
        return refused(format!("models of the family {family} run from safetensors, but are not written as GGUF yet"));
    }
    if config.mla.is_some() && config.rope.pairing != config.family.pairing {
        return refused("rope turns halves of compressed attention's heads (`rope_interleave` is false)".into());
    }
    if let Some(tensor) = checkpoint.unsupported().first() {
        return refused(format!("tensor `{}` has type {}", tensor.name, tensor.type_name));
    }
    let names = Names { checkpoint, format: Format::Hub, family: &config.family, next_from: None };
    let mut metadata = keys::metadata(hub, &config, name)?;
    if answers_yes_or_no(checkpoint) {
        keys::rerank(&mut metadata, config.family.name);
    }
    let mut tensors = tensors::list(&names, &config)?;
    tensors.extend(keys::rope_tensors(&config)?);
    let exported = Checkpoint::from_parts(metadata, tensors)?;
    check_whole(&exported)?;
    Ok(exported)
}

/// Whether everything is there that loading would ask for, in the shapes it asks for.
fn check_whole(exported: &Checkpoint) -> Result<(), Error> {
    let config = Config::from_checkpoint(exported)?;
    let names = Names { checkpoint: exported, format: Format::Gguf, family: &config.family, next_from: None };
    parts(names, &config, &|dtype, _| Ok((dtype, (Layout::Rows, 0)))).map(drop)
}
