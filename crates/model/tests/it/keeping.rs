//! What is copied out of a model's pools and in again, at another place, continues a sequence as if it had never left: on
//! the CPU and on each GPU that is here, with each type of keys and values, for recurrent states too. And behind the engine a
//! context that was evicted comes back bit for bit, from host memory, from disk, and in the next process.

use std::path::Path;

use batch::CachePlace;
use engine::{EngineOptions, Event, Handle, Helpers, Submit};
use kept::{BlockStore, Identity, SessionFile, StoreOptions};
use model::{
    Batch, BlockId, Config, DeviceChoice, KvType, LoadOptions, Model, SeqState, StateId, TokenId, missing_on_device,
};
use weights::{Checkpoint, Dtype};

use crate::families::{forms, golden};
use crate::support::{batch, collect, table};
use crate::wide::widen;

/// Plain attention, two kinds of recurrent layers, and what an indexer keeps.
const FAMILIES: [&str; 4] = ["llama", "granitehybrid", "qwen3next", "deepseek32-sparse"];

fn checkpoint(name: &str) -> Checkpoint {
    forms(name).remove(0).1
}

fn devices() -> Vec<DeviceChoice> {
    let gpus = test_support::gpus::all().into_iter().map(|(vendor, ordinal)| DeviceChoice::Gpu { vendor, ordinal });
    [DeviceChoice::Cpu].into_iter().chain(gpus).collect()
}

/// Each device with the models that it can compute.
fn cases() -> Vec<(DeviceChoice, &'static str, Checkpoint)> {
    let mut cases = Vec::new();
    for device in devices() {
        for name in FAMILIES {
            let checkpoint = checkpoint(name);
            let config = Config::from_checkpoint(&checkpoint).unwrap();
            if device == DeviceChoice::Cpu || missing_on_device(&checkpoint, &config).unwrap().is_none() {
                cases.push((device, name, checkpoint));
            }
        }
    }
    cases
}

fn state(from: Option<u32>, to: u32) -> SeqState {
    SeqState { from: from.map(StateId), to: StateId(to), copy: None }
}

#[test]
fn a_sequence_goes_on_from_copies() {
    for (device, name, checkpoint) in cases() {
        for kv_type in [KvType::F16, KvType::F32, KvType::Q8_0, KvType::Q4_0] {
            // Groups of 32 numbers must fill a head.
            let is_quantized = kv_type.dtype().block_len() > 1;
            if is_quantized && name != "llama" {
                continue;
            }
            let checkpoint =
                if is_quantized { &widen(&forms(name).pop().unwrap().1, Dtype::Q8_0, 5).0 } else { &checkpoint };
            let options = LoadOptions {
                device,
                kv_type,
                n_blocks: 12,
                n_states: 6,
                max_batch_tokens: 64,
                n_threads: 2,
                ..LoadOptions::default()
            };
            let mut model = Model::load(checkpoint, options).unwrap();
            let is_recurrent = model.config().recurrent.is_some();
            let tokens: Vec<u32> = golden(name).tokens.iter().cycle().take(41).copied().collect();
            let run = |model: &mut Model, range: std::ops::Range<usize>, blocks: &[BlockId], from, to| {
                let chunk = batch(&tokens[range.clone()], range.start, blocks, false);
                let states = if is_recurrent { vec![state(from, to)] } else { Vec::new() };
                model.forward(&Batch { states, ..chunk }).unwrap().logits.to_vec()
            };
            let first = table(0, 41);
            run(&mut model, 0..32, &first, None, 1);
            let mut places = vec![CachePlace::Block(BlockId(0)), CachePlace::Block(BlockId(1))];
            places.extend(is_recurrent.then_some(CachePlace::State(StateId(1))));
            let ticket = model.copy_out(&places).unwrap();
            let truth = run(&mut model, 32..41, &first, Some(1), 1);
            let pieces = model.copied(ticket).unwrap();
            let sizes = model.cache_bytes();
            assert!(pieces.iter().zip(&places).all(|(piece, place)| piece.len() == sizes.of(*place)));
            // At other places, which held something else.
            let second = [7, 4, 9].map(BlockId);
            run(&mut model, 0..9, &second[..1], None, 4);
            let mut moved = vec![CachePlace::Block(second[0]), CachePlace::Block(second[1])];
            moved.extend(is_recurrent.then_some(CachePlace::State(StateId(4))));
            let pieces: Vec<(CachePlace, &[u8])> =
                moved.iter().copied().zip(pieces.iter().map(Vec::as_slice)).collect();
            model.copy_in(&pieces).unwrap();
            let found = run(&mut model, 32..41, &second, Some(4), 4);
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&truth), "{name} {kv_type:?} on {}", model.device());
            // What does not fit is refused.
            assert!(model.copy_in(&[(CachePlace::Block(BlockId(12)), pieces[0].1)]).is_err());
            assert!(model.copy_in(&[(CachePlace::Block(BlockId(1)), &pieces[0].1[1..])]).is_err());
        }
    }
}

