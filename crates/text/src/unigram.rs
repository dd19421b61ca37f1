//! Unigram, as in `t5` vocabularies (T5, XLM-RoBERTa): of all ways to cut a text into tokens, the one with the
//! highest sum of scores.
//!
//! Written here rather than taken from `tokenizers` because control tokens must not be read from text, and because
//! the normaliser there works by grapheme where SentencePiece takes the longest entry of its table.

use ahash::AHashMap;

use crate::charsmap::CharsMap;
use crate::prefixes::Prefixes;
use crate::sentence_piece::SPACE;
use crate::tokenizer::EncodeText;
use crate::vocab::TokenKind;
use crate::{Result, Vocab};

/// How much worse than the worst token a character without one is.
const UNKNOWN_PENALTY: f64 = 10.0;

pub(crate) struct Unigram {
    ids: AHashMap<String, u32>,
    prefixes: Prefixes,
    scores: Vec<f64>,
    unk: Option<u32>,
    unk_score: f64,
    charsmap: Option<CharsMap>,
    adds_space: bool,
    merges_spaces: bool,
}

/// The best way to cut the text up to some byte.
#[derive(Copy, Clone)]
struct BestPrefix {
    score: f64,
    start: usize,
    token: Option<u32>,
}

impl Unigram {
    pub(crate) fn new(
        vocab: &Vocab,
        ids: AHashMap<String, u32>,
        kinds: &[TokenKind],
        adds_space: bool,
    ) -> Result<Self> {
        let score = |id: usize| f64::from(vocab.scores.get(id).copied().unwrap_or(0.0));
        let is_text = |id: usize| matches!(kinds[id], TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused);
        let texts = vocab.tokens.iter().enumerate().filter(|&(id, _)| is_text(id));
        let prefixes = Prefixes::new(texts.map(|(id, text)| (text.clone().into_bytes(), id as u32)));
        let normal = (0..kinds.len()).filter(|&id| kinds[id] == TokenKind::Normal);
        let min = normal.map(score).fold(f64::INFINITY, f64::min);
        // Written out, a user-defined token is always taken.
        let scores =
            (0..kinds.len()).map(|id| if kinds[id] == TokenKind::UserDefined { 0.0 } else { score(id) }).collect();
        let charsmap = match vocab.precompiled_charsmap.as_slice() {
            [] => None,
            table => Some(CharsMap::new(table)?),
        };
        Ok(Self {
            ids,
            prefixes,
            scores,
            unk: vocab.unk,
            unk_score: if min.is_finite() { min } else { 0.0 } - UNKNOWN_PENALTY,
            charsmap,
            adds_space,
            merges_spaces: vocab.remove_extra_whitespaces,
        })
    }

    fn normalize(&self, text: &str) -> String {
        let mapped = match &self.charsmap {
            Some(charsmap) => charsmap.apply(text),
            None => text.to_owned(),
        };
        let mut out = String::with_capacity(mapped.len() + SPACE.len());
        let (mut in_word, mut has_prefix) = (false, false);
        for c in mapped.chars() {
            if c != ' ' {
                if !in_word && (self.merges_spaces || (self.adds_space && !has_prefix)) {
                    out.push_str(SPACE);
                    has_prefix = true;
                }
                out.push(c);
            } else if !self.merges_spaces {
                out.push_str(SPACE);
            }
            in_word = c != ' ';
        }
        out
    }
}

impl EncodeText for Unigram {
    fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let text = self.normalize(text);
        let none = BestPrefix { score: f64::NEG_INFINITY, start: 0, token: None };
        let mut best = vec![none; text.len() + 1];
        best[0].score = 0.0;
        for (start, c) in text.char_indices() {
            let so_far = best[start].score;
            let mut offer = |end: usize, score: f64, token: Option<u32>| {
                if score > best[end].score {
                    best[end] = BestPrefix { score, start, token };
                }
            };
            let mut has_char = false;
            for (n_bytes, id) in self.prefixes.of(&text.as_bytes()[start..]) {
                has_char |= n_bytes == c.len_utf8();
                offer(start + n_bytes, so_far + self.scores[id as usize], Some(id));
            }
            if !has_char {
                offer(start + c.len_utf8(), so_far + self.unk_score, None);
            }
        }
        let first = out.len();
        let (mut end, mut was_unknown) = (text.len(), false);
        while end > 0 {
            let BestPrefix { start, token, .. } = best[end];
            // A run of unknown characters is one unknown token.
            match token {
                Some(id) => out.push(id),
                None if !was_unknown => out.extend(self.unk),
                None => {}
            }
            was_unknown = token.is_none();
            end = start;
        }
        out[first..].reverse();
    }

    fn token_id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}
