//! Cuts text into the words inside which merges may happen, as `tokenizer.ggml.pre` names it.
//!
//! A family is a row of [`FAMILIES`](crate::families): names, regular expressions applied one after the other
//! (each cuts what the one before left), and the habits that go with the name. The published expressions end in
//! `\s+(?!\S)|\s+`; a look-ahead needs a backtracking engine, which gives up on long runs, so the rows end in
//! `\s+` and [`Rule`] says what the look-ahead would have done. No Unicode normalisation is done.

use regex::Regex;

use crate::families::{FAMILIES, PreTokenizerFamily, family};
use crate::{Error, Result};

/// How a match of a row's expression becomes a word.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum WordRule {
    /// A match is a word.
    Plain,
    /// A match made by the last branch, `\s+`, that stops before text gives its last character back to it.
    /// A match that ends in a line break comes from that branch only if no earlier branch takes line breaks.
    Lookahead { has_newline_branch: bool },
    /// As `Lookahead` with a newline branch, and a run of white space is then cut into powers of two, at most 512.
    SpacesByPowers,
    /// A match is a run of digits, cut into threes from its end.
    ThreesFromEnd,
}

/// The compiled expressions of one family.
pub(crate) struct PreTokenizer {
    cuts: Vec<(Regex, WordRule)>,
    family: &'static PreTokenizerFamily,
}

impl PreTokenizer {
    pub(crate) fn new(pre: &str) -> Result<Self> {
        let family = family(pre).ok_or_else(|| {
            let supported: Vec<&str> = FAMILIES.iter().flat_map(|family| family.names).copied().collect();
            Error::UnknownPreTokenizer { pre: pre.to_owned(), supported: supported.join(", ") }
        })?;
        let cuts = family
            .cuts
            .iter()
            .map(|&(pattern, rule)| Regex::new(pattern).map(|regex| (regex, rule)))
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| Error::Build(error.to_string()))?;
        Ok(Self { cuts, family })
    }

    pub(crate) fn family(&self) -> &'static PreTokenizerFamily {
        self.family
    }

    /// The words of `text` in order; together they are the whole of it.
    pub(crate) fn split<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut words = vec![text];
        for (regex, rule) in &self.cuts {
            let mut finer = Vec::with_capacity(words.len() * 2);
            for word in words {
                cut(word, regex, *rule, &mut finer);
            }
            words = finer;
        }
        words
    }
}

/// Appends the matches of `regex` in `text`, and the gaps between them, to `out`.
fn cut<'a>(text: &'a str, regex: &Regex, rule: WordRule, out: &mut Vec<&'a str>) {
    let mut done = 0;
    while done < text.len() {
        let Some(found) = regex.find_at(text, done).filter(|found| !found.is_empty()) else { break };
        let is_at_end = found.end() == text.len();
        let n_back = match rule {
            WordRule::Plain | WordRule::ThreesFromEnd => 0,
            WordRule::Lookahead { has_newline_branch } => given_back(found.as_str(), is_at_end, has_newline_branch),
            WordRule::SpacesByPowers => given_back(found.as_str(), is_at_end, true),
        };
        let end = found.end() - n_back;
        if found.start() > done {
            out.push(&text[done..found.start()]);
        }
        let word = &text[found.start()..end];
        match rule {
            WordRule::ThreesFromEnd => cut_threes(word, out),
            WordRule::SpacesByPowers if word.chars().all(|c| c.is_whitespace() && !matches!(c, '\r' | '\n')) => {
                cut_powers(word, out);
            }
            _ => out.push(word),
        }
        done = end;
    }
    if done < text.len() {
        out.push(&text[done..]);
    }
}

/// Cuts a word after its first `n % 3` characters and then after every third.
fn cut_threes<'a>(word: &'a str, out: &mut Vec<&'a str>) {
    let n_chars = word.chars().count();
    let mut start = 0;
    for (char_idx, (at, _)) in word.char_indices().enumerate().skip(1) {
        if (n_chars - char_idx).is_multiple_of(3) {
            out.push(&word[start..at]);
            start = at;
        }
    }
    out.push(&word[start..]);
}

