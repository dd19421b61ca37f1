//! Layers that guess the token after the next (MTP), against what torch computes from the same checkpoints
//! (`scripts/make_next_token.py`; transformers itself drops these layers), and as drafters behind an engine.

use std::path::{Path, PathBuf};

use engine::sequence::SeqId;
use engine::{
    DraftLength, DraftRequest, Drafter, Drafting, EngineOptions, NextToken, Sampling, Submit, start, start_speculating,
};
use model::{KvType, LoadOptions, Model, ModelPart, TokenId};
use weights::Checkpoint;

use crate::families::distance;
use crate::support::{batch, collect, table};

const BOUND: f64 = 1e-3;
pub const NAMES: [&str; 5] = ["qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseek3"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/next")
}

pub struct Golden {
    pub tokens: Vec<u32>,
    pub hidden: Vec<f32>,
    pub logits: Vec<f32>,
}

pub fn golden(name: &str) -> Golden {
    let file = Checkpoint::open(&folder().join("golden").join(format!("{name}.safetensors"))).unwrap();
    let numbers = |key: &str| {
        let bytes = &file.tensor(key).unwrap().bytes;
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<f32>>()
    };
    let tokens = numbers("tokens").into_iter().map(|token| token as u32).collect();
    Golden { tokens, hidden: numbers("hidden"), logits: numbers("logits") }
}

pub fn forms(name: &str) -> Vec<(&'static str, Checkpoint)> {
    let gguf = folder().join(format!("{name}.gguf"));
    let mut forms = vec![("safetensors", Checkpoint::open(&folder().join(name)).unwrap())];
    if gguf.exists() {
        forms.push(("GGUF", Checkpoint::open(&gguf).unwrap()));
    }
    forms
}

fn load(checkpoint: &Checkpoint, part: ModelPart) -> Model {
    let options = LoadOptions {
        kv_type: KvType::F32,
        n_blocks: 24,
        max_batch_tokens: 64,
        n_threads: 2,
        part,
        ..LoadOptions::default()
    };
    Model::load(checkpoint, options).unwrap()
}

/// The model's hidden states for some tokens, after its last norm.
pub fn hidden_of(model: &mut Model, tokens: &[u32]) -> Vec<f32> {
    let mut whole = batch(tokens, 0, &table(0, tokens.len()), false);
    whole.logits_rows.clear();
    whole.pool_rows = (0..tokens.len() as u32).collect();
    model.forward(&whole).unwrap().hidden.to_vec()
}

/// Logits and hidden states of pairs, in one step or in several.
pub fn run(layer: &mut Model, tokens: &[u32], hidden: &[f32], sizes: &[usize]) -> (Vec<f32>, Vec<f32>) {
    let (n_embd, blocks) = (layer.config().n_embd, table(0, tokens.len()));
    let (mut logits, mut states, mut first) = (Vec::new(), Vec::new(), 0);
    for &n in sizes {
        let rows = first..first + n;
        let mut chunk = batch(&tokens[rows.clone()], first, &blocks, true);
        chunk.pool_rows = (0..n as u32).collect();
        chunk.hidden = hidden[rows.start * n_embd..rows.end * n_embd].to_vec();
        let found = layer.forward(&chunk).unwrap();
        logits.extend_from_slice(found.logits);
        states.extend_from_slice(found.hidden);
        first += n;
    }
    (logits, states)
}

#[test]
fn the_layer_equals_the_published_code() {
    for name in NAMES {
        let golden = golden(name);
        let n = golden.tokens.len() - 1;
        for (form, checkpoint) in forms(name) {
            let hidden = hidden_of(&mut load(&checkpoint, ModelPart::Whole), &golden.tokens);
            for sizes in [vec![n], vec![1, 7, n - 10, 1, 1]] {
                let mut layer = load(&checkpoint, ModelPart::NextToken);
                let (logits, states) = run(&mut layer, &golden.tokens[1..], &hidden, &sizes);
                let errors = [distance(&logits, &golden.logits), distance(&states, &golden.hidden)];
                println!("{name:10} {form:12} {sizes:?}: {errors:?}");
                assert!(errors.iter().all(|error| *error < BOUND), "{name} {form} {sizes:?}: {errors:?}");
            }
        }
    }
}

#[test]
fn what_is_missing_is_named() {
    let home = tempfile::tempdir().unwrap();
    // Says that it has a layer, whose tensors are those of a checkpoint without.
    let source = crate::families::folder().join("glm4moe");
    let settings = std::fs::read_to_string(folder().join("glm4moe/config.json")).unwrap();
    std::fs::write(home.path().join("config.json"), settings).unwrap();
    std::fs::copy(source.join("model.safetensors"), home.path().join("model.safetensors")).unwrap();
    let load = |path: &Path| {
        let options = LoadOptions { n_blocks: 4, part: ModelPart::NextToken, ..LoadOptions::default() };
        Model::load(&Checkpoint::open(path).unwrap(), options).map(drop).unwrap_err().to_string()
    };
    let error = load(home.path());
    assert!(error.contains("layers.2.eh_proj"), "{error}");
    let error = load(&crate::families::folder().join("qwen35"));
    assert!(error.contains("qwen35") && error.contains("no multi-token"), "{error}");
    let mut layer = self::load(&Checkpoint::open(&folder().join("qwen35")).unwrap(), ModelPart::NextToken);
    let error = layer.forward(&batch(&[3, 4], 0, &table(0, 2), true)).map(drop).unwrap_err().to_string();
    assert!(error.contains("hidden states"), "{error}");
}

