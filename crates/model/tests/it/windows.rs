//! Layers with a window that keep no more than that: the same numbers as with whole contexts, from a pool that is a
//! fraction of them, on the CPU and on each GPU that is here.

use std::path::Path;

use engine::{EngineOptions, Event, Handle, Helpers, Lookup, Submit};
use kept::{BlockStore, Identity, StoreOptions};
use model::{Batch, BlockId, Config, DeviceChoice, KvType, LoadOptions, Model, Numerics, TokenId, missing_on_device};
use weights::Checkpoint;

use crate::families::{distance, forms, golden};
use crate::support::{batch, real, table};

/// With a window in some layers: plain, with heads of their own or another rope, shared keys and values, sinks, chunks.
const FAMILIES: [&str; 8] = ["gemma2", "gemma3", "gemma3n", "gemma4", "gpt-oss", "cohere2", "llama4-chunked", "olmo3"];
/// Those that tests of whole engines run.
const FEW: [&str; 2] = ["gemma3", "gpt-oss"];
/// Their window is 12 tokens: a token sees blocks of 16 of which two are enough.
const RING: u32 = 2;
const CHUNK: usize = 5;

pub fn devices() -> Vec<DeviceChoice> {
    let gpus = test_support::gpus::all().into_iter();
    let gpus = gpus.map(|(vendor, ordinal)| DeviceChoice::Gpu { vendor, ordinal });
    std::iter::once(DeviceChoice::Cpu).chain(gpus).collect()
}

