//! A model's side of a GPU: the queue, the compiled kernels, the memory that steps work in, and the captured graphs.
//!
//! A step uploads its small inputs once, enqueues everything, reads the wanted rows back once, and waits once. Steps
//! that only decode are captured the second time their shape is met, and replayed from then on: what changes between
//! them lies in the inputs, at fixed addresses.

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use gpu::{Buffer, DebugSync, Graph, Kinds, Launcher, Number, Pinned, Profiling, Queue, Timed};
use ops::{Arena, Chip, DeviceSpans, Exec, Gpu, Heads, Indices, Kernels, Place, Plan, Tensor, View, Workspace};
use weights::Dtype;

use crate::decoder::Decoder;
use crate::scratch::Scratch;
use crate::step::{Places, Step};
use crate::watch::{DeviceLimits, Profiler, StepProfile, Watch};
use crate::{Config, Error};

/// Sequences up to which a decode step is captured; more of them hide the cost of launching by themselves.
const MAX_CAPTURED: usize = 128;
/// Contexts are rounded up to powers of two from here on, so that one capture serves many lengths.
const MIN_CONTEXT: usize = 256;
const BLAS_BYTES: usize = 64 << 20;
/// One copy of the measurement of the bus.
const BUS_BYTES: usize = 32 << 20;
/// An op that takes longer than this counts as stalled where each is waited for.
const STALL: Duration = Duration::from_secs(30);
/// Decoded weights of a product through the vendor's library: a feed-forward matrix of an 8B model as f16.
const DECODED_BYTES: usize = 128 << 20;

pub struct Device {
    pub queue: Queue,
    pub kernels: Kernels,
    blas: Option<gpu::Blas>,
    workspace: RefCell<Workspace>,
    /// Host side of the inputs; `None` only while a copy holds it.
    staged: Option<Pinned<u32>>,
    inputs: Buffer<u32>,
    logits: Option<Pinned<f32>>,
    hidden: Option<Pinned<f32>>,
    /// Tokens that were chosen here, as bits.
    chosen: Option<Pinned<f32>>,
    graphs: HashMap<Shape, Option<Graph>>,
    is_watched: bool,
    profiler: Option<Profiler>,
}

/// What a captured decode step depends on.
#[derive(Copy, Clone, Eq, PartialEq, Hash)]
struct Shape {
    n_seqs: usize,
    plan: Plan,
    is_chosen: bool,
}

/// Sizes of what the device works in, besides activations.
#[derive(Copy, Clone)]
pub struct Sizes {
    pub n_input_words: usize,
    pub workspace: [usize; 3],
    pub max_logits_rows: usize,
}

impl Sizes {
    pub fn new(config: &Config, max_rows: usize, max_logits_rows: usize, n_blocks: usize) -> Self {
        let widest = config.n_embd.max(config.n_ff).max(config.q_dim());
        let max_tables = n_blocks.saturating_mul(max_rows.min(64));
        // Rows: token, slot, kept, pooled, logits, learned position, type, two kinds of angles; spans and tiles of attention.
        let group = config.n_heads / config.n_kv_heads;
        let n_input_words =
            max_rows * (7 + 2 * config.n_rot + 8 + 2 * group) + max_tables + 64 + max_logits_rows * ops::Choice::WORDS;
        let mut workspace = Workspace::plan(max_rows, widest, DECODED_BYTES);
        if let Some(experts) = &config.experts {
            // A row for each expert that a row goes to.
            let [activations, ..] = Workspace::plan(max_rows * experts.routing.n_used, experts.n_ff, DECODED_BYTES);
            workspace[0] = workspace[0].max(activations);
        }
        Self { n_input_words, workspace, max_logits_rows }
    }

    pub fn bytes(&self) -> usize {
        let padded = self.workspace.map(Arena::padded_on_device);
        padded.iter().sum::<usize>() + Arena::padded_on_device(self.n_input_words * 4) + BLAS_BYTES
    }
}

