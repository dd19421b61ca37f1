//! Grammar masks and the steps that need them. A mask follows from the token before, and is computed by other threads
//! while the device computes the row that it is for: a step whose masks are not known is submitted without its choices,
//! those before it are read, the masks are waited for, and then choosing is queued behind. So rows with masks overlap as
//! all others do. A row whose mask takes longer than the step is set aside, and the others go on.

use std::time::{Duration, Instant};

use batch::{Adjustment, StepError};

use crate::{
    engine::Engine,
    request::Job,
    rows::ChunkRows,
    scheduler::Chunk,
    step::{RowConsumer, StepInFlight, describe},
};

/// How long rows wait for their masks where no device computes meanwhile: before a step whose choices cannot follow it,
/// and when logits are here.
pub(crate) const MASKS_WAIT: Duration = Duration::from_millis(2);
/// The most that a step waits for masks while the device computes it.
const MAX_MASKS_WAIT: Duration = Duration::from_millis(20);

/// The logits of a request whose mask is not known yet. Its sequence waits for a token, like one whose step is under
/// way.
pub(crate) struct LateRow {
    pub chunk: Chunk,
    pub logits: Vec<f32>,
}

impl Engine {
    /// Goes on with the requests whose masks are known by now, or within `wait`.
    pub(crate) fn take_late(&mut self, wait: Duration) {
        let until = Instant::now() + wait;
        let mut endings = Vec::new();
        for row in std::mem::take(&mut self.late) {
            let seq = row.chunk.seq;
            let Some(request) = self.requests.get_mut(&seq) else { continue };
            if !request.has_mask_until(until) {
                self.late.push(row);
                continue;
            }
            let rows = ChunkRows { logits: &row.logits, chosen: &[], described: &[], hidden: &[], n_hidden: 0 };
            let consumer =
                RowConsumer { scheduler: &mut self.scheduler, chooser: &mut self.chooser, n_ctx: self.n_ctx };
            let ending = consumer.take_logits(request, &row.chunk, rows, until, &mut self.counters);
            endings.extend(ending.map(|ending| (seq, ending)));
        }
        endings.into_iter().for_each(|(seq, ending)| self.end(seq, ending));
    }

    /// Has the tokens of the step that was submitted last chosen, where that was left for later. The steps before it are
    /// read first: their tokens decide what is allowed.
    pub(crate) fn choose_open(&mut self) -> Result<(), String> {
        if !self.in_flight.back().is_some_and(|step| step.is_open) {
            return Ok(());
        }
        while self.in_flight.len() > 1 {
            self.distribute_oldest()?;
        }
        let Some(mut step) = self.in_flight.pop_back() else { return Ok(()) };
        match self.choose_tokens(&mut step) {
            Ok(()) => {
                step.is_open = false;
                self.in_flight.push_back(step);
                Ok(())
            }
            Err(error) => {
                // Waiting for a step without its choices fails, and the model is rid of it.
                _ = self.model.wait(step.ticket).map(drop);
                self.fail(&step.plan, &describe(error.as_ref()))
            }
        }
    }

    /// While the device computes a step, waits for the masks of those whose tokens it is to choose. The logits of those
    /// that are too late are asked for instead.
    fn choose_tokens(&mut self, step: &mut StepInFlight) -> Result<(), StepError> {
        let begun = Instant::now();
        self.wait_for_masks(step);
        self.counters.masks.wait += begun.elapsed();
        let (n_logits, mut n_unchosen) = (self.batch.n_logits(), 0);
        for (chunk, range) in step.plan.chunks.iter().zip(&mut step.ranges).filter(|(_, range)| range.waits) {
            self.counters.masks.n_rows += 1;
            let idx = range.chosen.start;
            // A request that has ended meanwhile leaves a row that nobody owns.
            if !self.requests.contains_key(&chunk.seq) {
                continue;
            }
            match self.adjustment(chunk) {
                Some(adjustment) => {
                    self.batch.adjustments[idx] = Some(adjustment);
                    self.feed_from(chunk.seq, idx);
                }
                None => {
                    self.counters.masks.n_late += 1;
                    n_unchosen = idx + 1;
                    (range.logits, range.chosen) = (n_logits + idx..n_logits + idx + 1, 0..0);
                }
            }
        }
        self.model.choose(&step.ticket, &self.batch, n_unchosen)?;
        step.counts.n_logits += n_unchosen;
        Ok(())
    }

    /// Waits until all masks of a step are known, or the device must be done with it. After that the rows that are late
    /// are waited for as long as they would lose, shared by all: a step without them costs them one of their own.
    fn wait_for_masks(&mut self, step: &StepInFlight) {
        let expected = self.step_time.clamp(MASKS_WAIT, MAX_MASKS_WAIT);
        let done = self.last_read.max(step.start) + expected;
        let waiting = step.plan.chunks.iter().zip(&step.ranges).filter(|(_, range)| range.waits);
        let mut late: Vec<_> = waiting.map(|(chunk, _)| chunk.seq).collect();
        let n_chunks = step.plan.chunks.len() as u32;
        for round in 0..2 {
            let until = if round == 0 { done } else { done + expected * late.len() as u32 / n_chunks };
            late.retain(|seq| self.requests.get_mut(seq).is_some_and(|request| !request.has_mask_until(until)));
            if late.is_empty() {
                break;
            }
        }
    }

    /// What a request wants of its logits, if that is known and not too much for the model.
    fn adjustment(&mut self, chunk: &Chunk) -> Option<Adjustment> {
        let seq = self.scheduler.get(chunk.seq)?;
        let Job::Generate(generate) = &mut self.requests.get_mut(&chunk.seq)?.job else { return None };
        let position = chunk.n_certain();
        let is_known = position == seq.tokens.len() && generate.has_mask_until(Instant::now());
        is_known.then(|| generate.model_choice(&seq.tokens, position, &mut self.chooser))??.adjustment
    }
}
