//! WordPiece, as in `bert` vocabularies: words by BERT's rules, each cut into the longest tokens from its beginning.
//!
//! The rules (clean-up, lower case, accents, punctuation) are those of `tokenizers`. GGUF writes the beginning of a
//! word as `▁` and its continuation bare, where the original has `##`: the longest match is then over `▁word`.

use ahash::AHashMap;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    NormalizedString, Normalizer as _, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _,
};

use crate::sentence_piece::SPACE;
use crate::tokenizer::EncodeText;

pub(crate) struct WordPiece {
    ids: AHashMap<String, u32>,
    n_longest: usize,
    normalizer: BertNormalizer,
    unk: Option<u32>,
}

impl WordPiece {
    pub(crate) fn new(ids: AHashMap<String, u32>, lowercase: bool, unk: Option<u32>) -> Self {
        let n_longest = ids.keys().map(String::len).max().unwrap_or(0);
        let normalizer = BertNormalizer::new(true, true, None, lowercase);
        Self { ids, n_longest, normalizer, unk }
    }

    /// The tokens of `▁word`, or `None` if some part of it has none.
    fn cut(&self, word: &str, out: &mut Vec<u32>) -> Option<()> {
        let mut rest = word;
        while !rest.is_empty() {
            let longest = rest.len().min(self.n_longest);
            let (n_bytes, id) = (1..=longest)
                .rev()
                .filter(|&n| rest.is_char_boundary(n))
                .find_map(|n| self.ids.get(&rest[..n]).map(|&id| (n, id)))?;
            out.push(id);
            rest = &rest[n_bytes..];
        }
        Some(())
    }
}

impl EncodeText for WordPiece {
    fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut normalized = NormalizedString::from(text);
        // Neither step can fail: they look at one character at a time.
        if self.normalizer.normalize(&mut normalized).is_err() {
            return;
        }
        let mut words = PreTokenizedString::from(normalized);
        if BertPreTokenizer.pre_tokenize(&mut words).is_err() {
            return;
        }
        for (word, ..) in words.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            let first = out.len();
            if self.cut(&format!("{SPACE}{word}"), out).is_none() {
                out.truncate(first);
                out.extend(self.unk);
            }
        }
    }

    fn token_id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}
