//! A drafter inside of the model whose keys and values it reads: weights and activations of its own, on the same device
//! and in the same queue. Its steps are run to their end one by one, between those of the model.

use std::sync::Arc;

use ops::{Arena, Exec, Pool};
use weights::Checkpoint;

use super::{DeviceChoice, MemoryPlan, Model, RunsOn, limits_context, names};
use crate::decoder::{Decoder, DraftTarget};
use crate::device::{DeviceSizes, StepMemory};
use crate::kv_cache::{KvBlocks, KvCache};
use crate::resident::Resident;
use crate::rope_table::RopeTable;
use crate::scratch::{MaxRows, Scratch};
use crate::state_pool::StatePool;
use crate::step::Step;
use crate::{BLOCK_TOKENS, Batch, BlockId, Choice, Config, Error, LoadOptions, Rows, SeqRows, StepLimits, TokenId};

/// What a drafter is loaded for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct AssistantOptions {
    /// Rows of one of its steps: one for each sequence.
    pub max_rows: usize,
    /// Tokens that a sequence may hold.
    pub n_ctx: usize,
}

impl AssistantOptions {
    fn max_rows(self) -> MaxRows {
        MaxRows { batch: self.max_rows, logits: self.max_rows, context: self.n_ctx }
    }

    /// Blocks that the tables of one row may name.
    fn blocks(self, target: &Config) -> KvBlocks {
        let n_blocks = self.n_ctx.div_ceil(BLOCK_TOKENS) + 1;
        KvBlocks { n_blocks, n_window_blocks: target.window_pool().map_or(0, |_| n_blocks) }
    }
}

pub(crate) struct Attached {
    decoder: Decoder,
    limits: StepLimits,
    /// On a GPU.
    memory: Option<StepMemory>,
}

/// What [attaching](Model::attach) a drafter to a model would take; touches no weight. Refuses one that does not fit.
pub fn plan_assistant(
    checkpoint: &Checkpoint,
    target: &Config,
    device: DeviceChoice,
    options: AssistantOptions,
) -> Result<MemoryPlan, Error> {
    let config = &target.with_assistant(&Config::from_checkpoint(checkpoint)?)?;
    let names = names(checkpoint, config);
    let (weights_bytes, scratch_bytes) = match device {
        DeviceChoice::Cpu => {
            (Resident::plan_bytes(Exec::Cpu(&Pool::new(1)), names, config)?, Scratch::bytes(config, options.max_rows()))
        }
        DeviceChoice::Gpu { .. } => {
            let sizes = DeviceSizes::new(config, options.max_rows(), options.blocks(target));
            let scratch_bytes = Scratch::bytes_on_device(config, options.max_rows()) + sizes.bytes_without_library();
            (Resident::plan_bytes_on_device(names, config)?, scratch_bytes)
        }
    };
    let stored_bytes = checkpoint.tensors().iter().map(|tensor| tensor.bytes.len()).sum();
    Ok(MemoryPlan { weights_bytes, stored_bytes, kv_bytes: 0, state_bytes: 0, scratch_bytes, adapter_bytes: 0 })
}

impl Model {
    /// Loads a drafter that reads this model's keys and values, for [`draft`](Self::draft). It must have been made for this
    /// model.
    pub fn attach(&mut self, checkpoint: &Checkpoint, options: AssistantOptions) -> Result<(), Error> {
        let target = self.config().clone();
        let config = target.with_assistant(&Config::from_checkpoint(checkpoint)?)?;
        let names = names(checkpoint, &config);
        let (weights, scratch, memory) = match &self.runs_on {
            RunsOn::Cpu(pool) => {
                let weights = Resident::load(Exec::Cpu(pool), names, &config)?;
                (weights, Scratch::new(&config, options.max_rows())?, None)
            }
            RunsOn::Gpu(device) => {
                let sizes = DeviceSizes::new(&config, options.max_rows(), options.blocks(&target));
                let n_scratch = Scratch::bytes_on_device(&config, options.max_rows()) + sizes.bytes_without_library();
                let n_weights = Resident::plan_bytes_on_device(names, &config)?;
                let mut arena = Arena::on_device(device.queue.pool(n_weights)?);
                let (weights, _) = Resident::load_on_device(device, 1, &mut arena, names, &config)?;
                let mut arena = Arena::on_device(device.queue.pool(n_scratch)?);
                let scratch = Scratch::carve(&config, options.max_rows(), &mut arena);
                let memory = device.more_memory(&config, sizes, config.n_ctx_train, &mut arena)?;
                (weights, scratch, Some(memory))
            }
        };
        let load = LoadOptions { n_ctx: options.n_ctx, ..LoadOptions::default() };
        let rope = RopeTable::new(&config, &names, limits_context(&config, &load))?;
        let mut decoder = Decoder::new(config, weights, rope, KvCache::empty(), StatePool::empty(), scratch);
        decoder.target =
            Some(DraftTarget { weights: Arc::clone(&self.decoder.weights), embedding_scale: target.embedding_scale });
        let limits =
            StepLimits { max_batch_tokens: options.max_rows, max_logits_rows: options.max_rows, ..self.limits };
        self.attached = Some(Box::new(Attached { decoder, limits, memory }));
        self.try_assistant()
    }

