//! Gemma 4's drafters, which read the keys and values of the model that they draft for, against what transformers computes
//! from the same pairs (`scripts/make_drafters.py`), on the CPU and on each GPU that is here; and behind an engine.

use std::path::{Path, PathBuf};

use engine::{AssistantDrafter, DraftLength, Drafting, EngineOptions, Handle, Helpers, Submit};
use model::{
    AssistantOptions, Batch, BlockId, Config, DeviceChoice, Format, KvType, LoadOptions, Model, Numerics, SeqRows,
    TokenId, plan_assistant,
};
use weights::{Bytes, Checkpoint, Dtype, Tensor};

use crate::families::distance;
use crate::support::{argmax, batch, collect, table};
use crate::windows::devices;

const BOUND: f64 = 1e-3;
const NAMES: [&str; 2] = ["gemma4", "gemma4-moe"];
const N_DRAFTED: usize = 3;
const ROOM: AssistantOptions = AssistantOptions { max_rows: 16, n_ctx: 128 };

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/drafters")
}

struct Golden {
    tokens: Vec<u32>,
    lengths: Vec<usize>,
    /// `[lengths, N_DRAFTED, n_vocab]`, and the same without clusters.
    logits: Vec<f32>,
    plain_logits: Vec<f32>,
    /// `[lengths, N_DRAFTED, n_embd]`
    hidden: Vec<f32>,
    drafted: Vec<u32>,
}

fn golden(name: &str) -> Golden {
    let file = Checkpoint::open(&folder().join("golden").join(format!("{name}.safetensors"))).unwrap();
    let numbers = |key: &str| {
        let bytes = &file.tensor(key).unwrap().bytes;
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<f32>>()
    };
    let ids = |key: &str| numbers(key).into_iter().map(|token| token as u32).collect::<Vec<u32>>();
    Golden {
        tokens: ids("tokens"),
        lengths: ids("lengths").into_iter().map(|n| n as usize).collect(),
        logits: numbers("logits"),
        plain_logits: numbers("plain_logits"),
        hidden: numbers("hidden"),
        drafted: ids("drafted"),
    }
}

fn drafter(name: &str) -> Checkpoint {
    Checkpoint::open(&folder().join(name)).unwrap()
}

/// The model and its drafter, in both forms.
fn pairs(name: &str) -> Vec<(&'static str, Checkpoint, Checkpoint)> {
    let targets = crate::families::forms(name).into_iter();
    let pair = |(form, target): (&'static str, Checkpoint)| match form {
        "GGUF" => (form, target, Checkpoint::open(&folder().join(format!("{name}.gguf"))).unwrap()),
        _ => (form, target, drafter(name)),
    };
    targets.map(pair).collect()
}

fn load(target: &Checkpoint, drafter: &Checkpoint, device: DeviceChoice, n_window_blocks: usize) -> Model {
    let options = LoadOptions {
        device,
        kv_type: KvType::F32,
        n_blocks: 40,
        n_window_blocks,
        max_batch_tokens: 64,
        n_threads: 2,
        ..LoadOptions::default()
    };
    let mut model = Model::load(target, options).unwrap();
    model.attach(drafter, ROOM).unwrap();
    model
}

/// One text in the model: its blocks, and what the model makes of the last token but one.
struct Text<'a> {
    tokens: &'a [u32],
    blocks: Vec<BlockId>,
    window_blocks: Vec<BlockId>,
    hidden: Vec<f32>,
}

/// Computes all tokens but the last, a few at a time, in blocks from `first` on; where the pool for windows is a ring of
/// two blocks, only those stay.
fn compute<'a>(model: &mut Model, tokens: &'a [u32], first: u32, chunk: usize) -> Text<'a> {
    let (n, has_windows) = (tokens.len() - 1, model.limits().n_window_blocks > 0);
    let blocks = table(first, n);
    let window_blocks: Vec<BlockId> = match has_windows {
        true => (0..n.div_ceil(16) as u32).map(|idx| BlockId(idx % 2)).collect(),
        false => Vec::new(),
    };
    let mut hidden = Vec::new();
    for start in (0..n).step_by(chunk) {
        let end = n.min(start + chunk);
        let mut step = batch(&tokens[start..end], start, &blocks, false);
        step.logits_rows.clear();
        step.pool_rows = vec![(end - start) as u32 - 1];
        step.window_tables = has_windows.then(|| window_blocks.clone()).into_iter().collect();
        hidden = model.forward(&step).unwrap().hidden.to_vec();
    }
    Text { tokens, blocks, window_blocks, hidden }
}

