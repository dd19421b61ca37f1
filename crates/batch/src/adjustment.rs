//! What a request does to its own row of logits before a token is chosen (bias, bans, mask, penalties), as plain data
//! for a model that chooses by itself; and the reference implementation of it.

use crate::TokenId;

/// Applied in the order of the fields. A token is in each list at most once.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Adjustment {
    /// Added to logits; negative infinity forbids a token.
    pub bias: Vec<(TokenId, f32)>,
    /// The tokens that may be chosen: bit `i % 32` of word `i / 32`. `None` allows all.
    pub allowed: Option<Vec<u32>>,
    /// Penalties for tokens that have occurred.
    pub penalties: Option<Penalties>,
}

/// Repetition divides positive and multiplies negative logits; presence is subtracted once, frequency per occurrence.
#[derive(Clone, PartialEq, Debug)]
pub struct Penalties {
    /// The factor; 1 changes nothing.
    pub repetition: f32,
    /// Subtracted from every token that has occurred.
    pub presence: f32,
    /// Subtracted per occurrence.
    pub frequency: f32,
    /// How often each token occurs.
    pub counts: Vec<(TokenId, u32)>,
    /// The row's own token is counted too: it was not known when the batch was made.
    pub counts_own: bool,
}

impl Adjustment {
    /// Entries of bias that a model takes for one row.
    pub const MAX_BIAS: usize = 512;
    /// Entries of counts that a model takes for one row.
    pub const MAX_COUNTS: usize = 1024;
    /// Rows of one step that may be adjusted.
    pub const MAX_ROWS: usize = 512;

    /// What a model does with the logits of a row whose token is `own`.
    pub fn apply(&self, logits: &mut [f32], own: TokenId) {
        for &(token, bias) in &self.bias {
            logits[token.0 as usize] += bias;
        }
        if let Some(allowed) = &self.allowed {
            for (i, logit) in logits.iter_mut().enumerate() {
                if allowed[i / 32] & 1 << (i % 32) == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let Some(Penalties { repetition, presence, frequency, counts, counts_own }) = &self.penalties else { return };
        let mut penalize = |token: TokenId, count: u32| {
            let logit = &mut logits[token.0 as usize];
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            *logit -= count as f32 * frequency + presence;
        };
        let own = counts_own.then_some(own);
        for &(token, count) in counts {
            penalize(token, count + u32::from(own == Some(token)));
        }
        if let Some(own) = own.filter(|own| counts.iter().all(|(token, _)| token != own)) {
            penalize(own, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_own_token_counts_once_more_or_for_the_first_time() {
        let penalties = Penalties {
            repetition: 2.0,
            presence: 0.25,
            frequency: 0.5,
            counts: vec![(TokenId(0), 1)],
            counts_own: true,
        };
        let adjustment = Adjustment { penalties: Some(penalties), ..Adjustment::default() };
        for (own, expected) in [(0, [2.0 - 1.25, -1.0]), (1, [2.0 - 0.75, -2.75])] {
            let mut logits = [4.0, -1.0];
            adjustment.apply(&mut logits, TokenId(own));
            assert_eq!(logits, expected);
        }
    }

    #[test]
    fn bias_comes_before_the_mask() {
        let adjustment = Adjustment {
            bias: vec![(TokenId(0), 5.0), (TokenId(1), f32::NEG_INFINITY)],
            allowed: Some(vec![0b110]),
            ..Adjustment::default()
        };
        let mut logits = [1.0, 2.0, 3.0];
        adjustment.apply(&mut logits, TokenId(0));
        assert_eq!(logits, [f32::NEG_INFINITY, f32::NEG_INFINITY, 3.0]);
    }
}
