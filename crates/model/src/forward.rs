//! Steps of a loaded model: what a batch must satisfy, how it is queued, and where its rows are found afterwards.
//!
//! A CPU runs a step while it is submitted. A GPU is given the next one before the last is read.

use std::collections::VecDeque;

use batch::{CacheBytes, CachePlace, Capacity, CopyTicket, Embeds, Forward, StepError, Ticket, WindowLimits};
use ops::{Exec, Numerics};

use crate::device::SubmittedStep;
use crate::head::Head;
use crate::model::RunsOn;
use crate::step::{Step, adjustments};
use crate::{AdapterId, AdapterSource, Attention, Batch, Config, Error, Model, Pooling, Rows, StepLimits};

/// Steps that were submitted and not waited for, oldest first.
#[derive(Default)]
pub(crate) struct Steps {
    submitted: VecDeque<Submitted>,
    n_submitted: u64,
    /// Choices of the step that was submitted last, which the next may take tokens from.
    n_choices_before: usize,
}

struct Submitted {
    number: u64,
    n_logits: usize,
    n_chosen: usize,
    n_pooled: usize,
    /// `Step::described`.
    described: Vec<u32>,
    /// On a GPU.
    in_flight: Option<SubmittedStep>,
}

impl Model {
    /// Whether steps can choose tokens by themselves, so that no logits travel.
    pub fn chooses(&self) -> bool {
        matches!(self.runs_on, RunsOn::Gpu(_))
    }

    /// What a reranker makes of the hidden states that its head reads, pooled; `None` for other models.
    pub fn score(&self, pooled: &[f32]) -> Option<Vec<f32>> {
        let is_whole = pooled.len() == self.decoder.config.n_embd;
        self.head.as_ref().filter(|_| is_whole).map(|head| head.score(pooled))
    }

    /// The vector of a text from its pooled hidden states; `None` where those are the vector.
    pub fn project(&self, pooled: &[f32]) -> Option<Vec<f32>> {
        let is_whole = pooled.len() == self.decoder.config.n_embd;
        self.projection.as_ref().filter(|_| is_whole).map(|projection| projection.apply(pooled))
    }