fn best(row: &[f32]) -> TokenId {
    TokenId(row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32)
}

/// Drafts are what the layer says, however the hidden states arrive, and go on with the layer's own.
#[test]
fn a_drafter_says_what_the_layer_says() {
    for name in NAMES {
        let golden = golden(name);
        let (n_vocab, n) = (golden.logits.len() / (golden.tokens.len() - 1), golden.tokens.len());
        let (_, checkpoint) = forms(name).pop().unwrap();
        let hidden = hidden_of(&mut load(&checkpoint, ModelPart::Whole), &golden.tokens);
        let n_embd = hidden.len() / n;
        let mut drafter = NextToken::new(load(&checkpoint, ModelPart::NextToken), n_embd);
        let tokens: Vec<TokenId> = golden.tokens.iter().map(|&token| TokenId(token)).collect();
        let sampling = Sampling::default();
        let mut whole = load(&checkpoint, ModelPart::Whole);
        let mut draft = |drafter: &mut NextToken, n_tokens: usize| {
            let (seq, tokens) = (SeqId(1), &tokens[..n_tokens]);
            let (prediction, blocks, window_blocks): (&[_], &[_], &[_]) = (&[], &[], &[]);
            let sampling = &sampling;
            let ask =
                DraftRequest { seq, tokens, n_prompt: 5, prediction, sampling, max_len: 2, blocks, window_blocks };
            drafter.draft(&[ask], &mut whole).remove(0).tokens
        };
        assert!(draft(&mut drafter, 5).is_empty(), "nothing was heard");
        // Each time some states that are known, and some of tokens that turn out wrong.
        let mut n_heard = 0;
        for n_tokens in [6, 7, 12, 13, 20, n] {
            let mut rows = hidden[n_heard * n_embd..(n_tokens - 1) * n_embd].to_vec();
            rows.extend(vec![9.0; 2 * n_embd]);
            drafter.observe(SeqId(1), n_heard, &rows);
            n_heard = (n_tokens - 1).saturating_sub(1);
            let found = draft(&mut drafter, n_tokens);
            let expected = best(&golden.logits[(n_tokens - 2) * n_vocab..][..n_vocab]);
            assert_eq!(found[0], expected, "{name}, {n_tokens} tokens");
            // The second follows from the first and from the layer's own state.
            let mut layer = load(&checkpoint, ModelPart::NextToken);
            let mut pairs = golden.tokens[1..n_tokens].to_vec();
            pairs.push(found[0].0);
            let state = &golden.hidden[(n_tokens - 2) * n_embd..][..n_embd];
            let states = [&hidden[..(n_tokens - 1) * n_embd], state].concat();
            let (logits, _) = run(&mut layer, &pairs, &states, &[pairs.len()]);
            assert_eq!(found[1], best(&logits[(n_tokens - 1) * n_vocab..]), "{name}, {n_tokens} tokens");
        }
    }
}

#[test]
fn answers_are_those_without() {
    const N_ANSWER: usize = 40;
    for name in NAMES {
        let golden = golden(name);
        for (form, checkpoint) in forms(name) {
            let prompts: Vec<Vec<TokenId>> =
                (0..3).map(|i| golden.tokens[i..10 + 9 * i].iter().map(|&token| TokenId(token)).collect()).collect();
            let answers = |handle: &engine::Handle| -> Vec<Vec<TokenId>> {
                let submits = prompts.iter().map(|it| Submit::new(handle.next_request_id(), it.clone(), N_ANSWER));
                let events: Vec<_> = submits.map(|submit| handle.submit(submit).unwrap()).collect();
                events.into_iter().map(|events| collect(events).0).collect()
            };
            let whole = load(&checkpoint, ModelPart::Whole);
            let n_embd = whole.config().n_embd;
            let expected = answers(&start(whole, EngineOptions::default(), None));
            let drafter = NextToken::new(load(&checkpoint, ModelPart::NextToken), n_embd);
            let drafting = Drafting { length: DraftLength::Fixed(3), ..Drafting::default() };
            let options = EngineOptions { drafting, ..EngineOptions::default() };
            let whole = load(&checkpoint, ModelPart::Whole);
            let handle = start_speculating(whole, options, None, Some(Box::new(drafter)));
            assert_eq!(answers(&handle), expected, "{name} {form}");
            let drafted = handle.stats().unwrap().drafted;
            assert!(drafted.n_tokens > 100, "{name} {form}: {drafted:?}");
        }
    }
}
