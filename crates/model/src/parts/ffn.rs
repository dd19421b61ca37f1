//! The feed-forward block of a layer: dense, or a mixture whose experts stand in a stack, fused, or each by itself.

use super::list::{PartList, rows_and_cols};
use super::{BesideNorms, Cut, Dense, ExpertParts, FfnParts, Linear};
use crate::names::{At, Format};
use crate::{Config, Error};

impl<'a> PartList<'a, '_> {
    pub(super) fn dense(&mut self, at: At, [gate, up, down]: [&str; 3], n_ff: usize) -> Result<Dense, Error> {
        let n_embd = self.config.n_embd;
        let down = self.linear(at, down, [n_embd, n_ff])?;
        let [of_gate, of_down] = self.config.multipliers.ffn;
        self.scale(down.weight, &[(n_embd, of_down)]);
        if self.names.find(at, gate, "weight").is_some() {
            let gate = self.linear(at, gate, [n_ff, n_embd])?;
            self.scale(gate.weight, &[(n_ff, of_gate)]);
            return Ok(Dense { gate: Some(gate), up: self.linear(at, up, [n_ff, n_embd])?, down });
        }
        let source = self.names.tensor(at, up)?;
        if rows_and_cols(source)[0] == 2 * n_ff {
            // Both in one, the gate first.
            self.expect(source, [2 * n_ff, n_embd])?;
            let bias = self.names.find(at, up, "bias");
            let mut part = |first: usize| -> Result<Linear, Error> {
                let weight = self.push(source, Cut::rows(first, n_ff), [n_ff, n_embd])?;
                let cut = Cut::rows(first, n_ff);
                let bias = bias.map(|bias| self.floats_of(bias, 2 * n_ff, cut, [1, n_ff], 0.0)).transpose()?;
                Ok(Linear { weight, bias })
            };
            return Ok(Dense { gate: Some(part(0)?), up: part(n_ff)?, down });
        }
        Ok(Dense { gate: None, up: self.linear(at, up, [n_ff, n_embd])?, down })
    }

    /// The dense block of a layer. Layers may differ in its width.
    pub(super) fn dense_block(&mut self, at: At) -> Result<Dense, Error> {
        let n_most = self.config.n_ff;
        let down = self.names.find(at, "ffn_down", "weight").filter(|_| self.config.n_embd_per_layer > 0);
        let n_ff = down.map_or(n_most, |down| rows_and_cols(down)[1]).min(n_most);
        self.dense(at, ["ffn_gate", "ffn_up", "ffn_down"], n_ff)
    }

    /// Both kinds beside each other.
    pub(super) fn dense_and_experts(&mut self, at: At) -> Result<FfnParts, Error> {
        let Config { n_embd, .. } = *self.config;
        let named = |name: &str, stem: &str| {
            let of_gguf = self.names.find(at, name, "scale").filter(|_| self.names.format == Format::Gguf);
            of_gguf.map_or_else(|| self.names.tensor(at, stem), Ok)
        };
        let (router, shares) =
            (named("ffn_gate_inp", "ffn_gate_inp_scale")?, named("ffn_down_exps", "ffn_down_exps_scale")?);
        let router = self.vector(router, 0, n_embd, 0.0)?;
        self.scale(router, &[(1, 1.0 / (n_embd as f32).sqrt())]);
        let norms = BesideNorms {
            router,
            experts: self.norm(at, "pre_ffw_norm_2", n_embd)?,
            dense_out: self.norm(at, "post_ffw_norm_1", n_embd)?,
            experts_out: self.norm(at, "post_ffw_norm_2", n_embd)?,
        };
        let n = self.config.experts.map_or(0, |experts| experts.n);
        let shares = self.vector(shares, 0, n, 0.0)?;
        let experts = ExpertParts { shares: Some(shares), ..self.experts(at)? };
        Ok(FfnParts::Both(self.dense_block(at)?, Box::new(experts), norms))
    }

    pub(super) fn experts(&mut self, at: At) -> Result<ExpertParts, Error> {
        let config = self.config;
        let experts = config.experts.expect("asked for a mixture only");
        let At::Layer(layer_idx) = at else { unreachable!("experts stand in a layer") };
        let router = self.linear(at, "ffn_gate_inp", [experts.n, config.n_embd])?;
        let choice_bias = match self.names.find(at, "exp_probs_b", "bias") {
            Some(source) => Some(self.vector(source, 0, experts.n, 0.0)?),
            None => None,
        };
        let all = (0..experts.n).map(|i| self.expert(layer_idx, i)).collect::<Result<_, _>>()?;
        let shared_names = match config.family.dense_beside_experts {
            Some(_) => ["ffn_gate", "ffn_up", "ffn_down"],
            None => ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"],
        };
        let has_shared = self.names.find(at, shared_names[1], "weight").is_some();
        let shared = has_shared.then(|| self.dense(at, shared_names, experts.n_ff_shared)).transpose()?;
        let shared_gate = match self.names.find(at, "ffn_gate_inp_shexp", "weight") {
            Some(source) => Some(self.vector(source, 0, config.n_embd, 0.0)?),
            None => None,
        };
        Ok(ExpertParts { router, choice_bias, shares: None, experts: all, shared, shared_gate })
    }

    fn expert(&mut self, layer_idx: usize, i: usize) -> Result<Dense, Error> {
        let Config { n_embd, .. } = *self.config;
        let n_ff = self.config.experts.expect("asked for a mixture only").n_ff;
        let is_gated = ["ffn_gate_up_exps", "ffn_gate_exps"].iter().any(|name| {
            let whole = self.names.find(At::Layer(layer_idx), name, "weight");
            whole.or_else(|| self.names.find(At::Part(layer_idx, i), name, "weight")).is_some()
        });
        if !is_gated && self.config.recurrent.is_some() {
            let up = self.stacked(layer_idx, i, "ffn_up_exps", [n_ff, n_embd])?;
            return Ok(Dense { gate: None, up, down: self.stacked(layer_idx, i, "ffn_down_exps", [n_embd, n_ff])? });
        }
        let (gate, up) = if self.names.find(At::Layer(layer_idx), "ffn_gate_up_exps", "weight").is_some() {
            self.fused_expert(layer_idx, i, n_ff)?
        } else {
            let gate = self.stacked(layer_idx, i, "ffn_gate_exps", [n_ff, n_embd])?;
            (gate, self.stacked(layer_idx, i, "ffn_up_exps", [n_ff, n_embd])?)
        };
        Ok(Dense { gate: Some(gate), up, down: self.stacked(layer_idx, i, "ffn_down_exps", [n_embd, n_ff])? })
    }

    /// One expert of a stack, or one that has a tensor of its own.
    fn stacked(&mut self, layer_idx: usize, i: usize, name: &str, shape: [usize; 2]) -> Result<Linear, Error> {
        let at = At::Layer(layer_idx);
        let Some(stack) = self.names.find(at, name, "weight") else {
            return self.linear(At::Part(layer_idx, i), name, shape);
        };
        let n = self.config.experts.expect("asked for a mixture only").n;
        let weight = if self.is_transposed(name) && stack.dtype.block_len() == 1 {
            self.expect(stack, [n * shape[1], shape[0]])?;
            self.push(stack, Cut::transposed(i * shape[1], shape[1]), shape)?
        } else {
            self.expect(stack, [n * shape[0], shape[1]])?;
            self.push(stack, Cut::rows(i * shape[0], shape[0]), shape)?
        };
        let bias = self.names.find(at, name, "bias");
        let bias = bias.map(|bias| self.vector(bias, i * shape[0], shape[0], 0.0)).transpose()?;
        Ok(Linear { weight, bias })
    }

    /// Gate and up of one expert from a tensor that holds both, one after the other or in turns (safetensors of gpt-oss).
    fn fused_expert(&mut self, layer_idx: usize, i: usize, n_ff: usize) -> Result<(Linear, Linear), Error> {
        let (at, n_embd) = (At::Layer(layer_idx), self.config.n_embd);
        let both = self.names.tensor(at, "ffn_gate_up_exps")?;
        let bias = self.names.find(at, "ffn_gate_up_exps", "bias");
        let n = self.config.experts.expect("asked for a mixture only").n;
        let alternates = self.names.format == Format::Hub && self.config.family.hub_gate_alternates;
        let is_transposed = self.is_transposed("ffn_gate_up_exps") && both.dtype.block_len() == 1;
        self.expect(both, if is_transposed { [n * n_embd, 2 * n_ff] } else { [n * 2 * n_ff, n_embd] })?;
        let mut part = |which: usize| -> Result<Linear, Error> {
            let in_rows = match alternates {
                true => Cut::alternating(i, which, n_ff),
                false => Cut::rows((2 * i + which) * n_ff, n_ff),
            };
            let cut = match (is_transposed, alternates) {
                (true, true) => Cut::alternating_transposed(i, which, n_embd),
                (true, false) => Cut::half_transposed(i, which, n_embd, n_ff),
                (false, _) => in_rows,
            };
            let weight = self.push(both, cut, [n_ff, n_embd])?;
            let bias = bias.map(|bias| self.floats(bias, in_rows, [1, n_ff], 0.0)).transpose()?;
            Ok(Linear { weight, bias })
        };
        Ok((part(0)?, part(1)?))
    }
}
