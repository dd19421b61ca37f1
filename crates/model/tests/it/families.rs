//! Every family against transformers: tiny random checkpoints, as safetensors and as GGUF made by llama.cpp's
//! converter, with the logits (or hidden states) that transformers computes from them in f32.
//! `scripts/make_families.py` makes the data.

use std::path::{Path, PathBuf};

use model::{Error, Forward, KvType, LoadOptions, Model, PooledStates};
use ops::{Isa, Pool};
use weights::Checkpoint;

use crate::support::{batch, table};

/// `|found - truth| / |truth|` that passes, in f32.
const BOUND: f64 = 1e-3;

pub struct Golden {
    pub tokens: Vec<u32>,
    /// One row a token; of a reranker one score.
    pub rows: Vec<f32>,
    pub what: What,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum What {
    Logits,
    Hidden,
    Score,
    /// Pooled, through the layers behind, of length 1.
    Vector,
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/families")
}

/// Names of all checkpoints, in order.
pub fn names() -> Vec<String> {
    let files = std::fs::read_dir(folder().join("golden")).unwrap().map(|file| file.unwrap().path());
    let mut names: Vec<String> = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    assert!(names.len() > 20, "the checkpoints are in the repository");
    names
}

/// All of them, or those that somebody wants alone: `ROCI_TEST_FAMILIES=gpt2,mpt`.
pub fn picked() -> Vec<String> {
    let picked = std::env::var("ROCI_TEST_FAMILIES").ok();
    let is_picked = |name: &String| picked.as_ref().is_none_or(|list| list.split(',').any(|one| one == name));
    names().into_iter().filter(is_picked).collect()
}

pub fn golden(name: &str) -> Golden {
    let file = Checkpoint::open(&folder().join("golden").join(format!("{name}.safetensors"))).unwrap();
    let what = [("logits", What::Logits), ("hidden", What::Hidden), ("score", What::Score), ("vector", What::Vector)];
    let (rows, what) = what.into_iter().find_map(|(key, what)| Some((file.find(key)?, what))).unwrap();
    let tokens = file.tensor("tokens").unwrap();
    let words = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect::<Vec<_>>();
    Golden {
        tokens: words(&tokens.bytes).into_iter().map(|b| f32::from_le_bytes(b) as u32).collect(),
        rows: words(&rows.bytes).into_iter().map(f32::from_le_bytes).collect(),
        what,
    }
}

/// The forms of a checkpoint that exist.
pub fn forms(name: &str) -> Vec<(&'static str, Checkpoint)> {
    let paths = [("safetensors", folder().join(name)), ("GGUF", folder().join(format!("{name}.gguf")))];
    let there = paths.into_iter().filter(|(_, path)| path.exists());
    let forms: Vec<_> = there.map(|(form, path)| (form, Checkpoint::open(&path).unwrap())).collect();
    assert!(!forms.is_empty(), "{name}");
    forms
}

pub fn load(checkpoint: &Checkpoint, isa: Isa) -> Model {
    try_load(checkpoint, isa).unwrap()
}

fn try_load(checkpoint: &Checkpoint, isa: Isa) -> Result<Model, Error> {
    let options = LoadOptions { kv_type: KvType::F32, n_blocks: 8, max_batch_tokens: 64, ..LoadOptions::default() };
    Model::load_on(Pool::with_isa(2, isa), checkpoint, options)
}

/// The model's output for the golden tokens, in one step.
pub fn run(model: &mut Model, golden: &Golden) -> Vec<f32> {
    let n = golden.tokens.len();
    let mut whole = batch(&golden.tokens, 0, &table(0, n), golden.what == What::Logits);
    if golden.what != What::Logits {
        whole.logits_rows.clear();
        whole.pool_rows = (0..n as u32).collect();
        whole.attention = model.embeds().attention;
    }
    let head = model.embeds().head;
    let pooled = head.unwrap_or(model.embeds().pooling.states());
    let output = model.forward(&whole).unwrap();
    match golden.what {
        What::Logits => output.logits.to_vec(),
        What::Hidden => output.hidden.to_vec(),
        What::Score | What::Vector => {
            let states: Vec<&[f32]> = output.hidden.chunks_exact(output.hidden.len() / n).collect();
            let pooled = match pooled {
                PooledStates::First => states[0].to_vec(),
                PooledStates::Last => states[n - 1].to_vec(),
                PooledStates::Mean => {
                    let mean = |i: usize| states.iter().map(|state| state[i]).sum::<f32>() / n as f32;
                    (0..states[0].len()).map(mean).collect()
                }
            };
            if golden.what == What::Score {
                return model.score(&pooled).unwrap();
            }
            let vector = model.project(&pooled).unwrap();
            let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
            vector.iter().map(|x| x / length).collect()
        }
    }
}

pub fn distance(found: &[f32], truth: &[f32]) -> f64 {
    let wide = |numbers: &[f32]| numbers.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    test_support::golden::relative_error(wide(found), wide(truth))
}

#[test]
fn every_family_equals_transformers() {
    let mut failures = Vec::new();
    for name in picked() {
        let golden = golden(&name);
        for (form, checkpoint) in forms(&name) {
            for isa in Isa::available() {
                let mut model = match try_load(&checkpoint, isa) {
                    Ok(model) => model,
                    Err(error) => {
                        failures.push(format!("{name} {form} {isa}: {error}"));
                        continue;
                    }
                };
                let error = distance(&run(&mut model, &golden), &golden.rows);
                println!("{name:20} {form:12} {isa}: {error:.2e}");
                if error.is_nan() || error > BOUND {
                    failures.push(format!("{name} {form} {isa}: relative error {error:.2e}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// llama.cpp's converter reorders the rows of whole heads; where only a part of a head is rotated, as in Bamba, pairs would be
/// torn apart.
#[test]
fn files_whose_rows_do_not_fit_their_rotation_are_refused() {
    let file = Checkpoint::open(&folder().join("granitehybrid.gguf")).unwrap();
    let with = |n_rot: u32| {
        let mut metadata = file.metadata().clone();
        metadata.set("granitehybrid.rope.scaling.finetuned", true);
        metadata.set("granitehybrid.rope.dimension_count", n_rot);
        Checkpoint::from_parts(metadata, file.tensors().to_vec()).unwrap()
    };
    let head_dim = model::Config::from_checkpoint(&file).unwrap().head_dim as u32;
    assert!(model::Config::from_checkpoint(&with(head_dim)).is_ok());
    let error = model::Config::from_checkpoint(&with(head_dim / 2)).unwrap_err().to_string();
    assert!(error.contains("rope.dimension_count") && error.contains("Bamba"), "{error}");
}
