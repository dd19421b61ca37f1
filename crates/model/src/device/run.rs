//! A step on a device: queued by `submit`, read back by `wait`.
//!
//! Everything is enqueued on one stream, so a step may be queued while the one before it still runs. Its inputs are
//! copied after the earlier step has read its own, and it reads the tokens that the earlier step chose where that step
//! left them. Only the host memory of copies in flight must not be shared; that is why it is taken and given back.

use std::ops::Range;

use gpu::{Element, Launcher, Pending, Pinned, Queue};
use ops::{AttentionChip, AttentionPlan, Exec, Heads, Indices, Numerics, Place, Tensor};

use super::input::{StepInput, StepPlans};
use super::{Device, GraphKey, MAX_CAPTURED, MIN_CONTEXT, StepMemory, exec};
use crate::decoder::{ChoicePlaces, Decoder};
use crate::kv_cache::KvPool;
use crate::scratch::Scratch;
use crate::step::Step;
use crate::watch::{DeviceLimits, Profiler, StepProfile};
use crate::{Described, Error, TokenId};

/// Shapes of steps that are kept as graphs. Requests that choose on the host make many more; those run op by op.
const MAX_GRAPHS: usize = 1024;

/// A step under way: its copies, each with its host memory.
pub struct SubmittedStep {
    inputs: Pending<u32>,
    adjustments: Option<Pending<u32>>,
    outputs: Outputs<Pending<f32>>,
    /// Where its tokens have not been chosen yet.
    open: Option<OpenChoices>,
}

/// What is needed to choose the tokens of a step that was submitted without.
struct OpenChoices {
    n_rows: usize,
    n_logits_rows: usize,
    choices: Vec<u32>,
    described: Vec<u32>,
    /// Where a device has the two.
    places: [Range<usize>; 2],
}

/// What is read back from a step; tokens are bits.
pub struct Outputs<T> {
    logits: Option<T>,
    chosen: Option<T>,
    described: Option<T>,
    hidden: Option<T>,
}

impl<T> Default for Outputs<T> {
    fn default() -> Self {
        Self { logits: None, chosen: None, described: None, hidden: None }
    }
}

/// Pinned memory of one size, for copies that may be in flight at once.
pub struct PinnedSet<T: Element> {
    free: Vec<Pinned<T>>,
    len: usize,
}

impl<T: Element> PinnedSet<T> {
    pub fn new(queue: &Queue, len: usize) -> Result<Self, Error> {
        Ok(Self { free: vec![queue.pinned(len)?], len })
    }

    /// For copies that may never be asked for.
    pub fn empty(len: usize) -> Self {
        Self { free: Vec::new(), len }
    }

    /// Allocates for the second copy in flight, and after a failed one, whose memory is gone.
    pub fn take(&mut self, queue: &Queue) -> Result<Pinned<T>, Error> {
        match self.free.pop() {
            Some(memory) => Ok(memory),
            None => Ok(queue.pinned(self.len)?),
        }
    }

    pub fn give_back(&mut self, memory: Option<Pinned<T>>) {
        self.free.extend(memory);
    }
}

#[derive(Copy, Clone, Eq, PartialEq)]
enum Capture {
    WhereItPays,
    Never,
}

impl StepMemory {
    pub fn logits(&self) -> &[f32] {
        self.read.logits.as_deref().unwrap_or_default()
    }

    pub fn hidden(&self) -> &[f32] {
        self.read.hidden.as_deref().unwrap_or_default()
    }

    /// The tokens that were chosen; `None` where the logits were not numbers.
    pub fn chosen(&self, n: usize) -> Vec<Option<TokenId>> {
        let bits = self.read.chosen.as_deref().unwrap_or_default();
        let token = |bits: &f32| (bits.to_bits() != ops::NOT_NUMBERS).then(|| TokenId(bits.to_bits()));
        bits.iter().take(n).map(token).collect()
    }

