//! Whole vocabularies against llama.cpp, which made the goldens (testdata/make/by_llama_cpp.py).
//!
//! The vocabularies are too large for this repository. `ROCI_VOCAB_DIR` names a folder with llama.cpp's
//! `ggml-vocab-*.gguf` and their `.inp` and `.out` files (in PyPI's llama-cpp-python source package under
//! vendor/llama.cpp/models); `ROCI_SMOLLM2` names SmolLM2-135M-Instruct as GGUF. Without them these tests are
//! skipped, and say so.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use test_support::fetched;
use text::{Ends, Specials, Tokenizer, Vocab};

use crate::golden::{check_rows, detokenize, ids, read_json, texts};

fn open(path: &Path) -> Arc<Tokenizer> {
    let checkpoint = weights::Checkpoint::open(path).unwrap();
    let meta = checkpoint.metadata();
    let id = |key: &str| meta.u32(&format!("tokenizer.ggml.{key}_token_id")).unwrap();
    let pre = meta.string("tokenizer.ggml.pre").unwrap().unwrap_or_default().to_owned();
    let strings = |key: &str| meta.strings(key).unwrap().unwrap_or_default().to_vec();
    let flag = |key: &str| meta.bool(&format!("tokenizer.ggml.{key}")).unwrap();
    let vocab = Vocab {
        model: meta.string("tokenizer.ggml.model").unwrap().unwrap_or_default().to_owned(),
        tokens: strings("tokenizer.ggml.tokens"),
        types: meta.i32s("tokenizer.ggml.token_type").unwrap().unwrap_or_default().into_owned(),
        merges: strings("tokenizer.ggml.merges"),
        scores: meta.f32s("tokenizer.ggml.scores").unwrap().unwrap_or_default().to_vec(),
        bos: id("bos"),
        eos: id("eos"),
        eot: id("eot"),
        unk: id("unknown"),
        sep: id("seperator"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
        remove_extra_whitespaces: flag("remove_extra_whitespaces").unwrap_or(false),
        precompiled_charsmap: match meta.get("tokenizer.ggml.precompiled_charsmap") {
            Some(weights::Value::Array(weights::Array::U8(bytes))) => bytes.clone(),
            _ => Vec::new(),
        },
        lowercase: flag("normalizer.lowercase"),
        strips_after_specials: meta.string("general.name").unwrap().is_some_and(|name| name.contains("Phi-3")),
        pre,
    };
    Arc::new(Tokenizer::new(vocab).unwrap())
}

/// The golden of `name`, with what is known to be meant otherwise here.
fn read_golden(name: &str) -> Value {
    let mut golden = read_json(&format!("golden/{name}.json"));
    if name.starts_with("qwen") {
        // llama.cpp takes Qwen's `</s>`, a normal token, for the end of a text, and reads it as special. The
        // model's own tokenizer does neither, so the plain row is right for both.
        for (text, row) in texts().iter().zip(golden["rows"].as_array_mut().unwrap()) {
            if text.contains("</s>") {
                row[0] = row[1].take();
            }
        }
        golden["ends"].as_array_mut().unwrap().retain(|id| id != 128_247);
    }
    golden
}

fn golden(name: &str, _path: &Path, tokenizer: &Arc<Tokenizer>) {
    let golden = read_golden(name);
    assert_eq!(tokenizer.n_vocab() as u64, golden["n_vocab"].as_u64().unwrap());
    assert_eq!(tokenizer.end_ids(), ids(&golden["ends"]), "{name}: tokens that end an answer");
    assert_eq!(tokenizer.encode_with("", Specials::Parse, Ends::Add), ids(&golden["add"]), "{name}: ends of a text");
    check_rows(name, tokenizer, &texts(), &golden["rows"]);
    // SmolLM2 and Falcon lack tokens for a few control bytes, which are then left out.
    let single: Vec<u8> = (0..tokenizer.n_vocab() as u32)
        .filter_map(|id| match tokenizer.token_bytes(id) {
            Some(&[byte]) if !tokenizer.is_special(id) => Some(byte),
            _ => None,
        })
        .collect();
    for text in texts() {
        let kept: Vec<u8> = text.bytes().filter(|byte| single.contains(byte)).collect();
        let shown = detokenize(tokenizer, &tokenizer.encode(&text, Specials::Plain));
        assert_eq!(shown, String::from_utf8_lossy(&kept), "{name}");
    }
}

/// llama.cpp's own test: texts in `.inp`, ids in `.out`, one line each.
fn inp_out(name: &str, path: &Path, tokenizer: &Arc<Tokenizer>) {
    let read = |end: &str| std::fs::read_to_string(format!("{}.{end}", path.display())).unwrap();
    let (inputs, outputs) = (read("inp"), read("out"));
    let texts: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
    let mut n_checked = 0;
    for (text, line) in texts.iter().zip(outputs.lines()) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(tokenizer.encode(text, Specials::Plain), expected, "{name}: {text:?}");
        n_checked += 1;
    }
    assert!(n_checked >= 40, "{name}: only {n_checked} texts");
}

fn vocabulary(name: &str) -> Option<(PathBuf, Arc<Tokenizer>)> {
    let path = fetched::path(fetched::VOCABULARIES)?.join(format!("ggml-vocab-{name}.gguf"));
    let tokenizer = open(&path);
    Some((path, tokenizer))
}

/// One test for each vocabulary: against llama.cpp's texts (`inp_out`), against ours (`golden`), or both.
macro_rules! vocabularies {
    ($($test:ident: $name:literal $($check:ident)+,)*) => {$(
        #[test]
        fn $test() {
            let Some((path, tokenizer)) = vocabulary($name) else { return };
            $($check($name, &path, &tokenizer);)+
        }
    )*};
}

vocabularies! {
    llama_bpe: "llama-bpe" golden inp_out,
    qwen2: "qwen2" golden inp_out,
    qwen35: "qwen35" golden inp_out,
    gpt_2: "gpt-2" golden inp_out,
    mpt: "mpt" inp_out,
    starcoder: "starcoder" inp_out,
    refact: "refact" inp_out,
    command_r: "command-r" inp_out,
    falcon: "falcon" inp_out,
    deepseek_coder: "deepseek-coder" inp_out,
    deepseek_llm: "deepseek-llm" inp_out,
    gemma_4: "gemma-4" inp_out,
    llama_spm: "llama-spm" inp_out,
    phi_3: "phi-3" inp_out,
    bert_bge: "bert-bge" inp_out,
    // Aquila names no pre-tokenizer and comes without texts of its own.
    default_words: "aquila" golden,
}

#[test]
fn smollm2() {
    let Some(path) = fetched::path(fetched::SMOLLM2) else { return };
    golden("smollm2", &path, &open(&path));
}
