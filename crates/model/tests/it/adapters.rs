//! Adapters against PEFT: tiny random ones on the families' checkpoints, with the logits that PEFT computes in f32, from
//! PEFT's folders and from llama.cpp's GGUF files, on bases of either form. `scripts/make_adapters.py` makes the data.

use std::fs;
use std::path::{Path, PathBuf};

use engine::{EngineOptions, Event, Handle, Reuse, Submit, start};
use model::{
    AdapterFile, AdapterId, AdapterLimits, AdapterSource, Batch, KvType, LoadOptions, Model, SeqRows, TokenId, merge,
};
use ops::{Isa, Pool};
use weights::Checkpoint;

use crate::families::{distance, folder as families, forms};
use crate::support::{batch, collect, table};

/// `|found - truth| / |truth|` that passes, in f32.
const BOUND: f64 = 1e-3;

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/adapters")
}

/// Names of all adapters; the base is what stands before the last dash.
pub fn names() -> Vec<String> {
    let files = fs::read_dir(folder().join("golden")).unwrap().map(|file| file.unwrap().path());
    let mut names: Vec<String> = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    assert!(names.len() > 8, "the adapters are in the repository");
    names
}

pub fn base_of(name: &str) -> &str {
    name.rsplit_once('-').unwrap().0
}

