//! From a plan to the arrays that a model takes, and from the rows that it returns back to the sequences they belong
//! to.

use std::ops::Range;

use batch::{Adjustment, Batch, Choice, Described, FedRow, PooledStates, Rows, SeqRows, SeqState, TokenId};

use crate::{
    protocol::Pooling,
    scheduler::{Chunk, Scheduler, StepPlan},
    sequence::{Sequence, Wanted},
};

/// Where a chunk's rows stand among what the step gives.
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub struct RowRanges {
    /// Among the rows of logits.
    pub logits: Range<usize>,
    /// Among the tokens that the model chooses.
    pub chosen: Range<usize>,
    /// Among the rows of hidden states.
    pub hidden: Range<usize>,
    /// The token is to be chosen when its mask is known.
    pub waits: bool,
}

/// How the model chooses a token.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelChoice {
    pub choice: Choice,
    pub adjustment: Option<Adjustment>,
    /// With how many of the best tokens its log-probability is reported.
    pub n_top: Option<u32>,
    /// The adjustment is not known yet: its mask is being computed.
    pub waits: bool,
}

/// What a step gave for one chunk.
#[derive(Copy, Clone, Debug)]
pub struct ChunkRows<'a> {
    /// `[n, n_vocab]`
    pub logits: &'a [f32],
    /// `None` where the logits were not numbers.
    pub chosen: &'a [Option<TokenId>],
    /// One for each that was chosen, or none at all.
    pub described: &'a [Option<Described>],
    /// `[n_hidden, n_embd]`
    pub hidden: &'a [f32],
    pub n_hidden: usize,
}

impl RowRanges {
    pub fn of<'a>(&self, rows: &'a Rows<'_>, n_vocab: usize, n_embd: usize) -> ChunkRows<'a> {
        let scaled = |range: &Range<usize>, n: usize| range.start * n..range.end * n;
        ChunkRows {
            logits: &rows.logits[scaled(&self.logits, n_vocab)],
            chosen: &rows.chosen[self.chosen.clone()],
            described: rows.described.get(self.chosen.clone()).unwrap_or_default(),
            hidden: &rows.hidden[scaled(&self.hidden, n_embd)],
            n_hidden: self.hidden.len(),
        }
    }
}

/// Writes the plan as arrays, and says where each chunk's rows will be. Buffers are kept from step to step. Chunks
/// whose logits are wanted come before those whose tokens the model chooses, as `choices` says: one for each row.
/// `max_hidden`: rows whose hidden states a step may give, where they are read of those that generate.
pub fn fill_batch(
    batch: &mut Batch,
    plan: &StepPlan,
    scheduler: &Scheduler,
    choices: Vec<Vec<ModelChoice>>,
    max_hidden: usize,
) -> Vec<RowRanges> {
    let mut tables = std::mem::take(&mut batch.seqs);
    let Batch { tokens, positions, token_types, logits_rows, pool_rows, choices: _, fed, .. } = &mut *batch;
    [positions, token_types, logits_rows, pool_rows].into_iter().for_each(Vec::clear);
    tokens.clear();
    fed.clear();
    batch.choices.clear();
    batch.adjustments.clear();
    batch.chooses_later = choices.iter().flatten().any(|choice| choice.waits);
    batch.described.clear();
    batch.states.clear();
    let n_windows = if scheduler.windows().is_some() { plan.chunks.len() } else { 0 };
    batch.window_tables.resize_with(n_windows, Vec::new);
    batch.attention = plan.attention;
    batch.adapters.clear();
    tables.resize_with(plan.chunks.len(), SeqRows::default);
    let mut ranges = Vec::with_capacity(plan.chunks.len());
    // Hidden states that the chunks to come need at least.
    let n_needed = |chunk: &Chunk| match scheduler.get(chunk.seq).map(|seq| seq.wanted) {
        Some(Wanted::Hidden(Pooling::Mean)) => chunk.n_tokens,
        _ => 1,
    };
    let mut n_left: usize = if max_hidden > 0 { plan.chunks.iter().map(n_needed).sum() } else { 0 };
    for (i, ((chunk, table), choice)) in plan.chunks.iter().zip(&mut tables).zip(choices).enumerate() {
        let seq = scheduler.get(chunk.seq).expect("a planned sequence is in flight");
        let first_row = batch.tokens.len() as u32;
        fill_rows(batch, chunk, seq);
        batch.adapters.push(seq.adapter);
        table.first_row = first_row;
        table.n_rows = chunk.n_tokens as u32;
        table.block_table.clear();
        table.block_table.extend_from_slice(&seq.blocks[..Sequence::blocks_for(chunk.end())]);
        if let Some(table) = batch.window_tables.get_mut(i) {
            seq.windows.write(Sequence::blocks_for(chunk.end()), table);
        }
        if let Some(to) = seq.state {
            let from = seq.starts_from.map_or(to, |(_, checkpoint)| checkpoint);
            let from = (chunk.first > 0).then_some(from);
            let to = seq.draft_state.map_or(to, |written| written.state);
            batch.states.push(SeqState { from, to, copy: chunk.checkpoint });
        }
        let n_before = batch.pool_rows.len();
        let mut range = fill_outputs(batch, chunk, seq.wanted, first_row, choice);
        if max_hidden > 0 && seq.wanted == Wanted::Logits {
            let n_after = n_left.saturating_sub(n_needed(chunk));
            let n_hidden = chunk.n_tokens.min(max_hidden.saturating_sub(n_before + n_after));
            let end_row = first_row + chunk.n_tokens as u32;
            batch.pool_rows.extend(end_row - n_hidden as u32..end_row);
            range.hidden = n_before..batch.pool_rows.len();
        }
        n_left = n_left.saturating_sub(n_needed(chunk));
        ranges.push(range);
    }
    batch.seqs = tables;
    if batch.adapters.iter().all(Option::is_none) {
        batch.adapters.clear();
    }
    ranges
}