impl Device {
    /// `scratch` is the rest of the scratch arena, [`Sizes::bytes`] of it.
    pub fn new(queue: Queue, config: &Config, sizes: Sizes, scratch: &mut Arena) -> Result<Self, Error> {
        let kernels = Kernels::new(queue.device(), gpu::Cache::of_user());
        let [activations, weights, parts] = sizes.workspace.map(|len| scratch.carve_bytes(len));
        let inputs = scratch.carve_words(sizes.n_input_words);
        let wanted = [Kinds::new(Number::F16, Number::F32), Kinds::new(Number::F32, Number::F32)];
        // Never required: without it the kernels of this program do all the work, and say so.
        let blas = match queue.blas(scratch.carve_bytes(BLAS_BYTES), &wanted) {
            Ok(blas) => Some(blas),
            Err(error @ gpu::Error::NoBlas { .. }) => {
                kernels.refuse(error.to_string());
                None
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            staged: Some(queue.pinned(sizes.n_input_words)?),
            logits: Some(queue.pinned(sizes.max_logits_rows * config.n_vocab)?),
            hidden: Some(queue.pinned(sizes.max_logits_rows * config.n_embd)?),
            chosen: Some(queue.pinned(sizes.max_logits_rows)?),
            workspace: RefCell::new(Workspace { activations, weights, parts }),
            graphs: HashMap::new(),
            is_watched: false,
            profiler: None,
            queue,
            kernels,
            blas,
            inputs,
        })
    }

    /// What ops run on while a model is loaded.
    pub fn with_exec<T>(&self, body: impl FnOnce(&Gpu) -> T) -> T {
        let launcher = self.queue.launcher();
        body(&exec(&launcher, &self.kernels, self.blas.as_ref(), &self.workspace))
    }

