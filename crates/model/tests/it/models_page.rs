//! Writes `docs/user/models.md`: every family in every file format and weight type, run here, and what the records of
//! GPU runs say. `ROCI_WRITE_DOCS=1` writes the page; without it the test fails if the page says something else.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use ops::Isa;
use weights::{Checkpoint, Dtype};

use crate::families::{Golden, What, distance, forms, golden, load, names, run};
use crate::gpu_runs;
use crate::wide::{pack, widen};

/// Packed weights against the same weights in f32: what rounding activations to 16 bits may cost through a few layers
/// of random weights, which forgive less than trained ones.
const BOUND: f64 = 2e-2;

/// Numbers in a block that rows of tiny checkpoints fill.
const SHORT_BLOCK: usize = 32;

/// Families that are run in every type: at least one of each kind of attention, mixture and feed-forward block. The others
/// reach the same products by the same ops, and take every fourth type, each another one first.
const IN_EVERY_TYPE: [&str; 26] = [
    "bert",
    "deepseek2",
    "deepseek3",
    "gemma",
    "gemma2",
    "gemma3",
    "glm4",
    "gpt-oss",
    "granite",
    "llama",
    "llama-linear",
    "llama3",
    "mistral",
    "mixtral",
    "nomic-bert",
    "olmo2",
    "phi3",
    "phi3-longrope",
    "qwen2",
    "qwen2-yarn",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "stablelm",
    "xlm-roberta",
    "xlm-roberta-rerank",
];

/// Only above a table that has such columns.
const GPU_COLUMNS: &str = "\
- **gfx...**, **sm_...**: the same comparison with transformers on that GPU, or the op that is missing there, as
  recorded by the test `families_equal_transformers_on_a_device`. A software GPU executes AMD machine code under AMD's
  own runtime; see [software GPU](../developer/software-gpu.md).

";

const HEAD: &str = "\
# Models

The model families that `roci` runs. Each was compared with transformers, or with what is named below; the test that
writes this page (`models_page` in `crates/model`) runs every cell on a CPU. Of vision models, only the text part is
supported.

- **safetensors**, **GGUF**: `yes` means that a tiny random checkpoint of the family, made with transformers
  (`scripts/make_families.py`), gives the logits (encoders: hidden states; rerankers: scores) that transformers computes
  in f32, to within 1e-3 of their magnitude. The GGUF files are made by llama.cpp's converter. `-`: there is no such
  file.
- **weight types**: in how many of the types below the family was run, each compared with f32 arithmetic on the same
  weights. Rows of weights that do not fill the blocks of a type are stored as Q8_0, as in other programs.

