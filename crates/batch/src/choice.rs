//! How one token is chosen from a row of logits, as numbers, for a model that samples by itself.

/// Temperature, top-k, top-p and min-p, which look at the distribution before temperature, and one random number.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Choice {
    /// 0 takes the best token, and the rest changes nothing.
    pub temperature: f32,
    /// Keep the k best; 0 keeps all.
    pub top_k: u32,
    /// Keep the fewest best tokens whose probabilities reach this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as probable as the best; 0 keeps all.
    pub min_p: f32,
    /// In [0, 1): where in the distribution, in the order of token ids.
    pub draw: f64,
}

impl Choice {
    /// How many of the best tokens a model reports with the chosen one.
    pub const MAX_TOP: usize = 20;
    /// The best token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0.0 };
}