/// The next token of each text is drafted in one step, from these tokens and hidden states.
fn draft(model: &mut Model, texts: &[Text], tokens: &[u32], hidden: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let rows = 0..texts.len() as u32;
    let seq =
        |(row, text): (usize, &Text)| SeqRows { first_row: row as u32, n_rows: 1, block_table: text.blocks.clone() };
    let step = Batch {
        tokens: tokens.iter().map(|token| TokenId(*token)).collect(),
        positions: texts.iter().map(|text| text.tokens.len() as u32 - 2).collect(),
        seqs: texts.iter().enumerate().map(seq).collect(),
        window_tables: texts.iter().map(|text| text.window_blocks.clone()).filter(|it| !it.is_empty()).collect(),
        hidden: hidden.to_vec(),
        logits_rows: rows.clone().collect(),
        pool_rows: rows.collect(),
        ..Batch::default()
    };
    let found = model.draft(&step).unwrap();
    (found.logits.to_vec(), found.hidden.to_vec())
}

/// Follows the drafted tokens of these texts, and compares every row with the golden one.
fn compare(what: &str, model: &mut Model, texts: &[Text], rows_of: &[usize], golden: &Golden, is_plain: bool) {
    let (n_vocab, n_embd) = (model.config().n_vocab, model.config().n_embd);
    let all = if is_plain { &golden.plain_logits } else { &golden.logits };
    let mut tokens: Vec<u32> = texts.iter().map(|text| *text.tokens.last().unwrap()).collect();
    let mut hidden: Vec<f32> = texts.iter().flat_map(|text| text.hidden.clone()).collect();
    for i in 0..N_DRAFTED {
        let (logits, states) = draft(model, texts, &tokens, &hidden);
        for (place, row) in rows_of.iter().map(|idx| idx * N_DRAFTED + i).enumerate() {
            let errors = [
                distance(&logits[place * n_vocab..][..n_vocab], &all[row * n_vocab..][..n_vocab]),
                distance(&states[place * n_embd..][..n_embd], &golden.hidden[row * n_embd..][..n_embd]),
            ];
            let n = texts[place].tokens.len();
            assert!(errors.iter().all(|error| *error < BOUND), "{what}, {n} tokens, draft {i}: {errors:?}");
            if !is_plain {
                assert_eq!(argmax(&logits[place * n_vocab..][..n_vocab]), golden.drafted[row], "{what}, {n} tokens");
            }
            tokens[place] = golden.drafted[row];
        }
        hidden = states;
    }
}

#[test]
fn drafts_equal_transformers() {
    for device in devices() {
        for name in NAMES {
            let golden = golden(name);
            for (form, target, drafter) in pairs(name) {
                // llama.cpp's converter drops the clusters.
                let is_plain = form == "GGUF";
                // Of each pair one form is enough where it takes long: with clusters, and without.
                if device != DeviceChoice::Cpu && is_plain == (name == "gemma4") {
                    continue;
                }
                let mut model = load(&target, &drafter, device, 0);
                let what = format!("{name} {form} on {}", model.device());
                let lengths = golden.lengths.iter().enumerate();
                let texts: Vec<Text> =
                    lengths.map(|(i, n)| compute(&mut model, &golden.tokens[..*n], 4 * i as u32, 7 + 9 * i)).collect();
                let rows: Vec<usize> = (0..texts.len()).collect();
                compare(&what, &mut model, &texts, &rows, &golden, is_plain);
                // Windows of their own, a ring of two blocks: one text at a time.
                let mut model = load(&target, &drafter, device, 2);
                for (idx, n) in golden.lengths.iter().enumerate() {
                    let text = compute(&mut model, &golden.tokens[..*n], 0, 5);
                    compare(&format!("{what}, windows"), &mut model, &[text], &[idx], &golden, is_plain);
                }
            }
        }
    }
}

