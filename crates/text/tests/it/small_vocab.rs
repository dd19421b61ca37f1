//! A small vocabulary trained and encoded by Hugging Face's tokenizers, for each family of words.

use std::sync::Arc;

use serde_json::Value;
use text::{Ends, Specials, Tokenizer, Vocab};

use crate::golden::{check_rows, detokenize, ids, read_json, strings, texts};

pub fn vocab(golden: &Value, pre: &str) -> Vocab {
    Vocab {
        model: "gpt2".to_owned(),
        pre: pre.to_owned(),
        tokens: strings(&golden["tokens"]),
        types: ids(&golden["types"]).into_iter().map(|kind| kind as i32).collect(),
        merges: strings(&golden["merges"]),
        ..Vocab::default()
    }
}

pub fn tokenizer(pre: &str) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::new(vocab(&read_json("golden/small.json"), pre)).unwrap())
}

fn check_family(pre: &str) {
    let golden = read_json("golden/small.json");
    let tokenizer = Tokenizer::new(vocab(&golden, pre)).unwrap();
    let mut texts = texts();
    texts.extend(strings(&golden["extra"]));
    check_rows(pre, &tokenizer, &texts, &golden["families"][pre]);
}

#[test]
fn gpt2_as_tokenizers() {
    check_family("gpt-2");
}

#[test]
fn smollm_as_tokenizers() {
    check_family("smollm");
}

#[test]
fn llama_bpe_as_tokenizers() {
    check_family("llama-bpe");
}

#[test]
fn qwen2_as_tokenizers() {
    check_family("qwen2");
}

/// A vocabulary of another kind, by llama.cpp (testdata/make/plamo.py).
#[test]
fn plamo2_as_llama_cpp() {
    let golden = read_json("golden/plamo2.json");
    let scores = golden["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap() as f32);
    let vocab = Vocab {
        model: "plamo2".to_owned(),
        tokens: strings(&golden["tokens"]),
        types: ids(&golden["types"]).into_iter().map(|kind| kind as i32).collect(),
        scores: scores.collect(),
        ..Vocab::default()
    };
    let tokenizer = Arc::new(Tokenizer::new(vocab).unwrap());
    check_rows("plamo2", &tokenizer, &texts(), &golden["rows"]);
    for text in texts().iter().filter(|text| !text.starts_with('\u{feff}')) {
        assert_eq!(&detokenize(&tokenizer, &tokenizer.encode(text, Specials::Plain)), text);
    }
}

#[test]
fn special_tokens_are_seen_and_not_shown() {
    let tokenizer = tokenizer("smollm");
    let (end, tool) = (tokenizer.token_id("<|im_end|>").unwrap(), tokenizer.token_id("<tool>").unwrap());
    assert!(tokenizer.is_special(end) && tokenizer.is_end(end));
    assert!(!tokenizer.is_special(tool) && !tokenizer.is_end(tool));
    assert_eq!(tokenizer.token_text(end), "<|im_end|>");
    let ids = tokenizer.encode("a<|im_end|><tool>b", Specials::Parse);
    assert!(ids.contains(&end) && ids.contains(&tool));
    assert_eq!(detokenize(&tokenizer, &ids), "a<tool>b");
    let ids = tokenizer.encode("a<|im_end|><tool>b", Specials::Plain);
    assert!(!ids.contains(&end) && ids.contains(&tool));
    assert_eq!(detokenize(&tokenizer, &ids), "a<|im_end|><tool>b");
}

#[test]
fn ends_are_added_only_on_request() {
    let golden = read_json("golden/small.json");
    let plain = Tokenizer::new(vocab(&golden, "smollm")).unwrap();
    let (bos, eos) = (plain.token_id("<|im_start|>"), plain.token_id("<|im_end|>"));
    let with = Tokenizer::new(Vocab { bos, eos, add_bos: Some(true), add_eos: Some(true), ..vocab(&golden, "smollm") })
        .unwrap();
    let middle = plain.encode("the word", Specials::Parse);
    let whole: Vec<u32> = bos.into_iter().chain(middle.clone()).chain(eos).collect();
    assert_eq!(with.encode("the word", Specials::Parse), middle);
    assert_eq!(with.encode_with("the word", Specials::Parse, Ends::Add), whole);
    assert_eq!(with.encode_with("the word", Specials::Parse, Ends::None), middle);
    assert_eq!(plain.encode_with("the word", Specials::Parse, Ends::Add), middle);
}