    /// Scratch memory that weights pass through on their way in, before any step uses it.
    pub fn staging(&self) -> RefMut<'_, Buffer<u8>> {
        RefMut::map(self.workspace.borrow_mut(), |workspace| &mut workspace.weights)
    }

    /// Bytes a second from pinned memory to the device.
    pub fn measure_bus(&self) -> Result<f64, Error> {
        const N_COPIES: usize = 16;
        let mut staging = self.staging();
        let n_bytes = BUS_BYTES.min(staging.len());
        let mut pinned = self.queue.pinned(n_bytes)?;
        let mut start = None;
        for _ in 0..=N_COPIES {
            pinned = self.queue.upload(pinned, staging.slice_mut(..n_bytes)?)?.wait()?;
            // The first copy wakes everything up.
            start.get_or_insert_with(Instant::now);
        }
        let seconds = start.map_or(0.0, |start| start.elapsed().as_secs_f64());
        Ok((N_COPIES * n_bytes) as f64 / seconds.max(1e-9))
    }

    /// What this device can do at most: what is known of the chip, else what a copy does now.
    fn measure_limits(&self) -> Result<DeviceLimits, Error> {
        let tuning = self.kernels.tuning();
        let memory_bytes_per_s = match tuning.memory_gb_s {
            0 => self.measure_memory()?,
            known => f64::from(known) * 1e9,
        };
        Ok(DeviceLimits { memory_bytes_per_s, matrix_flops_per_s: f64::from(tuning.matrix_tflops) * 1e12 })
    }

    fn measure_memory(&self) -> Result<f64, Error> {
        const N_COPIES: usize = 8;
        let mut staging = self.staging();
        let half = staging.len() / 2;
        let copy = |staging: &mut Buffer<u8>| -> Result<(), Error> {
            let (to, from) = staging.slice_mut(..2 * half)?.split_at(half)?;
            Ok(self.queue.launcher().copy(from.as_slice(), to)?)
        };
        copy(&mut staging)?;
        let start = self.queue.record::<Timed>()?;
        for _ in 0..N_COPIES {
            copy(&mut staging)?;
        }
        let time = self.queue.record::<Timed>()?.since(&start)?;
        // A clock that stands still (the software GPU's) tells nothing.
        Ok(if time.is_zero() { 0.0 } else { (2 * N_COPIES * half) as f64 / time.as_secs_f64() })
    }

    /// Watches every step from now on.
    pub fn watch(&mut self, watch: Watch) -> Result<(), Error> {
        self.is_watched = watch != Watch::Off;
        match watch {
            // A tool that is attached sees what it can; asked for, every op is shown.
            Watch::Off if gpu::is_tool_attached(self.queue.device().vendor()) => {
                if let Err(error) = self.queue.show_ranges() {
                    self.kernels.refuse(format!("ranges for the profiler: {error}"));
                }
            }
            Watch::Off => {}
            Watch::Ranges => self.queue.show_ranges()?,
            Watch::DebugSync => {
                self.queue.set_debug_sync(DebugSync::EachOp);
                self.queue.set_deadline(STALL);
            }
            Watch::Profile => {
                self.profiler = Some(Profiler::new(self.measure_limits()?));
                self.queue.set_profiling(Profiling::EachOp);
            }
        }
        Ok(())
    }

    pub fn profiler(&self) -> Option<Profiler> {
        self.profiler.clone()
    }

    /// Runs a step op by op and tells how long each took.
    pub fn profile(&mut self, decoder: &mut Decoder, step: &Step) -> Result<(StepProfile, DeviceLimits), Error> {
        let limits = self.measure_limits()?;
        self.queue.set_profiling(Profiling::EachOp);
        let outcome = self.run(decoder, step, Capture::Never);
        let ops = self.queue.take_profile();
        if self.profiler.is_none() {
            self.queue.set_profiling(Profiling::Off);
        }
        outcome?;
        let (n_rows, n_seqs) = (step.n_rows, step.spans().len());
        Ok((StepProfile { n_rows, n_seqs, start: Duration::ZERO, ops: ops? }, limits))
    }

    /// Runs a step and brings the wanted rows back.
    pub fn forward(&mut self, decoder: &mut Decoder, step: &Step) -> Result<(), Error> {
        if !self.is_watched {
            return self.run(decoder, step, Capture::WhereItPays);
        }
        let start = self.profiler.as_ref().map(Profiler::now).unwrap_or_default();
        self.run(decoder, step, Capture::Never)?;
        if let Some(profiler) = &self.profiler {
            let (n_rows, n_seqs) = (step.n_rows, step.spans().len());
            profiler.push(StepProfile { n_rows, n_seqs, start, ops: self.queue.take_profile()? });
        }
        Ok(())
    }

    fn run(&mut self, decoder: &mut Decoder, step: &Step, capture: Capture) -> Result<(), Error> {
        let heads = decoder.config.heads();
        let spans = step.spans();
        let n_context = spans.iter().map(|span| span.first_position + span.n_rows).max().unwrap_or(1);
        let n_context = n_context.next_power_of_two().max(MIN_CONTEXT);
        let chip = Chip::of(self.queue.device(), decoder.kv.dtype(), decoder.is_shaped);
        let span_rows: Vec<usize> = spans.iter().map(|span| span.n_rows).collect();
        let plan = Plan::new(&span_rows, &heads, n_context, &chip);
        let input = Input::new(step, plan, &heads);
        let sent = self.upload(&input.words)?;

        let Self { queue, kernels, blas, workspace, inputs, graphs, .. } = self;
        let places = input.places(inputs, plan)?;
        let shape = Shape { n_seqs: spans.len(), plan, is_chosen: !step.choices.is_empty() };
        let run = |launcher: &Launcher, decoder: &mut Decoder| {
            let gpu = exec(launcher, kernels, blas.as_ref(), workspace);
            decoder.forward(Exec::Gpu(&gpu), step, &places)
        };
        let is_captured = capture == Capture::WhereItPays && step.only_decodes() && spans.len() <= MAX_CAPTURED;
        match graphs.get(&shape) {
            Some(Some(graph)) if is_captured => queue.replay(graph)?,
            Some(None) if is_captured => {
                let graph = queue.capture(|launcher| run(launcher, decoder))?;
                queue.replay(&graph)?;
                graphs.insert(shape, Some(graph));
            }
            _ => {
                run(&queue.launcher(), decoder)?;
                if is_captured {
                    graphs.insert(shape, None);
                }
            }
        }
        let Scratch { logits, pooled, chosen, .. } = &decoder.scratch;
        let n_logits = step.logits_rows.len();
        if step.choices.is_empty() {
            self.logits = Some(read(&self.queue, logits, n_logits, self.logits.take())?);
        } else {
            self.chosen = Some(read(&self.queue, chosen, n_logits, self.chosen.take())?);
        }
        if !step.pooled.is_empty() {
            self.hidden = Some(read(&self.queue, pooled, step.pooled.len(), self.hidden.take())?);
        }
        self.staged = Some(sent.wait()?);
        Ok(())
    }

    fn upload(&mut self, words: &[u32]) -> Result<gpu::Pending<u32>, Error> {
        let room = self.inputs.len();
        if words.len() > room {
            let what = format!("the block tables of this step need {} words, there is room for {room}", words.len());
            return Err(Error::Batch(what));
        }
        let mut staged = match self.staged.take() {
            Some(staged) => staged,
            // An earlier step failed with its copy in flight; that memory is gone.
            None => self.queue.pinned(room)?,
        };
        staged[..words.len()].copy_from_slice(words);
        Ok(self.queue.upload_part(staged, 0..words.len(), self.inputs.slice_mut(..words.len())?)?)
    }

    pub fn logits(&self) -> &[f32] {
        self.logits.as_deref().unwrap_or_default()
    }

    /// The tokens of the last step that was asked to choose, as bits.
    pub fn chosen(&self) -> &[f32] {
        self.chosen.as_deref().unwrap_or_default()
    }

    pub fn hidden(&self) -> &[f32] {
        self.hidden.as_deref().unwrap_or_default()
    }

    /// The vendor's library for products, if one is used.
    pub fn blas(&self) -> Option<String> {
        self.blas.as_ref().map(gpu::Blas::library)
    }
}

