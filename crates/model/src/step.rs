//! A batch in the form that the ops take, made once per step on the host; and where a device keeps its copy.

use ops::{Adjustments, DeviceSpans, Indices, QuerySpan, RowAdjustment, RowPenalties, StateSpan, StateSpans, View};

use crate::decoder::Decoder;
use crate::kv_cache::{KvPool, slot};
use crate::rope_table::RopeTable;
use crate::{AdapterId, Adjustment, Attention, Batch, Choice, SeqRows};

pub struct Step<'a> {
    pub n_rows: usize,
    pub tokens: Vec<u32>,
    /// Of each row: which choice of the step before is its token, or `ops::GIVEN`.
    pub sources: Vec<u32>,
    /// Of each row, and of each kept row: the slot of its adapter, or `LowRankEntry::NONE`. Empty where no row has one.
    pub adapter_slots: Vec<u32>,
    pub kept_adapter_slots: Vec<u32>,
    /// `ops::Slot::index` of each row, and the same in the pool for windows, where there is one.
    pub slots: Vec<u32>,
    pub window_slots: Vec<u32>,
    /// Rows that anybody wants at the end, ascending.
    pub kept: Vec<u32>,
    /// Where the rows for pooling and for logits stand among the kept ones.
    pub pooled: Vec<u32>,
    pub logits_rows: Vec<u32>,
    /// `ops::SampleParams::words` of the last rows with logits.
    pub choices: Vec<u32>,
    /// Of each choice: with how many of the best tokens it is described, or `ops::NOT_ASKED`. Empty where none is.
    pub described: Vec<u32>,
    /// `ops::Adjustments` of the choices; empty where none is adjusted.
    pub adjustments: Vec<u32>,
    /// `[n_rows, n_rot]`: cosines and sines.
    pub angles: Vec<f32>,
    /// The same for layers with a window, where they turn by another base; else nothing.
    pub local_angles: Vec<f32>,
    /// Slopes of the heads, where scores fall with the distance.
    pub slopes: Vec<f32>,
    /// What each row's queries are multiplied with, where positions decide that.
    pub query_scales: Vec<f32>,
    /// Rows of the table of learned positions, where there is one.
    pub position_rows: Vec<u32>,
    /// Rows of the table of token types, where the model has one.
    pub type_rows: Vec<u32>,
    /// `[n_rows, n_embd]`: `Batch::hidden`, for a layer that guesses ahead.
    pub hidden: &'a [f32],
    /// Where each sequence has its state, for models with recurrent layers.
    pub states: Vec<StateSpan>,
    /// Block table of each sequence, and the same in the pool for windows.
    blocks: Vec<Vec<u32>>,
    window_blocks: Vec<Vec<u32>>,
    batch: &'a Batch,
}

/// Where a device reads the step's inputs.
pub struct Places<'d> {
    pub tokens: Indices<'d>,
    /// Empty where every token is known.
    pub sources: Indices<'d>,
    /// Empty where no row has an adapter.
    pub adapter_slots: Indices<'d>,
    pub kept_adapter_slots: Indices<'d>,
    pub slots: Indices<'d>,
    pub window_slots: Indices<'d>,
    pub kept: Indices<'d>,
    pub pooled: Indices<'d>,
    pub logits_rows: Indices<'d>,
    pub choices: Indices<'d>,
    pub described: Indices<'d>,
    pub adjustments: Indices<'d>,
    pub angles: View<'d>,
    pub local_angles: View<'d>,
    /// `[1, n_heads]`, or nothing.
    pub slopes: View<'d>,
    /// `[n_rows, 1]`, or nothing.
    pub query_scales: View<'d>,
    pub position_rows: Indices<'d>,
    pub type_rows: Indices<'d>,
    /// `[n_rows, n_embd]`, or nothing.
    pub hidden: View<'d>,
    pub states: StateSpans<'d>,
    pub spans: Option<DeviceSpans<'d>>,
    /// Of layers with a window, where those have other heads or a pool of their own.
    pub local_spans: Option<DeviceSpans<'d>>,
}