/// Tokens, and PEFT's logits of each.
pub fn golden(name: &str) -> (Vec<u32>, Vec<f32>) {
    let file = Checkpoint::open(&folder().join("golden").join(format!("{name}.safetensors"))).unwrap();
    let numbers = |name: &str| -> Vec<f32> {
        file.tensor(name).unwrap().bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    (numbers("tokens").into_iter().map(|token| token as u32).collect(), numbers("logits"))
}

/// The forms of an adapter that exist.
pub fn adapter_forms(name: &str) -> Vec<PathBuf> {
    let paths = [folder().join(name), folder().join(format!("{name}.gguf"))];
    paths.into_iter().filter(|path| path.exists()).collect()
}

/// Whether PEFT's adapter fits a form of its base: GGUF has Falcon H1's multipliers in the weights.
pub fn fits(name: &str, form: &str) -> bool {
    base_of(name) != "falcon-h1" || form != "GGUF"
}

pub fn options() -> LoadOptions {
    let adapters = AdapterLimits { max_loaded: 2, max_rank: 8, has_experts: true };
    LoadOptions { kv_type: KvType::F32, n_blocks: 16, max_batch_tokens: 128, adapters, ..LoadOptions::default() }
}

fn load(checkpoint: &Checkpoint, isa: Isa) -> Model {
    Model::load_on(Pool::with_isa(2, isa), checkpoint, options()).unwrap()
}

pub fn ready(model: &mut Model, path: &Path) -> AdapterId {
    let id = AdapterFile::open(path).unwrap().id;
    model.load_adapter(&AdapterSource { id, path: path.to_owned() }, &[]).unwrap();
    id
}

pub fn logits(model: &mut Model, tokens: &[u32], adapter: Option<AdapterId>) -> Vec<f32> {
    let whole = Batch { adapters: vec![adapter], ..batch(tokens, 0, &table(0, tokens.len()), true) };
    model.forward(&whole).unwrap().logits.to_vec()
}

#[test]
fn every_adapter_equals_peft() {
    let mut failures = Vec::new();
    for name in names() {
        let (tokens, truth) = golden(&name);
        for (form, checkpoint) in forms(base_of(&name)) {
            for isa in Isa::available() {
                let mut model = load(&checkpoint, isa);
                for path in adapter_forms(&name).iter().filter(|_| fits(&name, form)) {
                    let id = ready(&mut model, path);
                    let error = distance(&logits(&mut model, &tokens, Some(id)), &truth);
                    println!("{} on {form} {isa}: {error:.2e}", path.display());
                    if error.is_nan() || error > BOUND {
                        failures.push(format!("{} on {form} {isa}: relative error {error:.2e}", path.display()));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A batch of sequences, each with an adapter of its own or none.
fn together(tokens: &[u32], adapters: &[Option<AdapterId>]) -> Batch {
    let (n, mut whole) = (tokens.len() as u32, Batch::default());
    for (i, adapter) in adapters.iter().enumerate() {
        let first_row = i as u32 * n;
        whole.tokens.extend(tokens.iter().map(|token| TokenId(*token)));
        whole.positions.extend(0..n);
        let block_table = table(i as u32 * n.div_ceil(16), tokens.len());
        whole.seqs.push(SeqRows { first_row, n_rows: n, block_table });
        whole.adapters.push(*adapter);
    }
    whole.logits_rows = (0..whole.tokens.len() as u32).collect();
    whole
}

/// Two adapters, one of them with magnitudes, and a plain sequence in one step: each has the numbers it has alone.
#[test]
fn a_batch_of_several_adapters_equals_each_alone() {
    for (form, checkpoint) in forms("llama") {
        let mut model = Model::load(&checkpoint, LoadOptions { max_logits_rows: 128, ..options() }).unwrap();
        let tokens = &golden("llama-lora").0[..20];
        let ids = ["llama-dora", "llama-other"].map(|name| ready(&mut model, &folder().join(name)));
        let alone = [Some(ids[0]), None, Some(ids[1]), Some(ids[0])].map(|id| logits(&mut model, tokens, id));
        let adapters = [Some(ids[0]), None, Some(ids[1]), Some(ids[0])];
        let all = model.forward(&together(tokens, &adapters)).unwrap().logits.to_vec();
        for (i, (alone, found)) in alone.iter().zip(all.chunks_exact(alone[0].len())).enumerate() {
            let error = distance(found, alone);
            assert!(error < 1e-5, "{form} sequence {i}: {error:.2e}");
        }
        assert!(distance(&alone[0], &alone[1]) > 0.1 && distance(&alone[2], &alone[1]) > 0.1);
    }
}

/// There is room for two: the third takes the place of the least recently used one, and never of one in use.
#[test]
fn slots_are_bounded_and_reused() {
    let checkpoint = Checkpoint::open(&families().join("llama")).unwrap();
    let mut model = load(&checkpoint, Isa::detect());
    let sources = ["llama-lora", "llama-other", "llama-dora"].map(|name| {
        let path = folder().join(name);
        AdapterSource { id: AdapterFile::open(&path).unwrap().id, path }
    });
    let [first, second, third] = &sources;
    model.load_adapter(first, &[]).unwrap();
    model.load_adapter(second, &[]).unwrap();
    model.load_adapter(first, &[]).unwrap();
    let full = model.load_adapter(third, &[first.id, second.id]).unwrap_err().to_string();
    assert!(full.contains("all 2 adapters that there is room for are in use"), "{full}");
    model.load_adapter(third, &[]).unwrap();
    let (tokens, truth) = golden("llama-dora");
    assert!(distance(&logits(&mut model, &tokens, Some(third.id)), &truth) < BOUND);
    let (tokens, truth) = golden("llama-lora");
    assert!(distance(&logits(&mut model, &tokens, Some(first.id)), &truth) < BOUND, "the first one is still there");
    let gone = Batch { adapters: vec![Some(second.id)], ..batch(&tokens, 0, &table(0, tokens.len()), true) };
    let refused = model.forward(&gone).unwrap_err().to_string();
    assert!(refused.contains("is not ready"), "{refused}");
}

#[test]
fn a_merged_model_equals_the_adapter() {
    let plain = ["llama-lora", "llama-dora", "phi3-lora", "phi3-dora", "gptneox-lora"];
    let others =
        ["qwen3moe-experts", "gpt-oss-experts", "jamba-lora", "qwen35-dora", "qwen3next-lora", "nemotron_h-lora"];
    for name in plain.into_iter().chain(others) {
        let base = Checkpoint::open(&families().join(format!("{}.gguf", base_of(name)))).unwrap();
        let merged = merge(&base, &AdapterFile::open(&folder().join(name)).unwrap()).unwrap();
        let (tokens, truth) = golden(name);
        let error = distance(&logits(&mut load(&merged, Isa::detect()), &tokens, None), &truth);
        assert!(error < BOUND, "{name}: {error:.2e}");
    }
}

/// A copy of an adapter, spoiled by `spoil`; what is said about it.
#[track_caller]
fn check_refused(name: &str, expected: &str, spoil: impl FnOnce(&Path)) {
    let copy = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(folder().join(name).join(file), copy.path().join(file)).unwrap();
    }
    spoil(copy.path());
    let base = Checkpoint::open(&families().join(base_of(name))).unwrap();
    let refused = AdapterFile::open(copy.path()).and_then(|adapter| adapter.check(&base)).unwrap_err().to_string();
    assert!(refused.contains(expected), "`{refused}` does not say `{expected}`");
}

fn edit_config(folder: &Path, from: &str, to: &str) {
    let path = folder.join("adapter_config.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn bad_adapters_are_refused_by_name() {
    let config = |from: &'static str, to: &'static str| move |folder: &Path| edit_config(folder, from, to);
    check_refused("llama-lora", "the configuration says rank 5", config("\"r\": 4", "\"r\": 5"));
    check_refused("llama-lora", "r is 0, a rank from 1", config("\"r\": 4", "\"r\": 0"));
    check_refused("llama-lora", "lora_alpha is 1e+39", config("\"lora_alpha\": 8", "\"lora_alpha\": 1e39"));
    check_refused("llama-lora", "only LORA is supported", config("\"LORA\"", "\"LOHA\""));
    check_refused("llama-lora", "the magnitude vector that use_dora asks for is missing", |folder| {
        edit_config(folder, "\"use_dora\": false", "\"use_dora\": true");
    });
    check_refused("llama-dora", "does not say use_dora", config("\"use_dora\": true", "\"use_dora\": false"));
    check_refused("llama-lora", "modules_to_save is not supported", |folder| {
        edit_config(folder, "\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]");
    });
    check_refused("llama-lora", "is not JSON", |folder| fs::write(folder.join("adapter_config.json"), "{").unwrap());
    check_refused("llama-lora", "cannot read adapter_config.json", |folder| {
        fs::remove_file(folder.join("adapter_config.json")).unwrap();
    });
    check_refused("llama-lora", "there is no adapter_model.safetensors", |folder| {
        fs::remove_file(folder.join("adapter_model.safetensors")).unwrap();
    });
    check_refused("llama-lora", "safetensors header", |folder| {
        let path = folder.join("adapter_model.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(path, &bytes[..bytes.len() - 100]).unwrap();
    });
    check_refused("qwen3moe-experts", "it is of 4 experts, the layer has 6", |folder| {
        edit_config(folder, "\"r\": 4,", "\"r\": 6, \"rank_pattern\": {\"q_proj\": 4, \"v_proj\": 4}, \"former\":");
        edit_config(folder, "\"former\":", "\"former\": 4,");
        edit_config(folder, "\"rank_pattern\": {},", "");
    });
    check_refused("qwen3moe-experts", "A has shape [24, 32], the configuration says rank 4", |folder| {
        edit_config(folder, "\"mlp.experts.down_proj\"", "\"other.down_proj\"");
        edit_config(folder, "\"mlp.experts.gate_up_proj\"", "\"other.gate_up_proj\"");
    });
    // Of another model: other sizes, other names.
    let refused = |name: &str, base: &str| {
        let base = Checkpoint::open(&families().join(base)).unwrap();
        AdapterFile::open(&folder().join(name)).unwrap().check(&base).unwrap_err().to_string()
    };
    assert!(refused("phi3-lora", "llama").contains("no module of this model (llama) that adapters can change"));
    assert!(refused("llama-lora", "gemma3").contains("it changes a matrix of [16, 32], the model's is"));
    assert!(refused("llama-lora.gguf", "qwen2").contains("made for the architecture llama, the model's is qwen2"));
    let model = AdapterFile::open(&families().join("llama.gguf")).unwrap_err().to_string();
    assert!(model.contains("general.type is `model`") || model.contains("this is not an adapter"), "{model}");
    let alone = folder().join("llama-lora/adapter_model.safetensors");
    assert!(AdapterFile::open(&alone).unwrap_err().to_string().contains("give the folder"));
}

fn submit(handle: &Handle, prompt: &[TokenId], adapter: Option<&AdapterSource>) -> Submit {
    Submit { adapter: adapter.cloned(), ..Submit::new(handle.next_request_id(), prompt.to_vec(), 12) }
}

/// Requests of three adapters, with room for two, and plain ones: every answer is what it is alone, and a prefix that one
/// of them computed serves only its own.
#[test]
fn an_engine_keeps_adapters_apart() {
    let checkpoint = Checkpoint::open(&families().join("llama.gguf")).unwrap();
    let model = || Model::load(&checkpoint, LoadOptions { n_blocks: 64, ..options() }).unwrap();
    let sources = ["llama-lora", "llama-dora", "llama-other"].map(|name| {
        let path = folder().join(name);
        AdapterSource { id: AdapterFile::open(&path).unwrap().id, path }
    });
    let prompt: Vec<TokenId> = golden("llama-lora").0.into_iter().map(TokenId).collect();
    let kinds = [None, Some(&sources[0]), Some(&sources[1]), Some(&sources[2])];
    let alone = kinds.map(|adapter| {
        let handle = start(model(), EngineOptions { reuse: Reuse::Off, ..EngineOptions::default() }, None);
        collect(handle.submit(submit(&handle, &prompt, adapter)).unwrap()).0
    });
    assert!(alone.iter().enumerate().all(|(i, one)| !alone[..i].contains(one)), "the adapters say different things");
    let handle = start(model(), EngineOptions::default(), None);
    for round in 0..2 {
        let all: Vec<_> = (0..8).map(|i| handle.submit(submit(&handle, &prompt, kinds[i % 4])).unwrap()).collect();
        for (i, events) in all.into_iter().enumerate() {
            let (tokens, _, usage) = collect(events);
            assert_eq!(tokens, alone[i % 4], "request {i} of round {round}");
            let is_second = round > 0 || i >= 4;
            assert_eq!(usage.n_cached_prompt, if is_second { 32 } else { 0 }, "request {i} of round {round}");
        }
    }
    let gone = AdapterSource { path: "/nowhere".into(), ..sources[0].clone() };
    let other = AdapterSource { id: AdapterId(7), ..gone };
    let refused = handle.submit(submit(&handle, &prompt, Some(&other))).unwrap().next();
    assert!(matches!(&refused, Some(Event::Failed { error, .. }) if error.contains("/nowhere")), "{refused:?}");
    assert_eq!(collect(handle.submit(submit(&handle, &prompt, None)).unwrap()).0, alone[0], "the others go on");
    let plain = start(Model::load(&checkpoint, LoadOptions::default()).unwrap(), EngineOptions::default(), None);
    let refused = plain.submit(submit(&plain, &prompt, Some(&sources[0]))).unwrap().next();
    assert!(matches!(&refused, Some(Event::Failed { error, .. }) if error.contains("without room")), "{refused:?}");
}
