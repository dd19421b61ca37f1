//! Contexts that are kept outside the pool: the tokens are those of the model alone, whatever was evicted, came back, was
//! broken or lost; and what is kept stays within its bounds.

use std::{fs, path::Path};

use batch::TokenId;
use engine::{EngineOptions, Handle, Helpers, RequestId, Sampling, SessionFile, Submit, Usage, draw};
use kept::{BlockStore, Identity, Session, StoreOptions};

use crate::{
    generation::collect,
    toy::{self, Toy},
};

const BLOCK_BYTES: u64 = 64;

fn identity() -> Identity {
    Identity::of([b"toy".as_slice()])
}

fn start(toy: Toy, options: &StoreOptions) -> (Handle, Vec<String>) {
    let (store, notes) = BlockStore::open(options, identity());
    let helpers = Helpers { store: Some(store), ..Helpers::default() };
    (engine::start_helped(toy, EngineOptions::default(), helpers), notes)
}

fn on_host(n_blocks: u64) -> StoreOptions {
    StoreOptions { host_bytes: n_blocks * BLOCK_BYTES, ..StoreOptions::default() }
}

fn on_disk(folder: &Path) -> StoreOptions {
    StoreOptions { disk_bytes: 1 << 20, folder: folder.to_owned(), ..StoreOptions::default() }
}

/// Asks for a few tokens, which must be the right ones.
fn ask(handle: &Handle, id: u64, prompt: &[TokenId]) -> Usage {
    let sampling = Sampling { temperature: 0.7, seed: id, ..Sampling::default() };
    let submit = Submit { sampling: sampling.clone(), ..Submit::new(RequestId(id), prompt.to_vec(), 5) };
    let (tokens, _, usage) = collect(handle.submit(submit).unwrap());
    assert_eq!(tokens, toy::expected(prompt, 5, &sampling), "request {id}");
    usage
}

#[test]
fn two_contexts_take_turns_in_a_pool_for_one() {
    for toy in [Toy::new(8), Toy::device(8)] {
        let (handle, _) = start(toy, &on_host(8));
        let prompts = [toy::prompt(1, 100), toy::prompt(2, 100)];
        for round in 0..4 {
            for (i, prompt) in prompts.iter().enumerate() {
                let usage = ask(&handle, round * 2 + i as u64, prompt);
                assert_eq!(usage.n_cached_prompt, if round == 0 { 0 } else { 96 }, "round {round}, prompt {i}");
            }
        }
        let kept = handle.stats().unwrap().kept;
        assert!(kept.counters.n_from_host >= 30 && kept.counters.n_broken == 0, "{kept:?}");
        assert!(kept.sizes.host_bytes <= 8 * BLOCK_BYTES, "{kept:?}");
    }
}

#[test]
fn the_text_is_right_under_any_pressure() {
    let folder = tempfile::tempdir().unwrap();
    for (n_host, n_on_disk) in [(5, 0), (0, 7), (4, 9), (100, 0)] {
        let options = StoreOptions { disk_bytes: n_on_disk * 256, ..on_disk(folder.path()) };
        let (handle, _) = start(Toy::device(14), &StoreOptions { host_bytes: n_host * BLOCK_BYTES, ..options });
        let trunk = toy::prompt(77, 200);
        let mut jobs = Vec::new();
        for id in 0..60u64 {
            let n_common = draw::bits(id, 1) as usize % 150;
            let own = toy::prompt(id % 7, 1 + draw::bits(id, 2) as usize % 40);
            let prompt = [&trunk[..n_common], &own].concat();
            let sampling = Sampling { temperature: 0.7, seed: id, ..Sampling::default() };
            let submit = Submit { sampling: sampling.clone(), ..Submit::new(RequestId(id), prompt.clone(), 12) };
            jobs.push((handle.submit(submit).unwrap(), prompt, sampling));
            let sizes = handle.latest_stats().kept.sizes;
            assert!(sizes.host_bytes <= n_host * BLOCK_BYTES && sizes.disk_bytes <= n_on_disk * 256, "{sizes:?}");
            if id % 4 == 3 {
                for (events, prompt, sampling) in jobs.drain(..) {
                    assert_eq!(collect(events).0, toy::expected(&prompt, 12, &sampling));
                }
            }
        }
        let stats = handle.stats().unwrap();
        assert_eq!(stats.n_failed, 0);
        assert_eq!(stats.n_blocks_held, 0);
    }
}

