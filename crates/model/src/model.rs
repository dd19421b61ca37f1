//! A loaded model: its configuration, its weights in memory, its KV pool, and the step that turns a batch into
//! logits.

use ops::{Exec, Pool};
use weights::Checkpoint;

use crate::decoder::Decoder;
use crate::kv_cache::{KvCache, KvType};
use crate::names::GGUF;
use crate::resident::Resident;
use crate::rope_table::RopeTable;
use crate::scratch::Scratch;
use crate::{Batch, Config, Error, Limits};

pub struct Model {
    pool: Pool,
    decoder: Decoder,
    limits: Limits,
    memory: MemoryPlan,
}

#[derive(Copy, Clone, Debug)]
pub struct LoadOptions {
    pub kv_type: KvType,
    /// Blocks of the KV pool.
    pub n_blocks: usize,
    /// Rows of the largest batch.
    pub max_batch_tokens: usize,
    /// Rows of a batch that may ask for logits, and as many for pooling.
    pub max_logits_rows: usize,
    /// 0 means as many as the machine has cores.
    pub n_threads: usize,
    pub shard: Shard,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            kv_type: KvType::F16,
            n_blocks: 256,
            max_batch_tokens: 512,
            max_logits_rows: 64,
            n_threads: 0,
            shard: Shard::WHOLE,
        }
    }
}

/// Which part of a model a rank holds.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Shard {
    pub rank: usize,
    pub n: usize,
}

impl Shard {
    pub const WHOLE: Self = Self { rank: 0, n: 1 };
}

/// Bytes a model takes, known before anything is taken.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct MemoryPlan {
    pub weights_bytes: usize,
    pub kv_bytes: usize,
    pub scratch_bytes: usize,
}

impl MemoryPlan {
    pub fn total_bytes(&self) -> usize {
        self.weights_bytes.saturating_add(self.kv_bytes).saturating_add(self.scratch_bytes)
    }
}

/// What a step leaves behind.
#[derive(Copy, Clone, Debug)]
pub struct Output<'a> {
    /// `[logits_rows.len(), n_vocab]`
    pub logits: &'a [f32],
    /// `[pool_rows.len(), n_embd]`, after the last norm.
    pub hidden: &'a [f32],
}

/// What loading would take; touches no weight.
pub fn plan(checkpoint: &Checkpoint, config: &Config, options: &LoadOptions) -> Result<MemoryPlan, Error> {
    // The layout depends on the instruction set, not on the number of threads.
    let pool = Pool::new(1);
    Ok(MemoryPlan {
        weights_bytes: Resident::plan_bytes(Exec::Cpu(&pool), checkpoint, config, &GGUF)?,
        kv_bytes: KvCache::bytes(config, options.kv_type, options.n_blocks),
        scratch_bytes: Scratch::bytes(config, options.max_batch_tokens, options.max_logits_rows),
    })
}

impl Model {
    pub fn load(checkpoint: &Checkpoint, options: LoadOptions) -> Result<Self, Error> {
        let n_threads = match options.n_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        Self::load_on(Pool::new(n_threads), checkpoint, options)
    }

    /// As [`Model::load`], on a pool of the caller's choice (tests pick the instruction set).
    pub fn load_on(pool: Pool, checkpoint: &Checkpoint, options: LoadOptions) -> Result<Self, Error> {
        if options.shard != Shard::WHOLE {
            return Err(Error::Batch(format!("shard {:?}: a model is not split over ranks yet", options.shard)));
        }
        let config = Config::from_metadata(checkpoint.metadata())?;
        let memory = plan(checkpoint, &config, &options)?;
        let limits = Limits {
            n_vocab: config.n_vocab,
            n_blocks: options.n_blocks,
            max_batch_tokens: options.max_batch_tokens,
            max_logits_rows: options.max_logits_rows,
        };
        let decoder = Decoder {
            weights: Resident::load(Exec::Cpu(&pool), checkpoint, &config, &GGUF)?,
            rope: RopeTable::new(&config, checkpoint, &GGUF)?,
            kv: KvCache::new(&config, options.kv_type, options.n_blocks)?,
            scratch: Scratch::new(&config, options.max_batch_tokens, options.max_logits_rows)?,
            config,
        };
        Ok(Self { pool, decoder, limits, memory })
    }

    pub fn config(&self) -> &Config {
        &self.decoder.config
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn n_blocks(&self) -> usize {
        self.limits.n_blocks
    }

    pub fn memory(&self) -> MemoryPlan {
        self.memory
    }

    /// Threads that compute, and the instructions they use.
    pub fn device(&self) -> String {
        format!("cpu ({} threads, {})", self.pool.n_threads(), self.pool.isa())
    }

    /// One step. Keys and values of every row are stored in the blocks of its sequence.
    pub fn forward(&mut self, batch: &Batch) -> Result<Output<'_>, Error> {
        batch.validate(&self.limits)?;
        self.decoder.forward(Exec::Cpu(&self.pool), batch)?;
        let scratch = &self.decoder.scratch;
        Ok(Output {
            logits: scratch.logits.f32s(batch.logits_rows.len()),
            hidden: scratch.pooled.f32s(batch.pool_rows.len()),
        })
    }
}
