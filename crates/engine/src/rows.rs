//! From a plan to the arrays a model takes, and whether the rows it gives back are those that were asked for.

use model::{Batch, SeqRows, TokenId};

use crate::{
    forward::Rows,
    protocol::Pooling,
    scheduler::{Chunk, Plan, Scheduler},
    sequence::{Output, Sequence},
};

/// Writes the plan as arrays. Buffers are kept from step to step.
pub fn fill_batch(batch: &mut Batch, plan: &Plan, scheduler: &Scheduler) {
    let mut tables = std::mem::take(&mut batch.seqs);
    batch.tokens.clear();
    batch.positions.clear();
    batch.token_types.clear();
    batch.logits_rows.clear();
    batch.pool_rows.clear();
    batch.attention = plan.attention;
    tables.truncate(plan.chunks.len());
    tables.resize_with(plan.chunks.len(), SeqRows::default);
    for (chunk, table) in plan.chunks.iter().zip(&mut tables) {
        let seq = scheduler.get(chunk.seq).expect("a planned sequence is running");
        let (first_row, end) = (batch.tokens.len() as u32, chunk.first + chunk.n_tokens);
        let last_row = first_row + chunk.n_tokens as u32 - 1;
        batch.tokens.extend_from_slice(&seq.tokens[chunk.first..end]);
        batch.positions.extend(chunk.first as u32..end as u32);
        let n_first = match seq.output {
            Output::Hidden(Pooling::Score { n_first }) => n_first,
            _ => usize::MAX,
        };
        batch.token_types.extend((chunk.first..end).map(|i| u32::from(i >= n_first)));
        table.first_row = first_row;
        table.n_rows = chunk.n_tokens as u32;
        table.block_table.clear();
        table.block_table.extend_from_slice(&seq.blocks[..Sequence::blocks_for(end)]);
        match seq.output {
            Output::Logits if chunk.is_last => batch.logits_rows.push(last_row),
            Output::Logits => {}
            Output::LogitsFrom(from) => batch.logits_rows.extend(first_row + offset_of(from, chunk) as u32..=last_row),
            Output::Hidden(Pooling::Mean) => batch.pool_rows.extend(first_row..=last_row),
            Output::Hidden(Pooling::First | Pooling::Score { .. }) if chunk.first == 0 => {
                batch.pool_rows.push(first_row)
            }
            Output::Hidden(Pooling::Last) if chunk.is_last => batch.pool_rows.push(last_row),
            Output::Hidden(_) => {}
        }
    }
    batch.seqs = tables;
}

/// How many rows of a chunk come before the first whose logits are wanted, where those from token `from` on are.
pub fn offset_of(from: usize, chunk: &Chunk) -> usize {
    from.saturating_sub(chunk.first).min(chunk.n_tokens)
}

/// Rows of hidden state that [`fill_batch`] asked for.
pub fn n_pool_rows(pooling: Pooling, chunk: &Chunk) -> usize {
    match pooling {
        Pooling::Mean => chunk.n_tokens,
        Pooling::First | Pooling::Score { .. } => usize::from(chunk.first == 0),
        Pooling::Last => usize::from(chunk.is_last),
    }
}

/// A model that gives back the wrong number of values would have its rows mixed up.
pub fn check_rows<'a>(rows: Rows<'a>, batch: &Batch, n_vocab: usize) -> Result<Rows<'a>, String> {
    let (n_logits, n_pool) = (batch.logits_rows.len(), batch.pool_rows.len());
    if !batch.choices.is_empty() {
        let is_token = |token: &TokenId| (token.0 as usize) < n_vocab || token.0 == model::NOT_NUMBERS;
        if rows.chosen.len() != n_logits || !rows.chosen.iter().all(is_token) {
            return Err(format!("{} tokens of {n_vocab} for {n_logits} rows", rows.chosen.len()));
        }
    } else if rows.logits.len() != n_logits * n_vocab {
        return Err(format!("{} logits for {n_logits} rows of {n_vocab}", rows.logits.len()));
    }
    if n_pool > 0 && (rows.hidden.is_empty() || !rows.hidden.len().is_multiple_of(n_pool)) {
        return Err(format!("{} hidden values for {n_pool} rows", rows.hidden.len()));
    }
    Ok(rows)
}