    /// How probable the chosen tokens were, where any is described; nothing is said of one that is not, or that failed.
    pub fn described(&self, n_tops: &[u32]) -> Vec<Option<Described>> {
        let Some(words) = self.read.described.as_deref() else { return Vec::new() };
        let describe = |(words, (n_top, token)): (&[f32], (&u32, Option<TokenId>))| {
            token.filter(|_| *n_top != ops::NOT_ASKED)?;
            let pairs = words[2..].chunks_exact(2).take(words[1].to_bits() as usize);
            let top = pairs.map(|pair| (TokenId(pair[0].to_bits()), pair[1])).collect();
            Some(Described { logprob: words[0], top })
        };
        let rows = words.chunks_exact(ops::DESCRIBED_WORDS);
        rows.zip(n_tops.iter().zip(self.chosen(n_tops.len()))).map(describe).collect()
    }
}

impl Device {
    /// Runs a step op by op and tells how long each took.
    pub fn profile(&mut self, decoder: &mut Decoder, step: &Step) -> Result<(StepProfile, DeviceLimits), Error> {
        let limits = self.measure_limits()?;
        self.queue.set_profiling(gpu::Profiling::EachOp);
        let outcome = self.enqueue(decoder, step, Capture::Never).and_then(|step| self.wait(step));
        let ops = self.queue.take_profile();
        if self.profiler.is_none() {
            self.queue.set_profiling(gpu::Profiling::Off);
        }
        outcome?;
        let (n_rows, n_seqs) = (step.n_rows, step.n_seqs());
        Ok((StepProfile { n_rows, n_seqs, start: std::time::Duration::ZERO, ops: ops? }, limits))
    }

    /// Goes through a step without running it, while the kernels are being rehearsed.
    pub fn rehearse(&mut self, decoder: &mut Decoder, step: &Step) -> Result<(), Error> {
        let queued = self.enqueue(decoder, step, Capture::Never)?;
        self.wait(queued)
    }

    /// Queues a step.
    pub fn submit(&mut self, decoder: &mut Decoder, step: &Step) -> Result<SubmittedStep, Error> {
        if !self.is_watched {
            return self.enqueue(decoder, step, Capture::WhereItPays);
        }
        let start = self.profiler.as_ref().map(Profiler::now).unwrap_or_default();
        let queued = self.enqueue(decoder, step, Capture::Never)?;
        if let Some(profiler) = &self.profiler {
            let (n_rows, n_seqs) = (step.n_rows, step.n_seqs());
            profiler.push(StepProfile { n_rows, n_seqs, start, ops: self.queue.take_profile()? });
        }
        Ok(queued)
    }

    /// Waits for a step; then its rows are here until the next wait.
    pub fn wait(&mut self, step: SubmittedStep) -> Result<(), Error> {
        if step.open.is_some() {
            return Err(Error::Batch("the tokens of this step were not chosen".into()));
        }
        self.memory.logits.give_back(self.memory.read.logits.take());
        self.memory.chosen.give_back(self.memory.read.chosen.take());
        self.memory.described.give_back(self.memory.read.described.take());
        self.memory.hidden.give_back(self.memory.read.hidden.take());
        let Outputs { logits, chosen, described, hidden } = step.outputs;
        self.memory.read.logits = logits.map(|rows| rows.wait()).transpose()?;
        self.memory.read.chosen = chosen.map(|tokens| tokens.wait()).transpose()?;
        self.memory.read.described = described.map(|rows| rows.wait()).transpose()?;
        self.memory.read.hidden = hidden.map(|rows| rows.wait()).transpose()?;
        let staged = step.inputs.wait()?;
        self.memory.staged.give_back(Some(staged));
        let staged = step.adjustments.map(|words| words.wait()).transpose()?;
        self.memory.staged_adjustments.give_back(staged);
        Ok(())
    }

    /// What the step that was waited for last gave.
    pub fn rows(&self) -> &StepMemory {
        &self.memory
    }

