//! A step's inputs as one array, so that a step has one upload, and where the device finds each part of it.

use std::ops::Range;

use gpu::Buffer;
use ops::{AttentionPlan, DeviceSpans, Heads, Indices, Place, StateSpans, View};
use weights::Dtype;

use crate::Error;
use crate::kv_cache::KvPool;
use crate::step::{Places, Step};

/// A part of a step's inputs, in the order they lie in. What changes its length from step to step comes last, so that
/// everything else stands at the same place in every step of the same shape.
#[derive(Copy, Clone)]
enum InputPart {
    Tokens,
    Sources,
    AdapterSlots,
    KeptAdapterSlots,
    Slots,
    WindowSlots,
    Kept,
    Pooled,
    LogitsRows,
    Choices,
    Described,
    PositionRows,
    TypeRows,
    States,
    Angles,
    LocalAngles,
    QueryScales,
    Slopes,
    Hidden,
    /// Attention's tiles, and those of layers with other heads.
    Tiles,
    LocalTiles,
    /// What attention looks at in the pool of whole contexts, and in that of windows; the block tables come after both.
    Spans,
    WindowSpans,
}

const N_PARTS: usize = InputPart::WindowSpans as usize + 1;

/// How attention is cut: in layers with the usual heads, and in those with a window where they have others or a pool of
/// their own.
#[derive(Copy, Clone, Eq, PartialEq, Hash)]
pub struct StepPlans {
    pub whole: AttentionPlan,
    pub local: Option<AttentionPlan>,
}

/// A step's inputs as one array, and where each part ends.
pub struct StepInput<'a> {
    pub step: &'a Step<'a>,
    pub words: Vec<u32>,
    ends: [usize; N_PARTS],
}

impl<'a> StepInput<'a> {
    pub fn new(step: &'a Step, plans: StepPlans, [heads, local_heads]: [Heads; 2]) -> Self {
        let mut input = Self { step, words: Vec::new(), ends: [0; N_PARTS] };
        input.push(InputPart::Tokens, &step.tokens);
        input.push(InputPart::Sources, &step.sources);
        input.push(InputPart::AdapterSlots, &step.adapter_slots);
        input.push(InputPart::KeptAdapterSlots, &step.kept_adapter_slots);
        input.push(InputPart::Slots, &step.slots);
        input.push(InputPart::WindowSlots, &step.window_slots);
        input.push(InputPart::Kept, &step.kept);
        input.push(InputPart::Pooled, &step.pooled);
        input.push(InputPart::LogitsRows, &step.logits_rows);
        input.push(InputPart::Choices, &step.choices);
        input.push(InputPart::Described, &step.described);
        input.push(InputPart::PositionRows, &step.position_rows);
        input.push(InputPart::TypeRows, &step.type_rows);
        let states: Vec<u32> = step.states.iter().flat_map(ops::StateSpan::words).collect();
        input.push(InputPart::States, &states);
        let bits = |angles: &[f32]| angles.iter().map(|angle| angle.to_bits()).collect::<Vec<u32>>();
        input.push(InputPart::Angles, &bits(&step.angles));
        input.push(InputPart::LocalAngles, &bits(&step.local_angles));
        input.push(InputPart::QueryScales, &bits(&step.query_scales));
        input.push(InputPart::Slopes, &bits(&step.slopes));
        input.push(InputPart::Hidden, &bits(step.hidden));
        let spans = step.spans(KvPool::Whole);
        let tiles = |plan: AttentionPlan, heads: &Heads| {
            let mut words = Vec::new();
            plan.write_tiles(&spans, heads, &mut words);
            words
        };
        input.push(InputPart::Tiles, &tiles(plans.whole, &heads));
        let local = plans.local.map(|plan| tiles(plan, &local_heads));
        input.push(InputPart::LocalTiles, &local.unwrap_or_default());
        let (mut tables, mut window_tables) = (Vec::new(), Vec::new());
        let windows = if step.has_windows() { step.spans(KvPool::Windows) } else { Vec::new() };
        // A table is found by its distance from the end of its own spans.
        let n_window_words = AttentionPlan::n_span_words(windows.len());
        let words = AttentionPlan::span_words(&spans, n_window_words, &mut tables);
        let window_words = AttentionPlan::span_words(&windows, tables.len(), &mut window_tables);
        input.push(InputPart::Spans, &words);
        input.push(InputPart::WindowSpans, &window_words);
        input.words.extend(tables);
        input.words.extend(window_tables);
        input
    }

