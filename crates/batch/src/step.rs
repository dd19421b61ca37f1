//! One step's work as plain arrays. Prefill, decode, chunked prefill and prefix hits are all the same thing here:
//! rows of tokens at positions, each belonging to a sequence whose context lies in the blocks of its table.
//! The engine builds a `Batch`; the model reads it; nothing in it names a request.

use crate::{AdapterId, Adjustment, BlockId, Choice, StateId, TokenId};
use serde::{Deserialize, Serialize};

/// Tokens per KV block.
pub const BLOCK_TOKENS: usize = 16;

/// One step of the model: a row for each token.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The token of each row.
    pub tokens: Vec<TokenId>,
    /// Position of each row in its own sequence.
    pub positions: Vec<u32>,
    /// Of each row, for encoders that tell the texts of a pair apart: 0, or 1 in the second text. Empty: all are 0.
    pub token_types: Vec<u32>,
    /// In row order, without gaps: together they cover every row.
    pub seqs: Vec<SeqRows>,
    /// Of each sequence: the adapter that changes its rows. Empty: none does.
    pub adapters: Vec<Option<AdapterId>>,
    /// `[n_rows, n_embd]`: what the model that a [layer that guesses ahead](crate::Forward) belongs to made of the token before
    /// each row's. Empty for every other model.
    pub hidden: Vec<f32>,
    /// Rows whose logits are wanted, ascending.
    pub logits_rows: Vec<u32>,
    /// Rows whose final hidden state is wanted (embeddings), ascending.
    pub pool_rows: Vec<u32>,
    /// How to choose the tokens of the last rows of `logits_rows`, for a model that
    /// [chooses](crate::Forward::chooses): it gives tokens for them, and logits for those before.
    pub choices: Vec<Choice>,
    /// Of each choice: what is done to the logits before. Empty: nothing.
    pub adjustments: Vec<Option<Adjustment>>,
    /// The tokens are chosen after the step was submitted, by [`Forward::choose`](crate::Forward::choose): what is done to
    /// some logits is not known yet. For a model that [can do so](crate::Forward::chooses_later).
    pub chooses_later: bool,
    /// Of each choice: with how many of the best tokens its log-probability is reported. Empty: none is. A row is
    /// either described or adjusted, since what is reported are the model's own numbers.
    pub described: Vec<Option<u32>>,
    /// Rows whose token was not known when the batch was made, ascending; `tokens` holds any valid one there.
    pub fed: Vec<FedRow>,
    /// Which tokens a row sees.
    pub attention: Attention,
    /// Of each sequence: where a model with a [pool for windows](crate::Forward::windows) stores the context of its layers
    /// with a window, as [`SeqRows::block_table`] says of the others. What no row sees any more may be any block of the
    /// sequence. Empty for every other model.
    pub window_tables: Vec<Vec<BlockId>>,
    /// Of each sequence: where a model with [recurrent layers](crate::Forward::n_states) keeps its state. Empty: the
    /// sequences of the batch have the slots 0, 1, ..., and one at position 0 starts afresh.
    pub states: Vec<SeqState>,
}

/// Where the recurrent state of a sequence lies before and after its rows.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SeqState {
    /// The slot with the state after the tokens before its rows; `None` at the start of a sequence.
    pub from: Option<StateId>,
    /// The slot that gets the state after its rows; may be the same.
    pub to: StateId,
    /// A slot that gets a copy of it: a checkpoint.
    pub copy: Option<StateId>,
}

/// The rows of one sequence: contiguous, in order of position.
#[derive(Clone, Debug, Default)]
pub struct SeqRows {
    /// The first of its rows in the batch.
    pub first_row: u32,
    /// How many rows it has.
    pub n_rows: u32,
    /// Row `r` sees `positions[r] + 1` tokens of context, stored in these blocks.
    pub block_table: Vec<BlockId>,
}

/// A row that takes the token that the step before chose.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct FedRow {
    /// The row of the batch.
    pub row: u32,
    /// Which of the choices of the step before.
    pub choice_idx: u32,
}

