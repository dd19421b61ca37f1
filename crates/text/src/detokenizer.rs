//! Token ids to text, one at a time, in whole characters only.
//!
//! A token may hold part of a character, so bytes wait here until the character is complete. Bytes that can
//! never become one show as U+FFFD at once, exactly where decoding the whole answer at the end would put it.

use std::sync::Arc;

use crate::{Specials, Tokenizer};

/// The state of one answer being turned into text.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// The beginning of a character, at most three bytes between calls.
    pending: Vec<u8>,
    /// The next token's leading space is the vocabulary's, not the text's.
    drops_space: bool,
    /// Special tokens that show as their names.
    shown: Vec<u32>,
}

impl Detokenizer {
    /// For tokens that go on after a prompt: a word's leading space is part of the text.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, pending: Vec::new(), drops_space: false, shown: Vec::new() }
    }

    /// For the tokens of a whole text: the space that SentencePiece puts before it is dropped again.
    pub fn from_start(tokenizer: Arc<Tokenizer>) -> Self {
        let drops_space = tokenizer.adds_space();
        Self { tokenizer, pending: Vec::new(), drops_space, shown: Vec::new() }
    }

    /// Shows special tokens that are part of these texts by their names: the marks that
    /// [`answer::Parser`](crate::answer::Parser) looks for.
    pub fn showing(mut self, marks: &[&str]) -> Self {
        let ids = marks.iter().flat_map(|mark| self.tokenizer.encode(mark, Specials::Parse));
        self.shown = ids.filter(|&id| self.tokenizer.is_special(id)).collect();
        self
    }

    /// Adds a token and returns the text that is now whole. Special tokens, and ids the vocabulary does not
    /// have, are no text.
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.is_special(id) && !self.shown.contains(&id) {
            return String::new();
        }
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        let n_dropped = usize::from(self.drops_space && bytes.first() == Some(&b' '));
        self.drops_space &= bytes.is_empty();
        self.pending.extend_from_slice(&bytes[n_dropped..]);
        take_whole(&mut self.pending)
    }

    /// Ends the text: a character cut short shows as U+FFFD. The detokenizer is then as new.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// Removes and returns everything before an unfinished character at the end of `bytes`.
fn take_whole(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut done = 0;
    while done < bytes.len() {
        match std::str::from_utf8(&bytes[done..]) {
            Ok(valid) => {
                text.push_str(valid);
                done = bytes.len();
            }
            Err(error) => {
                let valid_end = done + error.valid_up_to();
                // The error says that these bytes are valid, so this is no lossy conversion.
                text.push_str(&String::from_utf8_lossy(&bytes[done..valid_end]));
                done = valid_end;
                match error.error_len() {
                    Some(n_bad) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        done += n_bad;
                    }
                    None => break,
                }
            }
        }
    }
    bytes.drain(..done);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(chunks: &[&[u8]], expected: &[&str], rest: &[u8]) {
        let mut bytes = Vec::new();
        for (chunk, expected) in chunks.iter().zip(expected) {
            bytes.extend_from_slice(chunk);
            assert_eq!(take_whole(&mut bytes), *expected);
        }
        assert_eq!(bytes, rest);
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        check(&[b"a\xF0", b"\x9F", b"\x98", b"\x80!"], &["a", "", "", "\u{1F600}!"], b"");
        check(&[b"\xC3"], &[""], b"\xC3");
    }

    #[test]
    fn bytes_that_cannot_become_a_character_are_replaced_at_once() {
        check(&[b"\xFFa", b"\xE2\x82", b"b"], &["\u{FFFD}a", "", "\u{FFFD}b"], b"");
        check(&[b"\x80\x80"], &["\u{FFFD}\u{FFFD}"], b"");
    }
}
