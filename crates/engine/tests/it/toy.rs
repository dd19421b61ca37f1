//! A toy in place of a model, for tests of the loop: no arithmetic, but a real block store. Each row writes its token
//! into its block; logits and hidden states are a hash of all tokens read back through the block table. So a block
//! that is overwritten, mixed up or reused wrongly changes the text, as it would with a real model. As a device it
//! chooses tokens by itself and takes a second step before the first is read.

use std::collections::VecDeque;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
    mpsc::{Receiver, Sender},
};

use batch::{
    Attention, BLOCK_TOKENS, Batch, BlockId, CacheBytes, CachePlace, CopyTicket, Described, StepLimits, TokenId,
    WindowLimits,
};
use engine::{
    Capacity, Forward, Rows, Sampling, StepError, Ticket, draw,
    sampler::{Sampler, SamplerState},
};

pub const N_VOCAB: usize = 97;
pub const N_EMBD: usize = 4;

pub struct Toy {
    pub capacity: Capacity,
    /// More than one: it is a device.
    pub max_in_flight: usize,
    blocks: Vec<[Option<TokenId>; BLOCK_TOKENS]>,
    /// The same of layers with a window, where they have a pool of their own: what they see must be what the others see.
    windows: Vec<[Option<TokenId>; BLOCK_TOKENS]>,
    window: usize,
    /// The tokens that each slot's state has seen; none where it has no recurrent layers.
    states: Vec<Vec<TokenId>>,
    sampler: Sampler,
    /// What the steps under way gave, oldest first; a failed one is an error of its `wait`.
    under_way: VecDeque<Result<Outputs, String>>,
    /// Rows of logits that steps gave.
    pub n_logits_given: Arc<AtomicU64>,
    /// Rows whose token came from the step before.
    pub n_fed: Arc<AtomicU64>,
    /// Rows of the latest step whose tokens are to be chosen.
    open: Option<Vec<Vec<f32>>>,
    /// What the latest step chose: what the next is fed from.
    chosen: Vec<Option<TokenId>>,
    read: Outputs,
    n_submitted: u64,
    copies: VecDeque<Vec<Vec<u8>>>,
    /// Each step waits for a permit, where there is a gate.
    pub gate: Option<Receiver<()>>,
    /// Told before that how many sequences the step computes.
    pub announce: Option<Sender<usize>>,
    /// A batch that holds this token fails, breaks its logits, or panics.
    pub poison: Option<(TokenId, Poison)>,
    pub n_steps: Arc<AtomicU64>,
    fault: Option<String>,
}

