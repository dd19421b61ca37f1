//! What a model is made of: which tensor of the checkpoint stands where, how it is cut, and how it will lie in memory.
//! Nothing is read here; `resident.rs` follows the list. Long, because the list of a layer's parts is one table that is
//! best read as a whole.

use ops::Layout;
use weights::{Bytes, Dtype, Tensor};

use crate::family::Placement;
use crate::names::{At, Format, Names};
use crate::{Config, Error};

/// A tensor in memory, by its place in the list.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct TensorId(pub usize);

#[derive(Copy, Clone, Debug)]
pub struct Linear {
    pub weight: TensorId,
    pub bias: Option<TensorId>,
}

#[derive(Copy, Clone, Debug)]
pub struct Norm {
    pub weight: TensorId,
    pub bias: Option<TensorId>,
}

/// The whole model, as places in the list.
#[derive(Debug)]
pub struct Parts {
    pub embedding: TensorId,
    /// Learned positions, `[n_positions, n_embd]`.
    pub positions: Option<TensorId>,
    /// The embedding of the first token type, which all tokens have.
    pub token_type: Option<TensorId>,
    pub embedding_norm: Option<Norm>,
    pub output_norm: Option<Norm>,
    /// `None` where the output is tied to the embedding.
    pub output: Option<TensorId>,
    pub layers: Vec<LayerParts>,
}

#[derive(Debug)]
pub struct LayerParts {
    pub attn_norm: Option<Norm>,
    pub attention: AttentionParts,
    pub attn_out: Linear,
    pub post_attn_norm: Option<Norm>,
    pub ffn_norm: Option<Norm>,
    pub ffn: FfnParts,
    pub post_ffn_norm: Option<Norm>,
    /// Of the stream, after attention and after the feed-forward block joined it.
    pub attn_sum_norm: Option<Norm>,
    pub ffn_sum_norm: Option<Norm>,
}

#[derive(Debug)]
pub enum AttentionParts {
    Plain {
        q: Linear,
        k: Linear,
        v: Linear,
        q_norm: Option<TensorId>,
        k_norm: Option<TensorId>,
        sinks: Option<TensorId>,
    },
    Compressed(Box<MlaParts>),
}

/// Compressed attention, with the rows for rope apart from the others.
#[derive(Debug)]
pub struct MlaParts {
    pub q_a: Option<(TensorId, Norm)>,
    pub q_nope: TensorId,
    pub q_rope: TensorId,
    pub kv: TensorId,
    pub k_rope: TensorId,
    pub kv_norm: Norm,
    /// Of each head: from a query to the compressed space, and from there to a value.
    pub k_b: Vec<TensorId>,
    pub v_b: Vec<TensorId>,
}

#[derive(Debug)]
pub enum FfnParts {
    Dense(Dense),
    Experts(Box<ExpertParts>),
}

#[derive(Copy, Clone, Debug)]
pub struct Dense {
    /// `None` where the activation has no gate.
    pub gate: Option<Linear>,
    pub up: Linear,
    pub down: Linear,
}

#[derive(Debug)]
pub struct ExpertParts {
    pub router: Linear,
    /// Added for choosing only.
    pub choice_bias: Option<TensorId>,
    pub experts: Vec<Dense>,
    pub shared: Option<Dense>,
    /// What the shared expert's part is weighed with.
    pub shared_gate: Option<TensorId>,
}

/// Some rows of a tensor of the checkpoint and how they will lie.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    pub source: &'a Tensor,
    /// The rows (or, of vectors, the numbers) from the first wanted one to the last.
    pub bytes: Bytes,
    pub n_source_cols: usize,
    /// Counted from the start of `bytes`.
    pub cut: Cut,
    pub dtype: Dtype,
    pub shape: [usize; 2],
    pub layout: Layout,
    /// What they will take.
    pub n_bytes: usize,
    /// Added to every number.
    pub offset: f32,
}

/// Rows of a tensor: `len` from `first` on, then again every `step`, `n` times in all.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Cut {
    pub first: usize,
    pub len: usize,
    pub step: usize,
    pub n: usize,
    /// The rows become columns; of the rows that makes, those from the first number on, in steps of the second.
    pub turned: Option<(usize, usize)>,
}