/// Cuts a run into pieces of 512, 256, ... 2, 1 characters, as many of the larger ones as fit.
fn cut_powers<'a>(word: &'a str, out: &mut Vec<&'a str>) {
    let mut rest = word;
    let mut n_left = word.chars().count();
    while n_left > 0 {
        let n_piece = (1usize << n_left.ilog2()).min(512);
        let end = rest.char_indices().nth(n_piece).map_or(rest.len(), |(at, _)| at);
        out.push(&rest[..end]);
        rest = &rest[end..];
        n_left -= n_piece;
    }
}

/// How many bytes at the end of a match `\s+(?!\S)` would have left: the last space of a run of two or more
/// that precedes text.
fn given_back(found: &str, is_at_end: bool, has_newline_branch: bool) -> usize {
    let mut chars = found.chars();
    let Some(last) = chars.next_back() else { return 0 };
    // Only `\s+` and the newline branches can end a match in white space.
    let is_run = last.is_whitespace() && !(has_newline_branch && matches!(last, '\r' | '\n'));
    if is_at_end || !is_run || chars.as_str().is_empty() { 0 } else { last.len_utf8() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pre: &str, text: &str, words: &[&str]) {
        assert_eq!(PreTokenizer::new(pre).unwrap().split(text), words, "{pre}: {text:?}");
    }

    #[test]
    fn a_run_of_spaces_leaves_one_for_the_word() {
        check("gpt-2", "a   b", &["a", "  ", " b"]);
        check("gpt-2", "a \n b", &["a", " \n", " b"]);
        check("gpt-2", "a\n\nb", &["a", "\n", "\n", "b"]);
        check("gpt-2", "a   ", &["a", "   "]);
        check("llama-bpe", "a \n\n  b", &["a", " \n\n", " ", " b"]);
        check("llama-bpe", "a\u{3000}\u{3000}b", &["a", "\u{3000}", "\u{3000}b"]);
    }

    #[test]
    fn digits_by_family() {
        check("smollm", "x 1234", &["x", " ", "1", "2", "3", "4"]);
        check("qwen2", "x 1234", &["x", " ", "1", "2", "3", "4"]);
        check("llama-bpe", "x 1234", &["x", " ", "123", "4"]);
        check("gpt-2", "x 1234", &["x", " 1234"]);
    }

    #[test]
    fn digits_in_threes_from_the_end() {
        check("superbpe", "1234567", &["1", "234", "567"]);
        check("superbpe", "123", &["123"]);
        check("afmoe", "a12345", &["a", "12", "345"]);
        check("tiny_aya", "x 1234", &["x", " ", "1", "234"]);
        // No word ends after these digits, so the general expression cuts them.
        check("tiny_aya", "1234a", &["123", "4", "a"]);
    }

    #[test]
    fn runs_of_spaces_in_powers_of_two() {
        let lengths = |text: &str| -> Vec<usize> {
            PreTokenizer::new("jais-2").unwrap().split(text).iter().map(|word| word.len()).collect()
        };
        assert_eq!(lengths(&format!("a{}", " ".repeat(7))), [1, 4, 2, 1]);
        assert_eq!(lengths(&format!("a{}b", " ".repeat(8))), [1, 4, 2, 1, 2]);
        assert_eq!(lengths(&" ".repeat(1100)), [512, 512, 64, 8, 4]);
    }

    #[test]
    fn a_million_spaces_are_one_word() {
        let text = format!("{}x", " ".repeat(1_000_000));
        let words = PreTokenizer::new("qwen2").unwrap().split(&text);
        assert_eq!(words.iter().map(|word| word.len()).collect::<Vec<_>>(), [999_999, 2]);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = PreTokenizer::new("nope").err().unwrap().to_string();
        assert!(message.contains("`nope`") && message.contains("smollm"), "{message}");
    }
}
