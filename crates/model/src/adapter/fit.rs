//! Finds the matrices of a model that an adapter changes: the adapter's names and the order of its rows are those of its own
//! format, which need not be the model's. One matrix of the file may be several in memory (queries, keys and values in one
//! product), and the other way round.

use ops::{Layout, Pairing};
use weights::{Bytes, Checkpoint, Dtype};

use super::{AdapterFile, LoraModule, numbers, unusable};
use crate::family::FusedRows;
use crate::names::{At, Format, Names, hub_spellings};
use crate::parts::{AttentionParts, Cut, FfnParts, LayerParts, Parts, TensorId, WantedRows, parts};
use crate::{Config, Error};

/// Matrices that adapters may change, by GGUF's names.
const STEMS: [&str; 8] = ["attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];

/// What an adapter does to one matrix in memory: `gain * (W x + scale * B A x)`.
#[derive(Clone, Debug)]
pub struct WeightChange {
    pub tensor: TensorId,
    pub rank: usize,
    /// `[rank, n_in]`
    pub a: Vec<f32>,
    /// `[rank, n_out]`: transposed.
    pub b: Vec<f32>,
    pub scale: f32,
    /// `[n_out]`
    pub gain: Option<Vec<f32>>,
}

/// What there is to know about a model's matrices to fit adapters to them.
pub struct Fitting {
    config: Config,
    layers: Vec<LayerMatrices>,
    /// Of each tensor in memory.
    rows: Vec<MatrixRows>,
}

/// The matrices of a layer that may be changed.
#[derive(Copy, Clone, Default)]
struct LayerMatrices {
    q: Option<TensorId>,
    k: Option<TensorId>,
    v: Option<TensorId>,
    output: Option<TensorId>,
    gate: Option<TensorId>,
    up: Option<TensorId>,
    down: Option<TensorId>,
}

/// The numbers of a matrix in the checkpoint.
#[derive(Clone)]
pub struct MatrixRows {
    pub source: String,
    pub shape: [usize; 2],
    dtype: Dtype,
    bytes: Bytes,
    n_source_cols: usize,
    /// Where `bytes` start in the source.
    pub first_row: usize,
    /// Counted from there.
    pub cut: Cut,
}

impl MatrixRows {
    fn of(wanted: &WantedRows) -> Self {
        Self {
            source: wanted.source.name.clone(),
            shape: wanted.shape,
            dtype: wanted.source.dtype,
            bytes: wanted.bytes.clone(),
            n_source_cols: wanted.n_source_cols,
            first_row: wanted.first_row,
            cut: wanted.cut,
        }
    }

    /// `[n_out, n_in]`
    fn numbers(&self) -> Vec<f32> {
        self.cut.numbers(self.dtype, &self.bytes, self.n_source_cols)
    }
}

impl Fitting {
    /// For a checkpoint that need not be loaded.
    pub fn of(checkpoint: &Checkpoint, config: &Config) -> Result<Self, Error> {
        let names = Names { checkpoint, format: config.format, family: &config.family, next_from: config.next_from };
        let (parts, wanted) = parts(names, config, &|dtype, _| Ok((dtype, (Layout::Rows, 0))))?;
        Ok(Self::new(config, &parts, &wanted))
    }

    pub fn new(config: &Config, parts: &Parts, wanted: &[WantedRows]) -> Self {
        let layers = parts.layers.iter().map(LayerMatrices::of).collect();
        Self { config: config.clone(), layers, rows: wanted.iter().map(MatrixRows::of).collect() }
    }

    /// Every matrix that an adapter may change, with its shape.
    pub fn matrices(&self) -> impl Iterator<Item = (TensorId, [usize; 2])> {
        self.layers.iter().flat_map(LayerMatrices::all).map(|id| (id, self.rows[id.0].shape))
    }

    pub fn rows(&self, tensor: TensorId) -> &MatrixRows {
        &self.rows[tensor.0]
    }

    /// As [`Fitting::fit`], without the work.
    pub fn check(&self, adapter: &AdapterFile) -> Result<(), Error> {
        self.check_architecture(adapter)?;
        adapter.modules.iter().try_for_each(|module| self.places(adapter, module).map(drop))
    }

    /// What the adapter does to the matrices in memory. One matrix may be named once.
    pub fn fit(&self, adapter: &AdapterFile) -> Result<Vec<WeightChange>, Error> {
        self.check_architecture(adapter)?;
        let mut deltas: Vec<WeightChange> = Vec::new();
        for module in &adapter.modules {
            let (a, b) = (numbers(&module.a), numbers(&module.b));
            let magnitude = module.magnitude.as_ref().map(numbers);
            for place in self.places(adapter, module)? {
                if deltas.iter().any(|delta| delta.tensor == place.tensor) {
                    let what = "another module of the adapter changes the same matrix".to_owned();
                    return Err(Error::Tensor { name: module.name.clone(), what });
                }
                let delta = self.delta(module, (&a, &b, magnitude.as_deref()), &place);
                if delta.a.iter().chain(&delta.b).chain(delta.gain.iter().flatten()).any(|x| !x.is_finite()) {
                    let what = "it holds numbers that are not finite".to_owned();
                    return Err(Error::Tensor { name: module.name.clone(), what });
                }
                deltas.push(delta);
            }
        }
        Ok(deltas)
    }

    fn check_architecture(&self, adapter: &AdapterFile) -> Result<(), Error> {
        if self.config.recurrent.is_some() {
            let own = self.config.family.name;
            return Err(unusable(format!("{own} has recurrent layers, and adapters do not fit those yet")));
        }
        if self.config.local_heads.is_some() || self.config.n_embd_per_layer > 0 {
            let own = self.config.family.name;
            return Err(unusable(format!("layers of {own} differ in their sizes, and adapters do not fit those yet")));
        }
        match &adapter.architecture {
            Some(other) if *other != self.config.family.name => {
                let own = self.config.family.name;
                Err(unusable(format!("it was made for the architecture {other}, the model's is {own}")))
            }
            _ => Ok(()),
        }
    }

    fn delta(
        &self,
        module: &LoraModule,
        (a, b, magnitude): (&[f32], &[f32], Option<&[f32]>),
        place: &ModulePlace,
    ) -> WeightChange {
        let (rank, n_out) = (module.rank(), place.rows.len());
        let mut transposed = vec![0.0; rank * n_out];
        for (out, row) in place.rows.iter().enumerate() {
            for k in 0..rank {
                transposed[k * n_out + out] = b[row * rank + k];
            }
        }
        let gain = magnitude.map(|magnitude| {
            let lengths = changed_lengths(&self.rows[place.tensor.0], a, &transposed, (rank, module.scale));
            place.rows.iter().zip(lengths).map(|(row, length)| magnitude[*row] / length).collect()
        });
        WeightChange { tensor: place.tensor, rank, a: a.to_vec(), b: transposed, scale: module.scale, gain }
    }

    /// The matrices in memory that a module changes, and which of its rows each one has.
    fn places(&self, adapter: &AdapterFile, module: &LoraModule) -> Result<Vec<ModulePlace>, Error> {
        let wrong = |what: String| Error::Tensor { name: module.name.clone(), what };
        let unknown =
            || wrong(format!("no module of this model ({}) that adapters can change", self.config.family.name));
        let (layer_idx, stem) = self.find(adapter.format, &module.name).ok_or_else(unknown)?;
        let ids = self.layers[layer_idx];
        let n_ff_rows = ids.up.map_or(0, |up| self.rows[up.0].shape[0]);
        let is_fused_gate = stem == "ffn_up" && ids.gate.is_some() && module.b.shape[0] == 2 * n_ff_rows;
        let parts: Vec<(Option<TensorId>, Vec<usize>)> = match stem {
            "attn_q" => vec![(ids.q, self.head_rows(adapter.format, ids.q, self.config.n_heads))],
            "attn_k" => vec![(ids.k, self.head_rows(adapter.format, ids.k, self.config.n_kv_heads))],
            "attn_qkv" => self
                .fused_rows(adapter.format)
                .into_iter()
                .zip([ids.q, ids.k, ids.v])
                .map(|(rows, id)| (id, rows))
                .collect(),
            "ffn_up" if is_fused_gate => {
                vec![(ids.gate, (0..n_ff_rows).collect()), (ids.up, (n_ff_rows..2 * n_ff_rows).collect())]
            }
            _ => {
                let id = match stem {
                    "attn_v" => ids.v,
                    "attn_output" => ids.output,
                    "ffn_gate" => ids.gate,
                    "ffn_up" => ids.up,
                    _ => ids.down,
                };
                vec![(id, (0..id.map_or(0, |id| self.rows[id.0].shape[0])).collect())]
            }
        };
        let n_out: usize = parts.iter().map(|(_, rows)| rows.len()).sum();
        let mut places = Vec::new();
        for (tensor, rows) in parts {
            let tensor = tensor.ok_or_else(unknown)?;
            let (n_in, found) = (self.rows[tensor.0].shape[1], [module.b.shape[0], module.a.shape[1]]);
            if found != [n_out, n_in] {
                return Err(wrong(format!("it changes a matrix of {found:?}, the model's is {:?}", [n_out, n_in])));
            }
            places.push(ModulePlace { tensor, rows });
        }
        Ok(places)
    }

    fn find(&self, format: Format, name: &str) -> Option<(usize, &'static str)> {
        let layer_idx = name.split('.').find_map(|part| part.parse().ok())?;
        let is_called = |stem: &&str| match format {
            Format::Gguf => name == format!("blk.{layer_idx}.{stem}"),
            Format::Hub => hub_spellings(&self.config.family, At::Layer(layer_idx), stem, "weight")
                .any(|spelling| spelling.strip_suffix(".weight") == Some(name)),
        };
        let stem = STEMS.into_iter().find(is_called)?;
        (layer_idx < self.layers.len()).then_some((layer_idx, stem))
    }

    /// Where the rows of queries or keys stand in the adapter: GGUF has those of some families in another order.
    fn head_rows(&self, format: Format, tensor: Option<TensorId>, n_heads: usize) -> Vec<usize> {
        let n = tensor.map_or(0, |tensor| self.rows[tensor.0].shape[0]);
        let family = &self.config.family;
        let is_reordered = family.pairing == Pairing::Adjacent && family.hub_pairing == Pairing::Halves;
        if format == self.config.format || !is_reordered || !n.is_multiple_of(2 * n_heads) {
            return (0..n).collect();
        }
        let (head_dim, half) = (n / n_heads, n / n_heads / 2);
        let place = |row: usize| {
            let (head, at) = (row / head_dim, row % head_dim);
            head * head_dim
                + match format {
                    // Pairs stand side by side in memory, and half a head apart in the adapter.
                    Format::Hub => at % 2 * half + at / 2,
                    Format::Gguf => at % half * 2 + at / half,
                }
        };
        (0..n).map(place).collect()
    }

    /// Where queries, keys and values stand in a product that makes all of them.
    fn fused_rows(&self, format: Format) -> [Vec<usize>; 3] {
        let (q_dim, kv_dim, head_dim) = (self.config.q_dim(), self.config.kv_dim(), self.config.head_dim);
        if format == Format::Gguf || self.config.family.hub_qkv != FusedRows::ByHead {
            let q_and_k = q_dim + kv_dim;
            return [(0..q_dim).collect(), (q_dim..q_and_k).collect(), (q_and_k..q_and_k + kv_dim).collect()];
        }
        let n = self.config.n_kv_heads;
        let group = q_dim / n;
        let of_heads =
            |first, len| Cut { first, len, step: group + 2 * head_dim, n, transposed: None }.picked().collect();
        [of_heads(0, group), of_heads(group, head_dim), of_heads(group + head_dim, head_dim)]
    }
}

/// A matrix in memory, and which row of the module each of its rows is.
struct ModulePlace {
    tensor: TensorId,
    rows: Vec<usize>,
}

impl LayerMatrices {
    fn of(layer: &LayerParts) -> Self {
        let mut found = Self { output: layer.attn_out.as_ref().map(|linear| linear.weight), ..Self::default() };
        if let Some(AttentionParts::Plain { q, kv: Some([k, v]), .. }) = &layer.attention {
            (found.q, found.k, found.v) = (Some(q.weight), Some(k.weight), Some(v.weight));
        }
        if let Some(FfnParts::Dense(dense)) = &layer.ffn {
            found.gate = dense.gate.map(|gate| gate.weight);
            (found.up, found.down) = (Some(dense.up.weight), Some(dense.down.weight));
        }
        found
    }

    fn all(&self) -> impl Iterator<Item = TensorId> + use<> {
        let Self { q, k, v, output, gate, up, down } = *self;
        [q, k, v, output, gate, up, down].into_iter().flatten()
    }
}

/// The length of each row of `W + scale * B A`; `b` is `[rank, n_out]`.
fn changed_lengths(base: &MatrixRows, a: &[f32], b: &[f32], (rank, scale): (usize, f32)) -> Vec<f32> {
    let ([n_out, n_in], mut weights) = (base.shape, base.numbers());
    let length = |out: usize, row: &mut [f32]| {
        for k in 0..rank {
            let factor = scale * b[k * n_out + out];
            row.iter_mut().zip(&a[k * n_in..][..n_in]).for_each(|(w, a)| *w += factor * a);
        }
        row.iter().map(|w| f64::from(*w) * f64::from(*w)).sum::<f64>().sqrt() as f32
    };
    let (n_in, mut lengths) = (n_in.max(1), vec![0.0; n_out]);
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let n_each = n_out.div_ceil(n_threads).max(1);
    // The engine waits for this, so all cores help.
    std::thread::scope(|scope| {
        let parts = weights.chunks_mut(n_each * n_in).zip(lengths.chunks_mut(n_each)).enumerate();
        for (part, (rows, lengths)) in parts {
            scope.spawn(move || {
                let rows = rows.chunks_exact_mut(n_in).zip(lengths).enumerate();
                rows.for_each(|(i, (row, found))| *found = length(part * n_each + i, row));
            });
        }
    });
    lengths
}
