//! A step's inputs as one array, so that a step has one upload, and where the device finds each part of it.

use std::ops::Range;

use gpu::Buffer;
use ops::{AttentionPlan, DeviceSpans, Heads, Indices, Place, View};
use weights::Dtype;

use crate::Error;
use crate::step::{Places, Step};

/// A part of a step's inputs, in the order they lie in. What changes its length from step to step comes last, so that
/// everything else stands at the same place in every step of the same shape.
#[derive(Copy, Clone)]
enum Part {
    Tokens,
    Sources,
    AdapterSlots,
    KeptAdapterSlots,
    Slots,
    Kept,
    Pooled,
    LogitsRows,
    Choices,
    Described,
    PositionRows,
    TypeRows,
    Angles,
    LocalAngles,
    QueryScales,
    Slopes,
    /// Attention's plan, with the block tables.
    Spans,
}

const N_PARTS: usize = Part::Spans as usize + 1;

/// A step's inputs as one array, and where each part ends.
pub struct Input<'a> {
    pub step: &'a Step<'a>,
    pub words: Vec<u32>,
    ends: [usize; N_PARTS],
}

impl<'a> Input<'a> {
    pub fn new(step: &'a Step, plan: AttentionPlan, heads: &Heads) -> Self {
        let mut input = Self { step, words: Vec::new(), ends: [0; N_PARTS] };
        input.push(Part::Tokens, &step.tokens);
        input.push(Part::Sources, &step.sources);
        input.push(Part::AdapterSlots, &step.adapter_slots);
        input.push(Part::KeptAdapterSlots, &step.kept_adapter_slots);
        input.push(Part::Slots, &step.slots);
        input.push(Part::Kept, &step.kept);
        input.push(Part::Pooled, &step.pooled);
        input.push(Part::LogitsRows, &step.logits_rows);
        input.push(Part::Choices, &step.choices);
        input.push(Part::Described, &step.described);
        input.push(Part::PositionRows, &step.position_rows);
        input.push(Part::TypeRows, &step.type_rows);
        let bits = |angles: &[f32]| angles.iter().map(|angle| angle.to_bits()).collect::<Vec<u32>>();
        input.push(Part::Angles, &bits(&step.angles));
        input.push(Part::LocalAngles, &bits(&step.local_angles));
        input.push(Part::QueryScales, &bits(&step.query_scales));
        input.push(Part::Slopes, &bits(&step.slopes));
        plan.write(&step.spans(), heads, &mut input.words);
        input.ends[Part::Spans as usize] = input.words.len();
        input
    }

    /// Parts are pushed in their order.
    fn push(&mut self, part: Part, words: &[u32]) {
        self.words.extend_from_slice(words);
        self.ends[part as usize] = self.words.len();
    }

    fn range(&self, part: Part) -> Range<usize> {
        let start = (part as usize).checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[part as usize]
    }

    /// `adjustments` have a buffer of their own: they are long, and few steps have any.
    pub fn places<'d>(
        &self,
        inputs: &'d Buffer<u32>,
        adjustments: &'d Buffer<u32>,
        plan: AttentionPlan,
    ) -> Result<Places<'d>, Error>
    where
        'a: 'd,
    {
        let step: &'a Step<'a> = self.step;
        let indices = |part: Part, host: &'a [u32]| -> Result<Indices<'d>, Error> {
            Ok(Indices { host, device: Some(inputs.slice(self.range(part))?) })
        };
        let numbers = |part: Part, host: &[f32], n_rows: usize| -> Result<View<'d>, Error> {
            let shape = [n_rows, host.len() / n_rows];
            let place = Place::Device(inputs.slice(self.range(part))?.cast()?);
            Ok(View { dtype: Dtype::F32, shape, layout: ops::Layout::Rows, place })
        };
        Ok(Places {
            tokens: indices(Part::Tokens, &step.tokens)?,
            sources: indices(Part::Sources, &step.sources)?,
            adapter_slots: indices(Part::AdapterSlots, &step.adapter_slots)?,
            kept_adapter_slots: indices(Part::KeptAdapterSlots, &step.kept_adapter_slots)?,
            slots: indices(Part::Slots, &step.slots)?,
            kept: indices(Part::Kept, &step.kept)?,
            pooled: indices(Part::Pooled, &step.pooled)?,
            logits_rows: indices(Part::LogitsRows, &step.logits_rows)?,
            choices: indices(Part::Choices, &step.choices)?,
            described: indices(Part::Described, &step.described)?,
            adjustments: Indices { host: &step.adjustments, device: Some(adjustments.all()) },
            position_rows: indices(Part::PositionRows, &step.position_rows)?,
            type_rows: indices(Part::TypeRows, &step.type_rows)?,
            angles: numbers(Part::Angles, &step.angles, step.n_rows)?,
            local_angles: numbers(Part::LocalAngles, &step.local_angles, step.n_rows)?,
            query_scales: numbers(Part::QueryScales, &step.query_scales, step.n_rows)?,
            slopes: numbers(Part::Slopes, &step.slopes, 1)?,
            // To the end of the buffer: a captured step with other tables reads further.
            spans: Some(DeviceSpans { plan, words: inputs.slice(self.range(Part::Spans).start..)? }),
        })
    }
}