/// The chunk's tokens and positions. A token under way is taken from where the step before leaves it.
fn fill_rows(batch: &mut Batch, chunk: &Chunk, seq: &Sequence) {
    let known = &seq.tokens[chunk.first..chunk.n_certain().min(seq.tokens.len())];
    batch.tokens.extend_from_slice(known);
    batch.tokens.extend_from_slice(&seq.draft[..chunk.n_drafted]);
    if known.len() + chunk.n_drafted < chunk.n_tokens {
        let choice_idx = seq.fed_by.expect("only a token that can be fed is planned before it is known");
        batch.fed.push(FedRow { row: batch.tokens.len() as u32, choice_idx });
        batch.tokens.push(TokenId(0));
    }
    batch.positions.extend(chunk.first as u32..chunk.end() as u32);
    let n_first = match seq.wanted {
        Wanted::Hidden(Pooling::Score { n_first, .. }) => n_first,
        _ => usize::MAX,
    };
    batch.token_types.extend((chunk.first..chunk.end()).map(|i| u32::from(i >= n_first)));
}

/// The rows that are wanted of a chunk whose first row is `first_row`.
fn fill_outputs(
    batch: &mut Batch,
    chunk: &Chunk,
    wanted: Wanted,
    first_row: u32,
    choices: Vec<ModelChoice>,
) -> RowRanges {
    let end_row = first_row + chunk.n_tokens as u32;
    let (n_logits, n_hidden, n_chosen) = (batch.logits_rows.len(), batch.pool_rows.len(), batch.choices.len());
    match wanted {
        Wanted::Logits if chunk.is_last => batch.logits_rows.extend(end_row - 1 - chunk.n_drafted as u32..end_row),
        Wanted::LogitsFrom(from) => {
            batch.logits_rows.extend(first_row + offset_of(from, chunk) as u32..end_row);
        }
        Wanted::Hidden(pooling) => match pooling.states() {
            PooledStates::Mean => batch.pool_rows.extend(first_row..end_row),
            PooledStates::First if chunk.first == 0 => batch.pool_rows.push(first_row),
            PooledStates::Last if chunk.is_last => batch.pool_rows.push(end_row - 1),
            PooledStates::First | PooledStates::Last => {}
        },
        Wanted::Logits => {}
    }
    let hidden = n_hidden..batch.pool_rows.len();
    if choices.is_empty() {
        return RowRanges { logits: n_logits..batch.logits_rows.len(), hidden, ..RowRanges::default() };
    }
    let waits = choices.iter().any(|choice| choice.waits);
    for ModelChoice { choice, adjustment, n_top, .. } in choices {
        batch.choices.push(choice);
        batch.adjustments.push(adjustment);
        batch.described.push(n_top);
    }
    RowRanges { chosen: n_chosen..batch.choices.len(), hidden, waits, ..RowRanges::default() }
}

/// How many rows of a chunk come before the first whose logits are wanted, where those from token `from` on are.
pub fn offset_of(from: usize, chunk: &Chunk) -> usize {
    from.saturating_sub(chunk.first).min(chunk.n_tokens)
}

/// How many rows of each kind a step was asked for.
#[derive(Copy, Clone, Debug)]
pub struct RowCounts {
    pub n_logits: usize,
    n_chosen: usize,
    n_hidden: usize,
}

impl RowCounts {
    pub fn of(batch: &Batch) -> Self {
        Self { n_logits: batch.n_logits(), n_chosen: batch.choices.len(), n_hidden: batch.pool_rows.len() }
    }

    /// Numbers of one row of hidden state.
    pub fn n_embd(&self, rows: &Rows) -> usize {
        rows.hidden.len().checked_div(self.n_hidden).unwrap_or(0)
    }

    /// A model that gives back the wrong number of values would have its rows mixed up.
    pub fn check(&self, rows: &Rows, n_vocab: usize) -> Result<(), String> {
        let Self { n_logits, n_chosen, n_hidden } = *self;
        let is_token = |token: &Option<TokenId>| token.is_none_or(|token| (token.0 as usize) < n_vocab);
        if rows.chosen.len() != n_chosen || !rows.chosen.iter().all(is_token) {
            return Err(format!("{} tokens of {n_vocab} for {n_chosen} rows", rows.chosen.len()));
        }
        if !rows.described.is_empty() && rows.described.len() != n_chosen {
            return Err(format!("{} descriptions for {n_chosen} rows", rows.described.len()));
        }
        if rows.logits.len() != n_logits * n_vocab {
            return Err(format!("{} logits for {n_logits} rows of {n_vocab}", rows.logits.len()));
        }
        if n_hidden > 0 && (rows.hidden.is_empty() || !rows.hidden.len().is_multiple_of(n_hidden)) {
            return Err(format!("{} hidden values for {n_hidden} rows", rows.hidden.len()));
        }
        Ok(())
    }
}
