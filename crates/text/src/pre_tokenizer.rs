//! Cuts text into the words inside which merges may happen, as `tokenizer.ggml.pre` names it.
//!
//! A family is a row of [`FAMILIES`]: names, regular expressions applied one after the other (each cuts what
//! the one before left), and the two habits that go with the name. The published expressions end in
//! `\s+(?!\S)|\s+`; a look-ahead needs a backtracking engine, which gives up on long runs, so the rows end in
//! `\s+` and [`Rule::Lookahead`] says what the look-ahead would have done. No Unicode normalisation is done.

use regex::Regex;

use crate::{Error, Result};

/// How a match of a row's expression becomes a word.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Rule {
    /// A match is a word.
    Plain,
    /// A match made by the last branch, `\s+`, that stops before text gives its last character back to it.
    /// A match that ends in a line break comes from that branch only if no earlier branch takes line breaks.
    Lookahead { has_newline_branch: bool },
}

struct Family {
    names: &'static [&'static str],
    cuts: &'static [(&'static str, Rule)],
    /// A word that is a token by itself is taken whole, whatever the merges say.
    ignores_merges: bool,
    /// Whether texts begin with BOS when the file does not say.
    adds_bos: bool,
}

const GPT2: (&str, Rule) = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+",
    Rule::Lookahead { has_newline_branch: false },
);
const WITH_NEWLINES: Rule = Rule::Lookahead { has_newline_branch: true };

const FAMILIES: &[Family] = &[
    Family {
        names: &["llama-bpe", "llama3", "llama-v3"],
        cuts: &[(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
            WITH_NEWLINES,
        )],
        ignores_merges: true,
        adds_bos: true,
    },
    Family {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2"],
        cuts: &[(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
            WITH_NEWLINES,
        )],
        ignores_merges: false,
        adds_bos: false,
    },
    Family {
        names: &["qwen35"],
        cuts: &[(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
            WITH_NEWLINES,
        )],
        ignores_merges: false,
        adds_bos: false,
    },
    Family {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell"],
        cuts: &[(r"\p{N}", Rule::Plain), GPT2],
        ignores_merges: false,
        adds_bos: false,
    },
    Family { names: &["gpt-2", "mpt", "olmo", "phi-2"], cuts: &[GPT2], ignores_merges: false, adds_bos: false },
    Family {
        names: &["falcon"],
        cuts: &[(r"[\p{P}\$\+<=>\^~\|`]+", Rule::Plain), GPT2, (r"[0-9][0-9][0-9]", Rule::Plain)],
        ignores_merges: false,
        adds_bos: false,
    },
    Family {
        names: &["default"],
        cuts: &[
            (r"[\p{P}\$\+<=>\^~\|]+", Rule::Plain),
            GPT2,
            (r"\p{N}+", Rule::Plain),
            (r"[0-9][0-9][0-9]", Rule::Plain),
        ],
        ignores_merges: false,
        adds_bos: false,
    },
];

fn family(pre: &str) -> Option<&'static Family> {
    let pre = if pre.is_empty() { "default" } else { pre };
    FAMILIES.iter().find(|family| family.names.contains(&pre))
}

/// Whether texts begin with BOS where the file has no `tokenizer.ggml.add_bos_token`.
pub fn adds_bos_by_default(pre: &str) -> bool {
    family(pre).is_some_and(|family| family.adds_bos)
}

/// The compiled expressions of one family.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    cuts: Vec<(Regex, Rule)>,
    ignores_merges: bool,
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
        Ok(Self { cuts, ignores_merges: family.ignores_merges })
    }

    pub(crate) fn ignores_merges(&self) -> bool {
        self.ignores_merges
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
fn cut<'a>(text: &'a str, regex: &Regex, rule: Rule, out: &mut Vec<&'a str>) {
    let mut done = 0;
    while done < text.len() {
        let Some(found) = regex.find_at(text, done) else { break };
        let end = match rule {
            Rule::Plain => found.end(),
            Rule::Lookahead { has_newline_branch } => {
                found.end() - given_back(found.as_str(), found.end() == text.len(), has_newline_branch)
            }
        };
        if found.start() > done {
            out.push(&text[done..found.start()]);
        }
        out.push(&text[found.start()..end]);
        done = end;
    }
    if done < text.len() {
        out.push(&text[done..]);
    }
}

/// How many bytes at the end of a match `\s+(?!\S)` would have left: the last space of a run of two or more
/// that stands before text.
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
    fn a_million_spaces_are_one_word() {
        let text = format!("{}x", " ".repeat(1_000_000));
        let words = PreTokenizer::new("qwen2").unwrap().split(&text);
        assert_eq!(words.iter().map(|word| word.len()).collect::<Vec<_>>(), [999_999, 2]);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = PreTokenizer::new("nope").unwrap_err().to_string();
        assert!(message.contains("`nope`") && message.contains("smollm"), "{message}");
    }
}
