//! Reads the golden files and compares a tokenizer with them.

use std::path::{Path, PathBuf};

use serde_json::Value;
use text::{Specials, Tokenizer};

pub fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

pub fn read_json(name: &str) -> Value {
    let path = testdata(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|item| u32::try_from(item.as_u64().unwrap()).unwrap()).collect()
}

/// A path from the environment; says so where there is none and a test is skipped for it.
pub fn from_env(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os(name).map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: {name} is not set");
    }
    path
}

/// The texts of strings.json, over which every golden is made.
pub fn texts() -> Vec<String> {
    strings(&read_json("strings.json"))
}

/// Compares rows `[parse, plain]` with the tokenizer, and reports all that differ at once.
#[track_caller]
pub fn check_rows(name: &str, tokenizer: &Tokenizer, texts: &[String], rows: &Value) {
    let rows = rows.as_array().unwrap();
    assert_eq!(texts.len(), rows.len(), "{name}: one row for each text");
    let mut wrong = Vec::new();
    for (text, row) in texts.iter().zip(rows) {
        let parse = ids(&row[0]);
        let plain = if row[1].is_null() { parse.clone() } else { ids(&row[1]) };
        for (specials, expected) in [(Specials::Parse, parse), (Specials::Plain, plain)] {
            let found = tokenizer.encode(text, specials);
            if found != expected {
                wrong.push(format!("{specials:?} {text:?}\n  expected {expected:?}\n  found    {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{name}: {} of {} differ\n{}", wrong.len(), 2 * texts.len(), wrong.join("\n"));
}

/// The text of `ids` as the detokenizer shows it token by token.
pub fn detokenize(tokenizer: &std::sync::Arc<Tokenizer>, ids: &[u32]) -> String {
    let mut detokenizer = text::Detokenizer::new(tokenizer.clone());
    let mut out: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    out.push_str(&detokenizer.finish());
    out
}
