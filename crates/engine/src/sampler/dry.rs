//! DRY: a token that would lengthen a repetition is penalised by `multiplier * base ^ (length - allowed_length)`.
//!
//! The length is that of the longest stretch at the end of the text that occurred before and was then followed by the
//! token. It is found for all tokens at once by the Z function of the text read backwards: z[i] says for how many
//! tokens the text ending i tokens ago agrees with the text ending now.

use batch::TokenId;

use super::select::Candidate;
use crate::sampling::Dry;

/// Larger than any logit, and far from infinity.
const MAX_PENALTY: f64 = 1e9;

pub fn apply(candidates: &mut [Candidate], dry: &Dry, tokens: &[TokenId]) {
    let lengths = repetitions(dry, tokens);
    for candidate in candidates.iter_mut() {
        let Ok(at) = lengths.binary_search_by_key(&candidate.token, |&(token, _)| token) else { continue };
        let n_over = lengths[at].1 - dry.allowed_length;
        let factor = f64::from(dry.base).powi(n_over.min(10_000) as i32);
        candidate.logit -= (f64::from(dry.multiplier) * factor).min(MAX_PENALTY) as f32;
    }
}

/// Tokens that would go on with a repetition of at least the allowed length, with the longest; by id.
fn repetitions(dry: &Dry, tokens: &[TokenId]) -> Vec<(TokenId, usize)> {
    let window = &tokens[tokens.len().saturating_sub(dry.window)..];
    let backwards: Vec<TokenId> = window.iter().rev().copied().collect();
    let is_breaker = |token: &TokenId| dry.breakers.binary_search(token).is_ok();
    // No stretch at the end reaches over a breaker.
    let longest = backwards.iter().position(is_breaker).unwrap_or(backwards.len());
    let mut found: Vec<(TokenId, usize)> = z_function(&backwards)
        .into_iter()
        .enumerate()
        .skip(1)
        .map(|(at, length)| (backwards[at - 1], length.min(longest)))
        .filter(|(token, length)| *length >= dry.allowed_length.max(1) && !is_breaker(token))
        .collect();
    // Longest first for each token, then only that one.
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    found.dedup_by_key(|&mut (token, _)| token);
    found
}

/// For each place, how long the text from there on agrees with the text from the beginning.
fn z_function(text: &[TokenId]) -> Vec<usize> {
    let n = text.len();
    let mut z = vec![0; n];
    // The stretch [left, right) that agrees with the beginning and reaches furthest.
    let (mut left, mut right) = (0, 0);
    for i in 1..n {
        let mut length = if i < right { z[i - left].min(right - i) } else { 0 };
        while i + length < n && text[length] == text[i + length] {
            length += 1;
        }
        z[i] = length;
        if i + length > right {
            (left, right) = (i, i + length);
        }
    }
    z
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw;

    /// Straight from the definition.
    fn naive(dry: &Dry, tokens: &[TokenId]) -> Vec<(TokenId, usize)> {
        let window = &tokens[tokens.len().saturating_sub(dry.window)..];
        let n = window.len();
        let mut found = Vec::new();
        for token in (0..8).map(TokenId) {
            let mut longest = 0;
            for at in (0..n).filter(|&at| window[at] == token) {
                let length = (1..=at)
                    .take_while(|&l| window[at - l] == window[n - l] && !dry.breakers.contains(&window[n - l]))
                    .count();
                longest = longest.max(length);
            }
            if longest >= dry.allowed_length.max(1) && !dry.breakers.contains(&token) {
                found.push((token, longest));
            }
        }
        found
    }

    #[test]
    fn repetitions_agree_with_the_definition() {
        for seed in 0..400 {
            let n = draw::bits(seed, 0) % 60;
            let n_kinds = 2 + draw::bits(seed, 1) % 5;
            let tokens: Vec<TokenId> = (0..n).map(|i| TokenId((draw::bits(seed, 2 + i) % n_kinds) as u32)).collect();
            for (allowed_length, window, breakers) in [
                (1, usize::MAX, vec![]),
                (2, 20, vec![TokenId(1)]),
                (3, usize::MAX, vec![TokenId(0), TokenId(3)]),
                (2, 0, vec![]),
            ] {
                let dry = Dry { allowed_length, window, breakers, ..Dry::default() };
                assert_eq!(repetitions(&dry, &tokens), naive(&dry, &tokens), "seed {seed}: {tokens:?}");
            }
        }
    }

    #[test]
    fn the_penalty_grows_with_the_length() {
        // "1 2 3 1 2": after it, 3 would go on with a repetition of two.
        let tokens = [1, 2, 3, 1, 2].map(TokenId);
        let dry = Dry { multiplier: 0.5, base: 2.0, allowed_length: 1, ..Dry::default() };
        let mut candidates: Vec<Candidate> = (0..5).map(|id| Candidate { logit: 1.0, token: TokenId(id) }).collect();
        apply(&mut candidates, &dry, &tokens);
        assert_eq!(candidates.iter().map(|c| c.logit).collect::<Vec<_>>(), [1.0, 1.0, 1.0, 0.0, 1.0]);
    }
}