/// Which tokens of its sequence a token sees.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum Attention {
    /// Itself and those before it.
    #[default]
    Causal,
    /// All of them.
    Full,
}

/// What a batch may hold, fixed when the model was loaded.
#[derive(Copy, Clone, Debug)]
pub struct StepLimits {
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// Blocks of the KV pool.
    pub n_blocks: usize,
    /// Blocks of the pool for layers with a window; 0 where those share the KV pool.
    pub n_window_blocks: usize,
    /// Rows of one step.
    pub max_batch_tokens: usize,
    /// Rows whose logits, and rows whose hidden states, one step may ask for.
    pub max_logits_rows: usize,
}

/// A batch that no model can run, and why.
#[derive(Clone, Eq, PartialEq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidBatch(pub String);

impl Batch {
    /// Rows of the step.
    pub fn n_rows(&self) -> usize {
        self.tokens.len()
    }

    /// Rows of [`logits_rows`](Self::logits_rows) whose logits are given back.
    pub fn n_logits(&self) -> usize {
        self.logits_rows.len().saturating_sub(self.choices.len())
    }

    /// Everything a model relies on without looking again.
    pub fn validate(&self, limits: &StepLimits) -> Result<(), InvalidBatch> {
        let n_rows = self.n_rows();
        let bad = |what: String| Err(InvalidBatch(what));
        if n_rows == 0 || n_rows > limits.max_batch_tokens {
            return bad(format!("{n_rows} rows, the model was loaded for 1 to {}", limits.max_batch_tokens));
        }
        if self.positions.len() != n_rows {
            return bad(format!("{n_rows} tokens but {} positions", self.positions.len()));
        }
        if !self.token_types.is_empty() && self.token_types.len() != n_rows {
            return bad(format!("{n_rows} tokens but {} token types", self.token_types.len()));
        }
        if !self.adapters.is_empty() && self.adapters.len() != self.seqs.len() {
            return bad(format!("{} sequences but {} adapters", self.seqs.len(), self.adapters.len()));
        }
        if let Some(token) = self.tokens.iter().find(|t| t.0 as usize >= limits.n_vocab) {
            return bad(format!("token {} is outside the vocabulary of {}", token.0, limits.n_vocab));
        }
        self.validate_seqs(limits)?;
        if self.choices.len() > self.logits_rows.len() {
            return bad(format!("{} choices for {} rows", self.choices.len(), self.logits_rows.len()));
        }
        self.validate_choices(limits)?;
        if self.fed.windows(2).any(|pair| pair[1].row <= pair[0].row) {
            return bad("fed rows must ascend".into());
        }
        if let Some(fed) =
            self.fed.iter().find(|fed| fed.row as usize >= n_rows || fed.choice_idx as usize >= limits.max_logits_rows)
        {
            return bad(format!("row {} of {n_rows} is fed from choice {}", fed.row, fed.choice_idx));
        }
        for rows in [&self.logits_rows, &self.pool_rows] {
            if rows.len() > limits.max_logits_rows {
                return bad(format!("{} output rows, the model was loaded for {}", rows.len(), limits.max_logits_rows));
            }
            if rows.windows(2).any(|pair| pair[1] <= pair[0]) || rows.last().is_some_and(|&r| r as usize >= n_rows) {
                return bad("output rows must ascend and lie inside the batch".into());
            }
        }
        Ok(())
    }

