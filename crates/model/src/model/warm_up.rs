//! Made-up steps of a model that is being loaded onto a GPU, so that kernels are compiled then and not for the first request.

use super::{CompileProgress, Model, RunsOn};
use crate::step::Step;
use crate::{BLOCK_TOKENS, Batch, Choice, Error, SeqRows};

/// Rows of steps that take different kernels: one token, few, some, and a prompt.
const REHEARSED_ROWS: [u32; 4] = [1, 17, 40, 512];

impl Model {
    /// Whether the made-up steps fit.
    fn has_room_to_try(&self) -> bool {
        self.limits.n_blocks >= 2 && self.limits.n_window_blocks != 1
    }

    /// Runs a step of each kind on made-up tokens, so that kernels are compiled now and not for the first request.
    pub(super) fn warm_up(&mut self) -> Result<(), Error> {
        if !self.has_room_to_try() || self.limits.max_logits_rows == 0 {
            return Ok(());
        }
        for n_rows in [1, 17.min(self.limits.max_batch_tokens as u32)] {
            for batch in self.made_up(n_rows) {
                self.forward(&batch)?;
            }
        }
        Ok(())
    }

    /// Learns which kernels steps of several sizes launch, and compiles them side by side.
    pub(super) fn rehearse(&mut self, on_compile: Option<fn(CompileProgress)>) -> Result<(), Error> {
        if !self.has_room_to_try() || self.limits.max_logits_rows == 0 {
            return Ok(());
        }
        let n_blocks = match self.limits.n_window_blocks {
            0 => self.limits.n_blocks,
            n_window_blocks => self.limits.n_blocks.min(n_window_blocks),
        };
        let room = (n_blocks * BLOCK_TOKENS).min(self.config().n_ctx_train);
        let most = self.limits.max_batch_tokens.min(room).max(1) as u32;
        let batches: Vec<Batch> = REHEARSED_ROWS.iter().flat_map(|n_rows| self.made_up(*n_rows.min(&most))).collect();
        let RunsOn::Gpu(device) = &mut self.runs_on else { return Ok(()) };
        device.kernels.rehearse();
        for batch in &batches {
            let step = Step::new(batch, &self.decoder);
            device.rehearse(&mut self.decoder, &step)?;
            if self.decoder.config.indexer.is_some() {
                self.decoder.always_chooses = true;
                let rehearsed = device.rehearse(&mut self.decoder, &step);
                self.decoder.always_chooses = false;
                rehearsed?;
            }
        }
        Ok(device.kernels.compile_rehearsed(|progress| {
            if let Some(tell) = on_compile {
                tell(progress);
            }
        })?)
    }

    /// Batches of one sequence with so many rows: for its logits, and for a token chosen on the device.
    fn made_up(&self, n_rows: u32) -> Vec<Batch> {
        let n_blocks = (n_rows as usize).div_ceil(BLOCK_TOKENS).max(2) as u32;
        let block_table: Vec<_> = (0..n_blocks).map(crate::BlockId).collect();
        let has_windows = self.limits.n_window_blocks > 0;
        let batch = Batch {
            window_tables: has_windows.then(|| block_table.clone()).into_iter().collect(),
            tokens: vec![crate::TokenId(0); n_rows as usize],
            positions: (0..n_rows).collect(),
            seqs: vec![SeqRows { first_row: 0, n_rows, block_table }],
            logits_rows: vec![n_rows - 1],
            hidden: vec![0.0; n_rows as usize * self.config().n_hidden_in()],
            ..Batch::default()
        };
        if self.config().is_encoder() {
            let (pool_rows, attention) = (batch.logits_rows.clone(), crate::Attention::Full);
            return vec![Batch { logits_rows: Vec::new(), pool_rows, attention, ..batch }];
        }
        let chosen = Batch { choices: vec![Choice::GREEDY], ..batch.clone() };
        vec![batch, chosen]
    }
}