impl Cut {
    pub fn rows(first: usize, len: usize) -> Self {
        Self { first, len, step: len, n: 1, turned: None }
    }

    fn turned(first: usize, len: usize) -> Self {
        Self { turned: Some((0, 1)), ..Self::rows(first, len) }
    }

    fn n_rows(&self) -> usize {
        self.len * self.n
    }
}

/// Decides how a matrix of a type and shape will lie, and the bytes it takes; a device may take another type.
pub type LayoutOf<'f> = &'f dyn Fn(Dtype, [usize; 2]) -> Result<(Dtype, (Layout, usize)), ops::Error>;

/// The list, and the model as places in it.
pub fn parts<'a>(names: Names<'a>, config: &Config, layout_of: LayoutOf) -> Result<(Parts, Vec<Wanted<'a>>), Error> {
    let mut list = List { names, config, layout_of, wanted: Vec::new() };
    let Config { n_vocab, n_embd, .. } = *config;
    let embedding = list.matrix(At::Model, "token_embd", [n_vocab, n_embd])?;
    let positions = match names.find(At::Model, "position_embd", "weight") {
        Some(source) if config.n_rot == 0 => {
            Some(list.push(source, Cut::rows(0, rows_and_cols(source)[0]), [rows_and_cols(source)[0], n_embd])?)
        }
        _ => None,
    };
    let token_type = match names.find(At::Model, "token_types", "weight") {
        Some(source) => Some(list.vector(source, 0, n_embd, 0.0)?),
        None => None,
    };
    let embedding_norm = list.norm_if_there(At::Model, "token_embd_norm", n_embd)?;
    let output_norm = match config.is_encoder() {
        true => None,
        false => Some(list.norm(At::Model, "output_norm", n_embd)?),
    };
    let output = match names.find(At::Model, "output", "weight") {
        Some(_) if !config.is_encoder() => Some(list.matrix(At::Model, "output", [n_vocab, n_embd])?),
        _ => None,
    };
    let layers = (0..config.n_layers).map(|layer_idx| list.layer(At::Layer(layer_idx))).collect::<Result<_, _>>()?;
    Ok((Parts { embedding, positions, token_type, embedding_norm, output_norm, output, layers }, list.wanted))
}

struct List<'a, 'f> {
    names: Names<'a>,
    config: &'f Config,
    layout_of: LayoutOf<'f>,
    wanted: Vec<Wanted<'a>>,
}

/// A tensor of any rank as a matrix: all but the last dimension are rows.
fn rows_and_cols(tensor: &Tensor) -> [usize; 2] {
    let n_cols = tensor.shape.last().copied().unwrap_or(1);
    [tensor.shape.iter().rev().skip(1).product(), n_cols]
}

