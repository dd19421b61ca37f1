//! No key twice in an object. llguidance counts the properties of an object as they are written, so that a key written
//! twice would count as two of a schema's `minProperties`. This follows the JSON of an answer and finds the tokens that
//! would end a key which the object already has. Only tokens with a quotation mark can, so only those are looked at.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use crate::Tokenizer;

/// Tokens with a quotation mark in them, with their bytes.
pub(super) type QuoteTokens = Vec<(u32, Vec<u8>)>;

pub(super) fn quote_tokens(tokenizer: &Tokenizer) -> QuoteTokens {
    let n_vocab = u32::try_from(tokenizer.n_vocab()).unwrap_or(u32::MAX);
    let bytes = |id: u32| tokenizer.token_bytes(id).filter(|bytes| bytes.contains(&b'"')).map(<[u8]>::to_vec);
    (0..n_vocab).filter(|&id| !tokenizer.is_special(id)).filter_map(|id| Some((id, bytes(id)?))).collect()
}

/// Whether a schema counts properties anywhere, so that one written twice would matter.
pub(super) fn counts_properties(schema: &Value) -> bool {
    let mut todo = vec![schema];
    while let Some(value) = todo.pop() {
        match value {
            Value::Object(fields) => {
                if fields.get("minProperties").and_then(Value::as_u64).is_some_and(|n| n > 1) {
                    return true;
                }
                todo.extend(fields.values());
            }
            Value::Array(items) => todo.extend(items),
            _ => {}
        }
    }
    false
}

/// Where an answer stands in its JSON.
#[derive(Clone, Debug)]
pub(super) struct UniqueKeys {
    tokens: Arc<QuoteTokens>,
    /// The objects and arrays around this place.
    frames: Vec<Frame>,
    string: Option<OpenString>,
}

#[derive(Clone, Debug)]
enum Frame {
    Array,
    Object { keys: HashSet<String>, expects_key: bool },
}

/// A string that is being written.
#[derive(Clone, Debug)]
struct OpenString {
    is_key: bool,
    bytes: Vec<u8>,
    is_escaped: bool,
}

impl UniqueKeys {
    pub fn new(tokens: Arc<QuoteTokens>) -> Self {
        Self { tokens, frames: Vec::new(), string: None }
    }

    /// More of the answer; says whether a key came twice.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let mut is_repeated = false;
        for &byte in bytes {
            is_repeated |= self.push_byte(byte);
        }
        is_repeated
    }

    fn push_byte(&mut self, byte: u8) -> bool {
        if let Some(text) = &mut self.string {
            match byte {
                _ if text.is_escaped => text.is_escaped = false,
                b'\\' => text.is_escaped = true,
                b'"' => return self.end_string(),
                _ => {}
            }
            if let Some(text) = &mut self.string {
                text.bytes.push(byte);
            }
            return false;
        }
        match byte {
            b'"' => {
                let is_key = matches!(self.frames.last(), Some(Frame::Object { expects_key: true, .. }));
                self.string = Some(OpenString { is_key, bytes: Vec::new(), is_escaped: false });
            }
            b'{' => self.frames.push(Frame::Object { keys: HashSet::new(), expects_key: true }),
            b'[' => self.frames.push(Frame::Array),
            b'}' | b']' => drop(self.frames.pop()),
            b',' | b':' => {
                if let Some(Frame::Object { expects_key, .. }) = self.frames.last_mut() {
                    *expects_key = byte == b',';
                }
            }
            _ => {}
        }
        false
    }

    fn end_string(&mut self) -> bool {
        let Some(text) = self.string.take().filter(|text| text.is_key) else { return false };
        let Some(Frame::Object { keys, .. }) = self.frames.last_mut() else { return false };
        !keys.insert(decoded(&text.bytes))
    }

    /// Takes the tokens out of a set that would end a key for the second time.
    pub fn forbid(&self, words: &mut [u32]) {
        // Without a key in this object, and outside of one, a token would have to hold two whole keys.
        let has_keys = self.frames.iter().any(|frame| matches!(frame, Frame::Object { keys, .. } if !keys.is_empty()));
        if !has_keys {
            return;
        }
        for (id, bytes) in &*self.tokens {
            let (word, bit) = (*id as usize / 32, 1 << (id % 32));
            if words.get(word).is_some_and(|word| word & bit != 0) && self.would_repeat(bytes) {
                words[word] &= !bit;
            }
        }
    }

    /// Follows a token without writing anything down: the innermost object's keys are only read.
    fn would_repeat(&self, bytes: &[u8]) -> bool {
        let mut end = 0;
        let mut probe = match (&self.string, self.frames.last()) {
            (Some(text), Some(Frame::Object { keys, .. })) if text.is_key => {
                // Up to the key's end, which is all that most tokens have.
                let mut is_escaped = text.is_escaped;
                let close = bytes.iter().position(|&byte| {
                    let is_close = byte == b'"' && !is_escaped;
                    is_escaped = byte == b'\\' && !is_escaped;
                    is_close
                });
                let Some(close) = close else { return false };
                if keys.contains(&decoded(&[&text.bytes, &bytes[..close]].concat())) {
                    return true;
                }
                end = close;
                self.clone()
            }
            _ if bytes.iter().filter(|&&byte| byte == b'"').count() < 2 => return false,
            _ => self.clone(),
        };
        let rest_has_key = bytes[end..].iter().filter(|&&byte| byte == b'"').count() >= 2;
        rest_has_key && probe.push(bytes)
    }
}

/// A string as it is meant: `\u0061` is `a`.
fn decoded(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    serde_json::from_str(&format!("\"{text}\"")).unwrap_or_else(|_| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_key_is_found_again_however_it_is_written() {
        let check = |before: &str, token: &str, expected: bool| {
            let mut keys = UniqueKeys::new(Arc::new(vec![(0, token.as_bytes().to_vec())]));
            keys.push(before.as_bytes());
            let mut words = [1];
            keys.forbid(&mut words);
            assert_eq!(words[0] == 0, expected, "`{token}` after `{before}`");
        };
        check(r#"{"a": 1, "a"#, "\"", true);
        check(r#"{"a": 1, "a"#, "\": 2", true);
        check(r#"{"a": 1, "a"#, "b\"", false);
        check(r#"{"a": 1, "b"#, "\"", false);
        check(r#"{"a": 1, "\u006"#, "1\"", true);
        check(r#"{"a": 1, "#, "\"a\":", true);
        check(r#"{"a": 1, "#, "\"c\":", false);
        check(r#"{"a": 1"#, ", \"a\"", true);
        check(r#"{"a": "a"#, "\"", false);
        check(r#"{"a": {"b": 1, "a"#, "\"", false);
        check(r#"{"a": {"b": 1}, "b"#, "\"", false);
        check(r#"{"a": {"b": 1}, "a"#, "\"", true);
        check(r#"{"a\"": 1, "a\""#, "\"", true);
        check(r#"{"a": 1, "x\"#, "\"", false);
        check(r#"[{"a": 1}, {"a"#, "\"", false);
    }

    #[test]
    fn only_schemas_that_count_need_it() {
        assert!(counts_properties(&json!({"properties": {"a": {"minProperties": 2}}})));
        assert!(!counts_properties(&json!({"minProperties": 1, "properties": {"minProperties": {}}})));
    }
}
