//! A recurrent layer's tensors, as the checkpoint names and cuts them: several things come out of one product, and
//! files differ in what they fuse.

use ops::Activation;
use weights::Tensor;

use super::list::{PartList, rows_and_cols};
use super::{
    ConvParts, Cut, DeltaParts, FactoredLinear, Linear, MixerParts, Norm, RecurrentParts, SelectiveParts, SsmParts,
    TensorId, WkvParts,
};
use crate::names::{At, Format};
use crate::recurrent_config::{Multipliers, N_SHIFTS};
use crate::{Error, Recurrent, RecurrentKind};

impl<'a> PartList<'a, '_> {
    pub(super) fn recurrent(&mut self, at: At) -> Result<RecurrentParts, Error> {
        let sizes = self.config.recurrent.expect("asked for recurrent layers only");
        let (inner, n_embd) = (sizes.inner, self.config.n_embd);
        let (mixer, out) = match sizes.kind {
            RecurrentKind::ShortConv => (self.short_conv(at, &sizes)?, "shortconv.out_proj"),
            RecurrentKind::Ssm => (MixerParts::Ssm(self.ssm(at, &sizes)?), "ssm_out"),
            RecurrentKind::Selective => (MixerParts::Selective(self.selective(at, &sizes)?), "ssm_out"),
            RecurrentKind::SelectiveHeads => (MixerParts::SelectiveHeads(self.selective_heads(at, &sizes)?), "ssm_out"),
            RecurrentKind::Delta => (MixerParts::Delta(self.delta(at, &sizes)?), "ssm_out"),
            RecurrentKind::Wkv => (MixerParts::Wkv(Box::new(self.wkv(at, &sizes)?)), "channel_mix_value"),
            RecurrentKind::ChannelDelta => (MixerParts::Delta(self.channel_delta(at, &sizes)?), "attn_output"),
        };
        let out = self.linear(at, out, [n_embd, inner])?;
        self.scale(out.weight, &[(n_embd, self.config.multipliers.ssm_out)]);
        Ok(RecurrentParts { mixer, out })
    }

    fn short_conv(&mut self, at: At, sizes: &Recurrent) -> Result<MixerParts, Error> {
        let [b, c, x] = self.split(at, "shortconv.in_proj", [sizes.inner; 3])?;
        Ok(MixerParts::ShortConv { b, c, x, conv: self.conv(at, "shortconv.conv", 0..sizes.inner)? })
    }

    fn ssm(&mut self, at: At, sizes: &Recurrent) -> Result<SsmParts, Error> {
        let Recurrent { inner, n_heads, n_groups, .. } = *sizes;
        let width = sizes.streams()[0];
        let [gate, xbc, dt] = self.split(at, "ssm_in", [inner, width, n_heads])?;
        let Multipliers { ssm_in, ssm, .. } = self.config.multipliers;
        let [of_gate, of_x, of_b, of_c, of_dt] = ssm.map(|scale| ssm_in * scale);
        let keys = n_groups * sizes.state_dim;
        self.scale(gate.weight, &[(inner, of_gate)]);
        self.scale(xbc.weight, &[(inner, of_x), (keys, of_b), (keys, of_c)]);
        self.scale(dt.weight, &[(n_heads, of_dt)]);
        let norm = match self.names.find(at, "ssm_norm", "weight") {
            Some(source) => {
                // Granite's hybrids have one group, all others norm each group by itself.
                let shape = [n_groups, inner / n_groups];
                Some(self.floats(source, Cut::rows(0, inner), shape, 0.0)?)
            }
            None => None,
        };
        Ok(SsmParts {
            gate,
            xbc,
            dt,
            conv: self.conv(at, "ssm_conv1d", 0..width)?,
            a: self.decay(at, n_heads)?,
            d: self.numbers(at, "ssm_d", "weight", n_heads)?,
            dt_bias: self.numbers(at, "ssm_dt", "bias", n_heads)?,
            norm,
        })
    }

    fn selective(&mut self, at: At, sizes: &Recurrent) -> Result<SelectiveParts, Error> {
        let Recurrent { inner, state_dim, dt_rank, .. } = *sizes;
        let [x, gate] = self.split(at, "ssm_in", [inner; 2])?;
        let source = self.names.tensor(at, "ssm_x")?;
        self.expect(source, [dt_rank + 2 * state_dim, inner])?;
        let low = self.push(source, Cut::rows(0, dt_rank), [dt_rank, inner])?;
        let b = self.push(source, Cut::rows(dt_rank, state_dim), [state_dim, inner])?;
        let c = self.push(source, Cut::rows(dt_rank + state_dim, state_dim), [state_dim, inner])?;
        let norms = [
            self.norm_if_there(at, "ssm_dt_norm", dt_rank)?,
            self.norm_if_there(at, "ssm_b_norm", state_dim)?,
            self.norm_if_there(at, "ssm_c_norm", state_dim)?,
        ];
        let dt = self.linear(at, "ssm_dt", [inner, dt_rank])?;
        let a = self.names.tensor(at, "ssm_a")?;
        self.expect(a, [inner, state_dim])?;
        let a = self.transposed_floats(a, 0..inner, state_dim)?;
        self.wanted[a.0].is_log = self.names.format == Format::Hub;
        let d = self.numbers(at, "ssm_d", "weight", inner)?;
        Ok(SelectiveParts { x, gate, conv: self.conv(at, "ssm_conv1d", 0..inner)?, low, b, c, norms, dt, a, d })
    }

    /// Each head's gate stands before its inputs, and the time step behind B and C.
    fn selective_heads(&mut self, at: At, sizes: &Recurrent) -> Result<SelectiveParts, Error> {
        let Recurrent { inner, state_dim, n_heads, dt_rank, .. } = *sizes;
        let source = self.names.tensor(at, "ssm_in")?;
        self.expect(source, [2 * inner, self.config.n_embd])?;
        let len = inner / n_heads;
        let of_heads = |first| Cut { first, len, step: 2 * len, n: n_heads, transposed: None };
        let (gate, x) = (self.rows_of(source, of_heads(0))?, self.rows_of(source, of_heads(len))?);
        let source = self.names.tensor(at, "ssm_x")?;
        self.expect(source, [dt_rank + 2 * state_dim, inner])?;
        let mut rows = |first, n: usize| self.push(source, Cut::rows(first, n), [n, inner]);
        let (b, c, low) = (rows(0, state_dim)?, rows(state_dim, state_dim)?, rows(2 * state_dim, dt_rank)?);
        let norms = [("ssm_dt_norm", dt_rank), ("ssm_b_norm", state_dim), ("ssm_c_norm", state_dim)];
        let norms = norms.map(|(name, len)| self.norm(at, name, len));
        let [dt_norm, b_norm, c_norm] = norms;
        let dt = Linear {
            weight: self.matrix(at, "ssm_dt", [n_heads, dt_rank])?,
            bias: Some(self.numbers(at, "ssm_dt", "bias", n_heads)?),
        };
        Ok(SelectiveParts {
            x,
            gate,
            conv: self.conv(at, "ssm_conv1d", 0..inner)?,
            low,
            b,
            c,
            norms: [Some(dt_norm?), Some(b_norm?), Some(c_norm?)],
            dt,
            a: self.decay(at, n_heads)?,
            d: self.numbers(at, "ssm_d", "weight", n_heads)?,
        })
    }

    fn delta(&mut self, at: At, sizes: &Recurrent) -> Result<DeltaParts, Error> {
        let Recurrent { inner, n_heads, n_groups, state_dim, .. } = *sizes;
        let keys = n_groups * state_dim;
        let per_key = inner / n_groups;
        let (qkv, gate) = if let Some(fused) = self.names.find(at, "ssm_in", "weight") {
            // Of each head of keys: its query, its key, its values, and their gates.
            self.expect(fused, [2 * keys + 2 * inner, self.config.n_embd])?;
            let step = 2 * state_dim + 2 * per_key;
            let mut part = |first, len| self.rows_of(fused, Cut { first, len, step, n: n_groups, transposed: None });
            let qkv = [part(0, state_dim)?, part(state_dim, state_dim)?, part(2 * state_dim, per_key)?];
            (qkv, part(2 * state_dim + per_key, per_key)?)
        } else {
            let qkv = self.split(at, "attn_qkv", [keys, keys, inner])?;
            (qkv, self.linear(at, "attn_gate", [inner, self.config.n_embd])?)
        };
        let (beta, forget) = if let Some(fused) = self.names.find(at, "ssm_ba", "weight") {
            let len = n_heads / n_groups;
            self.expect(fused, [2 * n_heads, self.config.n_embd])?;
            let mut part =
                |first| self.rows_of(fused, Cut { first, len, step: 2 * len, n: n_groups, transposed: None });
            (part(0)?, part(len)?)
        } else {
            let shape = [n_heads, self.config.n_embd];
            (self.linear(at, "ssm_beta", shape)?, self.linear(at, "ssm_alpha", shape)?)
        };
        let bounds = [0..keys, keys..2 * keys, 2 * keys..2 * keys + inner];
        Ok(DeltaParts {
            qkv,
            convs: self.convs(at, ["ssm_conv1d"; 3], bounds)?,
            forget: FactoredLinear { down: None, up: forget },
            beta,
            forget_bias: self.numbers(at, "ssm_dt", "bias", n_heads)?,
            a: self.decay(at, n_heads)?,
            norm: self.numbers(at, "ssm_norm", "weight", inner / n_heads)?,
            gate: FactoredLinear { down: None, up: gate },
            activation: Activation::Silu,
        })
    }

    fn channel_delta(&mut self, at: At, sizes: &Recurrent) -> Result<DeltaParts, Error> {
        let Recurrent { inner, n_heads, state_dim, .. } = *sizes;
        let n_embd = self.config.n_embd;
        let mut linear = |name: &str, n_rows: usize| self.linear(at, name, [n_rows, n_embd]);
        let qkv = [linear("attn_q", inner)?, linear("attn_k", inner)?, linear("attn_v", inner)?];
        let beta = linear("ssm_beta", n_heads)?;
        let (forget_down, gate_down) = (linear("ssm_f_a", state_dim)?, linear("ssm_g_a", state_dim)?);
        let names = ["ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"];
        let bounds = [0..inner, 0..inner, 0..inner];
        Ok(DeltaParts {
            qkv,
            convs: self.convs(at, names, bounds)?,
            forget: FactoredLinear {
                down: Some(forget_down.weight),
                up: self.linear(at, "ssm_f_b", [inner, state_dim])?,
            },
            beta,
            forget_bias: self.numbers(at, "ssm_dt", "bias", inner)?,
            a: self.decay(at, n_heads)?,
            norm: self.numbers(at, "ssm_norm", "weight", state_dim)?,
            gate: FactoredLinear { down: Some(gate_down.weight), up: self.linear(at, "ssm_g_b", [inner, state_dim])? },
            activation: Activation::Sigmoid,
        })
    }

    fn wkv(&mut self, at: At, sizes: &Recurrent) -> Result<WkvParts, Error> {
        let (Recurrent { inner, n_heads, state_dim, .. }, n_embd) = (*sizes, self.config.n_embd);
        let square = [n_embd, n_embd];
        let norm = {
            let source = self.names.tensor(at, "time_mix_ln")?;
            let weight = self.floats_of(source, n_embd, Cut::rows(0, n_embd), [n_heads, state_dim], 0.0)?;
            let bias = self.names.find(at, "time_mix_ln", "bias");
            Norm { weight, bias: bias.map(|bias| self.vector(bias, 0, n_embd, 0.0)).transpose()? }
        };
        // The converter gives the first layer one that it never reads.
        let is_first = matches!(at, At::Layer(0));
        let share =
            (!is_first).then(|| self.few_columns(at, ["time_mix_v1", "time_mix_v2", "time_mix_v0"])).transpose()?;
        Ok(WkvParts {
            shifts: self.shifts(at)?,
            r: self.matrix(at, "time_mix_receptance", square)?,
            k: self.matrix(at, "time_mix_key", square)?,
            v: self.matrix(at, "time_mix_value", square)?,
            decay: self.few_columns(at, ["time_mix_w1", "time_mix_w2", "time_mix_w0"])?,
            rate: self.few_columns(at, ["time_mix_a1", "time_mix_a2", "time_mix_a0"])?,
            gate: self.few_columns(at, ["time_mix_g1", "time_mix_g2", ""])?,
            share,
            removal: self.numbers(at, "time_mix_k_k", "weight", n_embd)?,
            rate_of_key: self.numbers(at, "time_mix_k_a", "weight", n_embd)?,
            bonus: self.numbers(at, "time_mix_r_k", "weight", n_embd)?,
            norm,
            out: self.matrix(at, "time_mix_output", square)?,
            channel_norm: self.norm(at, "attn_norm_2", n_embd)?,
            channel_key: self.matrix(at, "channel_mix_key", [inner, n_embd])?,
        })
    }

    /// RWKV's products through a few columns; what is added has a tensor of its own in GGUF.
    fn few_columns(&mut self, at: At, [down, up, added]: [&str; 3]) -> Result<FactoredLinear, Error> {
        let (n_embd, rank) = (self.config.n_embd, rows_and_cols(self.names.tensor(at, down)?)[0]);
        let down = self.matrix(at, down, [rank, n_embd])?;
        let mut up = self.linear(at, up, [n_embd, rank])?;
        if !added.is_empty() && up.bias.is_none() {
            up.bias = Some(self.numbers(at, added, "weight", n_embd)?);
        }
        Ok(FactoredLinear { down: Some(down), up })
    }

    /// How much of the token before goes into each product, and what is left for the token itself.
    fn shifts(&mut self, at: At) -> Result<[TensorId; N_SHIFTS], Error> {
        const NAMES: [&str; N_SHIFTS - 1] =
            ["time_mix_x_r", "time_mix_x_w", "time_mix_x_k", "time_mix_x_v", "time_mix_x_a", "time_mix_x_g"];
        let n_embd = self.config.n_embd;
        let names = self.names;
        let mut shift = |source: &'a Tensor, n: usize, first: usize| -> Result<TensorId, Error> {
            let twice = Cut { first, len: n_embd, step: 0, n: 2, transposed: None };
            let id = self.floats_of(source, n, twice, [2, n_embd], 0.0)?;
            self.wanted[id.0].is_shares = true;
            Ok(id)
        };
        let fused = names.find(at, "time_mix_lerp_fused", "weight");
        let mut ids = Vec::with_capacity(N_SHIFTS);
        for (i, name) in NAMES.into_iter().enumerate() {
            ids.push(match fused {
                Some(fused) => shift(fused, NAMES.len() * n_embd, i * n_embd)?,
                None => shift(names.tensor(at, name)?, n_embd, 0)?,
            });
        }
        ids.push(shift(names.tensor(at, "channel_mix_lerp_k")?, n_embd, 0)?);
        Ok(ids.try_into().expect("one for each product"))
    }

    /// Several products out of one tensor, one below the other.
    fn split<const N: usize>(&mut self, at: At, name: &str, widths: [usize; N]) -> Result<[Linear; N], Error> {
        let (source, n_embd, n_rows) = (self.names.tensor(at, name)?, self.config.n_embd, widths.iter().sum());
        self.expect(source, [n_rows, n_embd])?;
        let bias = self.names.find(at, name, "bias");
        let mut first = 0;
        let mut linears = Vec::with_capacity(N);
        for width in widths {
            let cut = Cut::rows(first, width);
            let weight = self.push(source, cut, [width, n_embd])?;
            let bias = bias.map(|bias| self.floats_of(bias, n_rows, cut, [1, width], 0.0)).transpose()?;
            linears.push(Linear { weight, bias });
            first += width;
        }
        Ok(linears.try_into().expect("one for each width"))
    }

    fn rows_of(&mut self, source: &'a Tensor, cut: Cut) -> Result<Linear, Error> {
        let weight = self.push(source, cut, [cut.n_rows(), self.config.n_embd])?;
        Ok(Linear { weight, bias: None })
    }

    fn convs(
        &mut self,
        at: At,
        names: [&str; 3],
        [q, k, v]: [std::ops::Range<usize>; 3],
    ) -> Result<[ConvParts; 3], Error> {
        Ok([self.conv(at, names[0], q)?, self.conv(at, names[1], k)?, self.conv(at, names[2], v)?])
    }

    /// The taps of some columns.
    fn conv(&mut self, at: At, name: &str, cols: std::ops::Range<usize>) -> Result<ConvParts, Error> {
        let n_taps = self.config.recurrent.expect("asked for recurrent layers only").n_taps;
        let source = self.names.tensor(at, name)?;
        let bias = self.names.find(at, name, "bias");
        let cut = Cut::rows(cols.start, cols.len());
        let bias = bias.map(|bias| self.floats_of(bias, bias.n_elements(), cut, [1, cols.len()], 0.0)).transpose()?;
        Ok(ConvParts { weight: self.transposed_floats(source, cols, n_taps)?, bias })
    }

    /// Numbers of a layer as one row, with nothing added to them.
    fn numbers(&mut self, at: At, name: &str, suffix: &str, len: usize) -> Result<super::TensorId, Error> {
        let source = match self.names.find(at, name, suffix) {
            Some(source) => source,
            None => self.names.tensor(at, name)?,
        };
        self.floats_of(source, len, Cut::rows(0, len), [1, len], 0.0)
    }

    /// How fast heads forget: safetensors have the logarithm of it.
    fn decay(&mut self, at: At, n_heads: usize) -> Result<super::TensorId, Error> {
        let id = self.numbers(at, "ssm_a", "weight", n_heads)?;
        self.wanted[id.0].is_log = self.names.format == Format::Hub;
        Ok(id)
    }
}
