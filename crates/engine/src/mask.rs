//! Which tokens may come next. The engine only asks; grammars and schemas belong to the text side, and whoever starts
//! the engine passes in a factory. A mask never crosses a process boundary: it is rebuilt from the request's constraint
//! and the tokens generated so far.

use std::time::Duration;

use batch::TokenId;

/// The state of one request's constraint.
pub trait Mask: Send {
    /// Writes the tokens that may come next into `allowed`, which comes in empty.
    fn allowed(&mut self, allowed: &mut TokenSet) -> Result<(), String>;

    /// Waits until [`allowed`](Self::allowed) would not, but no longer than this; says whether it is so.
    fn is_ready_within(&mut self, _limit: Duration) -> bool {
        true
    }

    /// `token` was generated.
    fn accept(&mut self, token: TokenId) -> Result<(), String>;
}

pub trait MaskFactory: Send {
    /// A mask that has accepted nothing yet. `constraint` is [`Submit::constraint`](crate::Submit::constraint).
    fn build(&mut self, constraint: &str, n_vocab: usize) -> Result<Box<dyn Mask>, String>;
}

/// A set of token ids below `n_vocab`, one bit each.
#[derive(Clone, Debug)]
pub struct TokenSet {
    words: Vec<u32>,
    n_vocab: usize,
}

impl TokenSet {
    pub fn new(n_vocab: usize) -> Self {
        Self { words: vec![0; n_vocab.div_ceil(32)], n_vocab }
    }

    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Tokens outside the vocabulary are left out.
    pub fn insert(&mut self, token: TokenId) {
        if (token.0 as usize) < self.n_vocab {
            self.words[token.0 as usize / 32] |= 1 << (token.0 % 32);
        }
    }

    pub fn remove(&mut self, token: TokenId) {
        if (token.0 as usize) < self.n_vocab {
            self.words[token.0 as usize / 32] &= !(1 << (token.0 % 32));
        }
    }

    /// Takes in every token.
    pub fn fill(&mut self) {
        self.words.fill(u32::MAX);
        self.cut();
    }

    pub fn contains(&self, token: TokenId) -> bool {
        (token.0 as usize) < self.n_vocab && self.words[token.0 as usize / 32] & (1 << (token.0 % 32)) != 0
    }

    /// Takes over a bit set with token `i` in bit `i % 32` of word `i / 32`; missing words are empty.
    pub fn set_words(&mut self, words: &[u32]) {
        self.clear();
        let n = words.len().min(self.words.len());
        self.words[..n].copy_from_slice(&words[..n]);
        self.cut();
    }

    /// Clears the bits beyond the vocabulary.
    fn cut(&mut self) {
        if !self.n_vocab.is_multiple_of(32)
            && let Some(last) = self.words.last_mut()
        {
            *last &= (1 << (self.n_vocab % 32)) - 1;
        }
    }

    /// The set as bits, token `i` in bit `i % 32` of word `i / 32`.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Leaves only what is in `other` too.
    pub fn intersect(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
    }

    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Sets the logits of all other tokens to negative infinity.
    pub fn forbid_others(&self, logits: &mut [f32]) {
        for (logits, &word) in logits.chunks_mut(32).zip(&self.words) {
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    for (i, logit) in logits.iter_mut().enumerate() {
                        if word & (1 << i) == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_survive() {
        let mut set = TokenSet::new(70);
        for token in [0, 31, 32, 69, 70, 1000] {
            set.insert(TokenId(token));
        }
        assert_eq!(set.len(), 4);
        let mut logits = vec![1.0; 70];
        set.forbid_others(&mut logits);
        for (i, logit) in logits.iter().enumerate() {
            assert_eq!(logit.is_finite(), set.contains(TokenId(i as u32)), "token {i}");
        }
        assert!(!set.contains(TokenId(70)));
    }

    #[test]
    fn foreign_words_are_cut_to_the_vocabulary() {
        let mut set = TokenSet::new(33);
        set.set_words(&[1, u32::MAX, u32::MAX]);
        assert_eq!(set.len(), 2);
        set.set_words(&[]);
        assert!(set.is_empty());
        set.fill();
        assert_eq!(set.len(), 33);
        set.remove(TokenId(32));
        set.remove(TokenId(99));
        assert_eq!((set.len(), set.contains(TokenId(32))), (32, false));
        let mut other = TokenSet::new(33);
        other.set_words(&[6, 1]);
        set.intersect(&other);
        assert_eq!(set.words(), [6, 0]);
    }
}
