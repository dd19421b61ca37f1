//! A toy in place of a model, for tests of the loop: no arithmetic, but a real block store. Each row writes its token
//! into its block; logits and hidden states are a hash of all tokens read back through the block table. So a block
//! that is overwritten, mixed up or reused wrongly changes the text, as it would with a real model.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
    mpsc::{Receiver, Sender},
};

use engine::{
    Capacity, Forward, Rows, Sampling, draw,
    sampler::{Sampler, State},
};
use model::{Attention, BLOCK_TOKENS, Batch, Limits, TokenId};

pub const N_VOCAB: usize = 97;
pub const N_EMBD: usize = 4;

pub struct Toy {
    pub capacity: Capacity,
    blocks: Vec<[Option<TokenId>; BLOCK_TOKENS]>,
    logits: Vec<f32>,
    hidden: Vec<f32>,
    /// Each step waits for a permit, where there is a gate.
    pub gate: Option<Receiver<()>>,
    /// Told before that how many sequences the step computes.
    pub announce: Option<Sender<usize>>,
    /// A batch that holds this token fails, breaks its logits, or panics.
    pub poison: Option<(TokenId, Poison)>,
    pub n_steps: Arc<AtomicU64>,
    fault: Option<String>,
}

#[derive(Copy, Clone)]
pub enum Poison {
    Error,
    NaN,
    Panic,
    /// The step fails, and so would every later one.
    Fault,
}

impl Toy {
    pub fn new(n_blocks: usize) -> Self {
        let capacity = Capacity { n_vocab: N_VOCAB, n_ctx: 4096, n_blocks, max_batch_tokens: 64, max_output_rows: 24 };
        Self {
            capacity,
            blocks: vec![[None; BLOCK_TOKENS]; n_blocks],
            logits: Vec::new(),
            hidden: Vec::new(),
            gate: None,
            announce: None,
            poison: None,
            n_steps: Arc::default(),
            fault: None,
        }
    }
}

impl Forward for Toy {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn forward(&mut self, batch: &Batch) -> Result<Rows<'_>, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(announce) = &self.announce {
            announce.send(batch.seqs.len())?;
        }
        if let Some(gate) = &self.gate {
            gate.recv()?;
        }
        self.n_steps.fetch_add(1, Ordering::SeqCst);
        let Capacity { n_vocab, n_blocks, max_batch_tokens, max_output_rows, .. } = self.capacity;
        batch.validate(&Limits { n_vocab, n_blocks, max_batch_tokens, max_logits_rows: max_output_rows })?;
        let poison = self.poison.filter(|(token, _)| batch.tokens.contains(token)).map(|(_, poison)| poison);
        match poison {
            Some(Poison::Error) => return Err("the toy was told to fail".into()),
            Some(Poison::Fault) => {
                self.fault = Some("the toy lost its device".into());
                return Err("the toy was told to lose its device".into());
            }
            Some(Poison::Panic) => panic!("the toy was told to panic"),
            Some(Poison::NaN) | None => {}
        }
        self.logits.clear();
        self.hidden.clear();
        for seq in &batch.seqs {
            let rows = seq.first_row as usize..(seq.first_row + seq.n_rows) as usize;
            for row in rows.clone() {
                let position = batch.positions[row] as usize;
                let block = seq.block_table[position / BLOCK_TOKENS].0 as usize;
                self.blocks[block][position % BLOCK_TOKENS] = Some(batch.tokens[row]);
            }
            let n_all = batch.positions[rows.end - 1] as usize + 1;
            for row in rows {
                let n_seen = match batch.attention {
                    Attention::Causal => batch.positions[row] as usize + 1,
                    Attention::Full => n_all,
                };
                let seen = (0..n_seen).map(|position| {
                    let block = seq.block_table[position / BLOCK_TOKENS].0 as usize;
                    self.blocks[block][position % BLOCK_TOKENS].expect("a token nobody wrote is read")
                });
                let hash = hash(seen);
                if batch.logits_rows.contains(&(row as u32)) {
                    let is_broken = matches!(poison, Some(Poison::NaN)) && batch.tokens[row] == self.poison.unwrap().0;
                    self.logits.extend(logits(hash));
                    if is_broken {
                        *self.logits.last_mut().unwrap() = f32::NAN;
                    }
                }
                if batch.pool_rows.contains(&(row as u32)) {
                    self.hidden.extend(hidden(hash));
                }
            }
        }
        Ok(Rows { logits: &self.logits, hidden: &self.hidden, ..Rows::default() })
    }

    fn fault(&self) -> Option<String> {
        self.fault.clone()
    }
}

pub fn hash(tokens: impl Iterator<Item = TokenId>) -> u64 {
    tokens.fold(1, |hash, token| draw::mix(hash ^ u64::from(token.0)))
}

pub fn logits(hash: u64) -> impl Iterator<Item = f32> {
    (0..N_VOCAB as u64).map(move |i| draw::uniform(hash, i) as f32 * 6.0)
}

pub fn hidden(hash: u64) -> impl Iterator<Item = f32> {
    (0..N_EMBD as u64).map(move |i| draw::uniform(hash, 1000 + i) as f32 - 0.5)
}

/// What the toy says after `prompt`, without an engine, blocks or batches.
pub fn expected(prompt: &[TokenId], n: usize, sampling: &Sampling) -> Vec<TokenId> {
    let mut sampler = Sampler::new(N_VOCAB);
    let mut tokens = prompt.to_vec();
    let mut state = State::new(sampling);
    for _ in 0..n {
        let row: Vec<f32> = logits(hash(tokens.iter().copied())).collect();
        let sampled = sampler.sample_with(&mut state, &row, &tokens, sampling, None, None).unwrap();
        tokens.push(sampled.token);
    }
    tokens.split_off(prompt.len())
}

pub fn prompt(seed: u64, n: usize) -> Vec<TokenId> {
    (0..n as u64).map(|i| TokenId((draw::bits(seed, i) % N_VOCAB as u64) as u32)).collect()
}