fn engine(checkpoint: &Checkpoint, device: DeviceChoice, n_blocks: usize, kept: &StoreOptions) -> Handle {
    let options =
        LoadOptions { device, n_blocks, n_states: 6, max_batch_tokens: 64, n_threads: 2, ..LoadOptions::default() };
    let model = Model::load(checkpoint, options).unwrap();
    let (store, notes) = BlockStore::open(kept, Identity::of([b"this model".as_slice()]));
    assert_eq!(notes, Vec::<String>::new());
    // Prompts end their steps where a state is kept.
    let options = EngineOptions { prefill_chunk: 64, ..EngineOptions::default() };
    engine::start_helped(model, options, Helpers { store: Some(store), ..Helpers::default() })
}

/// Tokens with the bits of their log-probabilities, and how many of the prompt were not computed.
fn answer(handle: &Handle, prompt: &[TokenId]) -> (Vec<(TokenId, u32)>, usize) {
    let submit = Submit { logprobs: Some(0), ..Submit::new(handle.next_request_id(), prompt.to_vec(), 6) };
    let mut tokens = Vec::new();
    for event in handle.submit(submit).unwrap() {
        match event {
            Event::Token { token, logprob, .. } => tokens.push((token, logprob.to_bits())),
            Event::Finished { usage, .. } => return (tokens, usage.n_cached_prompt),
            other => panic!("unexpected {other:?}"),
        }
    }
    panic!("no end")
}

#[test]
fn what_was_evicted_comes_back_bit_for_bit() {
    for (device, name, checkpoint) in cases() {
        let folder = tempfile::tempdir().unwrap();
        let tokens: Vec<TokenId> = golden(name).tokens.iter().cycle().take(90).map(|&token| TokenId(token)).collect();
        let (a, b) = (&tokens[..80], &tokens[3..90]);
        let longer = &tokens[..90];
        // In a pool for both, the cache gives the truth.
        let roomy = engine(&checkpoint, device, 32, &StoreOptions::default());
        answer(&roomy, a);
        let (truth, n_cached) = answer(&roomy, longer);
        assert!(n_cached >= 64, "{name}: {n_cached}");
        // A device's runtime must not end before the engines do.
        roomy.shutdown();
        let on_disk =
            |folder: &Path| StoreOptions { disk_bytes: 1 << 24, folder: folder.to_owned(), ..StoreOptions::default() };
        let on_host = StoreOptions { host_bytes: 1 << 24, ..StoreOptions::default() };
        for options in [on_host, on_disk(folder.path())] {
            let handle = engine(&checkpoint, device, 7, &options);
            answer(&handle, a);
            answer(&handle, b);
            let found = answer(&handle, longer);
            assert_eq!(found, (truth.clone(), n_cached), "{name} on {device:?}, {options:?}");
            let counters = handle.stats().unwrap().kept.counters;
            assert!(counters.n_from_host + counters.n_from_disk > 0, "{name} {counters:?}");
            handle.shutdown();
        }
        let handle = engine(&checkpoint, device, 7, &on_disk(folder.path()));
        assert_eq!(answer(&handle, longer), (truth.clone(), n_cached), "{name} on {device:?}, after a restart");
        handle.shutdown();
        // A session file that one engine writes and another continues from.
        let path = folder.path().join("talk");
        let handle = engine(&checkpoint, device, 32, &StoreOptions::default());
        answer(&handle, a);
        let session = Some(SessionFile { path: path.clone(), text: Vec::new() });
        let save = Submit { session, ..Submit::new(handle.next_request_id(), a.to_vec(), 0) };
        collect(handle.submit(save).unwrap());
        handle.shutdown();
        let handle = engine(&checkpoint, device, 7, &StoreOptions { session: Some(path), ..StoreOptions::default() });
        assert_eq!(answer(&handle, longer), (truth, n_cached), "{name} on {device:?}, from a session");
        assert!(handle.stats().unwrap().kept.counters.n_from_session > 0, "{name}");
        handle.shutdown();
    }
}