    fn enqueue(&mut self, decoder: &mut Decoder, step: &Step, capture: Capture) -> Result<SubmittedStep, Error> {
        let config = &decoder.config;
        let (heads, local) = (config.heads(), config.local_heads.is_some() || step.has_windows());
        let local_heads = config.is_windowed.iter().position(|is_windowed| *is_windowed).filter(|_| local);
        let local_heads = local_heads.map(|layer_idx| config.heads_of(layer_idx));
        let spans = step.spans(KvPool::Whole);
        let n_context = spans.iter().map(|span| span.first_position + span.n_rows).max().unwrap_or(1);
        let n_context = n_context.next_power_of_two().max(MIN_CONTEXT);
        let mut chip = AttentionChip::of(&self.kernels, decoder.kv.dtype(), decoder.is_shaped);
        let chooses = decoder.chooses(step);
        if decoder.config.alibi.is_some() || chooses {
            chip = chip.without_units();
        }
        let span_rows: Vec<usize> = spans.iter().map(|span| span.n_rows).collect();
        let plan_for = |heads: &Heads| {
            let chip = match self.kernels.numerics() {
                Numerics::RowInvariant => chip.with_parts(heads, self.memory.n_ctx),
                _ => chip,
            };
            AttentionPlan::new(&span_rows, heads, n_context, &chip)
        };
        let plans = StepPlans { whole: plan_for(&heads), local: local_heads.as_ref().map(plan_for) };
        let input = StepInput::new(step, plans, [heads, local_heads.unwrap_or(heads)]);
        let inputs = self.upload(&input.words)?;
        let adjustments = self.upload_adjustments(&step.adjustments)?;
        let key = GraphKey {
            n_seqs: spans.len(),
            plans,
            n_chosen: step.n_choices(),
            is_adjusted: !step.adjustments.is_empty(),
            is_described: !step.described.is_empty(),
            has_adapters: !step.adapter_slots.is_empty(),
            chooses,
            chooses_later: step.chooses_later(),
        };
        let is_captured = capture == Capture::WhereItPays && step.only_decodes() && spans.len() <= MAX_CAPTURED;
        self.run(decoder, &input, plans, is_captured.then_some(key))?;

        let open = step.chooses_later().then(|| OpenChoices {
            n_rows: step.n_rows,
            n_logits_rows: step.logits_rows.len(),
            choices: step.choices.clone(),
            described: step.described.clone(),
            places: input.choices(),
        });
        let hidden = read(&self.queue, &decoder.scratch.pooled, step.pooled.len(), &mut self.memory.hidden)?;
        let mut outputs = Outputs { hidden, ..Outputs::default() };
        if open.is_none() {
            self.read_choices(
                &decoder.scratch,
                [step.n_logits(), step.n_choices(), step.described.len()],
                &mut outputs,
            )?;
        }
        Ok(SubmittedStep { inputs, adjustments, outputs, open })
    }

    /// Starts to copy so many rows of logits, chosen tokens and descriptions to the host.
    fn read_choices(
        &mut self,
        scratch: &Scratch,
        [n_logits, n_chosen, n_described]: [usize; 3],
        outputs: &mut Outputs<Pending<f32>>,
    ) -> Result<(), Error> {
        let Self { queue, memory: StepMemory { logits, chosen, described, .. }, .. } = self;
        outputs.logits = read(queue, &scratch.logits, n_logits, logits)?;
        outputs.chosen = read(queue, &scratch.chosen, n_chosen, chosen)?;
        outputs.described = read(queue, &scratch.described, n_described, described)?;
        Ok(())
    }