#[derive(Copy, Clone, Eq, PartialEq)]
enum Capture {
    WhereItPays,
    Never,
}

/// Copies the first rows of a tensor into pinned memory, and waits.
fn read(queue: &Queue, from: &Tensor, n_rows: usize, memory: Option<Pinned<f32>>) -> Result<Pinned<f32>, Error> {
    let rows = from.rows(n_rows);
    let Place::Device(bytes) = rows.place else { unreachable!("a model on a device keeps its scratch there") };
    let memory = match memory {
        Some(memory) => memory,
        // An earlier copy failed; its memory is gone.
        None => queue.pinned(from.shape()[0] * from.shape()[1])?,
    };
    Ok(queue.download(bytes.cast()?, memory)?.wait()?)
}

fn exec<'a>(
    launcher: &'a Launcher<'a>,
    kernels: &'a Kernels,
    blas: Option<&'a gpu::Blas>,
    workspace: &'a RefCell<Workspace>,
) -> Gpu<'a> {
    Gpu { launcher, kernels, blas, workspace }
}

/// Parts of a step's inputs before the block tables.
const N_PARTS: usize = 10;

/// A step's inputs as one array, and where each part starts. Block tables come last, so that everything else stands at
/// the same place in every step of the same shape.
struct Input<'a> {
    step: &'a Step<'a>,
    words: Vec<u32>,
    starts: [usize; N_PARTS + 1],
}

impl<'a> Input<'a> {
    fn new(step: &'a Step, plan: Plan, heads: &Heads) -> Self {
        let mut words = Vec::new();
        let mut starts = [0; N_PARTS + 1];
        let Step {
            tokens,
            slots,
            kept,
            pooled,
            logits_rows,
            choices,
            position_rows,
            type_rows,
            angles,
            local_angles,
            ..
        } = step;
        let [angles, local_angles] =
            [angles, local_angles].map(|all| all.iter().map(|angle| angle.to_bits()).collect::<Vec<u32>>());
        let parts: [&[u32]; N_PARTS] =
            [tokens, slots, kept, pooled, logits_rows, choices, position_rows, type_rows, &angles, &local_angles];
        for (start, part) in starts.iter_mut().zip(parts) {
            *start = words.len();
            words.extend_from_slice(part);
        }
        starts[N_PARTS] = words.len();
        plan.write(&step.spans(), heads, &mut words);
        Self { step, words, starts }
    }

    fn places<'d>(&self, inputs: &'d Buffer<u32>, plan: Plan) -> Result<Places<'d>, Error>
    where
        'a: 'd,
    {
        let part = |i: usize| inputs.slice(self.starts[i]..self.starts[i + 1]);
        let indices =
            |i: usize, host: &'a [u32]| -> Result<Indices<'d>, Error> { Ok(Indices { host, device: Some(part(i)?) }) };
        let step: &'a Step<'a> = self.step;
        let angles = |i: usize, host: &[f32]| -> Result<View<'d>, Error> {
            let shape = [step.n_rows, host.len() / step.n_rows];
            Ok(View { dtype: Dtype::F32, shape, layout: ops::Layout::Rows, place: Place::Device(part(i)?.cast()?) })
        };
        Ok(Places {
            tokens: indices(0, &step.tokens)?,
            slots: indices(1, &step.slots)?,
            kept: indices(2, &step.kept)?,
            pooled: indices(3, &step.pooled)?,
            logits_rows: indices(4, &step.logits_rows)?,
            choices: indices(5, &step.choices)?,
            position_rows: indices(6, &step.position_rows)?,
            type_rows: indices(7, &step.type_rows)?,
            angles: angles(8, &step.angles)?,
            local_angles: angles(9, &step.local_angles)?,
            spans: Some(DeviceSpans { plan, words: inputs.slice(self.starts[N_PARTS]..)? }),
        })
    }
}
