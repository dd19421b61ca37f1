//! Drafts by lookup: if the last few tokens occurred before, what followed them then may follow now. Rewritten code,
//! quotations and lists repeat a lot.
//!
//! Each sequence has an index from runs of tokens to the position after their latest occurrence. A new token costs one
//! entry per length of run, however long the context is.

use std::collections::HashMap;

use batch::{Forward, TokenId};

use crate::{
    drafter::{Draft, DraftRequest, DraftSource, Drafter},
    draw,
    sequence::SeqId,
};

/// Lengths of the runs that are indexed, longest first.
const RUNS: [usize; 3] = [12, 6, 3];
/// Nothing is known about how far a longer match would reach.
const MAX_MATCH: usize = 32;
/// Ends the client's prediction; no token is equal to it.
const END: TokenId = TokenId(u32::MAX);

/// Drafts from the sequence's own text and from the client's prediction.
#[derive(Debug, Default)]
pub struct Lookup {
    seqs: HashMap<SeqId, Index>,
}

#[derive(Debug, Default)]
struct Index {
    /// The prediction and [`END`], if there is one, then the sequence.
    tokens: Vec<TokenId>,
    /// Tokens before the sequence.
    n_before: usize,
    /// By the hash of a run: the index of the token after its latest occurrence.
    places: [HashMap<u32, u32>; RUNS.len()],
    /// The place after the latest earlier occurrence of the run that ends the text, for the longest run that has one.
    found: Option<usize>,
    copied: Option<Copied>,
}

/// The place that the text seems to be copied from.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
struct Copied {
    /// Index of the token that would come next.
    next: usize,
    /// Tokens before it that agree with the end of the text.
    n_match: usize,
}

impl Lookup {
    fn draft_one(&mut self, request: &DraftRequest) -> Draft {
        let index = self.seqs.entry(request.seq).or_insert_with(|| Index::new(request.prediction));
        index.catch_up(request);
        index.draft(request.max_len)
    }
}

impl Drafter for Lookup {
    fn draft(&mut self, requests: &[DraftRequest], _model: &mut dyn Forward) -> Vec<Draft> {
        requests.iter().map(|request| self.draft_one(request)).collect()
    }

    fn end(&mut self, seq: SeqId) {
        self.seqs.remove(&seq);
    }

    fn is_free(&self) -> bool {
        true
    }
}

impl Index {
    fn new(prediction: &[TokenId]) -> Self {
        let mut index = Self::default();
        if !prediction.is_empty() {
            prediction.iter().chain([&END]).for_each(|&token| index.push(token));
            index.n_before = index.tokens.len();
        }
        index
    }

    /// Takes in the tokens that came since the last time.
    fn catch_up(&mut self, request: &DraftRequest) {
        if self.tokens.len() == self.n_before {
            request.tokens[..request.n_prompt].iter().for_each(|&token| self.push(token));
            // The answer is expected to begin as the prediction does.
            self.copied = (self.n_before > 0).then_some(Copied { next: 0, n_match: RUNS[0] });
        }
        let n_known = self.tokens.len() - self.n_before;
        for &token in request.tokens.get(n_known..).unwrap_or_default() {
            self.follow(token);
            self.push(token);
        }
        if self.copied.is_none_or(|copied| copied.n_match < RUNS[RUNS.len() - 1]) {
            self.copied = self.find().or(self.copied);
        }
    }

    /// Where the copy goes on after `token`. If that is another token than there, one token was probably exchanged.
    fn follow(&mut self, token: TokenId) {
        self.copied = self.copied.and_then(|Copied { next, n_match }| match self.tokens[next] {
            expected if expected == token => Some(Copied { next: next + 1, n_match: n_match + 1 }),
            _ if n_match >= RUNS[RUNS.len() - 1] => Some(Copied { next: next + 1, n_match: 0 }),
            _ => None,
        });
    }

    fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        self.found = None;
        for (run, places) in RUNS.into_iter().zip(&mut self.places) {
            let Some(last) = self.tokens.len().checked_sub(run).map(|first| &self.tokens[first..]) else { continue };
            let before = places.insert(hash(last), self.tokens.len() as u32).map(|place| place as usize);
            // Hashes may collide.
            let before = before.filter(|&place| self.tokens[..place].ends_with(last));
            self.found = self.found.or(before);
        }
    }

    /// The latest place before which the longest run stands that ends the text.
    fn find(&self) -> Option<Copied> {
        let next = self.found?;
        let (there, here) = (self.tokens[..next].iter().rev(), self.tokens.iter().rev());
        let n_match = there.zip(here).take(MAX_MATCH).take_while(|(a, b)| a == b).count();
        Some(Copied { next, n_match })
    }

    /// What follows at the place that is copied. At the end of the text it goes on with what was drafted: a repetition.
    fn draft(&self, max_len: usize) -> Draft {
        let Some(Copied { next, n_match }) = self.copied else { return Draft::default() };
        let mut tokens: Vec<TokenId> = Vec::with_capacity(max_len);
        while tokens.len() < max_len {
            let at = next + tokens.len();
            let token = self.tokens.get(at).or_else(|| tokens.get(at - self.tokens.len()));
            match token {
                Some(&token) if token != END => tokens.push(token),
                _ => break,
            }
        }
        Draft { tokens, source: DraftSource::Match(n_match) }
    }
}

fn hash(tokens: &[TokenId]) -> u32 {
    tokens.iter().fold(1, |hash, token| draw::mix(hash ^ u64::from(token.0))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Sampling;

    fn ids(text: &str) -> Vec<TokenId> {
        text.bytes().map(|byte| TokenId(byte.into())).collect()
    }

    fn text(tokens: &[TokenId]) -> String {
        tokens.iter().map(|token| token.0 as u8 as char).collect()
    }

    /// What is drafted after each further piece of a text whose first piece is the prompt.
    fn drafts(prediction: &str, pieces: &[&str]) -> Vec<(String, DraftSource)> {
        let (mut lookup, sampling, prediction) = (Lookup::default(), Sampling::default(), ids(prediction));
        let (mut tokens, n_prompt) = (Vec::new(), pieces[0].len());
        let one = |piece: &&str| {
            tokens.extend(ids(piece));
            let (seq, prediction) = (SeqId(1), prediction.as_slice());
            let (tokens, sampling, max_len) = (tokens.as_slice(), &sampling, 5);
            let (blocks, window_blocks): (&[_], &[_]) = (&[], &[]);
            let request = DraftRequest { seq, tokens, n_prompt, prediction, sampling, max_len, blocks, window_blocks };
            let Draft { tokens, source } = lookup.draft_one(&request);
            (text(&tokens), source)
        };
        pieces.iter().map(one).collect()
    }

    #[test]
    fn what_followed_before_is_drafted() {
        let found = drafts("", &["a quick fox. ", "the", " quick"]);
        assert_eq!(found[0], (String::new(), DraftSource::Match(0)));
        assert_eq!(found[2], (" fox.".to_owned(), DraftSource::Match(6)));
    }

    #[test]
    fn a_longer_run_goes_before_a_later_one() {
        // `abc` stands last before X, but the six tokens before it stand before Y.
        assert_eq!(drafts("", &["123abcY--abcX--", "123abc"])[1], ("Y--ab".to_owned(), DraftSource::Match(6)));
        assert_eq!(drafts("", &["123abcY--abcX--", "99abc"])[1], ("X--99".to_owned(), DraftSource::Match(3)));
    }

    #[test]
    fn a_copy_is_followed_and_survives_one_exchanged_token() {
        let found = drafts("", &["let alpha = 1; use(alpha); ", "let", " ", "B", "lp", "X", "Y"]);
        assert_eq!(found[1], (" alph".to_owned(), DraftSource::Match(3)));
        assert_eq!(found[2], ("alpha".to_owned(), DraftSource::Match(4)));
        assert_eq!(found[3], ("lpha ".to_owned(), DraftSource::Match(0)), "B instead of a");
        assert_eq!(found[4].0, "ha = ");
        assert_eq!(found[6].0, "", "two in a row are the end of it");
    }

    #[test]
    fn a_repetition_goes_on_beyond_the_end() {
        assert_eq!(drafts("", &["x", "abcabc"])[1].0, "abcab");
        assert_eq!(drafts("", &["x", "----"])[1].0, "-----");
    }

    #[test]
    fn a_prediction_is_where_the_answer_begins() {
        let found = drafts("fn main() {}", &["Rewrite it.", "fn", " start", "() {}"]);
        assert_eq!(found[0].0, "fn ma");
        assert_eq!(found[1].0, " main");
        assert_eq!(found[3].0, "", "nothing follows the prediction");
    }
}
