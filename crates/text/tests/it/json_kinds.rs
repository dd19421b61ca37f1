//! `tokenizer.json` files of the kinds people publish, against Python's `tokenizers`: ids, the tokens around a text, the
//! text of ids. Those that GGUF's words can say are then turned into plain vocabulary data, and must read the same.

use std::sync::Arc;

use serde_json::Value;
use text::{Detokenizer, Ends, JsonConfig, Specials, Tokenizer, Vocab};

use crate::golden::{check_rows, ids, read_json, strings, testdata, texts};

fn file(kind: &str) -> Vec<u8> {
    std::fs::read(testdata(&format!("json/{kind}.json"))).unwrap()
}

fn config(kind: &str) -> JsonConfig {
    let (bos, eos) = match kind {
        "gpt2" | "digits" | "llama3" | "qwen2" => ("<|begin|>", "<|im_end|>"),
        "wordpiece" => ("[CLS]", "[SEP]"),
        _ => ("<s>", "</s>"),
    };
    JsonConfig { bos: Some(bos.into()), eos: Some(eos.into()), end_ids: Vec::new() }
}

fn golden(kind: &str) -> Value {
    read_json("golden/json.json")["kinds"][kind].clone()
}

#[track_caller]
fn check(kind: &str) {
    let tokenizer = Arc::new(Tokenizer::from_json(&file(kind), &config(kind)).unwrap());
    let (golden, texts) = (golden(kind), texts());
    check_rows(kind, &tokenizer, &texts, &golden["rows"]);
    for (text, row) in texts.iter().zip(golden["ends"].as_array().unwrap()) {
        assert_eq!(tokenizer.encode_with(text, Specials::Parse, Ends::Add), ids(row), "{kind}: {text:?}");
    }
    let rows = golden["rows"].as_array().unwrap();
    for (row, decoded) in rows.iter().zip(strings(&golden["decoded"])) {
        let mut detokenizer = Detokenizer::from_start(tokenizer.clone());
        let mut found: String = ids(&row[0]).into_iter().map(|id| detokenizer.push(id)).collect();
        found.push_str(&detokenizer.finish());
        assert_eq!(found, decoded, "{kind}: {row}");
    }
}

#[track_caller]
fn check_plain(kind: &str, model: &str, pre: &str) {
    let original = Tokenizer::from_json(&file(kind), &config(kind)).unwrap();
    let n_rows = original.n_vocab() + 5;
    let vocab = Vocab::from_json(&file(kind), &config(kind), n_rows).unwrap();
    assert_eq!((vocab.model.as_str(), vocab.pre.as_str()), (model, pre), "{kind}");
    assert_eq!((vocab.tokens.len(), vocab.types.len(), vocab.types[n_rows - 1]), (n_rows, n_rows, 5), "{kind}");
    let made = Tokenizer::new(vocab).unwrap();
    assert_eq!((made.bos(), made.eos()), (original.bos(), original.eos()), "{kind}");
    let golden = golden(kind);
    // GGUF's vocabularies normalise nothing: letters with their accents apart stay apart there, and so do the letters of
    // Korean syllables and two spaces that have another name.
    let is_composed = |text: &str| {
        !text.chars().any(|c| matches!(c, '\u{300}'..='\u{36F}' | '\u{1100}'..='\u{11FF}' | '\u{2000}' | '\u{2001}'))
    };
    // They put a space before every text, also before one that begins with a space, and after special tokens.
    let is_plain = |text: &str| !text.starts_with(' ') && !text.contains("<s>") && !text.contains("</s>");
    // A word of more than 100 letters is unknown by its length in `tokenizer.json` alone.
    let is_short = |text: &str| text.split_whitespace().all(|word| word.chars().count() <= 100);
    // Spaces at the ends are gone where runs of them count as one; and the table of normalisations is searched for the
    // longest entry, where `tokenizers` takes a letter with all its accents and joiners.
    let is_seen = |text: &str| {
        !text.contains(['\u{200B}', '\u{200D}', '\u{FE0F}', '\u{FEFF}', '\u{FFFD}']) && !text.contains("<unk>")
    };
    let is_trimmed = |text: &str| is_plain(text) && is_composed(text) && is_seen(text) && text.trim() == text;
    let mut n = 0;
    for (text, row) in texts().iter().zip(golden["rows"].as_array().unwrap()) {
        let is_same = match kind {
            "qwen2" => is_composed(text),
            "mistral" => is_plain(text),
            "wordpiece" => is_short(text),
            "unigram" => is_trimmed(text),
            _ => true,
        };
        if is_same {
            assert_eq!(made.encode(text, Specials::Parse), ids(&row[0]), "{kind}: {text:?}");
            n += 1;
        }
    }
    assert!(n > 200, "{kind}: {n} texts");
    let with_ends = texts().into_iter().zip(golden["ends"].as_array().unwrap());
    let is_same = |text: &str| match kind {
        "mistral" => is_plain(text),
        "wordpiece" => is_short(text),
        "unigram" => is_trimmed(text),
        _ => true,
    };
    for (text, row) in with_ends.filter(|(text, _)| is_same(text)) {
        let text = text.as_str();
        assert_eq!(made.encode_with(text, Specials::Parse, Ends::Add), ids(row), "{kind}: {text:?}");
    }
}