    /// Parts are pushed in their order.
    fn push(&mut self, part: InputPart, words: &[u32]) {
        self.words.extend_from_slice(words);
        self.ends[part as usize] = self.words.len();
    }

    fn range(&self, part: InputPart) -> Range<usize> {
        let start = (part as usize).checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[part as usize]
    }

    /// Where the choices and what is described of them lie.
    pub fn choices(&self) -> [Range<usize>; 2] {
        [self.range(InputPart::Choices), self.range(InputPart::Described)]
    }

    /// `adjustments` have a buffer of their own: they are long, and few steps have any.
    pub fn places<'d>(
        &self,
        inputs: &'d Buffer<u32>,
        adjustments: &'d Buffer<u32>,
        plans: StepPlans,
    ) -> Result<Places<'d>, Error>
    where
        'a: 'd,
    {
        let step: &'a Step<'a> = self.step;
        let indices = |part: InputPart, host: &'a [u32]| -> Result<Indices<'d>, Error> {
            Ok(Indices { host, device: Some(inputs.slice(self.range(part))?) })
        };
        let numbers = |part: InputPart, host: &[f32], n_rows: usize| -> Result<View<'d>, Error> {
            let shape = [n_rows, host.len() / n_rows];
            let place = Place::Device(inputs.slice(self.range(part))?.cast()?);
            Ok(View { dtype: Dtype::F32, shape, layout: ops::Layout::Rows, place })
        };
        // To the end of the buffer: a captured step with other tables reads further.
        let spans = |plan: AttentionPlan, part: InputPart, words: InputPart| -> Result<DeviceSpans<'d>, Error> {
            let words = inputs.slice(self.range(words).start..)?;
            Ok(DeviceSpans { plan, tiles: inputs.slice(self.range(part))?, words })
        };
        let local_words = if step.has_windows() { InputPart::WindowSpans } else { InputPart::Spans };
        Ok(Places {
            tokens: indices(InputPart::Tokens, &step.tokens)?,
            sources: indices(InputPart::Sources, &step.sources)?,
            adapter_slots: indices(InputPart::AdapterSlots, &step.adapter_slots)?,
            kept_adapter_slots: indices(InputPart::KeptAdapterSlots, &step.kept_adapter_slots)?,
            slots: indices(InputPart::Slots, &step.slots)?,
            window_slots: indices(InputPart::WindowSlots, &step.window_slots)?,
            kept: indices(InputPart::Kept, &step.kept)?,
            pooled: indices(InputPart::Pooled, &step.pooled)?,
            logits_rows: indices(InputPart::LogitsRows, &step.logits_rows)?,
            choices: indices(InputPart::Choices, &step.choices)?,
            described: indices(InputPart::Described, &step.described)?,
            adjustments: Indices { host: &step.adjustments, device: Some(adjustments.all()) },
            position_rows: indices(InputPart::PositionRows, &step.position_rows)?,
            type_rows: indices(InputPart::TypeRows, &step.type_rows)?,
            states: StateSpans { host: &step.states, device: Some(inputs.slice(self.range(InputPart::States))?) },
            angles: numbers(InputPart::Angles, &step.angles, step.n_rows)?,
            local_angles: numbers(InputPart::LocalAngles, &step.local_angles, step.n_rows)?,
            query_scales: numbers(InputPart::QueryScales, &step.query_scales, step.n_rows)?,
            slopes: numbers(InputPart::Slopes, &step.slopes, 1)?,
            hidden: numbers(InputPart::Hidden, step.hidden, step.n_rows)?,
            spans: Some(spans(plans.whole, InputPart::Tiles, InputPart::Spans)?),
            local_spans: plans.local.map(|plan| spans(plan, InputPart::LocalTiles, local_words)).transpose()?,
        })
    }
}