impl<'d> Places<'d> {
    /// Where the rows are stored in a pool.
    pub fn slots_in(&self, pool: KvPool) -> Indices<'d> {
        match pool {
            KvPool::Whole => self.slots,
            KvPool::Windows => self.window_slots,
        }
    }
}

impl<'a> Step<'a> {
    pub fn new(batch: &'a Batch, decoder: &Decoder) -> Self {
        let Decoder { config, rope, local_rope, .. } = decoder;
        let slots = slots(batch, batch.seqs.iter().map(|seq| seq.block_table.as_slice()));
        let window_slots = self::slots(batch, batch.window_tables.iter().map(Vec::as_slice));
        let mut sources = vec![ops::GIVEN; batch.n_rows()];
        batch.fed.iter().for_each(|fed| sources[fed.row as usize] = fed.choice_idx);
        let mut kept: Vec<u32> = batch.logits_rows.iter().chain(&batch.pool_rows).copied().collect();
        kept.sort_unstable();
        kept.dedup();
        let adapter_slots = adapter_slots(batch, decoder);
        let of_kept = |row: &u32| adapter_slots.get(*row as usize).copied();
        let kept_adapter_slots = kept.iter().filter_map(of_kept).collect();
        let among_kept = |row: &u32| kept.binary_search(row).expect("a wanted row is kept") as u32;
        // Rows of a drafter stand behind the last position whose keys and values there are.
        let n_ahead = u32::from(config.assistant.is_some());
        let turned: Vec<u32> = batch.positions.iter().map(|position| position + n_ahead).collect();
        let angles = |rope: &RopeTable| {
            let mut angles = vec![0.0; batch.n_rows() * rope.n_rot()];
            rope.fill(&turned, &mut angles);
            angles
        };
        let position_rows = match decoder.weights.parts.positions {
            Some(_) => batch.positions.iter().map(|position| position + config.position_offset as u32).collect(),
            None => Vec::new(),
        };
        // A model with one type has nothing else for the second text.
        let type_rows = match decoder.weights.parts.token_types {
            Some((_, n)) if n > 1 && !batch.token_types.is_empty() => batch.token_types.clone(),
            Some(_) => vec![0; batch.n_rows()],
            None => Vec::new(),
        };
        Self {
            n_rows: batch.n_rows(),
            tokens: batch.tokens.iter().map(|token| token.0).collect(),
            pooled: batch.pool_rows.iter().map(among_kept).collect(),
            logits_rows: batch.logits_rows.iter().map(among_kept).collect(),
            choices: batch.choices.iter().flat_map(|choice| choice_words(choice, config.n_vocab)).collect(),
            described: described(batch),
            adjustments: if batch.chooses_later { Vec::new() } else { adjustments(batch) },
            blocks: batch.seqs.iter().map(|seq| seq.block_table.iter().map(|block| block.0).collect()).collect(),
            window_blocks: batch
                .window_tables
                .iter()
                .map(|table| table.iter().map(|block| block.0).collect())
                .collect(),
            sources,
            adapter_slots,
            kept_adapter_slots,
            slots,
            window_slots,
            kept,
            angles: angles(rope),
            local_angles: local_rope.as_ref().map(angles).unwrap_or_default(),
            slopes: config.alibi.map(|largest| slopes(largest, config.n_heads)).unwrap_or_default(),
            query_scales: match config.temperature {
                Some(temperature) => batch.positions.iter().map(|position| temperature.at(*position)).collect(),
                None => Vec::new(),
            },
            position_rows,
            type_rows,
            hidden: &batch.hidden,
            states: config.recurrent.map(|_| state_spans(batch)).unwrap_or_default(),
            batch,
        }
    }

    /// Rows whose token is chosen here.
    pub fn n_choices(&self) -> usize {
        self.batch.choices.len()
    }

    /// Whether they are chosen after the step was submitted.
    pub fn chooses_later(&self) -> bool {
        self.batch.chooses_later
    }

