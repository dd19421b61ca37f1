//! Layers with a window that keep no more than that: the toy looks through its windows at every row, so a block that was
//! given back too early, or found beside the wrong prefix, fails the test. The tokens are those of the model alone.

use std::path::Path;

use batch::TokenId;
use engine::{EngineOptions, Handle, Helpers, RequestId, Sampling, SessionFile, Submit, Usage, draw};
use kept::{BlockStore, Identity, StoreOptions};

use crate::{
    generation::collect,
    toy::{self, Toy},
};

fn start(toy: Toy) -> Handle {
    engine::start(toy, EngineOptions { max_batch_tokens: 50, prefill_chunk: 30, ..EngineOptions::default() }, None)
}

fn start_kept(toy: Toy, options: &StoreOptions) -> Handle {
    let (store, notes) = BlockStore::open(options, Identity::of([b"toy".as_slice()]));
    assert_eq!(notes, Vec::<String>::new());
    engine::start_helped(toy, EngineOptions::default(), Helpers { store: Some(store), ..Helpers::default() })
}

fn on_disk(folder: &Path) -> StoreOptions {
    StoreOptions { disk_bytes: 1 << 20, folder: folder.to_owned(), ..StoreOptions::default() }
}

/// Asks for tokens, which must be the right ones.
fn ask(handle: &Handle, prompt: &[TokenId], n_tokens: usize) -> (Vec<TokenId>, Usage) {
    let sampling = Sampling { temperature: 0.7, seed: prompt.len() as u64, ..Sampling::default() };
    let id = handle.next_request_id();
    let submit = Submit { sampling: sampling.clone(), ..Submit::new(id, prompt.to_vec(), n_tokens) };
    let (tokens, _, usage) = collect(handle.submit(submit).unwrap());
    assert_eq!(tokens, toy::expected(prompt, n_tokens, &sampling), "prompt of {}", prompt.len());
    (tokens, usage)
}

/// One that takes one step at a time, and a device.
fn toys(n_blocks: usize, window: usize, n_window_blocks: usize) -> [Toy; 2] {
    [Toy::new(n_blocks), Toy::device(n_blocks)].map(|toy| toy.with_windows(window, n_window_blocks))
}

#[test]
fn conversations_in_turns_go_on_where_they_were() {
    // Each window takes 4 blocks; there are 9 for contexts of up to 60.
    for toy in toys(200, 40, 12) {
        let handle = start(toy);
        let mut texts = [toy::prompt(1, 100), toy::prompt(2, 131)];
        for round in 0..8 {
            for (i, text) in texts.iter_mut().enumerate() {
                let (tokens, usage) = ask(&handle, text, 30);
                // All of what was computed before, but for the last block.
                let expected = if round == 0 { 0 } else { (text.len() - 10) / 16 * 16 };
                assert!(usage.n_cached_prompt + 16 >= expected, "round {round}, {i}: {}", usage.n_cached_prompt);
                text.extend(tokens);
                text.extend(toy::prompt(round * 2 + i as u64, 9));
            }
        }
        let stats = handle.stats().unwrap();
        assert_eq!((stats.n_blocks_held, stats.n_running), (0, 0));
    }
}

#[test]
fn a_long_text_does_not_push_out_the_ends_of_others() {
    let [toy, _] = toys(400, 40, 20);
    let handle = start(toy);
    let short = toy::prompt(1, 100);
    let (tokens, _) = ask(&handle, &short, 20);
    // Its windows pass through ten times the pool.
    ask(&handle, &toy::prompt(2, 3000), 20);
    let (_, usage) = ask(&handle, &[short, tokens].concat(), 5);
    assert_eq!(usage.n_cached_prompt, 112);
}

#[test]
fn what_a_prompt_ends_with_stays_for_another_answer() {
    // The answer is three windows long; without it, the next turn begins at the end of the prompt.
    for toy in toys(200, 40, 14) {
        let handle = start(toy);
        let prompt = toy::prompt(1, 200);
        ask(&handle, &prompt, 130);
        let (_, usage) = ask(&handle, &[prompt, toy::prompt(5, 40)].concat(), 5);
        assert_eq!(usage.n_cached_prompt, 192);
    }
}