fn engine(target: &Checkpoint, drafter: Option<&Checkpoint>, device: DeviceChoice, sizes: (usize, usize)) -> Handle {
    let (n_blocks, n_window_blocks) = sizes;
    let numerics = Numerics::RowInvariant;
    let options = LoadOptions {
        device,
        n_blocks,
        n_window_blocks,
        max_batch_tokens: 64,
        numerics,
        n_threads: 2,
        ..LoadOptions::default()
    };
    let mut model = Model::load(target, options).unwrap();
    let mut helpers = Helpers::default();
    if let Some(drafter) = drafter {
        model.attach(drafter, AssistantOptions { max_rows: 2, n_ctx: 128 }).unwrap();
        let Config { n_vocab, n_embd, .. } = *model.config();
        helpers.drafter = Some(Box::new(AssistantDrafter::new(n_vocab, n_embd)));
    }
    let drafting = Drafting { length: DraftLength::Fixed(3), ..Drafting::default() };
    engine::start_helped(model, EngineOptions { drafting, prefill_chunk: 24, ..EngineOptions::default() }, helpers)
}

/// Three requests at once, twice: the second time most of each prompt is in the cache. With windows of their own, and with
/// too few blocks for all.
#[test]
fn answers_are_those_without() {
    for device in devices() {
        let is_slow = device != DeviceChoice::Cpu;
        for name in if is_slow { &NAMES[..1] } else { &NAMES } {
            let (golden, n_answer) = (golden(name), if is_slow { 8 } else { 40 });
            let prompts: Vec<Vec<TokenId>> = (0..if is_slow { 1 } else { 3 })
                .map(|i| golden.tokens[i..20 + 9 * i].iter().map(|&token| TokenId(token)).collect())
                .collect();
            let answers = |handle: &Handle| -> Vec<Vec<TokenId>> {
                let twice = prompts.iter().chain(&prompts);
                let submits = twice.map(|it| Submit::new(handle.next_request_id(), it.clone(), n_answer));
                let events: Vec<_> = submits.map(|submit| handle.submit(submit).unwrap()).collect();
                events.into_iter().map(|events| collect(events).0).collect()
            };
            let (form, target, drafter) = pairs(name).remove(0);
            let expected = answers(&engine(&target, None, device, (60, 0)));
            for sizes in if is_slow { vec![(60, 20)] } else { vec![(60, 0), (60, 20), (12, 12)] } {
                let handle = engine(&target, Some(&drafter), device, sizes);
                assert_eq!(answers(&handle), expected, "{name} {form} on {device:?} with {sizes:?}");
                let drafted = handle.stats().unwrap().drafted;
                assert!(drafted.n_tokens > 2 * n_answer as u64, "{name} {form} {sizes:?}: {drafted:?}");
                handle.shutdown();
            }
        }
    }
}