#[derive(Default)]
struct Outputs {
    logits: Vec<f32>,
    chosen: Vec<Option<TokenId>>,
    described: Vec<Option<Described>>,
    hidden: Vec<f32>,
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
            max_in_flight: 1,
            blocks: vec![[None; BLOCK_TOKENS]; n_blocks],
            windows: Vec::new(),
            window: 0,
            states: Vec::new(),
            sampler: Sampler::new(N_VOCAB),
            under_way: VecDeque::new(),
            n_logits_given: Arc::default(),
            n_fed: Arc::default(),
            open: None,
            chosen: Vec::new(),
            read: Outputs::default(),
            n_submitted: 0,
            copies: VecDeque::new(),
            gate: None,
            announce: None,
            poison: None,
            n_steps: Arc::default(),
            fault: None,
        }
    }

    /// A toy that chooses tokens and takes two steps at once.
    pub fn device(n_blocks: usize) -> Self {
        Self { max_in_flight: 2, ..Self::new(n_blocks) }
    }

    /// With recurrent layers: what it says follows from the states, and not from the blocks.
    pub fn with_states(self, n_slots: usize) -> Self {
        Self { states: vec![Vec::new(); n_slots], ..self }
    }

    /// With layers that see so many tokens, and a pool of so many blocks for them.
    pub fn with_windows(self, window: usize, n_blocks: usize) -> Self {
        Self { windows: vec![[None; BLOCK_TOKENS]; n_blocks], window, ..self }
    }

    /// Writes a sequence's rows where layers with a window keep them, and looks at what each row sees.
    fn look_through_windows(&mut self, batch: &Batch, seq_idx: usize) {
        let (Some(windows), seq) = (batch.window_tables.get(seq_idx), &batch.seqs[seq_idx]) else { return };
        let place =
            |table: &[BlockId], position: usize| (table[position / BLOCK_TOKENS].0 as usize, position % BLOCK_TOKENS);
        for row in seq.first_row as usize..(seq.first_row + seq.n_rows) as usize {
            let (block, at) = place(windows, batch.positions[row] as usize);
            self.windows[block][at] = Some(batch.tokens[row]);
        }
        for row in seq.first_row as usize..(seq.first_row + seq.n_rows) as usize {
            let position = batch.positions[row] as usize;
            for seen in (position + 1).saturating_sub(self.window)..=position {
                let (block, at) = place(windows, seen);
                let (other, _) = place(&seq.block_table, seen);
                assert_eq!(self.windows[block][at], self.blocks[other][at], "token {seen}, seen from {position}");
            }
        }
    }

    /// What the tokens of a sequence's rows have seen, with its states moved on.
    fn move_state(&mut self, batch: &Batch, seq_idx: usize) -> Vec<TokenId> {
        let (seq, state) = (&batch.seqs[seq_idx], batch.states[seq_idx]);
        let first = seq.first_row as usize;
        let mut seen = state.from.map_or_else(Vec::new, |slot| self.states[slot.0 as usize].clone());
        assert_eq!(seen.len(), batch.positions[first] as usize, "the state of another position");
        seen.extend(&batch.tokens[first..first + seq.n_rows as usize]);
        for slot in [Some(state.to), state.copy].into_iter().flatten() {
            self.states[slot.0 as usize].clone_from(&seen);
        }
        seen
    }

    /// The batch with the tokens that the step before chose; any where that chose none.
    fn fed(&self, batch: &Batch) -> Batch {
        let mut batch = batch.clone();
        for fed in std::mem::take(&mut batch.fed) {
            let chosen = self.chosen[fed.choice_idx as usize];
            batch.tokens[fed.row as usize] = chosen.unwrap_or(TokenId(0));
        }
        batch
    }

    fn run(&mut self, batch: &Batch) -> Result<Outputs, String> {
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
        let (mut all_logits, mut outputs) = (Vec::new(), Outputs::default());
        for (seq_idx, seq) in batch.seqs.iter().enumerate() {
            let moved = (!self.states.is_empty()).then(|| self.move_state(batch, seq_idx));
            let rows = seq.first_row as usize..(seq.first_row + seq.n_rows) as usize;
            for row in rows.clone() {
                let position = batch.positions[row] as usize;
                let block = seq.block_table[position / BLOCK_TOKENS].0 as usize;
                self.blocks[block][position % BLOCK_TOKENS] = Some(batch.tokens[row]);
            }
            self.look_through_windows(batch, seq_idx);
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
                let hash = match &moved {
                    Some(moved) if batch.attention == Attention::Causal => hash(moved[..n_seen].iter().copied()),
                    _ => hash(seen),
                };
                if batch.logits_rows.contains(&(row as u32)) {
                    let is_broken = matches!(poison, Some(Poison::NaN)) && batch.tokens[row] == self.poison.unwrap().0;
                    let mut row: Vec<f32> = logits(hash).collect();
                    if is_broken {
                        *row.last_mut().unwrap() = f32::NAN;
                    }
                    all_logits.push(row);
                }
                if batch.pool_rows.contains(&(row as u32)) {
                    outputs.hidden.extend(hidden(hash));
                }
            }
        }
        let to_choose = all_logits.split_off(batch.n_logits());
        outputs.logits = all_logits.concat();
        if batch.chooses_later {
            self.open = Some(to_choose);
        } else {
            self.choose_rows(batch, to_choose, &mut outputs);
        }
        Ok(outputs)
    }

    fn choose_rows(&mut self, batch: &Batch, rows: Vec<Vec<f32>>, outputs: &mut Outputs) {
        for (idx, mut row) in rows.into_iter().enumerate() {
            let raw = row.clone();
            if let Some(Some(adjustment)) = batch.adjustments.get(idx) {
                let own = batch.logits_rows[batch.n_logits() + idx];
                adjustment.apply(&mut row, batch.tokens[own as usize]);
            }
            let chosen = self.sampler.choose(&row, &batch.choices[idx]);
            let n_top = batch.described.get(idx).copied().flatten();
            let describe = |(token, n_top): (TokenId, u32)| {
                let scored = self.sampler.score(&raw, token, n_top as usize, 0).unwrap();
                Described { logprob: scored.logprob, top: scored.top }
            };
            outputs.described.push(chosen.zip(n_top).map(describe));
            outputs.chosen.push(chosen);
        }
    }
}

impl Forward for Toy {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    fn n_states(&self) -> usize {
        self.states.len()
    }

    fn windows(&self) -> Option<WindowLimits> {
        let n_blocks = self.windows.len();
        (n_blocks > 0).then_some(WindowLimits { n_tokens: self.window, n_blocks })
    }

