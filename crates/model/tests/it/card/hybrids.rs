//! Families with recurrent layers on each GPU that is here: chunks, ragged batches, checkpoints and preemption give what the
//! CPU's engine says.

use model::{DeviceChoice, KvType, LoadOptions, Model};

use crate::hybrids::{check_chunks, check_conversation, check_preempted, check_ragged, hybrids};

fn devices() -> Vec<DeviceChoice> {
    test_support::gpus::all().into_iter().map(|(vendor, ordinal)| DeviceChoice::Gpu { vendor, ordinal }).collect()
}

#[test]
fn chunks_checkpoints_and_ragged_sequences() {
    for device in devices() {
        for (name, checkpoint) in test_support::share(hybrids()) {
            let options = LoadOptions {
                device,
                kv_type: KvType::F32,
                n_blocks: 8,
                max_batch_tokens: 64,
                ..LoadOptions::default()
            };
            let mut model = match Model::load(&checkpoint, options) {
                Ok(model) => model,
                // The record of the families says which these are.
                Err(model::Error::NotOnDevice { .. }) => continue,
                Err(error) => panic!("{name}: {error}"),
            };
            check_chunks(&name, &mut model);
            check_ragged(&name, &mut model);
        }
    }
}

/// Some kinds of recurrence; a software GPU takes its time, and the steps of all kinds are compared above.
fn some_hybrids() -> impl Iterator<Item = (String, weights::Checkpoint)> {
    let names = ["granitehybrid", "kimi-linear", "lfm2"];
    hybrids().into_iter().filter(move |(name, _)| names.contains(&name.as_str()))
}

#[test]
fn a_conversation_goes_on_from_its_checkpoints() {
    for device in devices() {
        some_hybrids().for_each(|(name, checkpoint)| check_conversation(&name, &checkpoint, device));
    }
}

#[test]
fn preempted_sequences_say_what_they_say_alone() {
    for device in devices() {
        some_hybrids().take(1).for_each(|(name, checkpoint)| check_preempted(&name, &checkpoint, device));
    }
}
