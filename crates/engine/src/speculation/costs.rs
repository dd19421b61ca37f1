//! What additional rows cost, measured while the engine runs: the time of steps with drafted rows compared with steps
//! of the same number of sequences without. It depends on device, model and number of sequences.

use std::time::Duration;

/// Weight of the latest measurement.
const NEWS: f32 = 0.2;
/// Part of a step that a further row is taken to cost before any was measured.
const ASSUMED: f32 = 0.12;
/// A row is never taken to be cheaper: its KV, its sampling, and the chance that it is in vain.
const LEAST: f32 = 0.01;
/// Drafted rows of a step that are told apart.
const MAX_EXTRA: usize = 64;
/// Sequences of a step that are told apart.
const MAX_SEQS: usize = 256;

#[derive(Clone, Debug)]
pub(crate) struct StepCosts {
    /// Seconds of a step by its sequences, one row each; 0 where none was measured.
    plain: Vec<f32>,
    /// Time by the number of drafted rows, as a multiple of the time without; 0 where none was measured.
    ratios: Vec<f32>,
    /// What a row costs beyond those that were measured.
    per_row: f32,
    /// Whether nothing has to be measured first.
    is_given: bool,
}

impl Default for StepCosts {
    fn default() -> Self {
        Self { plain: vec![0.0; MAX_SEQS + 1], ratios: vec![0.0; MAX_EXTRA + 1], per_row: ASSUMED, is_given: false }
    }
}

impl StepCosts {
    /// With so much for every row, and no measurement.
    #[cfg(test)]
    pub fn assumed(per_row: f32) -> Self {
        Self { per_row, is_given: true, ..Self::default() }
    }

    /// A step of `n_seqs` sequences took `time`, `n_extra` of its rows were drafted.
    pub fn note(&mut self, n_seqs: usize, n_extra: usize, time: Duration) {
        let (n_seqs, seconds) = (n_seqs.min(MAX_SEQS), time.as_secs_f32());
        let blend = |old: &mut f32, new: f32| *old = if *old == 0.0 { new } else { *old + NEWS * (new - *old) };
        match n_extra {
            0 => blend(&mut self.plain[n_seqs], seconds),
            1..=MAX_EXTRA if self.plain[n_seqs] > 0.0 => {
                let ratio = seconds / self.plain[n_seqs];
                // Worse than a step for each row is a hiccup of the machine.
                let bounds = (1.0 + LEAST * n_extra as f32, 1.0 + n_extra as f32);
                let ratio = ratio.clamp(bounds.0, bounds.1);
                blend(&mut self.ratios[n_extra], ratio);
                blend(&mut self.per_row, (ratio - 1.0) / n_extra as f32);
            }
            _ => {}
        }
    }

    /// Whether it is known what a step of so many sequences takes, which everything is measured against.
    pub fn knows(&self, n_seqs: usize) -> bool {
        self.is_given || self.plain[n_seqs.min(MAX_SEQS)] > 0.0
    }

    /// The time of a step with `n_extra` drafted rows, as a multiple of its time without.
    pub fn ratio(&self, n_extra: usize) -> f32 {
        let at = |n: usize| if n == 0 { 1.0 } else { self.ratios[n] };
        let n = n_extra.min(MAX_EXTRA);
        let below = (0..=n).rev().find(|&n| at(n) > 0.0).unwrap_or(0);
        let above = (n..=MAX_EXTRA).find(|&n| at(n) > 0.0);
        match above {
            Some(above) if above > below => {
                let part = (n - below) as f32 / (above - below) as f32;
                at(below) + part * (at(above) - at(below))
            }
            _ => at(below) + self.per_row * (n_extra - below) as f32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_between_what_was_not() {
        let mut costs = StepCosts::default();
        assert!(!costs.knows(1) && costs.ratio(0) == 1.0);
        costs.note(1, 4, Duration::from_millis(1));
        assert_eq!(costs.ratio(4), 1.0 + 4.0 * ASSUMED, "without a step to compare with nothing is learned");
        costs.note(1, 0, Duration::from_millis(100));
        assert!(costs.knows(1) && !costs.knows(2));
        costs.note(1, 4, Duration::from_millis(140));
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-3, "{a} {b}");
        near(costs.ratio(4), 1.4);
        near(costs.ratio(2), 1.2);
        near(costs.ratio(6), 1.4 + 2.0 * costs.per_row);
        costs.note(1, 8, Duration::from_secs(9));
        near(costs.ratio(8), 9.0);
    }
}