impl<'a> List<'a, '_> {
    fn layer(&mut self, at: At) -> Result<LayerParts, Error> {
        let config = self.config;
        let n_embd = config.n_embd;
        let placement = config.family.placement;
        let (is_before, is_after) = (
            matches!(placement, Placement::Before | Placement::Around),
            matches!(placement, Placement::After | Placement::Around),
        );
        let attn_norm = is_before.then(|| self.norm(at, "attn_norm", n_embd)).transpose()?;
        let attention = match config.mla {
            Some(_) => AttentionParts::Compressed(Box::new(self.compressed(at)?)),
            None => self.attention(at)?,
        };
        let out_dim = config.mla.map_or(config.q_dim(), |mla| config.n_heads * mla.v_dim);
        let attn_out = self.linear(at, "attn_output", [n_embd, out_dim])?;
        let post_attn_norm = is_after.then(|| self.norm(at, "post_attention_norm", n_embd)).transpose()?;
        // gpt-oss calls it by the name of another.
        let ffn_norm_name = match self.names.find(at, "ffn_norm", "weight") {
            None if self.names.find(at, "post_attention_norm", "weight").is_some() => "post_attention_norm",
            _ => "ffn_norm",
        };
        let ffn_norm = is_before.then(|| self.norm(at, ffn_norm_name, n_embd)).transpose()?;
        let ffn = match (&config.experts, self.names.find(at, "ffn_gate_inp", "weight")) {
            (Some(_), Some(_)) => FfnParts::Experts(Box::new(self.experts(at)?)),
            _ => FfnParts::Dense(self.dense(at, ["ffn_gate", "ffn_up", "ffn_down"], config.n_ff)?),
        };
        let is_of_sum = placement == Placement::OfSum;
        Ok(LayerParts {
            attn_norm,
            attention,
            attn_out,
            post_attn_norm,
            ffn_norm,
            ffn,
            post_ffn_norm: is_after.then(|| self.norm(at, "post_ffw_norm", n_embd)).transpose()?,
            attn_sum_norm: is_of_sum.then(|| self.norm(at, "attn_output_norm", n_embd)).transpose()?,
            ffn_sum_norm: is_of_sum.then(|| self.norm(at, "layer_output_norm", n_embd)).transpose()?,
        })
    }

    fn attention(&mut self, at: At) -> Result<AttentionParts, Error> {
        let config = self.config;
        let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
        let [q, k, v] = if let Some(fused) = self.names.find(at, "attn_qkv", "weight") {
            let bias = self.names.find(at, "attn_qkv", "bias");
            self.expect(fused, [q_dim + 2 * kv_dim, config.n_embd])?;
            let mut part = |first: usize, n: usize| -> Result<Linear, Error> {
                let weight = self.push(fused, Cut::rows(first, n), [n, config.n_embd])?;
                let bias = bias.map(|bias| self.vector(bias, first, n, 0.0)).transpose()?;
                Ok(Linear { weight, bias })
            };
            [part(0, q_dim)?, part(q_dim, kv_dim)?, part(q_dim + kv_dim, kv_dim)?]
        } else {
            [
                self.linear(at, "attn_q", [q_dim, config.n_embd])?,
                self.linear(at, "attn_k", [kv_dim, config.n_embd])?,
                self.linear(at, "attn_v", [kv_dim, config.n_embd])?,
            ]
        };
        let q_norm = self.head_norm(at, "attn_q_norm", q_dim)?;
        let k_norm = self.head_norm(at, "attn_k_norm", kv_dim)?;
        let sinks = match self.names.find(at, "attn_sinks", "weight") {
            Some(source) => Some(self.vector(source, 0, config.n_heads, 0.0)?),
            None => None,
        };
        Ok(AttentionParts::Plain { q, k, v, q_norm, k_norm, sinks })
    }

    /// Norms of queries or keys: of each head with the same weights, of each with its own, or of all together.
    fn head_norm(&mut self, at: At, name: &str, n_cols: usize) -> Result<Option<TensorId>, Error> {
        let Some(source) = self.names.find(at, name, "weight") else { return Ok(None) };
        let head_dim = self.config.head_dim;
        let shape = match rows_and_cols(source) {
            [1, n] if n == head_dim || n == n_cols => [1, n],
            [n, width] if width == head_dim && n * width == n_cols => [n, width],
            _ => {
                let (found, expected) = (source.shape.clone(), vec![head_dim]);
                return Err(Error::Shape { name: source.name.clone(), found, expected });
            }
        };
        let offset = self.norm_offset();
        self.floats(source, Cut::rows(0, shape[0] * shape[1]), shape, offset).map(Some)
    }

    fn compressed(&mut self, at: At) -> Result<MlaParts, Error> {
        let config = self.config;
        let mla = config.mla.expect("asked for compressed attention only");
        let (n_heads, n_rot, kv_rank) = (config.n_heads, config.n_rot, mla.kv_rank);
        let key_dim = mla.nope_dim + n_rot;
        let (q_a, q_name, q_in) = match mla.q_rank {
            Some(rank) => {
                let weight = self.matrix(at, "attn_q_a", [rank, config.n_embd])?;
                (Some((weight, self.norm(at, "attn_q_a_norm", rank)?)), "attn_q_b", rank)
            }
            None => (None, "attn_q", config.n_embd),
        };
        let q = self.names.tensor(at, q_name)?;
        self.expect(q, [n_heads * key_dim, q_in])?;
        let of_heads = |first, len| Cut { first, len, step: key_dim, n: n_heads, turned: None };
        let q_nope = self.push(q, of_heads(0, mla.nope_dim), [n_heads * mla.nope_dim, q_in])?;
        let q_rope = self.push(q, of_heads(mla.nope_dim, n_rot), [n_heads * n_rot, q_in])?;
        let kv_a = self.names.tensor(at, "attn_kv_a_mqa")?;
        self.expect(kv_a, [kv_rank + n_rot, config.n_embd])?;
        let kv = self.push(kv_a, Cut::rows(0, kv_rank), [kv_rank, config.n_embd])?;
        let k_rope = self.push(kv_a, Cut::rows(kv_rank, n_rot), [n_rot, config.n_embd])?;
        let kv_norm = self.norm(at, "attn_kv_a_norm", kv_rank)?;
        let (mut k_b, mut v_b) = (Vec::new(), Vec::new());
        if let Some(keys) = self.names.find(at, "attn_k_b", "weight") {
            let values = self.names.tensor(at, "attn_v_b")?;
            self.expect(keys, [n_heads * kv_rank, mla.nope_dim])?;
            self.expect(values, [n_heads * mla.v_dim, kv_rank])?;
            for head in 0..n_heads {
                k_b.push(self.push(keys, Cut::rows(head * kv_rank, kv_rank), [kv_rank, mla.nope_dim])?);
                v_b.push(self.push(values, Cut::rows(head * mla.v_dim, mla.v_dim), [mla.v_dim, kv_rank])?);
            }
        } else {
            let both = self.names.tensor(at, "attn_kv_b")?;
            let each = mla.nope_dim + mla.v_dim;
            self.expect(both, [n_heads * each, kv_rank])?;
            for head in 0..n_heads {
                let keys = Cut::turned(head * each, mla.nope_dim);
                k_b.push(self.push(both, keys, [kv_rank, mla.nope_dim])?);
                v_b.push(self.push(both, Cut::rows(head * each + mla.nope_dim, mla.v_dim), [mla.v_dim, kv_rank])?);
            }
        }
        Ok(MlaParts { q_a, q_nope, q_rope, kv, k_rope, kv_norm, k_b, v_b })
    }

    fn dense(&mut self, at: At, [gate, up, down]: [&str; 3], n_ff: usize) -> Result<Dense, Error> {
        let n_embd = self.config.n_embd;
        let down = self.linear(at, down, [n_embd, n_ff])?;
        if self.names.find(at, gate, "weight").is_some() {
            let gate = Some(self.linear(at, gate, [n_ff, n_embd])?);
            return Ok(Dense { gate, up: self.linear(at, up, [n_ff, n_embd])?, down });
        }
        let source = self.names.tensor(at, up)?;
        if rows_and_cols(source)[0] == 2 * n_ff {
            // Both in one, the gate first.
            self.expect(source, [2 * n_ff, n_embd])?;
            let bias = self.names.find(at, up, "bias");
            let mut part = |first: usize| -> Result<Linear, Error> {
                let weight = self.push(source, Cut::rows(first, n_ff), [n_ff, n_embd])?;
                Ok(Linear { weight, bias: bias.map(|bias| self.vector(bias, first, n_ff, 0.0)).transpose()? })
            };
            return Ok(Dense { gate: Some(part(0)?), up: part(n_ff)?, down });
        }
        Ok(Dense { gate: None, up: self.linear(at, up, [n_ff, n_embd])?, down })
    }

    fn experts(&mut self, at: At) -> Result<ExpertParts, Error> {
        let config = self.config;
        let experts = config.experts.expect("asked for a mixture only");
        let At::Layer(layer_idx) = at else { unreachable!("experts stand in a layer") };
        let router = self.linear(at, "ffn_gate_inp", [experts.n, config.n_embd])?;
        let choice_bias = match self.names.find(at, "exp_probs_b", "bias") {
            Some(source) => Some(self.vector(source, 0, experts.n, 0.0)?),
            None => None,
        };
        let all = (0..experts.n).map(|i| self.expert(layer_idx, i)).collect::<Result<_, _>>()?;
        let has_shared = self.names.find(at, "ffn_up_shexp", "weight").is_some();
        let shared_names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
        let shared = has_shared.then(|| self.dense(at, shared_names, experts.n_ff_shared)).transpose()?;
        let shared_gate = match self.names.find(at, "ffn_gate_inp_shexp", "weight") {
            Some(source) => Some(self.vector(source, 0, config.n_embd, 0.0)?),
            None => None,
        };
        Ok(ExpertParts { router, choice_bias, experts: all, shared, shared_gate })
    }

    fn expert(&mut self, layer_idx: usize, i: usize) -> Result<Dense, Error> {
        let Config { n_embd, .. } = *self.config;
        let n_ff = self.config.experts.expect("asked for a mixture only").n_ff;
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
        let weight = if self.names.format == Format::Hub && stack.dtype.block_len() == 1 {
            // Kept the other way round.
            self.expect(stack, [n * shape[1], shape[0]])?;
            self.push(stack, Cut::turned(i * shape[1], shape[1]), shape)?
        } else {
            self.expect(stack, [n * shape[0], shape[1]])?;
            self.push(stack, Cut::rows(i * shape[0], shape[0]), shape)?
        };
        let bias = self.names.find(at, name, "bias");
        let bias = bias.map(|bias| self.vector(bias, i * shape[0], shape[0], 0.0)).transpose()?;
        Ok(Linear { weight, bias })
    }

    /// Gate and up of one expert from a tensor that holds both: in GGUF one after the other, in safetensors (gpt-oss)
    /// row by row in turns, and there plain numbers are kept the other way round.
    fn fused_expert(&mut self, layer_idx: usize, i: usize, n_ff: usize) -> Result<(Linear, Linear), Error> {
        let (at, n_embd) = (At::Layer(layer_idx), self.config.n_embd);
        let both = self.names.tensor(at, "ffn_gate_up_exps")?;
        let bias = self.names.find(at, "ffn_gate_up_exps", "bias");
        let n = self.config.experts.expect("asked for a mixture only").n;
        let is_hub = self.names.format == Format::Hub;
        let is_turned = is_hub && both.dtype.block_len() == 1;
        let (len, step) = if is_hub { (1, 2) } else { (n_ff, n_ff) };
        let n_blocks = n_ff / len;
        self.expect(both, if is_turned { [n * n_embd, 2 * n_ff] } else { [n * 2 * n_ff, n_embd] })?;
        let mut part = |which: usize| -> Result<Linear, Error> {
            let first = i * 2 * n_ff + which * if is_hub { 1 } else { n_ff };
            let cut = Cut { first, len, step, n: n_blocks, turned: None };
            let turned = Cut { turned: Some((which, 2)), ..Cut::rows(i * n_embd, n_embd) };
            let weight = self.push(both, if is_turned { turned } else { cut }, [n_ff, n_embd])?;
            let bias = bias.map(|bias| self.floats(bias, cut, [1, n_ff], 0.0)).transpose()?;
            Ok(Linear { weight, bias })
        };
        Ok((part(0)?, part(1)?))
    }

    fn linear(&mut self, at: At, name: &str, shape: [usize; 2]) -> Result<Linear, Error> {
        let weight = self.matrix(at, name, shape)?;
        let bias = self.names.find(at, name, "bias");
        Ok(Linear { weight, bias: bias.map(|bias| self.vector(bias, 0, shape[0], 0.0)).transpose()? })
    }

    fn matrix(&mut self, at: At, name: &str, shape: [usize; 2]) -> Result<TensorId, Error> {
        let source = self.names.tensor(at, name)?;
        self.expect(source, shape)?;
        self.push(source, Cut::rows(0, shape[0]), shape)
    }

    fn norm(&mut self, at: At, name: &str, len: usize) -> Result<Norm, Error> {
        let source = self.names.tensor(at, name)?;
        let bias = self.names.find(at, name, "bias");
        let weight = self.vector(source, 0, len, self.norm_offset())?;
        Ok(Norm { weight, bias: bias.map(|bias| self.vector(bias, 0, len, 0.0)).transpose()? })
    }

    fn norm_if_there(&mut self, at: At, name: &str, len: usize) -> Result<Option<Norm>, Error> {
        self.names.find(at, name, "weight").is_some().then(|| self.norm(at, name, len)).transpose()
    }

    fn norm_offset(&self) -> f32 {
        if self.names.format == Format::Hub { self.config.family.hub_norm_offset } else { 0.0 }
    }

    /// Some numbers of a tensor as one row.
    fn vector(&mut self, source: &'a Tensor, first: usize, len: usize, offset: f32) -> Result<TensorId, Error> {
        self.floats(source, Cut::rows(first, len), [1, len], offset)
    }

    /// Norms and biases are few and are kept as f32 whatever the file has. The cut counts numbers.
    fn floats(&mut self, source: &'a Tensor, cut: Cut, shape: [usize; 2], offset: f32) -> Result<TensorId, Error> {
        let n: usize = source.shape.iter().product();
        let is_whole = source.shape.len() > 1 || n == cut.n_rows() || cut.first > 0 || cut.n > 1;
        if cut.end() > n || !is_whole {
            let expected = vec![shape[0] * shape[1]];
            return Err(Error::Shape { name: source.name.clone(), found: source.shape.clone(), expected });
        }
        if source.dtype.block_len() > 1 {
            let what = format!("{} where plain numbers are expected", source.dtype);
            return Err(Error::Tensor { name: source.name.clone(), what });
        }
        let bytes = source.bytes.slice(..cut.end() * source.dtype.block_bytes());
        let (dtype, layout, n_bytes) = (Dtype::F32, Layout::Rows, 4 * shape[0] * shape[1]);
        self.add(Wanted { source, bytes, n_source_cols: 1, cut, dtype, shape, layout, n_bytes, offset })
    }

    fn push(&mut self, source: &'a Tensor, cut: Cut, shape: [usize; 2]) -> Result<TensorId, Error> {
        let failed = |what: String| Error::Tensor { name: source.name.clone(), what };
        let [n_rows, n_source_cols] = rows_and_cols(source);
        if cut.end() > n_rows {
            return Err(failed(format!("{:?} has no rows {}..{}", source.shape, cut.first, cut.end())));
        }
        // Packed rows cannot be turned as they are.
        let dtype = match cut.turned {
            Some(_) if source.dtype.block_len() > 1 => Dtype::F32,
            _ => source.dtype,
        };
        let (dtype, (layout, n_bytes)) = (self.layout_of)(dtype, shape).map_err(|e| failed(e.to_string()))?;
        let row_bytes = source.bytes.len() / n_rows.max(1);
        let bytes = source.bytes.slice(cut.first * row_bytes..cut.end() * row_bytes);
        let cut = Cut { first: 0, ..cut };
        self.add(Wanted { source, bytes, n_source_cols, cut, dtype, shape, layout, n_bytes, offset: 0.0 })
    }

    fn add(&mut self, wanted: Wanted<'a>) -> Result<TensorId, Error> {
        self.wanted.push(wanted);
        Ok(TensorId(self.wanted.len() - 1))
    }

    fn expect(&self, source: &Tensor, shape: [usize; 2]) -> Result<(), Error> {
        if rows_and_cols(source) == shape {
            return Ok(());
        }
        let (name, found) = (source.name.clone(), source.shape.clone());
        Err(Error::Shape { name, found, expected: shape.to_vec() })
    }
}

impl Parts {
    /// An op that this model needs and GPUs do not have yet.
    pub fn missing_on_device(&self, config: &Config) -> Option<&'static str> {
        let has = |is_so: fn(&crate::config::Experts) -> bool| config.experts.as_ref().is_some_and(is_so);
        if config.mla.is_some() {
            Some("compressed attention")
        } else if has(|experts| experts.routing.n_groups > 1) {
            Some("experts in groups")
        } else if has(|experts| experts.n > ops::MAX_GPU_EXPERTS) {
            Some("so many experts")
        } else if config.head_dim > ops::MAX_GPU_HEAD_DIM {
            Some("attention with such wide heads")
        } else {
            None
        }
    }
}
