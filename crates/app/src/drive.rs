//! Drives a model directly, without an engine, for the commands that measure: sequences with fixed
//! block tables, tokens in, logits out. No sampling, no scheduling.

use crate::model_file;
use crate::progress;
use crate::report;
use anyhow::{Context, Result};
use model::{BLOCK_TOKENS, Batch, BlockId, Choice, FedRow, Model, SeqRows, TokenId};
use rocinante::{LoadPlan, ModelFiles, Options};

/// A model and the blocks of its sequences.
pub struct StepDriver {
    model: Model,
    /// One table per sequence.
    tables: Vec<Vec<BlockId>>,
    max_batch_tokens: usize,
}

/// Tokens of one sequence that follow each other.
#[derive(Debug)]
pub struct TokenSpan<'a> {
    pub seq_idx: usize,
    /// Position of the first token.
    pub start: usize,
    pub tokens: &'a [u32],
}

/// Which rows give logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WantedLogits {
    Nothing,
    /// The last row of each span.
    Last,
    /// The best token of the last row of each span: where the device can choose it, no logits come back.
    Best,
    All,
}

impl StepDriver {
    /// Plans and loads a model, for options with `Workload::Steps`.
    pub fn load(files: &ModelFiles, options: &Options, n_sequences: usize, n_ctx: usize) -> Result<(Self, LoadPlan)> {
        let hinted = |error| model_file::hinted(files.path(), error);
        let plan = files.plan(options).map_err(hinted)?;
        plan.device.notes().iter().for_each(|note| report::note(note));
        let name = files.path().file_name().unwrap_or_default().to_string_lossy();
        let spinner = progress::spinner(format!("loading {name}"));
        let model = files.load(&plan).map_err(hinted);
        spinner.finish_and_clear();
        let model = model?;
        let max_batch_tokens = plan.options.max_batch_tokens;
        Ok((Self::new(model, n_sequences, n_ctx, max_batch_tokens), plan))
    }

    /// Gives each of `n_sequences` room for `n_ctx` tokens.
    pub fn new(model: Model, n_sequences: usize, n_ctx: usize, max_batch_tokens: usize) -> Self {
        let mut driver = Self { model, tables: Vec::new(), max_batch_tokens };
        driver.assign_blocks(n_sequences, n_ctx);
        driver
    }

    /// Deals the blocks out again; their contents are dropped.
    pub fn assign_blocks(&mut self, n_sequences: usize, n_ctx: usize) {
        let n_each = n_ctx.div_ceil(BLOCK_TOKENS);
        assert!(n_each * n_sequences <= self.model.n_blocks(), "the model was loaded for this use");
        let table = |seq: usize| (seq * n_each..(seq + 1) * n_each).map(|block| BlockId(block as u32)).collect();
        self.tables = (0..n_sequences).map(table).collect();
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    /// One forward pass over the spans, together; returns the logits asked for, row by row.
    pub fn step(&mut self, spans: &[TokenSpan<'_>], want: WantedLogits) -> Result<&[f32]> {
        let batch = self.batch(spans, want);
        Ok(self.model.forward(&batch).context("the forward pass failed")?.logits)
    }

    /// Decodes: step i takes the i-th of each sequence's tokens, at position `start + i`. Where the device chooses tokens, each
    /// step takes what the one before chose instead, and is queued before that one is read, as the engine does it.
    pub fn generate(&mut self, start: usize, tokens: &[Vec<u32>]) -> Result<()> {
        let n_steps = tokens.first().map_or(0, Vec::len);
        let overlaps = self.model.chooses() && self.model.max_in_flight() > 1;
        let mut before = None;
        for i in 0..n_steps {
            let now: Vec<[u32; 1]> = tokens.iter().map(|tokens| [tokens[i]]).collect();
            let span = |(seq_idx, tokens)| TokenSpan { seq_idx, start: start + i, tokens };
            let spans: Vec<_> = now.iter().map(|tokens| &tokens[..]).enumerate().map(span).collect();
            let mut batch = self.batch(&spans, WantedLogits::Best);
            if !overlaps {
                self.model.forward(&batch).context("the forward pass failed")?;
                continue;
            }
            if before.is_some() {
                batch.fed = (0..tokens.len() as u32).map(|row| FedRow { row, choice_idx: row }).collect();
            }
            let ticket = self.model.submit(&batch).context("the forward pass failed")?;
            if let Some(before) = before.replace(ticket) {
                self.model.wait(before).context("the forward pass failed")?;
            }
        }
        if let Some(last) = before {
            self.model.wait(last).context("the forward pass failed")?;
        }
        Ok(())
    }

    /// Device time of each op of one step; `None` on a CPU.
    pub fn profile(&mut self, spans: &[TokenSpan<'_>]) -> Result<Option<(model::StepProfile, model::DeviceLimits)>> {
        let batch = self.batch(spans, WantedLogits::Last);
        Ok(self.model.profile(&batch)?)
    }

    fn batch(&self, spans: &[TokenSpan<'_>], want: WantedLogits) -> Batch {
        let n_rows = spans.iter().map(|span| span.tokens.len()).sum();
        let mut tokens = Vec::with_capacity(n_rows);
        let mut positions = Vec::with_capacity(n_rows);
        let mut seqs = Vec::with_capacity(spans.len());
        let mut logits_rows = Vec::new();
        for span in spans {
            let first_row = tokens.len() as u32;
            tokens.extend(span.tokens.iter().map(|&token| TokenId(token)));
            positions.extend((span.start..span.start + span.tokens.len()).map(|position| position as u32));
            let n_blocks = (span.start + span.tokens.len()).div_ceil(BLOCK_TOKENS);
            let block_table = self.tables[span.seq_idx][..n_blocks].to_vec();
            seqs.push(SeqRows { first_row, n_rows: span.tokens.len() as u32, block_table });
            let end = tokens.len() as u32;
            match want {
                WantedLogits::Nothing => {}
                WantedLogits::Last | WantedLogits::Best => logits_rows.push(end - 1),
                WantedLogits::All => logits_rows.extend(first_row..end),
            }
        }
        let best = Choice { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0.0 };
        let is_chosen = want == WantedLogits::Best && self.model.chooses();
        let choices = if is_chosen { vec![best; logits_rows.len()] } else { Vec::new() };
        Batch { tokens, positions, seqs, logits_rows, choices, ..Batch::default() }
    }

    /// Puts tokens of one sequence through the model in steps that fit, without their logits.
    pub fn feed(&mut self, seq_idx: usize, start: usize, tokens: &[u32]) -> Result<()> {
        for (i, tokens) in tokens.chunks(self.max_batch_tokens).enumerate() {
            self.step(
                &[TokenSpan { seq_idx, start: start + i * self.max_batch_tokens, tokens }],
                WantedLogits::Nothing,
            )?;
        }
        Ok(())
    }
}