    /// Rows whose logits are given back: those before the ones that are chosen.
    pub fn n_logits(&self) -> usize {
        self.batch.n_logits()
    }

    /// The inputs where the host has them.
    pub fn places(&self) -> Places<'_> {
        Places {
            tokens: Indices::from(&self.tokens),
            // Where the host is the device, it knows every token.
            sources: Indices::default(),
            adapter_slots: Indices::from(&self.adapter_slots),
            kept_adapter_slots: Indices::from(&self.kept_adapter_slots),
            slots: Indices::from(&self.slots),
            window_slots: Indices::from(&self.window_slots),
            kept: Indices::from(&self.kept),
            pooled: Indices::from(&self.pooled),
            logits_rows: Indices::from(&self.logits_rows),
            // The engine's own sampler is faster on a CPU.
            choices: Indices::default(),
            described: Indices::default(),
            adjustments: Indices::default(),
            angles: View::of_f32(&self.angles, self.angles.len() / self.n_rows),
            local_angles: View::of_f32(&self.local_angles, self.local_angles.len() / self.n_rows),
            slopes: View::of_f32(&self.slopes, self.slopes.len()),
            query_scales: View::of_f32(&self.query_scales, 1),
            position_rows: Indices::from(&self.position_rows),
            type_rows: Indices::from(&self.type_rows),
            hidden: View::of_f32(self.hidden, self.hidden.len() / self.n_rows),
            states: StateSpans::from(&self.states[..]),
            spans: None,
            local_spans: None,
        }
    }

    /// Whether layers with a window have tables of their own.
    pub fn has_windows(&self) -> bool {
        !self.window_blocks.is_empty()
    }

    fn blocks_in(&self, pool: KvPool) -> &[Vec<u32>] {
        match pool {
            KvPool::Whole => &self.blocks,
            KvPool::Windows => &self.window_blocks,
        }
    }

    pub fn spans(&self, pool: KvPool) -> Vec<QuerySpan<'_>> {
        let is_causal = self.batch.attention == Attention::Causal;
        self.batch
            .seqs
            .iter()
            .zip(self.blocks_in(pool))
            .map(|(seq, blocks)| QuerySpan {
                first_row: seq.first_row as usize,
                n_rows: seq.n_rows as usize,
                first_position: self.batch.positions[seq.first_row as usize] as usize,
                blocks,
                is_causal,
            })
            .collect()
    }

    /// As [`Step::spans`], for the kept rows alone where rows do not see what follows them.
    pub fn kept_spans(&self, pool: KvPool) -> Vec<QuerySpan<'_>> {
        if self.batch.attention != Attention::Causal {
            return self.spans(pool);
        }
        let mut spans: Vec<QuerySpan> = Vec::with_capacity(self.batch.seqs.len());
        for (seq, blocks) in self.batch.seqs.iter().zip(self.blocks_in(pool)) {
            let n_before = spans.len();
            let place = |row: u32| self.kept.partition_point(|kept| *kept < row);
            let kept = &self.kept[place(seq.first_row)..place(seq.first_row + seq.n_rows)];
            for row in kept.iter().map(|&row| row as usize) {
                match spans[n_before..].last_mut() {
                    Some(span) if span.first_row + span.n_rows == row => span.n_rows += 1,
                    _ => {
                        let first_position = self.batch.positions[row] as usize;
                        spans.push(QuerySpan { first_row: row, n_rows: 1, first_position, blocks, is_causal: true });
                    }
                }
            }
        }
        spans
    }

    pub fn n_seqs(&self) -> usize {
        self.batch.seqs.len()
    }

    /// Whether every row is wanted at the end.
    pub fn keeps_all(&self) -> bool {
        self.kept.len() == self.n_rows
    }

    /// One row a sequence, each with logits, nothing pooled: the step that is repeated the most.
    pub fn only_decodes(&self) -> bool {
        let n = self.n_rows;
        self.batch.seqs.len() == n && self.logits_rows.len() == n && self.pooled.is_empty()
    }
}