#[test]
fn the_next_process_finds_what_the_last_one_left() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = toy::prompt(3, 100);
    let (handle, _) = start(Toy::new(8), &on_disk(folder.path()));
    assert_eq!(ask(&handle, 0, &prompt).n_cached_prompt, 0);
    handle.shutdown();
    let (handle, notes) = start(Toy::new(8), &on_disk(folder.path()));
    assert_eq!((notes, ask(&handle, 1, &prompt).n_cached_prompt), (vec![], 96));
    assert_eq!(handle.stats().unwrap().kept.counters.n_from_disk, 6);
    // Two processes do not share a folder: the second goes without.
    let (other, notes) = start(Toy::new(8), &on_disk(folder.path()));
    assert!(notes[0].starts_with("another process keeps contexts"), "{notes:?}");
    assert_eq!(ask(&other, 2, &prompt).n_cached_prompt, 0);
}

#[test]
fn broken_files_are_noticed_and_computed_again() {
    let damages: [fn(&Path); 4] = [
        |file| {
            let mut bytes = fs::read(file).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(file, bytes).unwrap();
        },
        |file| fs::write(file, &fs::read(file).unwrap()[..100]).unwrap(),
        |file| fs::write(file, []).unwrap(),
        |file| fs::remove_file(file).unwrap(),
    ];
    for damage in damages {
        let folder = tempfile::tempdir().unwrap();
        let prompt = toy::prompt(3, 100);
        let (handle, _) = start(Toy::new(8), &on_disk(folder.path()));
        ask(&handle, 0, &prompt);
        handle.shutdown();
        let (store, _) = BlockStore::open(&on_disk(folder.path()), identity());
        let mut name = None;
        let mut parent = kept::PrefixKey::ROOT;
        for block in prompt.chunks_exact(16).take(4) {
            parent = parent.then(block);
            name = Some(kept::Name { key: parent, kind: kept::KeptKind::Block });
        }
        assert!(store.contains(&name.unwrap()));
        drop(store);
        let (handle, _) = start(Toy::new(8), &on_disk(folder.path()));
        // The fourth block is found to be broken only when it is read.
        let file = fs::read_dir(folder.path().join(identity().to_string()).join(&parent.to_string()[..2])).unwrap();
        let file = file.flatten().find(|file| file.file_name().to_str().unwrap().starts_with(&parent.to_string()));
        damage(&file.unwrap().path());
        assert_eq!(ask(&handle, 1, &prompt).n_cached_prompt, 48, "what comes before it is used");
        let counters = handle.stats().unwrap().kept.counters;
        assert_eq!((counters.n_broken, counters.n_from_disk), (1, 3));
        // It was written again.
        handle.shutdown();
        let (handle, _) = start(Toy::new(8), &on_disk(folder.path()));
        assert_eq!(ask(&handle, 2, &prompt).n_cached_prompt, 96);
    }
}

#[test]
fn a_session_goes_on_in_another_engine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.session");
    let prompt = toy::prompt(5, 100);
    let (handle, _) = start(Toy::new(16), &StoreOptions::default());
    ask(&handle, 0, &prompt);
    let session = Some(SessionFile { path: path.clone(), text: b"what was said".to_vec() });
    let save = Submit { session, ..Submit::new(RequestId(1), prompt.clone(), 0) };
    assert_eq!(collect(handle.submit(save).unwrap()).0, []);
    assert_eq!(Session::open(&path).unwrap().text(), b"what was said");
    let options = StoreOptions { session: Some(path.clone()), ..StoreOptions::default() };
    let (handle, notes) = start(Toy::new(16), &options);
    assert_eq!((notes, ask(&handle, 0, &prompt).n_cached_prompt), (vec![], 96));
    assert_eq!(handle.stats().unwrap().kept.counters.n_from_session, 6);
    // Another model's engine computes.
    let (store, notes) = BlockStore::open(&options, Identity::of([b"other".as_slice()]));
    assert!(notes[0].contains("another model, build or device"), "{notes:?}");
    assert_eq!(store.names(), []);
    // A cut one is refused by name.
    let whole = fs::read(&path).unwrap();
    for n_bytes in [0, 5, 30, 60, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..n_bytes]).unwrap();
        let error = Session::open(&path).unwrap_err().to_string();
        assert!(error.contains("a.session"), "{error}");
    }
    // A changed block is computed again.
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&path, &changed).unwrap();
    let (handle, _) = start(Toy::new(16), &options);
    assert_eq!(ask(&handle, 0, &prompt).n_cached_prompt, 80);
    assert_eq!(handle.stats().unwrap().kept.counters.n_broken, 1);
}