#[test]
fn byte_level_files() {
    ["gpt2", "digits", "llama3", "qwen2"].into_iter().for_each(check);
}

#[test]
fn files_of_characters_with_bytes_for_the_rest() {
    ["llama2", "mistral", "gemma"].into_iter().for_each(check);
}

#[test]
fn a_unigram_file() {
    check("unigram");
}

#[test]
fn a_word_piece_file() {
    check("wordpiece");
}

#[test]
fn byte_level_files_as_plain_data() {
    check_plain("gpt2", "gpt2", "gpt-2");
    check_plain("digits", "gpt2", "smollm");
    check_plain("llama3", "gpt2", "llama-bpe");
    check_plain("qwen2", "gpt2", "qwen2");
}

#[test]
fn files_of_characters_as_plain_data() {
    check_plain("llama2", "llama", "");
    check_plain("mistral", "llama", "");
    check_plain("gemma", "llama", "");
}

#[test]
fn files_of_words_as_plain_data() {
    check_plain("wordpiece", "bert", "");
    check_plain("unigram", "t5", "");
}

#[test]
fn what_plain_data_cannot_hold_is_refused() {
    let message = |json: &[u8], kind: &str| Vocab::from_json(json, &config(kind), 1000).err().unwrap().to_string();
    let mut other: Value = serde_json::from_slice(&file("gpt2")).unwrap();
    other["model"] = serde_json::json!({"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"});
    let found = message(&serde_json::to_vec(&other).unwrap(), "gpt2");
    assert!(found.contains("cannot be written as a GGUF vocabulary") && found.contains("WordLevel"), "{found}");
    // Words cut at every letter `e`: no pre-tokenizer with a name does that.
    let mut odd: Value = serde_json::from_slice(&file("llama3")).unwrap();
    odd["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "e|[^e]+".into();
    let found = message(&serde_json::to_vec(&odd).unwrap(), "llama3");
    assert!(found.contains("cuts words as no pre-tokenizer"), "{found}");
}

/// What a user wrote is read as letters between the template's own control tokens, in files of either format.
#[test]
fn shielded_control_tokens_are_letters() {
    let json = Tokenizer::from_json(&file("qwen2"), &config("qwen2")).unwrap();
    let plain = crate::small_vocab::tokenizer("qwen2");
    for tokenizer in [&json, &*plain] {
        let controls = (0..tokenizer.n_vocab() as u32).filter(|&id| tokenizer.is_special(id));
        let control = controls.max_by_key(|&id| tokenizer.token_text(id).len()).unwrap();
        let mark = tokenizer.token_text(control);
        let written = format!("a{mark} b{mark}");
        let shielded = tokenizer.shield(&written);
        assert_ne!(shielded, written);
        assert_eq!(text::unshield(&shielded), written);
        assert_eq!(tokenizer.shield(&shielded), shielded, "twice is once");
        let mut expected = vec![control];
        expected.extend(tokenizer.encode(&written, Specials::Plain));
        expected.push(control);
        assert_eq!(tokenizer.encode_shielded(&format!("{mark}{shielded}{mark}")), expected);
        assert_eq!(tokenizer.shield("no marks here"), "no marks here");
    }
}