    /// Compiles a GPU's kernels now and not for the first request.
    fn try_assistant(&mut self) -> Result<(), Error> {
        if !self.chooses() {
            return Ok(());
        }
        let block_table = vec![BlockId(0)];
        let batch = Batch {
            tokens: vec![TokenId(0)],
            positions: vec![0],
            window_tables: (self.limits.n_window_blocks > 0).then(|| block_table.clone()).into_iter().collect(),
            seqs: vec![SeqRows { first_row: 0, n_rows: 1, block_table }],
            hidden: vec![0.0; self.config().n_embd],
            logits_rows: vec![0],
            pool_rows: vec![0],
            choices: vec![Choice::GREEDY],
            ..Batch::default()
        };
        self.draft(&batch).map(drop)
    }

    /// Rows that one step of the attached drafter takes; 0 without one.
    pub fn max_draft_rows(&self) -> usize {
        self.attached.as_ref().map_or(0, |attached| attached.limits.max_batch_tokens)
    }

    /// A step of the attached drafter. Each row is a token that this model has not computed yet, with this model's hidden
    /// state of the token before it, at the position of that token before; or a token that was drafted after such a one,
    /// with the drafter's hidden state, at the same position.
    pub fn draft(&mut self, batch: &Batch) -> Result<Rows<'_>, Error> {
        let chooses = self.chooses();
        let Some(attached) = &mut self.attached else {
            return Err(Error::Batch("no drafter is attached to this model".into()));
        };
        attached.check(batch, chooses)?;
        let Attached { decoder, memory, .. } = &mut **attached;
        let step = Step::new(batch, decoder);
        std::mem::swap(&mut decoder.kv, &mut self.decoder.kv);
        let result = match (&mut self.runs_on, memory.as_mut()) {
            (RunsOn::Cpu(pool), _) => decoder.forward(Exec::Cpu(pool), &step, &step.places()),
            (RunsOn::Gpu(device), Some(memory)) => device.with_memory(memory, |device| {
                let queued = device.submit(decoder, &step)?;
                device.wait(queued)
            }),
            (RunsOn::Gpu(_), None) => unreachable!("a drafter on a GPU has its memory"),
        };
        std::mem::swap(&mut decoder.kv, &mut self.decoder.kv);
        result?;
        let (n_logits, n_chosen, n_pooled) = (batch.n_logits(), batch.choices.len(), batch.pool_rows.len());
        let Config { n_vocab, .. } = decoder.config;
        Ok(match memory {
            Some(memory) => Rows {
                logits: &memory.logits()[..n_logits * n_vocab],
                chosen: memory.chosen(n_chosen),
                hidden: &memory.hidden()[..n_pooled * decoder.config.n_hidden_out()],
                ..Rows::default()
            },
            None => {
                let scratch = &decoder.scratch;
                Rows { logits: scratch.logits.f32s(n_logits), hidden: scratch.pooled.f32s(n_pooled), ..Rows::default() }
            }
        })
    }
}

impl Attached {
    fn check(&self, batch: &Batch, chooses: bool) -> Result<(), Error> {
        batch.validate(&self.limits)?;
        let bad = |what: &str| Err(Error::Batch(what.into()));
        if !chooses && !batch.choices.is_empty() {
            return bad("on a CPU the caller chooses the tokens");
        }
        let n_hidden = batch.n_rows() * self.decoder.config.n_hidden_in();
        if batch.hidden.len() != n_hidden {
            return bad(&format!("{} numbers of hidden states where {n_hidden} are read", batch.hidden.len()));
        }
        if !batch.fed.is_empty() || batch.chooses_later || batch.seqs.iter().any(|seq| seq.n_rows != 1) {
            return bad("a drafter reads one known token of each sequence");
        }
        Ok(())
    }
}