Recurrent layers (LFM2's convolutions, Mamba, Mamba 2, gated delta nets, KDA, RWKV 7) keep a state of fixed size for
each sequence. States are checkpointed at block boundaries, so the prefix cache works for these families too. These
families, and those whose widths differ from layer to layer, are run in the weight types whose blocks hold 32 weights or
fewer, which the short rows of their tiny checkpoints fill.

Models with more than 1,024 experts in a layer, or with a recurrent state dimension above 256 (the key size of a delta
net, the state size of Mamba), run on the CPU only; `--device auto` chooses it for them. `roci inspect` says of a model
of another family what it would need, where that is known.

In DeepSeek V3.2 and GLM 5, an indexer chooses the tokens to attend to, usually 2,048; in `deepseek32-sparse` and
`glm-dsa-sparse` it chooses 8 of 40. Files without the indexer's tensors run with contexts up to that number of tokens,
where the indexer would choose everything. InternLM 2 and Ling 2 have no class in transformers, so their reference is a
class with the same mathematics (Llama, GLM 4.5) and renamed tensors. Gemma 3n's safetensors need an embedding table for
all layers with a row for every token; GGUF files have it. RWKV 7 is not in transformers either: its reference is its
author's package `rwkv` (`scripts/make_rwkv.py`), with safetensors as flash-linear-attention writes them.

Grok and PLaMo 2 are not in transformers: their reference is llama.cpp itself, computing in f32
(`scripts/make_by_llama.py`). Of Grok 2, which is published in parts for eight GPUs, only GGUF files are read. They are
computed as llama.cpp does; SGLang, which xAI serves it with, also caps the router's scores and does not normalize the
weights of the chosen experts. PLaMo 2's tokenizer is read from GGUF files; that of its safetensors is a program.

Embedders and rerankers: `roci embed` and `roci rerank` pool the hidden states as the model's files say, and read the
modules and prompts of sentence-transformers. Jina Embeddings v3 runs without its task adapters. NeoBERT is not
supported, because it is not in transformers and so has no reference. The reference for Llama embedders (`llama-embed`,
NVIDIA's `llama_bidirec`) is transformers' Llama with a mask that hides nothing.

Llama 1 to 3, Mistral, SmolLM and Yi are `llama`; OLMo 3 is `olmo2`, GLM 4.5 is `glm4moe`, GLM 4.7 Flash is `deepseek2`,
Bamba is `granitehybrid` and XLM-RoBERTa is `bert` in GGUF. Bamba's own GGUF files are refused: RoPE rotates half of
each of its heads, but the converter reorders the rows as if it rotated all; its safetensors run. RoPE scaling: linear,
dynamic (each token is rotated by the base of its own position), YaRN, Llama 3 and LongRoPE (the context length decides
which of its lists is used).

Gemma 4's drafters (`gemma4_assistant`, `gemma4_unified_assistant`) guess tokens for these models and do not run alone: see
[speculation](speculation.md#gemma-4s-drafters).

Real weights are also tested, against llama.cpp's tokens and log-probabilities: SmolLM2 135M (llama), Gemma 3 270M, and
with `./check --all` TinyLlama 1.1B (llama, IQ2_XXS) and Qwen2.5-Coder 1.5B.

";

#[test]
fn every_family_and_type_and_the_page_says_so() {
    let types: Vec<Dtype> = Dtype::ALL.into_iter().filter(|dtype| is_computed(*dtype)).collect();
    let records = gpu_runs::read_all();
    let mut page = HEAD.to_owned();
    if !records.is_empty() {
        page += GPU_COLUMNS;
    }
    let list: Vec<&str> = types.iter().map(|dtype| dtype.name()).collect();
    write_wrapped(&mut page, &format!("The {} weight types: {}.", list.len(), list.join(", ")));
    let unwritten: BTreeSet<&str> = model::FAMILIES
        .iter()
        .filter(|family| !family.is_exported)
        .flat_map(|family| family.hub_types)
        .copied()
        .collect();
    let unwritten: Vec<&str> = unwritten.into_iter().collect();
    page.push('\n');
    let text =
        "`roci quantize` does not yet write GGUF files from safetensors of these (by the `model_type` of config.json)";
    write_wrapped(&mut page, &format!("{text}: {}.", unwritten.join(", ")));
    for record in &records {
        writeln!(page, "\n`{}`: {}.", record.arch, record.device).unwrap();
    }
    let columns: String = records.iter().map(|record| format!(" {} |", record.arch)).collect();
    writeln!(page, "\n| family | safetensors | GGUF | weight types |{columns}").unwrap();
    writeln!(page, "|---|---|---|---|{}", "---|".repeat(records.len())).unwrap();
    let mut failures = Vec::new();
    for (i, name) in names().into_iter().enumerate() {
        let mut cells = forms_that_agree(&name, &mut failures);
        let is_in_all = IN_EVERY_TYPE.contains(&name.as_str());
        let (first, step) = if is_in_all { (0, 1) } else { (i % 4, 4) };
        let picked: Vec<Dtype> = types.iter().copied().skip(first).step_by(step).collect();
        let n_all = types.len();
        cells.push(match types_that_agree(&name, &picked, &mut failures) {
            Ran::In(n) if n == n_all => format!("all {n}"),
            Ran::In(n) => format!("{n} of {n_all}"),
            Ran::NotAtAll => "-".to_owned(),
        });
        cells.extend(records.iter().map(|record| record.families.get(&name).cloned().unwrap_or("not run".to_owned())));
        writeln!(page, "| {name} | {} |", cells.join(" | ")).unwrap();
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/user/models.md");
    if test_support::is_required("ROCI_WRITE_DOCS") {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, page, "docs/user/models.md differs from what was run; ROCI_WRITE_DOCS=1 writes it");
}

/// The cells of both file formats.
fn forms_that_agree(name: &str, failures: &mut Vec<String>) -> Vec<String> {
    let (golden, forms) = (golden(name), forms(name));
    let cell = |wanted: &str| {
        let Some((_, checkpoint)) = forms.iter().find(|(form, _)| *form == wanted) else { return "-".to_owned() };
        let error = distance(&run(&mut load(checkpoint, Isa::detect()), &golden), &golden.rows);
        if error.is_nan() || error > 1e-3 {
            failures.push(format!("{name} {wanted}: {error:.2e}"));
        }
        "yes".to_owned()
    };
    ["safetensors", "GGUF"].map(cell).to_vec()
}

/// Whether there was a file to run.
enum Ran {
    In(usize),
    NotAtAll,
}

/// Runs a family in these types.
fn types_that_agree(name: &str, types: &[Dtype], failures: &mut Vec<String>) -> Ran {
    let (golden, forms) = (golden(name), forms(name));
    let Some((_, tiny)) = forms.iter().find(|(form, _)| *form == "GGUF") else { return Ran::NotAtAll };
    if model::Config::from_checkpoint(tiny).is_ok_and(is_uneven) {
        return types_as_it_is(name, tiny, &golden, failures);
    }
    for dtype in types {
        let error = type_error(tiny, &golden, *dtype);
        if error.is_nan() || error > BOUND {
            failures.push(format!("{name} {dtype}: {error:.2e}"));
        }
    }
    Ran::In(types.len())
}

/// Whether the widths of a checkpoint cannot all be multiplied by one factor: several products of a recurrent layer are one
/// tensor; so it is with the numbers of all layers that one table has, and heads that differ from layer to layer.
fn is_uneven(config: model::Config) -> bool {
    config.recurrent.is_some() || config.n_embd_per_layer > 0 || config.local_heads.is_some()
}

/// Runs a family with its own weights in every type whose blocks its short rows fill.
fn types_as_it_is(name: &str, tiny: &Checkpoint, golden: &Golden, failures: &mut Vec<String>) -> Ran {
    let types = Dtype::ALL.into_iter().filter(|dtype| is_computed(*dtype) && dtype.block_len() <= SHORT_BLOCK);
    let types: Vec<Dtype> = types.collect();
    for dtype in &types {
        let (packed, plain) = pack(tiny, *dtype);
        let [packed, plain] = [packed, plain].map(|checkpoint| run(&mut load(&checkpoint, Isa::detect()), golden));
        let error = distance(&packed, &plain);
        if error.is_nan() || error > BOUND {
            failures.push(format!("{name} {dtype}: {error:.2e}"));
        }
    }
    Ran::In(types.len())
}

/// A paragraph in lines of at most 120 characters.
fn write_wrapped(page: &mut String, text: &str) {
    let mut n_chars = 0;
    for word in text.split(' ') {
        if n_chars + word.len() >= 120 {
            page.push('\n');
            n_chars = 0;
        } else if n_chars > 0 {
            page.push(' ');
        }
        page.push_str(word);
        n_chars += word.len() + 1;
    }
    page.push('\n');
}

/// Types that weights are computed with.
fn is_computed(dtype: Dtype) -> bool {
    !matches!(dtype.name(), "Q8_1" | "Q8_K" | "I8" | "I16" | "I32" | "I64" | "F64")
}

/// How far the packed weights are from the same in f32, after one step.
fn type_error(tiny: &Checkpoint, golden: &Golden, dtype: Dtype) -> f64 {
    let (packed, plain) = widen(tiny, dtype, 11);
    let short = Golden { tokens: golden.tokens[..6].to_vec(), rows: Vec::new(), what: golden.what };
    let rows = |checkpoint: &Checkpoint| match short.what {
        // A score is a sum that may come close to zero: its rows say more.
        What::Score | What::Vector => {
            run(&mut load(checkpoint, Isa::detect()), &Golden { what: What::Hidden, ..clone(&short) })
        }
        _ => run(&mut load(checkpoint, Isa::detect()), &short),
    };
    distance(&rows(&packed), &rows(&plain))
}

fn clone(golden: &Golden) -> Golden {
    Golden { tokens: golden.tokens.clone(), rows: golden.rows.clone(), what: golden.what }
}
