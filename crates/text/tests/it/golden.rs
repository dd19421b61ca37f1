//! Reads the golden files and compares a tokenizer with them.

use std::path::{Path, PathBuf};

use serde_json::Value;
pub use test_support::golden::{ids, strings};
use text::{Specials, Tokenizer};

pub fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

pub fn read_json(name: &str) -> Value {
    test_support::golden::json(env!("CARGO_MANIFEST_DIR"), name)
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
