//! Recurrent layers, whose state stands for everything before. A chunk of a prompt passes the products as a matrix;
//! only the recurrence itself goes token by token, inside one op.

use ops::{
    Activation, ConvFilter, ConvOutput, DeltaRows, DeltaShape, Product, Selected, SsmRows, SsmShape, SsmWeights,
    StateSpans, Tensor, View, ViewMut,
};

use crate::decoder::Context;
use crate::parts::{
    ConvParts, DeltaParts, FactoredLinear, LayerParts, Linear, MixerParts, Norm, SelectiveParts, SsmParts,
};
use crate::scratch::{RecurrentWork, Scratch};
use crate::state_pool::StateLayer;
use crate::{Error, Recurrent, rwkv};

/// Fills `s.recurrent.gate` of the first `n` rows: what goes into the layer's last product.
pub fn mix(
    context: Context,
    layer: &LayerParts,
    mixer: &MixerParts,
    spans: StateSpans,
    state: &mut StateLayer,
    n: usize,
    s: &mut Scratch,
) -> Result<(), Error> {
    let config = context.config.recurrent.expect("a recurrent layer has its sizes");
    if let MixerParts::Wkv(parts) = mixer {
        let norm = layer.attn_norm;
        return rwkv::mix(rwkv::RwkvStep { context, config, norm, spans, state, n }, parts, s);
    }
    let Scratch { x, work, recurrent: r, .. } = s;
    let mut run = RecurrentStep { context, config, norm: layer.attn_norm, spans, state, n };
    let (x, mut h) = (x.rows(n), work.h.rows_mut(n));
    match mixer {
        MixerParts::ShortConv { b, c, x: column, conv } => {
            let products = [(b, &mut r.inputs[0]), (c, &mut r.gate), (column, &mut r.convolved[0])];
            run.project(x, &mut h, products)?;
            let RecurrentWork { inputs, convolved, gate, .. } = r;
            run.multiply(&mut inputs[0], &convolved[0])?;
            run.convolve(0, conv, ConvOutput::Plain, inputs, convolved)?;
            run.multiply(gate, &convolved[0])
        }
        MixerParts::Ssm(parts) => run.ssm(parts, x, &mut h, r),
        MixerParts::Selective(parts) => run.selective(parts, x, &mut h, r),
        MixerParts::SelectiveHeads(parts) => run.selective_heads(parts, x, &mut h, r),
        MixerParts::Delta(parts) => run.delta(parts, x, &mut h, r),
        MixerParts::Wkv(_) => Ok(()),
    }
}

/// One layer's work on one step.
struct RecurrentStep<'a> {
    context: Context<'a>,
    config: Recurrent,
    norm: Option<Norm>,
    spans: StateSpans<'a>,
    state: &'a mut StateLayer,
    n: usize,
}