    fn chooses(&self) -> bool {
        self.max_in_flight > 1
    }

    fn chooses_later(&self) -> bool {
        self.chooses()
    }

    fn choose(&mut self, ticket: &Ticket, batch: &Batch, n_unchosen: usize) -> Result<(), StepError> {
        assert_eq!(ticket.0, self.n_submitted, "the latest step");
        let mut outputs = match self.under_way.pop_back().expect("a step under way") {
            Ok(outputs) => outputs,
            Err(error) => {
                self.under_way.push_back(Err(error));
                return Ok(());
            }
        };
        let rows = self.open.take().expect("its tokens are to be chosen");
        outputs.logits.extend(rows[..n_unchosen].iter().flatten());
        self.choose_rows(&self.fed(batch), rows, &mut outputs);
        self.chosen = outputs.chosen.clone();
        self.under_way.push_back(Ok(outputs));
        Ok(())
    }

    fn cache_bytes(&self) -> CacheBytes {
        CacheBytes { block: 4 * BLOCK_TOKENS, window: 4 * BLOCK_TOKENS, state: 0 }
    }

    fn copy_out(&mut self, places: &[CachePlace]) -> Result<CopyTicket, StepError> {
        let piece = |place: &CachePlace| {
            let tokens = match place {
                CachePlace::Block(block) => self.blocks[block.0 as usize].iter(),
                CachePlace::Window(block) => self.windows[block.0 as usize].iter(),
                CachePlace::State(_) => panic!("the toy has no states"),
            };
            tokens.flat_map(|token| token.expect("a token nobody wrote is copied").0.to_le_bytes()).collect()
        };
        self.copies.push_back(places.iter().map(piece).collect());
        Ok(CopyTicket(0))
    }

    fn copied(&mut self, _ticket: CopyTicket) -> Result<Vec<Vec<u8>>, StepError> {
        Ok(self.copies.pop_front().expect("a copy that was queued"))
    }

    fn copy_in(&mut self, pieces: &[(CachePlace, &[u8])]) -> Result<(), StepError> {
        for (place, bytes) in pieces {
            let to = match place {
                CachePlace::Block(block) => &mut self.blocks[block.0 as usize],
                CachePlace::Window(block) => &mut self.windows[block.0 as usize],
                CachePlace::State(_) => panic!("the toy has no states"),
            };
            let tokens = bytes.as_chunks::<4>().0.iter().map(|word| Some(TokenId(u32::from_le_bytes(*word))));
            *to = tokens.collect::<Vec<_>>().try_into().unwrap();
        }
        Ok(())
    }

    fn submit(&mut self, batch: &Batch) -> Result<Ticket, StepError> {
        if let Some(announce) = &self.announce {
            announce.send(batch.seqs.len())?;
        }
        if let Some(gate) = &self.gate {
            gate.recv()?;
        }
        self.n_steps.fetch_add(1, Ordering::SeqCst);
        assert!(self.under_way.len() < self.max_in_flight);
        let Capacity { n_vocab, n_blocks, max_batch_tokens, max_output_rows, .. } = self.capacity;
        let n_window_blocks = self.windows.len();
        let max_logits_rows = max_output_rows;
        batch.validate(&StepLimits { n_vocab, n_blocks, n_window_blocks, max_batch_tokens, max_logits_rows })?;
        assert!(self.open.is_none(), "the tokens of the step before were not chosen");
        self.n_fed.fetch_add(batch.fed.len() as u64, Ordering::SeqCst);
        let batch = self.fed(batch);
        let outputs = self.run(&batch);
        if let Ok(outputs) = &outputs
            && !outputs.chosen.is_empty()
        {
            self.chosen = outputs.chosen.clone();
        }
        self.under_way.push_back(outputs);
        self.n_submitted += 1;
        Ok(Ticket(self.n_submitted))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Rows<'_>, StepError> {
        assert_eq!(ticket.0 + self.under_way.len() as u64, self.n_submitted + 1, "steps are waited for in order");
        assert!(self.open.is_none() || !self.under_way.is_empty(), "its tokens were not chosen");
        self.read = self.under_way.pop_front().expect("a step under way")?;
        self.n_logits_given.fetch_add((self.read.logits.len() / N_VOCAB) as u64, Ordering::SeqCst);
        let Outputs { logits, chosen, described, hidden } = &self.read;
        Ok(Rows { logits, chosen: chosen.clone(), described: described.clone(), hidden })
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
    let mut state = SamplerState::new(sampling);
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
