//! Repetition, presence and frequency penalties over the latest tokens. They are recounted from the tokens for each
//! choice, so there is no state to carry when a sequence moves; the counts are in one dense array that is reused.

use batch::TokenId;

use crate::protocol::Sampling;

/// Changes the logits of the tokens in the window. `counts` is all zero before and after, one entry per token.
pub fn apply(sampling: &Sampling, tokens: &[TokenId], logits: &mut [f32], counts: &mut [u32]) {
    let window = &tokens[tokens.len().saturating_sub(sampling.penalty_window)..];
    for token in window {
        counts[token.0 as usize] += 1;
    }
    for token in window {
        let count = std::mem::take(&mut counts[token.0 as usize]);
        if count == 0 {
            continue;
        }
        apply_one(sampling, count, &mut logits[token.0 as usize]);
    }
}

/// Changes the logit of a token that occurs `count` times in the window.
pub fn apply_one(sampling: &Sampling, count: u32, logit: &mut f32) {
    // Dividing a negative logit would make the token more likely.
    *logit = if *logit > 0.0 { *logit / sampling.repetition_penalty } else { *logit * sampling.repetition_penalty };
    *logit -= count as f32 * sampling.frequency_penalty + sampling.presence_penalty;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_penalty_does_what_its_name_says() {
        let sampling = Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            penalty_window: 4,
            ..Sampling::default()
        };
        assert!(sampling.has_penalties());
        // Token 3 lies before the window.
        let tokens = [3, 0, 1, 1, 0].map(TokenId);
        let mut logits = [4.0, -1.0, 5.0, 6.0];
        let mut counts = [0; 4];
        apply(&sampling, &tokens, &mut logits, &mut counts);
        assert_eq!(logits, [4.0 / 2.0 - 1.25, -2.0 - 1.25, 5.0, 6.0]);
        assert_eq!(counts, [0; 4]);
    }

    #[test]
    fn a_window_larger_than_the_sequence_takes_it_all() {
        let sampling = Sampling { presence_penalty: 1.0, penalty_window: usize::MAX, ..Sampling::default() };
        let mut logits = [0.0; 3];
        apply(&sampling, &[TokenId(2)], &mut logits, &mut [0; 3]);
        assert_eq!(logits, [0.0, 0.0, -1.0]);
        assert!(!Sampling { penalty_window: 0, ..sampling }.has_penalties());
    }
}
