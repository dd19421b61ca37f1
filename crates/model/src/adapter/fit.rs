//! Finds the matrices of a model that an adapter changes: the adapter's names and the order of its rows are those of its own
//! format, which need not be the model's. One matrix of the file may be several in memory (queries, keys and values in one
//! product), and the other way round.

use std::collections::HashSet;

use ops::Layout;
use weights::{Bytes, Checkpoint, Dtype};

use super::places::{LayerMatrices, ModulePlace};
use super::{AdapterFile, LoraModule, numbers, unusable};
use crate::names::Names;
use crate::parts::{Cut, Parts, TensorId, WantedRows, parts};
use crate::{Config, Error, RecurrentKind};

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
    pub(super) config: Config,
    pub(super) layers: Vec<LayerMatrices>,
    /// Of each tensor in memory.
    pub(super) rows: Vec<MatrixRows>,
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
    /// Rows, one part after the other, and what each is multiplied with in memory.
    scales: Vec<(usize, f32)>,
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
            scales: wanted.scales.clone(),
        }
    }

    /// `[n_out, n_in]`
    fn numbers(&self) -> Vec<f32> {
        self.cut.numbers(self.dtype, &self.bytes, self.n_source_cols)
    }

    /// Which rows of the source they are.
    pub fn source_rows(&self) -> Vec<usize> {
        self.cut.picked().map(|row| self.first_row + row).collect()
    }

    /// What each row is multiplied with in memory.
    fn row_scales(&self) -> Option<Vec<f32>> {
        let scales = self.scales.iter().flat_map(|(n, scale)| std::iter::repeat_n(*scale, *n));
        (!self.scales.is_empty()).then(|| scales.collect())
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

    /// Every matrix that an adapter may change, with its shape; those of all experts of a layer one after another.
    pub fn matrices(&self, has_experts: bool) -> impl Iterator<Item = (TensorId, [usize; 2])> {
        let ids = self.layers.iter().flat_map(move |layer| layer.all(has_experts));
        ids.map(|id| (id, self.rows[id.0].shape))
    }

    /// Experts that a row goes to, and one's own.
    pub fn experts_of_row(&self) -> usize {
        self.config.experts.as_ref().map_or(1, |experts| experts.routing.n_used.max(1))
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
        let mut changed = HashSet::new();
        for module in &adapter.modules {
            let (a, b) = (numbers(&module.a), numbers(&module.b));
            let magnitude = module.magnitude.as_ref().map(numbers);
            for place in self.places(adapter, module)? {
                if !changed.insert(place.tensor) {
                    let what = "another module of the adapter changes the same matrix".to_owned();
                    return Err(Error::Tensor { name: module.name.clone(), what });
                }
                let delta = self.delta(module, &a, &b, magnitude.as_deref(), &place);
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
        let is_of = |kind| self.config.recurrent.is_some_and(|recurrent| recurrent.kind == kind);
        if is_of(RecurrentKind::Wkv) || is_of(RecurrentKind::SelectiveHeads) {
            let own = self.config.family.name;
            return Err(unusable(format!("adapters do not fit the layers of {own} yet")));
        }
        if self.config.family.has_multipliers && adapter.format != self.config.format {
            let own = self.config.family.name;
            let what =
                "GGUF has the multipliers of its products in the weights, and adapters of the other form do not fit";
            return Err(unusable(format!("{own}: {what}")));
        }
        if self.config.local_heads.is_some() || self.config.n_embd_per_layer > 0 {
            let own = self.config.family.name;
            return Err(unusable(format!("layers of {own} differ in their sizes, and adapters do not fit those yet")));
        }
        // The converter calls a model of Nemotron H by one name and its adapters by the other.
        let name = |architecture: &'_ str| architecture.trim_end_matches("_moe").to_owned();
        match &adapter.architecture {
            Some(other) if name(other) != name(self.config.family.name) => {
                let own = self.config.family.name;
                Err(unusable(format!("it was made for the architecture {other}, the model's is {own}")))
            }
            _ => Ok(()),
        }
    }

    fn delta(
        &self,
        module: &LoraModule,
        a: &[f32],
        b: &[f32],
        magnitude: Option<&[f32]>,
        place: &ModulePlace,
    ) -> WeightChange {
        let (rank, n_out, matrix) = (module.rank(), place.rows.len(), &self.rows[place.tensor.0]);
        let a = match &place.cols {
            Some(cols) => a.chunks_exact(cols.len()).flat_map(|row| cols.iter().map(|col| row[*col])).collect(),
            None => a.to_vec(),
        };
        let mut transposed = vec![0.0; rank * n_out];
        for (out, row) in place.rows.iter().enumerate() {
            for k in 0..rank {
                transposed[k * n_out + out] = b[row * rank + k];
            }
        }
        let gain = magnitude.map(|magnitude| {
            let lengths = changed_lengths(matrix, &a, &transposed, rank, module.scale);
            place.rows.iter().zip(lengths).map(|(row, length)| magnitude[*row] / length).collect()
        });
        if let Some(scales) = matrix.row_scales() {
            for row in transposed.chunks_exact_mut(n_out) {
                row.iter_mut().zip(&scales).for_each(|(b, scale)| *b *= scale);
            }
        }
        WeightChange { tensor: place.tensor, rank, a, b: transposed, scale: module.scale, gain }
    }
}

/// The length of each row of `W + scale * B A`; `b` is `[rank, n_out]`.
fn changed_lengths(base: &MatrixRows, a: &[f32], b: &[f32], rank: usize, scale: f32) -> Vec<f32> {
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