impl RecurrentStep<'_> {
    /// Products of the normed stream, with their biases.
    fn project<const N: usize>(
        &self,
        x: View,
        h: &mut ViewMut,
        linears: [(&Linear, &mut Tensor); N],
    ) -> Result<(), Error> {
        let Context { weights, .. } = self.context;
        let biased = linears.each_ref().map(|(linear, _)| **linear);
        let mut rows = linears.map(|(linear, out)| (weights.view(linear.weight), out.rows_mut(self.n)));
        let mut products: Vec<Product> =
            rows.iter_mut().map(|(weight, out)| Product::write(*weight, out.reborrow())).collect();
        self.context.norm_products(self.norm, x, h, &mut products)?;
        drop(products);
        let input = if self.norm.is_some() { h.as_view() } else { x };
        if self.context.adapters.is_some() {
            let outs = biased.iter().zip(&mut rows).map(|(linear, (_, out))| (linear.weight, out.reborrow()));
            self.context.adapt_all(input, &mut outs.collect::<Vec<_>>())?;
        }
        for (linear, (_, mut out)) in biased.iter().zip(rows) {
            self.context.add_bias(linear, &mut out)?;
        }
        Ok(())
    }

    fn matmul(&self, x: &Tensor, linear: &Linear, out: &mut Tensor) -> Result<(), Error> {
        let product = Product::write(self.context.weights.view(linear.weight), out.rows_mut(self.n));
        ops::matmul(self.context.exec, x.rows(self.n), &mut [product])?;
        self.context.adapt(linear, x.rows(self.n), &mut out.rows_mut(self.n))?;
        self.context.add_bias(linear, &mut out.rows_mut(self.n))
    }

    /// `x *= y`
    fn multiply(&self, x: &mut Tensor, y: &Tensor) -> Result<(), Error> {
        Ok(ops::glu(self.context.exec, Activation::Identity, &mut x.rows_mut(self.n), y.rows(self.n))?)
    }

    fn convolve(
        &mut self,
        i: usize,
        parts: &ConvParts,
        output: ConvOutput,
        inputs: &[Tensor; 3],
        convolved: &mut [Tensor; 3],
    ) -> Result<(), Error> {
        let weights = self.context.weights;
        let bias = parts.bias.map(|bias| weights.view(bias));
        let (x, mut out) = (inputs[i].rows(self.n), convolved[i].rows_mut(self.n));
        let state = &mut self.state.conv[i].view_mut();
        let filter = ConvFilter { weight: weights.view(parts.weight), bias, output };
        Ok(ops::conv1d(self.context.exec, x, filter, state, self.spans, &mut out)?)
    }

    fn ssm(&mut self, parts: &SsmParts, x: View, h: &mut ViewMut, r: &mut RecurrentWork) -> Result<(), Error> {
        let (exec, weights, n) = (self.context.exec, self.context.weights, self.n);
        let linears = [(&parts.gate, &mut r.gate), (&parts.xbc, &mut r.inputs[0]), (&parts.dt, &mut r.forget)];
        self.project(x, h, linears)?;
        self.convolve(0, &parts.conv, ConvOutput::Silu, &r.inputs, &mut r.convolved)?;
        let Recurrent { n_heads, state_dim, n_groups, .. } = self.config;
        let shape = SsmShape { n_heads, head_dim: self.config.head_dim(), state_dim, n_groups };
        let numbers =
            SsmWeights { a: weights.view(parts.a), d: weights.view(parts.d), dt_bias: weights.view(parts.dt_bias) };
        let rows = SsmRows { xbc: r.convolved[0].rows(n), dt: r.forget.rows(n) };
        let state = &mut self.state.state.view_mut();
        ops::ssm_scan(exec, shape, rows, numbers, state, self.spans, &mut r.out.rows_mut(n))?;
        ops::glu(exec, Activation::Silu, &mut r.gate.rows_mut(n), r.out.rows(n))?;
        let Some(norm) = parts.norm else { return Ok(()) };
        let eps = self.context.config.norm_eps;
        Ok(ops::norm_heads(exec, &mut r.gate.rows_mut(n), weights.view(norm), ops::NormKind::Rms, eps)?)
    }

    fn selective(
        &mut self,
        parts: &SelectiveParts,
        x: View,
        h: &mut ViewMut,
        r: &mut RecurrentWork,
    ) -> Result<(), Error> {
        let (exec, weights, n) = (self.context.exec, self.context.weights, self.n);
        self.select(parts, x, h, r)?;
        self.matmul(&r.low, &parts.dt, &mut r.forget)?;
        let selected = Selected { x: r.convolved[0].rows(n), dt: r.forget.rows(n), b: r.b.rows(n), c: r.c.rows(n) };
        let (a, d, state) = (weights.view(parts.a), weights.view(parts.d), &mut self.state.state.view_mut());
        ops::selective_scan(exec, selected, a, d, state, self.spans, &mut r.out.rows_mut(n))?;
        Ok(ops::glu(exec, Activation::Silu, &mut r.gate.rows_mut(n), r.out.rows(n))?)
    }

    fn selective_heads(
        &mut self,
        parts: &SelectiveParts,
        x: View,
        h: &mut ViewMut,
        r: &mut RecurrentWork,
    ) -> Result<(), Error> {
        let (exec, weights, n) = (self.context.exec, self.context.weights, self.n);
        self.select(parts, x, h, r)?;
        // The scan adds the bias.
        let dt = Product::write(weights.view(parts.dt.weight), r.forget.rows_mut(n));
        ops::matmul(exec, r.low.rows(n), &mut [dt])?;
        let [columns, xbc, bc] = &mut r.convolved;
        ops::join_columns(exec, r.b.rows(n), r.c.rows(n), &mut bc.rows_mut(n))?;
        ops::join_columns(exec, columns.rows(n), bc.rows(n), &mut xbc.rows_mut(n))?;
        let Recurrent { n_heads, state_dim, n_groups, .. } = self.config;
        let shape = SsmShape { n_heads, head_dim: self.config.head_dim(), state_dim, n_groups };
        let dt_bias = weights.view(parts.dt.bias.expect("time steps have a bias"));
        let numbers = SsmWeights { a: weights.view(parts.a), d: weights.view(parts.d), dt_bias };
        let rows = SsmRows { xbc: xbc.rows(n), dt: r.forget.rows(n) };
        let state = &mut self.state.state.view_mut();
        ops::ssm_scan(exec, shape, rows, numbers, state, self.spans, &mut r.out.rows_mut(n))?;
        Ok(ops::glu(exec, Activation::Silu, &mut r.gate.rows_mut(n), r.out.rows(n))?)
    }

    /// The convolved columns, the gate, and from the columns `b`, `c` and the time step's few numbers, normed.
    fn select(&mut self, parts: &SelectiveParts, x: View, h: &mut ViewMut, r: &mut RecurrentWork) -> Result<(), Error> {
        let (exec, weights, n) = (self.context.exec, self.context.weights, self.n);
        self.project(x, h, [(&parts.x, &mut r.inputs[0]), (&parts.gate, &mut r.gate)])?;
        self.convolve(0, &parts.conv, ConvOutput::Silu, &r.inputs, &mut r.convolved)?;
        let mut products = [
            Product::write(weights.view(parts.low), r.low.rows_mut(n)),
            Product::write(weights.view(parts.b), r.b.rows_mut(n)),
            Product::write(weights.view(parts.c), r.c.rows_mut(n)),
        ];
        ops::matmul(exec, r.convolved[0].rows(n), &mut products)?;
        for (weight, out) in [parts.low, parts.b, parts.c].into_iter().zip([&mut r.low, &mut r.b, &mut r.c]) {
            let linear = Linear { weight, bias: None };
            self.context.adapt(&linear, r.convolved[0].rows(n), &mut out.rows_mut(n))?;
        }
        for (norm, rows) in parts.norms.iter().zip([&mut r.low, &mut r.b, &mut r.c]) {
            if let Some(norm) = norm {
                self.context.norm_in_place(*norm, &mut rows.rows_mut(n))?;
            }
        }
        Ok(())
    }

    fn delta(&mut self, parts: &DeltaParts, x: View, h: &mut ViewMut, r: &mut RecurrentWork) -> Result<(), Error> {
        let (exec, weights, n) = (self.context.exec, self.context.weights, self.n);
        let [q, k, v] = &mut r.inputs;
        let linears = [(&parts.qkv[0], q), (&parts.qkv[1], k), (&parts.qkv[2], v), (&parts.beta, &mut r.beta)];
        self.project(x, h, linears)?;
        self.low_rank(&parts.forget, x, h, &mut r.low, &mut r.forget)?;
        self.low_rank(&parts.gate, x, h, &mut r.low, &mut r.gate)?;
        for (i, conv) in parts.convs.iter().enumerate() {
            self.convolve(i, conv, ConvOutput::Silu, &r.inputs, &mut r.convolved)?;
        }
        let Recurrent { n_heads, n_groups, state_dim, order, .. } = self.config;
        let shape = DeltaShape {
            n_key_heads: n_groups,
            n_value_heads: n_heads,
            key_dim: state_dim,
            value_dim: self.config.head_dim(),
            order,
        };
        let rows = DeltaRows {
            q: r.convolved[0].rows(n),
            k: r.convolved[1].rows(n),
            v: r.convolved[2].rows(n),
            forget: r.forget.rows(n),
            beta: r.beta.rows(n),
            forget_bias: weights.view(parts.forget_bias),
            a: weights.view(parts.a),
        };
        ops::delta_scan(exec, shape, rows, &mut self.state.state.view_mut(), self.spans, &mut r.out.rows_mut(n))?;
        let eps = self.context.config.norm_eps;
        ops::norm_heads(exec, &mut r.out.rows_mut(n), weights.view(parts.norm), ops::NormKind::Rms, eps)?;
        Ok(ops::glu(exec, parts.activation, &mut r.gate.rows_mut(n), r.out.rows(n))?)
    }

    /// A product, through a few columns where the layer has it so.
    fn low_rank(
        &self,
        parts: &FactoredLinear,
        x: View,
        h: &mut ViewMut,
        low: &mut Tensor,
        out: &mut Tensor,
    ) -> Result<(), Error> {
        match parts.down {
            None => self.project(x, h, [(&parts.up, out)]),
            Some(down) => {
                let down = Linear { weight: down, bias: None };
                self.project(x, h, [(&down, &mut *low)])?;
                self.matmul(low, &parts.up, out)
            }
        }
    }
}