    /// Chooses the tokens of the step that was queued last, where it was queued without. `words` are `ops::Adjustments`; the
    /// first `n_logits` rows of logits are read back.
    pub fn choose(
        &mut self,
        decoder: &mut Decoder,
        step: &mut SubmittedStep,
        words: &[u32],
        n_logits: usize,
    ) -> Result<(), Error> {
        let Some(open) = &step.open else {
            return Err(Error::Batch("the tokens of this step are chosen".into()));
        };
        let adjustments = self.upload_adjustments(words)?;
        let [choices, described] = &open.places;
        let places = ChoicePlaces {
            n_rows: open.n_rows,
            n_logits_rows: open.n_logits_rows,
            choices: Indices { host: &open.choices, device: Some(self.memory.inputs.slice(choices.clone())?) },
            described: Indices { host: &open.described, device: Some(self.memory.inputs.slice(described.clone())?) },
            adjustments: Indices { host: words, device: Some(self.memory.adjustments.all()) },
        };
        let launcher = self.queue.launcher();
        let gpu = exec(&launcher, &self.kernels, self.blas.as_ref(), &self.memory.workspace);
        decoder.choose(Exec::Gpu(&gpu), &places)?;
        let n_chosen = open.choices.len() / ops::SampleParams::WORDS;
        let n_rows = [n_logits, n_chosen, open.described.len()];
        self.read_choices(&decoder.scratch, n_rows, &mut step.outputs)?;
        (step.adjustments, step.open) = (adjustments, None);
        Ok(())
    }

    /// Launches the step's ops, or the graph of them. A shape that is met for the second time is captured.
    fn run(
        &mut self,
        decoder: &mut Decoder,
        input: &StepInput,
        plans: StepPlans,
        captured_as: Option<GraphKey>,
    ) -> Result<(), Error> {
        let Self { queue, kernels, blas, memory, .. } = self;
        let StepMemory { workspace, inputs, adjustments, graphs, .. } = memory;
        let places = input.places(inputs, adjustments, plans)?;
        let run = |launcher: &Launcher, decoder: &mut Decoder| {
            let gpu = exec(launcher, kernels, blas.as_ref(), workspace);
            decoder.forward(Exec::Gpu(&gpu), input.step, &places)
        };
        let captured_as = captured_as.filter(|key| graphs.len() < MAX_GRAPHS || graphs.contains_key(key));
        let Some(key) = captured_as else { return run(&queue.launcher(), decoder) };
        match graphs.get(&key) {
            Some(Some(graph)) => queue.replay(graph)?,
            Some(None) => {
                let graph = queue.capture(|launcher| run(launcher, decoder))?;
                queue.replay(&graph)?;
                graphs.insert(key, Some(graph));
            }
            None => {
                run(&queue.launcher(), decoder)?;
                graphs.insert(key, None);
            }
        }
        Ok(())
    }

    fn upload(&mut self, words: &[u32]) -> Result<Pending<u32>, Error> {
        let room = self.memory.inputs.len();
        if words.len() > room {
            let what = format!("the block tables of this step need {} words, there is room for {room}", words.len());
            return Err(Error::Batch(what));
        }
        let mut staged = self.memory.staged.take(&self.queue)?;
        staged[..words.len()].copy_from_slice(words);
        Ok(self.queue.upload_part(staged, 0..words.len(), self.memory.inputs.slice_mut(..words.len())?)?)
    }

    /// Nothing is copied where no row is adjusted.
    fn upload_adjustments(&mut self, words: &[u32]) -> Result<Option<Pending<u32>>, Error> {
        if words.is_empty() {
            return Ok(None);
        }
        let mut staged = self.memory.staged_adjustments.take(&self.queue)?;
        staged[..words.len()].copy_from_slice(words);
        let to = self.memory.adjustments.slice_mut(..words.len())?;
        Ok(Some(self.queue.upload_part(staged, 0..words.len(), to)?))
    }
}

/// Starts to copy the first rows of a tensor to the host; nothing where there are none.
fn read(
    queue: &Queue,
    from: &Tensor,
    n_rows: usize,
    memory: &mut PinnedSet<f32>,
) -> Result<Option<Pending<f32>>, Error> {
    if n_rows == 0 {
        return Ok(None);
    }
    let Place::Device(bytes) = from.rows(n_rows).place else {
        unreachable!("a model on a device keeps its scratch there")
    };
    Ok(Some(queue.download(bytes.cast()?, memory.take(queue)?)?))
}