#[test]
fn several_answers_to_one_prompt_and_many_prompts_at_once() {
    // From a pool for two windows to one for all.
    for (n_blocks, n_window_blocks) in [(60, 12), (60, 100), (400, 9), (400, 30)] {
        for toy in toys(n_blocks, 40, n_window_blocks) {
            let handle = start(toy);
            let submit = |id: u64| {
                let prompt = if id < 8 { toy::prompt(3, 150) } else { toy::prompt(id % 5, 20 + 11 * id as usize) };
                let sampling = Sampling { temperature: 0.9, seed: id, ..Sampling::default() };
                Submit { sampling, ..Submit::new(RequestId(id), prompt, 70) }
            };
            let submits: Vec<Submit> = (0..20).map(submit).collect();
            let all: Vec<_> = submits.iter().map(|submit| handle.submit(submit.clone()).unwrap()).collect();
            for (submit, events) in submits.iter().zip(all) {
                assert_eq!(collect(events).0, toy::expected(&submit.prompt, 70, &submit.sampling));
            }
            let stats = handle.stats().unwrap();
            assert_eq!((stats.n_running, stats.n_waiting, stats.n_blocks_held), (0, 0, 0));
            assert!(stats.n_tokens_cached > 500, "{} cached", stats.n_tokens_cached);
        }
    }
}

#[test]
fn what_leaves_both_pools_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let host = StoreOptions { host_bytes: 1 << 14, ..StoreOptions::default() };
    for options in [host, on_disk(folder.path())] {
        for toy in toys(12, 40, 8) {
            let handle = start_kept(toy, &options);
            let prompts = [toy::prompt(1, 150), toy::prompt(2, 150)];
            for round in 0..4 {
                for prompt in &prompts {
                    let (_, usage) = ask(&handle, prompt, 5);
                    let is_known = round > 0 || usage.n_cached_prompt > 0;
                    assert_eq!(usage.n_cached_prompt, if is_known { 144 } else { 0 }, "round {round}");
                }
            }
            let counters = handle.stats().unwrap().kept.counters;
            assert!(counters.n_from_host + counters.n_from_disk > 20 && counters.n_broken == 0, "{counters:?}");
            handle.shutdown();
        }
    }
    // The next process finds the blocks of both pools.
    let [toy, _] = toys(12, 40, 8);
    let handle = start_kept(toy, &on_disk(folder.path()));
    assert_eq!(ask(&handle, &toy::prompt(2, 150), 5).1.n_cached_prompt, 144);
}

#[test]
fn the_text_is_right_under_any_pressure() {
    for (n_host, n_on_disk) in [(5, 0), (0, 7), (4, 9), (100, 0)] {
        for n_window_blocks in [6, 15] {
            // The previous one may not have released its folder yet.
            let folder = tempfile::tempdir().unwrap();
            let options = StoreOptions { disk_bytes: n_on_disk * 256, ..on_disk(folder.path()) };
            let [_, toy] = toys(20, 40, n_window_blocks);
            let handle = start_kept(toy, &StoreOptions { host_bytes: n_host * 64, ..options });
            let trunk = toy::prompt(77, 200);
            let mut jobs = Vec::new();
            for id in 0..60u64 {
                let n_common = draw::bits(id, 1) as usize % 150;
                let own = toy::prompt(id % 7, 1 + draw::bits(id, 2) as usize % 40);
                let prompt = [&trunk[..n_common], &own].concat();
                let sampling = Sampling { temperature: 0.7, seed: id, ..Sampling::default() };
                let submit = Submit { sampling: sampling.clone(), ..Submit::new(RequestId(id), prompt.clone(), 12) };
                jobs.push((handle.submit(submit).unwrap(), prompt, sampling));
                if id % 4 == 3 {
                    for (events, prompt, sampling) in jobs.drain(..) {
                        assert_eq!(collect(events).0, toy::expected(&prompt, 12, &sampling));
                    }
                }
            }
            let stats = handle.stats().unwrap();
            assert_eq!((stats.n_failed, stats.n_blocks_held), (0, 0));
        }
    }
}

#[test]
fn a_session_has_the_last_window() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.session");
    let prompt = toy::prompt(5, 200);
    let [toy, _] = toys(40, 40, 8);
    let handle = start_kept(toy, &StoreOptions::default());
    ask(&handle, &prompt, 5);
    let session = Some(SessionFile { path: path.clone(), text: b"what was said".to_vec() });
    let save = Submit { session, ..Submit::new(handle.next_request_id(), prompt.clone(), 0) };
    assert_eq!(collect(handle.submit(save).unwrap()).0, []);
    let [toy, _] = toys(40, 40, 8);
    let handle = start_kept(toy, &StoreOptions { session: Some(path), ..StoreOptions::default() });
    assert_eq!(ask(&handle, &prompt, 5).1.n_cached_prompt, 192);
    let n_from_session = handle.stats().unwrap().kept.counters.n_from_session;
    assert!((12 + 3..=12 + 8).contains(&n_from_session), "{n_from_session} pieces");
}