/// Each device with the models that it can compute; of a slow one, a share of them.
fn cases(names: &[&'static str]) -> Vec<(DeviceChoice, &'static str, Checkpoint)> {
    let mut cases = Vec::new();
    for device in devices() {
        let picked = if device == DeviceChoice::Cpu { names.to_vec() } else { test_support::share(names.to_vec()) };
        for name in picked {
            // Not every one has a GGUF that says how long its windows are.
            let checkpoint = forms(name).remove(0).1;
            let config = Config::from_checkpoint(&checkpoint).unwrap();
            assert_eq!(config.window_pool(), Some(12), "{name}");
            if device == DeviceChoice::Cpu || missing_on_device(&checkpoint, &config).unwrap().is_none() {
                cases.push((device, name, checkpoint));
            }
        }
    }
    cases
}

fn bits(rows: &[f32]) -> Vec<u32> {
    rows.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_ring_of_two_blocks_gives_the_numbers_of_whole_contexts() {
    for (device, name, checkpoint) in cases(&FAMILIES) {
        let golden = golden(name);
        let options = LoadOptions {
            device,
            kv_type: KvType::F32,
            n_blocks: 8,
            max_batch_tokens: 64,
            n_threads: 2,
            ..LoadOptions::default()
        };
        let mut whole = Model::load(&checkpoint, options).unwrap();
        let mut ring = Model::load(&checkpoint, LoadOptions { n_window_blocks: RING as usize, ..options }).unwrap();
        assert!(ring.memory().kv_bytes < whole.memory().kv_bytes, "{name}");
        let n = golden.tokens.len();
        let mut rows = Vec::new();
        for first in (0..n).step_by(CHUNK) {
            let end = n.min(first + CHUNK);
            let step = batch(&golden.tokens[first..end], first, &table(0, end), true);
            let windows = (0..end.div_ceil(16) as u32).map(|idx| BlockId(idx % RING)).collect();
            let found = ring.forward(&Batch { window_tables: vec![windows], ..step.clone() }).unwrap().logits.to_vec();
            let truth = whole.forward(&step).unwrap().logits.to_vec();
            assert_eq!(bits(&found), bits(&truth), "{name} from {first} on {device:?}");
            rows.extend(found);
        }
        assert!(n > RING as usize * 16, "{name}: blocks were meant to be used again");
        let error = distance(&rows, &golden.rows);
        assert!(error < 1e-3, "{name} on {device:?}: {error:.2e}");
        // A batch without the second table, and one with blocks that are not there, are refused.
        let step = batch(&golden.tokens[..3], 0, &table(0, 3), false);
        assert!(ring.forward(&step).is_err());
        assert!(ring.forward(&Batch { window_tables: vec![vec![BlockId(RING)]], ..step.clone() }).is_err());
        assert!(whole.forward(&Batch { window_tables: vec![vec![BlockId(0)]], ..step }).is_err());
    }
}

fn engine(
    checkpoint: &Checkpoint,
    device: DeviceChoice,
    (n_blocks, n_window_blocks): (usize, usize),
    kept: &StoreOptions,
    drafts: bool,
) -> Handle {
    // Bits that depend on nothing but the text: hits are shorter where windows are gone.
    let numerics = Numerics::RowInvariant;
    let sizes = LoadOptions { n_blocks, n_window_blocks, max_batch_tokens: 64, n_threads: 2, ..LoadOptions::default() };
    let model = Model::load(checkpoint, LoadOptions { device, numerics, ..sizes }).unwrap();
    let (store, notes) = BlockStore::open(kept, Identity::of([b"this model".as_slice()]));
    assert_eq!(notes, Vec::<String>::new());
    let options = EngineOptions { prefill_chunk: 24, max_batch_tokens: 64, ..EngineOptions::default() };
    let drafter = drafts.then(|| Box::new(Lookup::default()) as Box<dyn engine::Drafter>);
    engine::start_helped(model, options, Helpers { store: Some(store), drafter, ..Helpers::default() })
}

/// Tokens with the bits of their log-probabilities.
type Answer = Vec<(TokenId, u32)>;

/// Answers to prompts that are asked at once, and how many of each prompt's tokens were not computed.
fn answers(handle: &Handle, prompts: &[&[TokenId]], n_tokens: usize) -> Vec<(Answer, usize)> {
    let submit = |prompt: &&[TokenId]| {
        let submit = Submit { logprobs: Some(0), ..Submit::new(handle.next_request_id(), prompt.to_vec(), n_tokens) };
        handle.submit(submit).unwrap()
    };
    let all: Vec<_> = prompts.iter().map(submit).collect();
    let answer = |events| {
        let mut tokens = Vec::new();
        for event in events {
            match event {
                Event::Token { token, logprob, .. } => tokens.push((token, logprob.to_bits())),
                Event::Finished { usage, .. } => return (tokens, usage.n_cached_prompt),
                other => panic!("unexpected {other:?}"),
            }
        }
        panic!("no end")
    };
    all.into_iter().map(answer).collect()
}

fn text(name: &str, n: usize) -> Vec<TokenId> {
    golden(name).tokens.iter().cycle().take(n).map(|&token| TokenId(token)).collect()
}

/// Turns of two conversations, several answers to one prompt and more sequences than there is room for, with drafts and
/// without.
#[test]
fn engines_say_the_same_with_windows_of_their_own() {
    for (device, name, checkpoint) in cases(&FEW) {
        let tokens = text(name, 90);
        let play = |handle: &Handle| {
            let mut said = Vec::new();
            let mut texts = [tokens[..50].to_vec(), tokens[7..70].to_vec()];
            for _ in 0..3 {
                for text in &mut texts {
                    let (answer, n_cached) = answers(handle, &[text], 12).pop().unwrap();
                    text.extend(answer.iter().map(|(token, _)| *token));
                    text.extend(&tokens[..5]);
                    said.push((answer, n_cached));
                }
            }
            let same: Vec<&[TokenId]> = vec![&tokens[..45]; 3];
            said.extend(answers(handle, &same, 20));
            let many: Vec<&[TokenId]> = (0..6).map(|i| &tokens[i..40 + 7 * i]).collect();
            said.extend(answers(handle, &many, 40));
            let stats = handle.stats().unwrap();
            assert_eq!((stats.n_failed, stats.n_blocks_held), (0, 0));
            (said, stats.n_preemptions)
        };
        let none = StoreOptions::default();
        let roomy = engine(&checkpoint, device, (200, 0), &none, false);
        let (truth, _) = play(&roomy);
        roomy.shutdown();
        // Room for every window, for few of them, and few blocks of both kinds.
        for (sizes, drafts) in [((200, 60), false), ((200, 9), true), ((9, 20), false)] {
            let handle = engine(&checkpoint, device, sizes, &none, drafts);
            let (found, n_preemptions) = play(&handle);
            let said = |all: &[(Answer, usize)]| all.iter().map(|(answer, _)| answer.clone()).collect::<Vec<_>>();
            assert_eq!(said(&found), said(&truth), "{name} on {device:?} with {sizes:?}");
            let n_cached: usize = found.iter().map(|(_, n_cached)| n_cached).sum();
            assert!(n_cached > 100, "{name} with {sizes:?}: {n_cached} tokens were reused");
            assert!(n_preemptions > 0 || sizes.0 > 9, "the pool was meant to be too small");
            handle.shutdown();
        }
    }
}

#[test]
fn kept_contexts_have_their_windows() {
    for (device, name, checkpoint) in cases(&FEW) {
        let folder = tempfile::tempdir().unwrap();
        let tokens = text(name, 90);
        let (a, b, longer) = (&tokens[..80], &tokens[3..90], &tokens[..90]);
        let sizes = (7, 7);
        let one = |handle: &Handle, prompt: &[TokenId]| answers(handle, &[prompt], 6).pop().unwrap();
        let roomy = engine(&checkpoint, device, (32, 0), &StoreOptions::default(), false);
        one(&roomy, a);
        let truth = one(&roomy, longer);
        assert!(truth.1 >= 64, "{name}: {}", truth.1);
        roomy.shutdown();
        let on_disk =
            |folder: &Path| StoreOptions { disk_bytes: 1 << 24, folder: folder.to_owned(), ..StoreOptions::default() };
        let on_host = StoreOptions { host_bytes: 1 << 24, ..StoreOptions::default() };
        for options in [on_host, on_disk(folder.path())] {
            let handle = engine(&checkpoint, device, sizes, &options, false);
            one(&handle, a);
            one(&handle, b);
            assert_eq!(one(&handle, longer), truth, "{name} on {device:?}, {options:?}");
            let counters = handle.stats().unwrap().kept.counters;
            assert!(counters.n_from_host + counters.n_from_disk > 4, "{name} {counters:?}");
            handle.shutdown();
        }
        let handle = engine(&checkpoint, device, sizes, &on_disk(folder.path()), false);
        assert_eq!(one(&handle, longer), truth, "{name} on {device:?}, after a restart");
        handle.shutdown();
    }
}

/// Real weights, well past their window of 512 tokens: step by step the numbers of whole contexts, which are llama.cpp's
/// ([`crate::real`]).
#[test]
fn gemma3_270m_past_its_window() {
    let Some(checkpoint) = real(test_support::fetched::GEMMA3) else { return };
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../testdata/gemma3-270m-f32-golden.json")).unwrap();
    let ids = |run: &serde_json::Value, key: &str| run[key].as_array().unwrap().clone();
    let runs = golden["runs"].as_array().unwrap().iter().cycle();
    let tokens = runs.flat_map(|run| [ids(run, "prompt_ids"), ids(run, "out_ids")].concat());
    let tokens: Vec<u32> = tokens.take(1100).map(|id| id.as_u64().unwrap() as u32).collect();
    let options = LoadOptions { n_blocks: 80, max_batch_tokens: 128, n_threads: 2, ..LoadOptions::default() };
    let mut whole = Model::load(&checkpoint, options).unwrap();
    assert_eq!(whole.config().window_pool(), Some(512));
    // A window and a step.
    let n_ring = 32 + 8 + 1;
    let mut ring = Model::load(&checkpoint, LoadOptions { n_window_blocks: n_ring as usize, ..options }).unwrap();
    let (ours, before) = (ring.memory().kv_bytes, whole.memory().kv_bytes);
    assert!(3 * ours < 2 * before, "{ours} bytes of keys and values, {before} before");
    let steps = (0..1024).step_by(128).map(|first| first..first + 128).chain((1024..1040).map(|at| at..at + 1));
    for range in steps {
        let step = batch(&tokens[range.clone()], range.start, &table(0, range.end), false);
        let windows = (0..range.end.div_ceil(16) as u32).map(|idx| BlockId(idx % n_ring)).collect();
        let found = ring.forward(&Batch { window_tables: vec![windows], ..step.clone() }).unwrap().logits.to_vec();
        assert_eq!(bits(&found), bits(whole.forward(&step).unwrap().logits), "after {range:?}");
    }
}