/// Where each row is stored, by the table of its sequence.
fn slots<'t>(batch: &Batch, tables: impl Iterator<Item = &'t [crate::BlockId]>) -> Vec<u32> {
    let mut slots = Vec::with_capacity(batch.n_rows());
    for (seq, table) in batch.seqs.iter().zip(tables) {
        let rows = seq.first_row as usize..(seq.first_row + seq.n_rows) as usize;
        slots.extend(batch.positions[rows].iter().map(|&position| slot(table, position).index()));
    }
    slots
}

/// The adapter of each row, by its slot. Those that are not ready were refused before.
fn adapter_slots(batch: &Batch, decoder: &Decoder) -> Vec<u32> {
    let Some(adapters) = decoder.adapters.as_ref().filter(|_| batch.adapters.iter().any(Option::is_some)) else {
        return Vec::new();
    };
    let slot = |id: &Option<AdapterId>| id.and_then(|id| adapters.slot(id)).unwrap_or(ops::LowRankEntry::NONE);
    let rows = batch.seqs.iter().zip(&batch.adapters);
    rows.flat_map(|(seq, id)| std::iter::repeat_n(slot(id), seq.n_rows as usize)).collect()
}

fn state_spans(batch: &Batch) -> Vec<StateSpan> {
    let span = |(i, seq): (usize, &SeqRows)| {
        let first_row = seq.first_row as usize;
        let (from, to, copy) = match batch.states.get(i) {
            Some(state) => (state.from.map(|slot| slot.0), state.to.0, state.copy.map(|slot| slot.0)),
            None => ((batch.positions[first_row] > 0).then_some(i as u32), i as u32, None),
        };
        StateSpan { first_row, n_rows: seq.n_rows as usize, from, to, copy }
    };
    batch.seqs.iter().enumerate().map(span).collect()
}

/// ALiBi: powers of two down to `2^-largest`, evenly spaced; heads beyond a power of two take what lies between.
fn slopes(largest: f32, n_heads: usize) -> Vec<f32> {
    let n_even = 1 << n_heads.ilog2();
    let slope = |step: f32, i: usize| 0.5_f32.powf(largest / step * i as f32);
    let even = (1..=n_even).map(|i| slope(n_even as f32, i));
    even.chain((0..n_heads - n_even).map(|i| slope(2.0 * n_even as f32, 2 * i + 1))).collect()
}

fn choice_words(choice: &Choice, n_vocab: usize) -> [u32; ops::SampleParams::WORDS] {
    let Choice { temperature, top_k, top_p, min_p, draw } = *choice;
    ops::SampleParams { temperature, top_k, top_p, min_p, draw }.words(n_vocab)
}

fn described(batch: &Batch) -> Vec<u32> {
    match batch.described.iter().flatten().next() {
        Some(_) => batch.described.iter().map(|n_top| n_top.unwrap_or(ops::NOT_ASKED)).collect(),
        None => Vec::new(),
    }
}

pub(crate) fn adjustments(batch: &Batch) -> Vec<u32> {
    if batch.adjustments.iter().flatten().next().is_none() {
        return Vec::new();
    }
    let mut lists = Adjustments::new(batch.choices.len());
    for (idx, adjustment) in batch.adjustments.iter().enumerate() {
        let Some(Adjustment { bias, allowed, penalties }) = adjustment else { continue };
        let bias: Vec<(u32, f32)> = bias.iter().map(|&(token, bias)| (token.0, bias)).collect();
        let counts = penalties.iter().flat_map(|penalties| &penalties.counts);
        let counts: Vec<(u32, u32)> = counts.map(|&(token, count)| (token.0, count)).collect();
        let own_row = batch.logits_rows[batch.n_logits() + idx];
        let penalties = penalties.as_ref().map(|penalties| RowPenalties {
            repetition: penalties.repetition,
            presence: penalties.presence,
            frequency: penalties.frequency,
            counts: &counts,
            token_row: penalties.counts_own.then_some(own_row),
        });
        lists.set(idx, RowAdjustment { bias: &bias, mask: allowed.as_deref(), penalties });
    }
    lists.words().to_vec()
}
