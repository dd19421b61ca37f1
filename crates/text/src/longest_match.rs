//! RWKV's tokenizer: at each place the longest token that fits, over bytes. The file writes bytes that are no text
//! with escapes (`\n`, `\x0f`).

use ahash::AHashMap;

use crate::prefixes::Prefixes;
use crate::tokenizer::EncodeText;

pub(crate) struct LongestMatch {
    ids: AHashMap<String, u32>,
    prefixes: Prefixes,
    unk: Option<u32>,
}

impl LongestMatch {
    pub(crate) fn new(tokens: &[String], ids: AHashMap<String, u32>, unk: Option<u32>) -> Self {
        let prefixes = Prefixes::new((0..).zip(tokens).map(|(id, text)| (unescape(text), id)));
        Self { ids, prefixes, unk }
    }
}

impl EncodeText for LongestMatch {
    fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (n_bytes, id) = match self.prefixes.of(rest).last() {
                Some((n_bytes, id)) => (n_bytes, Some(id)),
                None => (1, self.unk),
            };
            out.extend(id);
            rest = &rest[n_bytes..];
        }
    }

    fn token_id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}

/// The bytes of a token's text: `\t`, `\n`, `\r`, `\xHH`, and `\` before any other character for itself.
pub(crate) fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c != '\\' {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let Some(escaped) = rest.chars().next() else { break };
        rest = &rest[escaped.len_utf8()..];
        let hex = rest.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (escaped, hex) {
            ('t', _) => out.push(b'\t'),
            ('n', _) => out.push(b'\n'),
            ('r', _) => out.push(b'\r'),
            ('x', Some(byte)) => {
                out.push(byte);
                rest = &rest[2..];
            }
            (other, _) => out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_bytes() {
        assert_eq!(unescape(r"\x00a\n\\\'é\xff"), b"\x00a\n\\'\xc3\xa9\xff");
        assert_eq!(unescape(r"\"), b"");
        assert_eq!(unescape(r"\xzz"), b"xzz");
    }

    #[test]
    fn the_longest_token_wins() {
        let tokens = ["<s>", "a", "ab", "abc", r"\xc3", r"\n"].map(String::from);
        let ids = (0..).zip(&tokens).map(|(id, text)| (text.clone(), id)).collect();
        let tokenizer = LongestMatch::new(&tokens, ids, Some(0));
        let mut out = Vec::new();
        tokenizer.encode("abcaba\né", &mut out);
        assert_eq!(out, [3, 2, 1, 5, 4, 0]);
    }
}