/// A folder with the drafter of `gemma4`, its settings and tensors changed.
fn changed(
    home: &Path,
    settings: impl FnOnce(&mut serde_json::Value),
    tensors: impl FnOnce(&mut Vec<Tensor>),
) -> Checkpoint {
    let source = drafter("gemma4");
    let text = std::fs::read_to_string(folder().join("gemma4/config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    settings(&mut json);
    std::fs::write(home.join("config.json"), json.to_string()).unwrap();
    let mut all = source.tensors().to_vec();
    tensors(&mut all);
    std::fs::write(home.join("model.safetensors"), safetensors(&all)).unwrap();
    Checkpoint::open(home).unwrap()
}

fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for tensor in tensors {
        let start = data.len();
        data.extend_from_slice(&tensor.bytes);
        let dtype = tensor.dtype.name().to_uppercase();
        let entry = serde_json::json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, data.len()]});
        header.insert(tensor.name.clone(), entry);
    }
    let header = serde_json::to_string(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

#[test]
fn what_does_not_fit_is_named() {
    let target = |name: &str| crate::families::forms(name).remove(0).1;
    let planned = |target: &Checkpoint, drafter: &Checkpoint| {
        let config = Config::from_checkpoint(target).unwrap();
        plan_assistant(drafter, &config, DeviceChoice::Cpu, ROOM)
    };
    let refused = |target: &Checkpoint, drafter: &Checkpoint| planned(target, drafter).unwrap_err().to_string();
    let own = drafter("gemma4");
    let plan = planned(&target("gemma4"), &own).unwrap();
    assert!(plan.weights_bytes > 100_000 && plan.scratch_bytes > 10_000 && plan.kv_bytes == 0, "{plan:?}");
    let error = refused(&target("llama"), &own);
    assert!(error.contains("Gemma 4") && error.contains("llama"), "{error}");
    // The other one's heads.
    let error = refused(&target("gemma4"), &drafter("gemma4-moe"));
    assert!(error.contains("layer 0") && error.contains("4 of 8 numbers; the model's are 2 of 8"), "{error}");
    let error = refused(&target("gemma4"), &target("gemma4"));
    assert!(error.contains("a model of its own"), "{error}");

    let home = tempfile::tempdir().unwrap();
    let with =
        |settings: fn(&mut serde_json::Value)| refused(&target("gemma4"), &changed(home.path(), settings, |_| ()));
    let error = with(|json| json["backbone_hidden_size"] = 48.into());
    assert!(error.contains("48 numbers") && error.contains("32"), "{error}");
    let error = with(|json| json["text_config"]["vocab_size"] = 97.into());
    assert!(error.contains("97 tokens, the model 96"), "{error}");
    let error = with(|json| json["num_centroids"] = 13.into());
    assert!(error.contains("13 clusters"), "{error}");
    let error = with(|json| json["num_centroids"] = 0.into());
    assert!(error.contains("cluster_count"), "{error}");
    let error = with(|json| json["text_config"]["layer_types"] = vec!["sliding_attention"; 3].into());
    assert!(error.contains("heads") || error.contains("attn_q") || error.contains("q_proj"), "{error}");
    let error = with(|json| drop(json.as_object_mut().unwrap().remove("backbone_hidden_size")));
    assert!(error.contains("embedding_length_out") && error.contains("missing"), "{error}");
    for name in ["pre_projection.weight", "masked_embedding.centroids.weight", "model.layers.1.self_attn.q_proj.weight"]
    {
        let error = refused(
            &target("gemma4"),
            &changed(home.path(), |_| (), |tensors| tensors.retain(|tensor| tensor.name != name)),
        );
        assert!(error.contains(name), "{name}: {error}");
    }
    let twice = |tensors: &mut Vec<Tensor>| {
        let place = tensors.iter().position(|tensor| tensor.name.ends_with("token_ordering")).unwrap();
        let bytes = Bytes::from_vec([5_i64; 96].iter().flat_map(|token| token.to_le_bytes()).collect());
        tensors[place] = Tensor::new(tensors[place].name.clone(), Dtype::I64, vec![96], bytes).unwrap();
    };
    let error = refused(&target("gemma4"), &changed(home.path(), |_| (), twice));
    assert!(error.contains("token_ordering") && error.contains("once"), "{error}");

    // Alone it is nothing.
    for checkpoint in [own, Checkpoint::open(&folder().join("gemma4.gguf")).unwrap()] {
        let config = Config::from_checkpoint(&checkpoint).unwrap();
        assert_eq!((config.n_layers, config.format == Format::Gguf), (3, checkpoint.hub().is_none()));
        let error = Model::load(&checkpoint, LoadOptions::default()).map(drop).unwrap_err().to_string();
        assert!(error.contains("drafter") && error.contains("hint:"), "{error}");
    }
}

#[test]
fn steps_that_make_no_sense_are_refused() {
    let (_, target, own) = pairs("gemma4").remove(0);
    let mut model = load(&target, &own, DeviceChoice::Cpu, 0);
    let one = |n_hidden: usize, n_rows: u32| Batch {
        tokens: vec![TokenId(3); n_rows as usize],
        positions: (0..n_rows).collect(),
        seqs: vec![SeqRows { first_row: 0, n_rows, block_table: vec![BlockId(0)] }],
        hidden: vec![0.0; n_hidden],
        logits_rows: vec![0],
        ..Batch::default()
    };
    model.draft(&one(32, 1)).unwrap();
    for (bad, why) in [(one(31, 1), "hidden states"), (one(64, 2), "one known token")] {
        let error = model.draft(&bad).map(drop).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let far = Batch { positions: vec![16], ..one(32, 1) };
    assert!(model.draft(&far).is_err(), "there are 16 tokens in a block");
    let mut alone = Model::load(&target, LoadOptions { n_blocks: 4, ..LoadOptions::default() }).unwrap();
    assert!(alone.draft(&one(32, 1)).is_err());
}
