//! Writes `docs/user/models.md`: every family in every form, and in every weight type, run. `ROCI_WRITE_DOCS=1` writes the
//! page; without it the test fails where the page says something else than what was run.

use std::fmt::Write as _;
use std::path::Path;

use model::Config;
use ops::Isa;
use weights::{Checkpoint, Dtype};

use crate::families::{Golden, What, distance, folder, forms, golden, load, names, run};
use crate::wide::widen;

/// Packed weights against the same weights in f32: what rounding activations to 16 bits may cost through a few layers
/// of random weights, which forgive less than trained ones.
const BOUND: f64 = 2e-2;

const HEAD: &str = "\
# Models

This page is written by a test (`model::it models_page`), and each cell was run by it. A family is a row of data in
`crates/model/src/family.rs` and a map of names in `names.rs`; there is no file per model.

- **safetensors**, **GGUF**: a tiny random checkpoint of the family, made with transformers
  (`scripts/make_families.py`), gives the logits (encoders: hidden states; rerankers: scores) that transformers computes
  in f32, within 1e-3 of their size. GGUF forms are made by llama.cpp's converter.
- The **types**: the family with random weights of that type gives what f32 arithmetic gives on the same weights. A row
  that does not fill the blocks of a type is Q8_0, as in other programs.
- **GPU**: whether the family runs on a GPU (`model::it card` compares it with transformers on each that is here, the
  software GPU in every run), or the op that is missing there. Nothing falls back in silence: such a
  model is refused before it is loaded, and runs with `--device cpu`.

Kin that need no row of their own: Llama 1 to 3, Mistral, SmolLM and Yi are `llama`; XLM-RoBERTa is `bert` in GGUF. RoPE
scalings: linear, dynamic, YaRN, Llama 3's, LongRoPE (which of its lists is used depends on the context a model is
loaded with). Dynamic scaling turns each token by the base of its own position.

Real weights, in the tests too: SmolLM2 135M (llama), Gemma 3 270M, TinyLlama 1.1B (llama, IQ2_XXS), and with
`./check --all` Qwen2.5-Coder 1.5B, against llama.cpp's tokens and log-probabilities.

";

#[test]
fn every_family_and_type_and_the_page_says_so() {
    let mut page = HEAD.to_owned();
    let types: Vec<Dtype> = Dtype::ALL.into_iter().filter(|dtype| is_computed(*dtype)).collect();
    let mut failures = Vec::new();
    let columns: String = types.iter().map(|dtype| format!(" {dtype} |")).collect();
    writeln!(page, "| family | safetensors | GGUF | GPU |{columns}").unwrap();
    writeln!(page, "|---|---|---|---|{}", "---|".repeat(types.len())).unwrap();
    for name in names() {
        let golden = golden(&name);
        let forms = forms(&name);
        let mut cells = Vec::new();
        for wanted in ["safetensors", "GGUF"] {
            let Some((_, checkpoint)) = forms.iter().find(|(form, _)| *form == wanted) else {
                cells.push("-".to_owned());
                continue;
            };
            let error = distance(&run(&mut load(checkpoint, Isa::detect()), &golden), &golden.rows);
            cells.push(if error <= 1e-3 { "yes" } else { "no" }.to_owned());
        }
        let (_, checkpoint) = forms.last().unwrap();
        let config = Config::from_checkpoint(checkpoint).unwrap();
        cells.push(match model::missing_on_device(checkpoint, &config).unwrap() {
            None => "yes".to_owned(),
            Some(op) => format!("no: {op}"),
        });
        let gguf = forms.iter().find(|(form, _)| *form == "GGUF");
        for dtype in &types {
            let Some((_, tiny)) = gguf else {
                cells.push("-".to_owned());
                continue;
            };
            let error = type_error(tiny, &golden, *dtype);
            if error.is_nan() || error > BOUND {
                failures.push(format!("{name} {dtype}: {error:.2e}"));
            }
            cells.push("yes".to_owned());
        }
        writeln!(page, "| {name} | {} |", cells.join(" | ")).unwrap();
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(!page.contains("| no |"), "a form of a family differs from transformers:\n{page}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/user/models.md");
    if std::env::var("ROCI_WRITE_DOCS").is_ok_and(|v| v == "1") {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, page, "docs/user/models.md differs from what was run; ROCI_WRITE_DOCS=1 writes it");
    assert!(folder().exists());
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
        What::Score => run(&mut load(checkpoint, Isa::detect()), &Golden { what: What::Hidden, ..clone(&short) }),
        _ => run(&mut load(checkpoint, Isa::detect()), &short),
    };
    distance(&rows(&packed), &rows(&plain))
}

fn clone(golden: &Golden) -> Golden {
    Golden { tokens: golden.tokens.clone(), rows: golden.rows.clone(), what: golden.what }
}