    /// What is asked of the rows whose token is chosen by the model.
    fn validate_choices(&self, limits: &StepLimits) -> Result<(), InvalidBatch> {
        let bad = |what: String| Err(InvalidBatch(what));
        let n = self.choices.len();
        for (what, len) in [("adjustments", self.adjustments.len()), ("descriptions", self.described.len())] {
            if len != 0 && len != n {
                return bad(format!("{len} {what} for {n} choices"));
            }
        }
        if self.described.iter().flatten().any(|&n_top| n_top as usize > Choice::MAX_TOP) {
            return bad(format!("a choice is reported with at most {} others", Choice::MAX_TOP));
        }
        if self.adjustments.iter().flatten().count() > Adjustment::MAX_ROWS {
            return bad(format!("more than {} rows are adjusted", Adjustment::MAX_ROWS));
        }
        for (idx, adjustment) in self.adjustments.iter().enumerate() {
            let Some(Adjustment { bias, allowed, penalties }) = adjustment else { continue };
            if self.described.get(idx).is_some_and(Option::is_some) {
                return bad(format!("choice {idx} is both adjusted and described"));
            }
            let counts = penalties.as_ref().map_or(&[][..], |penalties| &penalties.counts);
            let mut tokens = bias.iter().map(|(token, _)| token).chain(counts.iter().map(|(token, _)| token));
            let n_words = limits.n_vocab.div_ceil(32);
            if bias.len() > Adjustment::MAX_BIAS
                || counts.len() > Adjustment::MAX_COUNTS
                || allowed.as_ref().is_some_and(|allowed| allowed.len() != n_words)
                || tokens.any(|token| token.0 as usize >= limits.n_vocab)
            {
                return bad(format!("the adjustment of choice {idx} is too large or names tokens that do not exist"));
            }
        }
        Ok(())
    }

    /// The tables of layers with a window are as long as the others.
    fn validate_windows(&self, limits: &StepLimits) -> Result<(), InvalidBatch> {
        let (n_seqs, n_blocks) = (self.seqs.len(), limits.n_window_blocks);
        let n_tables = if n_blocks == 0 { 0 } else { n_seqs };
        if self.window_tables.len() != n_tables {
            return Err(InvalidBatch(format!(
                "{n_seqs} sequences but {} tables of windows, for a pool of {n_blocks} blocks",
                self.window_tables.len()
            )));
        }
        for (seq, table) in self.seqs.iter().zip(&self.window_tables) {
            let n_context = self.positions[(seq.first_row + seq.n_rows) as usize - 1] as usize + 1;
            let outside = table.iter().find(|block| block.0 as usize >= n_blocks);
            if table.len() * BLOCK_TOKENS < n_context || outside.is_some() {
                return Err(InvalidBatch(format!(
                    "{n_context} tokens of context in {} blocks of windows, of a pool of {n_blocks}: {outside:?}",
                    table.len()
                )));
            }
        }
        Ok(())
    }

    /// Sequences cover the rows in order, and their blocks hold their context.
    fn validate_seqs(&self, limits: &StepLimits) -> Result<(), InvalidBatch> {
        let n_rows = self.n_rows();
        let bad = |what: String| Err(InvalidBatch(what));
        let mut next_row = 0;
        for seq in &self.seqs {
            if seq.first_row as usize != next_row || seq.n_rows == 0 {
                return bad(format!("a sequence starts at row {}, expected {next_row}", seq.first_row));
            }
            next_row += seq.n_rows as usize;
            if next_row > n_rows {
                return bad(format!("sequences cover {next_row} rows of {n_rows}"));
            }
            let rows = &self.positions[seq.first_row as usize..next_row];
            if rows.windows(2).any(|pair| pair[1] != pair[0] + 1) {
                return bad("the positions of a sequence do not follow each other".into());
            }
            let n_context = rows[rows.len() - 1] as usize + 1;
            if seq.block_table.len() * BLOCK_TOKENS < n_context {
                return bad(format!(
                    "{n_context} tokens of context, room for {}",
                    seq.block_table.len() * BLOCK_TOKENS
                ));
            }
            if let Some(block) = seq.block_table.iter().find(|b| b.0 as usize >= limits.n_blocks) {
                return bad(format!("block {} of a pool of {}", block.0, limits.n_blocks));
            }
        }
        if next_row != n_rows {
            return bad(format!("sequences cover {next_row} rows of {n_rows}"));
        }
        self.validate_windows(limits)
    }
}
