//! SentencePiece's BPE as `llama` vocabularies hold it: no list of merges, but a score for each token.
//!
//! Of all neighbours whose joined text is a token, the pair with the best score is joined first, the leftmost of
//! equals; what has no token at the end is spelt in byte tokens. `tokenizers` would need the merges, which take
//! seconds to reconstruct from a large vocabulary; this is the algorithm those merges describe.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use ahash::AHashMap;

use crate::tokenizer::EncodeText;
use crate::vocab::TokenKind;

/// Written for a space in the vocabularies of SentencePiece.
pub(crate) const SPACE: &str = "▁";

pub(crate) struct SentencePiece {
    ids: AHashMap<String, u32>,
    scores: Vec<f32>,
    kinds: Vec<TokenKind>,
    bytes: ByteTokens,
    unk: Option<u32>,
}

/// The token of each byte, `<0x00>` to `<0xFF>`, where the vocabulary has them.
pub(crate) struct ByteTokens([Option<u32>; 256]);

impl ByteTokens {
    pub(crate) fn new(ids: &AHashMap<String, u32>) -> Self {
        Self(std::array::from_fn(|byte| ids.get(&format!("<0x{byte:02X}>")).copied()))
    }

    /// Spells `text` byte by byte, with `unk` for a byte that has no token.
    pub(crate) fn spell(&self, text: &str, unk: Option<u32>, out: &mut Vec<u32>) {
        out.extend(text.bytes().filter_map(|byte| self.0[byte as usize].or(unk)));
    }
}

/// The byte a token written `<0xF0>` stands for.
pub(crate) fn parse_byte(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// A stretch of the text between its neighbours; empty once it was joined to the one before.
struct Symbol {
    start: usize,
    end: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours whose joined text is a token.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    n_bytes: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl SentencePiece {
    pub(crate) fn new(ids: AHashMap<String, u32>, scores: Vec<f32>, kinds: &[TokenKind], unk: Option<u32>) -> Self {
        let bytes = ByteTokens::new(&ids);
        Self { ids, scores, kinds: kinds.to_vec(), bytes, unk }
    }

    /// The token with this text, if text may become it.
    fn token(&self, text: &str) -> Option<u32> {
        let id = *self.ids.get(text)?;
        (self.kinds[id as usize] != TokenKind::Control).then_some(id)
    }

    fn pair(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Pair> {
        let joined = &text[symbols[left].start..symbols[right].end];
        let id = self.token(joined)?;
        let score = self.scores.get(id as usize).copied().unwrap_or(0.0);
        Some(Pair { score, left, right, n_bytes: joined.len() })
    }
}

impl EncodeText for SentencePiece {
    fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let text = text.replace(' ', SPACE);
        let n_chars = text.chars().count();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(idx, (start, c))| Symbol {
                start,
                end: start + c.len_utf8(),
                prev: idx.checked_sub(1),
                next: Some(idx + 1).filter(|&next| next < n_chars),
            })
            .collect();
        let mut queue: BinaryHeap<Pair> =
            (1..symbols.len()).filter_map(|right| self.pair(&text, &symbols, right - 1, right)).collect();
        while let Some(Pair { left, right, n_bytes, .. }) = queue.pop() {
            let is_stale = |symbol: &Symbol| symbol.start == symbol.end;
            if is_stale(&symbols[left])
                || is_stale(&symbols[right])
                || symbols[right].end - symbols[left].start != n_bytes
                || symbols[left].next != Some(right)
            {
                continue;
            }
            let next = symbols[right].next;
            symbols[left].end = symbols[right].end;
            symbols[right].start = symbols[right].end;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].prev = Some(left);
                queue.extend(self.pair(&text, &symbols, left, next));
            }
            if let Some(prev) = symbols[left].prev {
                queue.extend(self.pair(&text, &symbols, prev, left));
            }
        }
        let mut at = (!symbols.is_empty()).then_some(0);
        while let Some(symbol) = at.map(|idx| &symbols[idx]) {
            let piece = &text[symbol.start..symbol.end];
            match self.token(piece) {
                Some(id) => out.push(id),
                None => self.bytes.spell(piece, self.unk, out),
            }
            at = symbol.next;
        }
    }

    fn token_id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}