    /// One step, from beginning to end. Keys and values of every row are stored in the blocks of its sequence.
    pub fn forward(&mut self, batch: &Batch) -> Result<Rows<'_>, Error> {
        let ticket = self.submit(batch)?;
        self.wait(ticket)
    }

    /// Adapters that may be ready at once.
    pub fn max_adapters(&self) -> usize {
        self.decoder.adapters.as_ref().map_or(0, |adapters| adapters.limits().max_loaded)
    }

    /// Makes an adapter ready for the steps from now on. Where there is no room, one that is not `in_use` makes way.
    pub fn load_adapter(&mut self, source: &AdapterSource, in_use: &[AdapterId]) -> Result<(), Error> {
        let Some(adapters) = &mut self.decoder.adapters else {
            return Err(Error::Adapter("the model was loaded without room for adapters".into()));
        };
        let queue = match &self.runs_on {
            RunsOn::Cpu(_) => None,
            RunsOn::Gpu(device) => Some(&device.queue),
        };
        let is_new = adapters.load(source, in_use, queue)?;
        if let (true, RunsOn::Gpu(device)) = (is_new, &mut self.runs_on) {
            device.forget_graphs();
        }
        Ok(())
    }

    /// Steps that may be under way at once. One that is watched is run to its end.
    pub fn max_in_flight(&self) -> usize {
        match &self.runs_on {
            RunsOn::Gpu(device) if !device.is_watched() => 2,
            _ => 1,
        }
    }

    /// Queues a step.
    pub fn submit(&mut self, batch: &Batch) -> Result<Ticket, Error> {
        self.check_batch(batch)?;
        let mut step = Step::new(batch, &self.decoder);
        let in_flight = match &mut self.runs_on {
            RunsOn::Cpu(pool) => {
                self.decoder.forward(Exec::Cpu(pool), &step, &step.places())?;
                None
            }
            RunsOn::Gpu(device) => Some(device.submit(&mut self.decoder, &step)?),
        };
        self.steps.n_submitted += 1;
        let number = self.steps.n_submitted;
        let (n_logits, n_chosen, n_pooled) = (batch.n_logits(), batch.choices.len(), batch.pool_rows.len());
        self.steps.n_choices_before = n_chosen;
        let described = std::mem::take(&mut step.described);
        self.steps.submitted.push_back(Submitted { number, n_logits, n_chosen, n_pooled, described, in_flight });
        Ok(Ticket(number))
    }

    /// Chooses the tokens of a step whose batch [leaves them to be chosen later](Batch::chooses_later).
    pub fn choose(&mut self, ticket: &Ticket, batch: &Batch, n_unchosen: usize) -> Result<(), Error> {
        batch.validate(&self.limits)?;
        let latest = self.steps.submitted.back_mut().filter(|step| step.number == ticket.0);
        let (RunsOn::Gpu(device), Some(Submitted { n_logits, n_chosen, in_flight: Some(in_flight), .. })) =
            (&mut self.runs_on, latest)
        else {
            return Err(Error::Batch(format!("step {} is not the latest of a device", ticket.0)));
        };
        if *n_chosen != batch.choices.len() || n_unchosen > *n_chosen {
            let what =
                format!("{} choices, {n_unchosen} of them open, for a step with {n_chosen}", batch.choices.len());
            return Err(Error::Batch(what));
        }
        device.choose(&mut self.decoder, in_flight, &adjustments(batch), *n_logits + n_unchosen)?;
        *n_logits += n_unchosen;
        Ok(())
    }

    /// What a step gave.
    pub fn wait(&mut self, ticket: Ticket) -> Result<Rows<'_>, Error> {
        let is_oldest = self.steps.submitted.front().is_some_and(|step| step.number == ticket.0);
        let oldest = if is_oldest { self.steps.submitted.pop_front() } else { None };
        let Some(Submitted { n_logits, n_chosen, n_pooled, described, in_flight, .. }) = oldest else {
            return Err(Error::Batch(format!("step {} is not the oldest under way", ticket.0)));
        };
        match (&mut self.runs_on, in_flight) {
            (RunsOn::Gpu(device), Some(in_flight)) => {
                device.wait(in_flight)?;
                let Config { n_vocab, n_embd, .. } = self.decoder.config;
                let rows = device.rows();
                Ok(Rows {
                    logits: &rows.logits()[..n_logits * n_vocab],
                    chosen: rows.chosen(n_chosen),
                    described: rows.described(&described),
                    hidden: &rows.hidden()[..n_pooled * n_embd],
                })
            }
            _ => {
                let scratch = &self.decoder.scratch;
                let (logits, hidden) = (scratch.logits.f32s(n_logits), scratch.pooled.f32s(n_pooled));
                Ok(Rows { logits, hidden, ..Rows::default() })
            }
        }
    }

    fn check_batch(&self, batch: &Batch) -> Result<(), Error> {
        batch.validate(&self.limits)?;
        let bad = |what: &str| Err(Error::Batch(what.into()));
        if self.steps.submitted.len() >= self.max_in_flight() {
            return bad("as many steps as this model takes are under way");
        }
        if !self.chooses() && !batch.choices.is_empty() {
            return bad("on a CPU the caller chooses the tokens");
        }
        if batch.chooses_later && !Forward::chooses_later(self) {
            return bad("this model chooses tokens at once");
        }
        let n_before = self.steps.n_choices_before;
        if self.max_in_flight() == 1 && !batch.fed.is_empty() {
            return bad("this model takes no tokens from the step before");
        }
        if let Some(fed) = batch.fed.iter().find(|fed| fed.choice_idx as usize >= n_before) {
            return bad(&format!("row {} takes choice {} of {n_before}", fed.row, fed.choice_idx));
        }
        let is_ready = |id: &AdapterId| self.decoder.adapters.as_ref().is_some_and(|all| all.slot(*id).is_some());
        if let Some(id) = batch.adapters.iter().flatten().find(|id| !is_ready(id)) {
            return bad(&format!("adapter {:016x} is not ready", id.0));
        }
        let n_hidden = batch.n_rows() * self.decoder.config.n_hidden_in();
        if batch.hidden.len() != n_hidden {
            return bad(&format!("{} numbers of hidden states where {n_hidden} are read", batch.hidden.len()));
        }
        if self.n_states > 0 {
            self.check_states(batch)?;
        }
        if self.decoder.config.is_encoder() {
            if batch.attention != Attention::Full {
                return bad("an encoder reads a text as a whole: its attention is full");
            }
            if !batch.logits_rows.is_empty() {
                return bad("an encoder has no logits; ask for hidden states");
            }
        }
        Ok(())
    }
}

