//! RWKV 7's layer: a block that mixes tokens by a recurrence, and one that mixes channels. Both also see the previous
//! token, so both have a state.

use ops::{
    Activation, ConvFilter, ConvOutput, Product, StateSpans, Tensor, View, ViewMut, WkvOut, WkvRows, WkvWeights,
};

use crate::decoder::Context;
use crate::parts::{FactoredLinear, Norm, TensorId, WkvParts};
use crate::scratch::{Scratch, WkvWork};
use crate::state_pool::StateLayer;
use crate::{Error, Recurrent};

/// Under the root of a head's variance. Published code has this constant; flash-linear-attention has the norms' own times
/// the width of a head, which is the same in all published models.
const HEAD_EPS: f32 = 64e-5;

/// Which product a token is mixed for with the one before it: places in [`WkvParts::shifts`].
#[derive(Copy, Clone)]
enum Shift {
    R,
    Decay,
    Key,
    Value,
    Rate,
    Gate,
    Channels,
}

/// One layer's work on one step.
pub struct RwkvStep<'a> {
    pub context: Context<'a>,
    pub config: Recurrent,
    /// Of the stream, before tokens are mixed.
    pub norm: Option<Norm>,
    pub spans: StateSpans<'a>,
    pub state: &'a mut StateLayer,
    pub n: usize,
}

/// The stream gets what mixing tokens gives, and `s.recurrent.gate` what goes into the layer's last product.
pub fn mix(mut run: RwkvStep, parts: &WkvParts, s: &mut Scratch) -> Result<(), Error> {
    let Scratch { x, work, recurrent, wkv: w, .. } = s;
    let (context, n) = (run.context, run.n);
    let (exec, weights) = (context.exec, context.weights);
    let mut h = work.h.rows_mut(n);
    match run.norm {
        Some(norm) => context.norm(norm, x.rows(n), &mut h)?,
        None => ops::take_columns(exec, x.rows(n), &mut h)?,
    }
    run.mix_tokens(parts, h.as_view(), w)?;
    ops::matmul(exec, w.read.rows(n), &mut [Product::add(weights.view(parts.out), x.rows_mut(n))])?;
    context.norm(parts.channel_norm, x.rows(n), &mut h)?;
    run.shift(parts, Shift::Channels, h.as_view(), &mut w.shifted)?;
    run.matmul(&w.shifted, parts.channel_key, &mut recurrent.gate)?;
    Ok(ops::activate(exec, Activation::ReluSquared, &mut recurrent.gate.rows_mut(n))?)
}

impl RwkvStep<'_> {
    /// From the normed stream to `w.read`: what goes into the block's last product.
    fn mix_tokens(&mut self, parts: &WkvParts, h: View, w: &mut WkvWork) -> Result<(), Error> {
        let (exec, weights, n) = (self.context.exec, self.context.weights, self.n);
        self.shift(parts, Shift::R, h, &mut w.shifted)?;
        self.matmul(&w.shifted, parts.r, &mut w.r)?;
        self.shift(parts, Shift::Decay, h, &mut w.shifted)?;
        self.low_rank(&parts.decay, Some(Activation::Tanh), &w.shifted, &mut w.low, &mut w.decay)?;
        self.shift(parts, Shift::Key, h, &mut w.shifted)?;
        self.matmul(&w.shifted, parts.k, &mut w.k)?;
        self.shift(parts, Shift::Value, h, &mut w.shifted)?;
        match &parts.share {
            None => self.matmul(&w.shifted, parts.v, &mut w.first)?,
            Some(share) => {
                self.matmul(&w.shifted, parts.v, &mut w.v)?;
                self.low_rank(share, None, &w.shifted, &mut w.low, &mut w.share)?;
            }
        }
        self.shift(parts, Shift::Rate, h, &mut w.shifted)?;
        self.low_rank(&parts.rate, None, &w.shifted, &mut w.low, &mut w.rate)?;
        self.shift(parts, Shift::Gate, h, &mut w.shifted)?;
        self.low_rank(&parts.gate, Some(Activation::Sigmoid), &w.shifted, &mut w.low, &mut w.gate)?;

        let has_first = parts.share.is_some();
        let rows = WkvRows {
            r: w.r.rows(n),
            k: w.k.rows(n),
            v: if has_first { w.v.rows(n) } else { w.first.rows(n) },
            decay: w.decay.rows(n),
            rate: w.rate.rows(n),
            first: has_first.then(|| [w.first.rows(n), w.share.rows(n)]),
        };
        let vectors = WkvWeights {
            removal: weights.view(parts.removal),
            rate_of_key: weights.view(parts.rate_of_key),
            bonus: weights.view(parts.bonus),
        };
        let (mut read, mut bonus) = (w.read.rows_mut(n), w.bonus.rows_mut(n));
        let out = WkvOut { read: &mut read, bonus: &mut bonus };
        let state = &mut self.state.state.view_mut();
        ops::wkv_scan(exec, self.config.state_dim, rows, vectors, state, self.spans, out)?;
        ops::norm_heads(exec, &mut read, weights.view(parts.norm.weight), ops::NormKind::Layer, HEAD_EPS)?;
        if let Some(bias) = parts.norm.bias {
            ops::add_bias(exec, &mut read, weights.view(bias))?;
        }
        ops::add_scaled(exec, &mut read, bonus.as_view(), 1.0)?;
        Ok(ops::glu(exec, Activation::Identity, &mut read, w.gate.rows(n))?)
    }

    /// `out = h` mixed with the rows before: a filter of two taps, whose state is the last row.
    fn shift(&mut self, parts: &WkvParts, which: Shift, h: View, out: &mut Tensor) -> Result<(), Error> {
        let i = which as usize;
        let weight = self.context.weights.view(parts.shifts[i]);
        let filter = ConvFilter { weight, bias: None, output: ConvOutput::Plain };
        let (state, mut out) = (&mut self.state.conv[i].view_mut(), out.rows_mut(self.n));
        Ok(ops::conv1d(self.context.exec, h, filter, state, self.spans, &mut out)?)
    }

    fn matmul(&self, x: &Tensor, weight: TensorId, out: &mut Tensor) -> Result<(), Error> {
        self.product(x.rows(self.n), weight, &mut out.rows_mut(self.n))
    }

    fn product(&self, x: View, weight: TensorId, out: &mut ViewMut) -> Result<(), Error> {
        let weight = self.context.weights.view(weight);
        Ok(ops::matmul(self.context.exec, x, &mut [Product::write(weight, out.reborrow())])?)
    }

    /// A product through a few columns, which are bent on the way.
    fn low_rank(
        &self,
        parts: &FactoredLinear,
        activation: Option<Activation>,
        x: &Tensor,
        low: &mut Tensor,
        out: &mut Tensor,
    ) -> Result<(), Error> {
        let (n, up) = (self.n, &parts.up);
        let Some(down) = parts.down else { return self.matmul(x, up.weight, out) };
        let rank = self.context.weights.view(down).n_rows();
        let mut low = low.narrow_mut([n, rank]);
        self.product(x.rows(n), down, &mut low)?;
        if let Some(activation) = activation {
            ops::activate(self.context.exec, activation, &mut low)?;
        }
        let mut out = out.rows_mut(n);
        self.product(low.as_view(), up.weight, &mut out)?;
        self.context.add_bias(up, &mut out)
    }
}
