//! Mirostat 2 (Basu and others, 2020): tokens more surprising than `mu` are cut off, and `mu` follows the surprise of
//! the chosen tokens so that it stays near a target. `mu` is the sampler's only state. It follows from the logits and
//! tokens so far, so a sequence that is resumed elsewhere recovers it by looking at both again.

use batch::TokenId;

use super::select::{Candidate, order};
use super::stages::probabilities;
use crate::sampling::Mirostat;

/// Where `mu` starts.
pub fn start(settings: Mirostat) -> f64 {
    2.0 * f64::from(settings.tau)
}

/// Keeps the tokens whose surprise is at most `mu` bits, and always the best.
pub fn truncate(candidates: &mut Vec<Candidate>, mu: f64) {
    candidates.sort_unstable_by(order);
    let p = probabilities(candidates);
    let n_kept = p.iter().take_while(|&&p| -p.log2() <= mu).count();
    candidates.truncate(n_kept.max(1));
}

/// After a token of probability `p` among those kept.
pub fn update(mu: &mut f64, settings: Mirostat, p: f64) {
    let surprise = -p.max(f64::MIN_POSITIVE).log2();
    *mu -= f64::from(settings.eta) * (surprise - f64::from(settings.tau));
}

/// `mu` after `token` was chosen among `candidates` by an earlier engine.
pub fn replay(candidates: &mut Vec<Candidate>, settings: Mirostat, mu: &mut f64, token: TokenId) {
    truncate(candidates, *mu);
    let p = probabilities(candidates);
    // A token that this engine would have cut off, by a last bit of rounding, was the least probable one kept.
    let place = candidates.iter().position(|c| c.token == token).unwrap_or(candidates.len() - 1);
    update(mu, settings, p[place]);
}
