//! How often drafts of each kind were right for one sequence, and how many tokens it therefore pays to draft.

use super::costs::StepCosts;
use crate::drafter::DraftSource;

/// How fast the past is forgotten: after so many drafts of a kind about two thirds of what is known is news.
const MEMORY: f32 = 0.85;
/// Drafts that what is assumed at the beginning counts for.
const PRIOR_WEIGHT: f32 = 2.0;
/// A draft must promise to be so much faster.
const MARGIN: f32 = 1.02;

/// Kinds of drafts by what they rest on: matches of fewer tokens than these, longer ones, and a model's.
const MATCHES: [usize; 4] = [3, 6, 12, 24];
const N_KINDS: usize = MATCHES.len() + 2;
/// How often drafts of each kind are right, before any was seen.
const PRIOR: [f32; N_KINDS] = [0.4, 0.4, 0.6, 0.8, 0.9, 0.7];

#[derive(Clone, Debug)]
pub(crate) struct AcceptanceStats {
    n_right: [f32; N_KINDS],
    n_seen: [f32; N_KINDS],
}

/// What the sequences of a step are expected to get, and the rows that were added for it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ExpectedGain {
    pub n_tokens: f32,
    pub n_extra_rows: usize,
    pub wrong: RejectionCost,
}

/// What a wrong draft costs beside its row.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum RejectionCost {
    Nothing,
    /// The next step computes again what was right before it.
    Again,
}

impl Default for AcceptanceStats {
    fn default() -> Self {
        Self { n_right: PRIOR.map(|p| p * PRIOR_WEIGHT), n_seen: [PRIOR_WEIGHT; N_KINDS] }
    }
}

impl AcceptanceStats {
    /// The token at this place of a draft was right, or not.
    pub fn note(&mut self, source: DraftSource, place: usize, is_right: bool) {
        let kind = kind(source, place);
        self.n_right[kind] = self.n_right[kind] * MEMORY + f32::from(u8::from(is_right));
        self.n_seen[kind] = self.n_seen[kind] * MEMORY + 1.0;
    }

    fn chance(&self, source: DraftSource, place: usize) -> f32 {
        let kind = kind(source, place);
        self.n_right[kind] / self.n_seen[kind]
    }

    /// How many tokens to draft so that the step gives the most tokens per second, at most `max_len`. The step so far is
    /// `gain`, which takes in what is decided.
    pub fn best_len(&self, source: DraftSource, max_len: usize, costs: &StepCosts, gain: &mut ExpectedGain) -> usize {
        let ExpectedGain { n_tokens, n_extra_rows, wrong } = *gain;
        let (mut best, mut best_rate, mut best_tokens) = (0, n_tokens / costs.ratio(n_extra_rows) * MARGIN, n_tokens);
        let (mut reaches, mut expected, mut again) = (1.0, n_tokens, 0.0);
        for len in 1..=max_len {
            // A token counts if all before it are right.
            let chance = self.chance(source, len - 1);
            if wrong == RejectionCost::Again {
                again += reaches * (1.0 - chance) * (costs.ratio(len) - 1.0);
            }
            reaches *= chance;
            expected += reaches;
            let rate = expected / (costs.ratio(n_extra_rows + len) + again);
            if rate > best_rate {
                (best, best_rate, best_tokens) = (len, rate, expected);
            }
        }
        gain.n_tokens = best_tokens;
        gain.n_extra_rows += best;
        best
    }
}

/// Every token that is copied makes the match longer by one.
fn kind(source: DraftSource, place: usize) -> usize {
    match source {
        DraftSource::Match(n_match) => MATCHES.partition_point(|&n| n <= n_match + place),
        DraftSource::Model => N_KINDS - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(stats: &AcceptanceStats, source: DraftSource) -> usize {
        let mut gain = ExpectedGain { n_tokens: 1.0, n_extra_rows: 0, wrong: RejectionCost::Nothing };
        stats.best_len(source, 16, &StepCosts::assumed(0.12), &mut gain)
    }

    #[test]
    fn drafts_grow_with_luck_and_stop_without() {
        let (mut stats, source) = (AcceptanceStats::default(), DraftSource::Match(4));
        let at_first = len(&stats, source);
        assert!((1..8).contains(&at_first), "{at_first}");
        (0..20).for_each(|_| stats.note(source, 0, false));
        assert_eq!(len(&stats, source), 0);
        assert!(len(&stats, DraftSource::Match(40)) > 8, "long matches are judged apart");
        (0..20).for_each(|_| stats.note(source, 0, true));
        assert!(len(&stats, source) > at_first);
    }

    #[test]
    fn drafts_are_shorter_where_wrong_ones_cost_more() {
        let (mut stats, costs) = (AcceptanceStats::default(), StepCosts::assumed(0.1));
        (0..20).for_each(|i| stats.note(DraftSource::Model, 0, i % 3 > 0));
        let len = |wrong| {
            let mut gain = ExpectedGain { n_tokens: 1.0, n_extra_rows: 0, wrong };
            stats.best_len(DraftSource::Model, 16, &costs, &mut gain)
        };
        assert!(
            len(RejectionCost::Again) < len(RejectionCost::Nothing) && len(RejectionCost::Again) > 0,
            "{}",
            len(RejectionCost::Again)
        );
    }

    #[test]
    fn a_lucky_sequence_leaves_less_for_the_next() {
        let stats = AcceptanceStats::default();
        let costs = StepCosts::assumed(0.3);
        let mut gain = ExpectedGain { n_tokens: 2.0, n_extra_rows: 0, wrong: RejectionCost::Nothing };
        let first = stats.best_len(DraftSource::Match(30), 16, &costs, &mut gain);
        assert_eq!(gain.n_extra_rows, first);
        assert!(gain.n_tokens > 2.0);
        let second = stats.best_len(DraftSource::Match(4), 16, &costs, &mut gain);
        assert!(second <= first, "{first} {second}");
    }
}