impl Model {
    /// Slots must be in the pool, and one for each sequence; that no two write the same is checked by the ops.
    fn check_states(&self, batch: &Batch) -> Result<(), Error> {
        let (n_seqs, n_states) = (batch.seqs.len(), self.n_states);
        if !batch.states.is_empty() && batch.states.len() != n_seqs {
            return Err(Error::Batch(format!("{n_seqs} sequences but {} states", batch.states.len())));
        }
        let slots = batch.states.iter().flat_map(|state| [state.from, Some(state.to), state.copy]).flatten();
        let is_outside = slots.map(|slot| slot.0 as usize).max().is_some_and(|slot| slot >= n_states);
        if is_outside || n_seqs > n_states {
            return Err(Error::Batch(format!("the pool of recurrent states has {n_states} slots: {:?}", batch.states)));
        }
        Ok(())
    }
}

impl Forward for Model {
    fn capacity(&self) -> Capacity {
        let StepLimits { n_vocab, n_blocks, max_batch_tokens, max_logits_rows, .. } = self.limits();
        let n_ctx = self.config().n_ctx_train;
        Capacity { n_vocab, n_ctx, n_blocks, max_batch_tokens, max_output_rows: max_logits_rows }
    }

    fn n_states(&self) -> usize {
        self.n_states
    }

    fn windows(&self) -> Option<WindowLimits> {
        let n_blocks = self.limits().n_window_blocks;
        let n_tokens = self.config().window_pool().filter(|_| n_blocks > 0)?;
        Some(WindowLimits { n_tokens, n_blocks })
    }

    fn max_in_flight(&self) -> usize {
        Model::max_in_flight(self)
    }

    fn chooses(&self) -> bool {
        Model::chooses(self)
    }

    fn chooses_later(&self) -> bool {
        // One that is watched is run to its end at once.
        matches!(&self.runs_on, RunsOn::Gpu(device) if !device.is_watched())
    }

    fn choose(&mut self, ticket: &Ticket, batch: &Batch, n_unchosen: usize) -> Result<(), StepError> {
        Ok(Model::choose(self, ticket, batch, n_unchosen)?)
    }

    fn is_row_invariant(&self) -> bool {
        self.numerics() == Numerics::RowInvariant
    }

    fn max_adapters(&self) -> usize {
        Model::max_adapters(self)
    }

    fn load_adapter(&mut self, adapter: &AdapterSource, in_use: &[AdapterId]) -> Result<(), StepError> {
        Ok(Model::load_adapter(self, adapter, in_use)?)
    }

    fn cache_bytes(&self) -> CacheBytes {
        Model::cache_bytes(self)
    }

    fn copy_out(&mut self, places: &[CachePlace]) -> Result<CopyTicket, StepError> {
        Ok(Model::copy_out(self, places)?)
    }

    fn copied(&mut self, ticket: CopyTicket) -> Result<Vec<Vec<u8>>, StepError> {
        Ok(Model::copied(self, ticket)?)
    }

    fn copy_in(&mut self, pieces: &[(CachePlace, &[u8])]) -> Result<(), StepError> {
        Ok(Model::copy_in(self, pieces)?)
    }

    fn submit(&mut self, batch: &Batch) -> Result<Ticket, StepError> {
        Ok(Model::submit(self, batch)?)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Rows<'_>, StepError> {
        Ok(Model::wait(self, ticket)?)
    }

    fn max_draft_rows(&self) -> usize {
        Model::max_draft_rows(self)
    }

    fn draft(&mut self, batch: &Batch) -> Result<Rows<'_>, StepError> {
        Ok(Model::draft(self, batch)?)
    }

    fn fault(&self) -> Option<String> {
        Model::fault(self)
    }

    fn embeds(&self) -> Embeds {
        let config = self.config();
        let attention = if config.is_encoder() { Attention::Full } else { Attention::Causal };
        let pooling = config.pooling.unwrap_or(Pooling::Mean);
        Embeds { attention, pooling, head: self.head.as_ref().map(Head::states) }
    }

    fn score(&self, pooled: &[f32]) -> Option<Vec<f32>> {
        Model::score(self, pooled)
    }

    fn project(&self, pooled: &[f32]) -> Option<Vec<f32>> {
        Model::project(self, pooled)
    }
}
