//! A step's inputs as one array, so that a step has one upload, and where the device finds each part of it.

use gpu::Buffer;
use ops::{DeviceSpans, Heads, Indices, Place, Plan, View};
use weights::Dtype;

use crate::Error;
use crate::step::{Places, Step};

/// Parts of a step's inputs before the block tables.
const N_PARTS: usize = 10;

/// A step's inputs as one array, and where each part starts. Block tables come last, so that everything else stands at
/// the same place in every step of the same shape.
pub struct Input<'a> {
    pub step: &'a Step<'a>,
    pub words: Vec<u32>,
    starts: [usize; N_PARTS + 1],
}

impl<'a> Input<'a> {
    pub fn new(step: &'a Step, plan: Plan, heads: &Heads) -> Self {
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

    pub fn places<'d>(&self, inputs: &'d Buffer<u32>, plan: Plan) -> Result<Places<'d>, Error>
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
