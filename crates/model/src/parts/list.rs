//! The list of tensors that a model wants: for each, which rows of which tensor of the checkpoint, and how they will lie.
//! The parts of a layer (`layer.rs`, `ffn.rs`) are added here one by one; shapes are checked on the way.

use ops::Layout;
use weights::{Bytes, Dtype, Tensor};

use super::{AssistantParts, ClusterParts, Cut, Linear, NextParts, Norm, TensorId};
use crate::assistant::AssistantConfig;
use crate::names::{At, Format, Names};
use crate::{Config, Error};

/// Some rows of a tensor of the checkpoint and how they will lie.
#[derive(Clone, Debug)]
pub struct WantedRows<'a> {
    pub source: &'a Tensor,
    /// The rows (or, of vectors, the numbers) from the first wanted one to the last.
    pub bytes: Bytes,
    pub n_source_cols: usize,
    /// Where `bytes` start in the tensor.
    pub first_row: usize,
    /// Counted from the start of `bytes`.
    pub cut: Cut,
    pub dtype: Dtype,
    pub shape: [usize; 2],
    pub layout: Layout,
    /// What they will take.
    pub n_bytes: usize,
    /// Added to every number.
    pub offset: f32,
    /// The file has `ln(-x)` where `x` is wanted.
    pub is_log: bool,
    /// Ones are wanted, whatever the file has.
    pub is_ones: bool,
    /// The second half is wanted as what is left of one.
    pub is_shares: bool,
    /// Rows, one part after the other, and what each part is multiplied with; empty where nothing is.
    pub scales: Vec<(usize, f32)>,
}

/// Decides how a matrix of a type and shape will lie, and the bytes it takes; a device may take another type.
pub type LayoutOf<'f> = &'f dyn Fn(Dtype, [usize; 2]) -> Result<(Dtype, (Layout, usize)), ops::Error>;

pub(super) struct PartList<'a, 'f> {
    pub(super) names: Names<'a>,
    pub(super) config: &'f Config,
    pub(super) layout_of: LayoutOf<'f>,
    pub(super) wanted: Vec<WantedRows<'a>>,
}

/// A tensor of any rank as a matrix: all but the last dimension are rows.
pub(super) fn rows_and_cols(tensor: &Tensor) -> [usize; 2] {
    let n_cols = tensor.shape.last().copied().unwrap_or(1);
    [tensor.shape.iter().rev().skip(1).product(), n_cols]
}

impl<'a> PartList<'a, '_> {
    pub(super) fn linear(&mut self, at: At, name: &str, shape: [usize; 2]) -> Result<Linear, Error> {
        let weight = self.matrix(at, name, shape)?;
        let bias = self.names.find(at, name, "bias");
        Ok(Linear { weight, bias: bias.map(|bias| self.vector(bias, 0, shape[0], 0.0)).transpose()? })
    }

    pub(super) fn matrix(&mut self, at: At, name: &str, shape: [usize; 2]) -> Result<TensorId, Error> {
        let source = self.names.tensor(at, name)?;
        if self.is_transposed(name) {
            self.expect(source, [shape[1], shape[0]])?;
            return self.push(source, Cut::transposed(0, shape[1]), shape);
        }
        self.expect(source, shape)?;
        self.push(source, Cut::rows(0, shape[0]), shape)
    }

    /// Whether the checkpoint keeps a tensor of that name as `[inputs, outputs]`.
    pub(super) fn is_transposed(&self, name: &str) -> bool {
        self.names.format == Format::Hub && self.config.family.hub_transposed.contains(&name)
    }

    pub(super) fn norm(&mut self, at: At, name: &str, len: usize) -> Result<Norm, Error> {
        let source = self.names.tensor(at, name)?;
        let bias = self.names.find(at, name, "bias");
        let weight = self.vector(source, 0, len, self.norm_offset(name))?;
        Ok(Norm { weight, bias: bias.map(|bias| self.vector(bias, 0, len, 0.0)).transpose()? })
    }

    pub(super) fn norm_if_there(&mut self, at: At, name: &str, len: usize) -> Result<Option<Norm>, Error> {
        self.names.find(at, name, "weight").is_some().then(|| self.norm(at, name, len)).transpose()
    }

    /// Multiplies rows of a matrix, given as parts; nothing happens where all factors are one.
    pub(super) fn scale(&mut self, id: TensorId, scales: &[(usize, f32)]) {
        if scales.iter().any(|(_, scale)| *scale != 1.0) {
            self.wanted[id.0].scales = scales.to_vec();
        }
    }

    /// What safetensors leave out of the norm `name`.
    pub(super) fn norm_offset(&self, name: &str) -> f32 {
        if self.names.format == Format::Hub { self.config.family.hub_norm_offset(name) } else { 0.0 }
    }

    /// Some numbers of a tensor as one row.
    pub(super) fn vector(
        &mut self,
        source: &'a Tensor,
        first: usize,
        len: usize,
        offset: f32,
    ) -> Result<TensorId, Error> {
        self.floats(source, Cut::rows(first, len), [1, len], offset)
    }

    /// The weights of a norm that has none; `source` is any tensor of at least as many
    /// plain numbers.
    pub(super) fn ones(&mut self, source: &'a Tensor, len: usize) -> Result<TensorId, Error> {
        let id = self.floats_of(source, source.n_elements(), Cut::rows(0, len), [1, len], 0.0)?;
        self.wanted[id.0].is_ones = true;
        Ok(id)
    }

    /// Norms and biases are few and are kept as f32 whatever the file has. The cut counts numbers.
    pub(super) fn floats(
        &mut self,
        source: &'a Tensor,
        cut: Cut,
        shape: [usize; 2],
        offset: f32,
    ) -> Result<TensorId, Error> {
        let is_whole = source.shape.len() > 1 || source.n_elements() == cut.n_rows() || cut.first > 0 || cut.n > 1;
        if !is_whole {
            let expected = vec![shape[0] * shape[1]];
            return Err(Error::Shape { name: source.name.clone(), found: source.shape.clone(), expected });
        }
        self.floats_of(source, source.n_elements(), cut, shape, offset)
    }

    /// As [`List::floats`], out of a tensor of `n` numbers.
    pub(super) fn floats_of(
        &mut self,
        source: &'a Tensor,
        n: usize,
        cut: Cut,
        shape: [usize; 2],
        offset: f32,
    ) -> Result<TensorId, Error> {
        if source.n_elements() != n || cut.end() > n {
            let expected = vec![n.max(cut.end())];
            return Err(Error::Shape { name: source.name.clone(), found: source.shape.clone(), expected });
        }
        if source.dtype.block_len() > 1 {
            let what = format!("{} where plain numbers are expected", source.dtype);
            return Err(Error::Tensor { name: source.name.clone(), what });
        }
        let bytes = source.bytes.slice(..cut.end() * source.dtype.block_bytes());
        let (dtype, layout, n_bytes) = (Dtype::F32, Layout::Rows, 4 * shape[0] * shape[1]);
        self.add(WantedRows {
            source,
            bytes,
            n_source_cols: 1,
            first_row: 0,
            cut,
            dtype,
            shape,
            layout,
            n_bytes,
            offset,
            is_log: false,
            is_ones: false,
            is_shares: false,
            scales: Vec::new(),
        })
    }

    /// Rows of a matrix of plain numbers, as columns.
    pub(super) fn transposed_floats(
        &mut self,
        source: &'a Tensor,
        rows: std::ops::Range<usize>,
        n_cols: usize,
    ) -> Result<TensorId, Error> {
        let [n_rows, n_source_cols] = rows_and_cols(source);
        if n_source_cols != n_cols || rows.end > n_rows {
            let expected = vec![rows.end, n_cols];
            return Err(Error::Shape { name: source.name.clone(), found: source.shape.clone(), expected });
        }
        if source.dtype.block_len() > 1 {
            let what = format!("{} where plain numbers are expected", source.dtype);
            return Err(Error::Tensor { name: source.name.clone(), what });
        }
        let row_bytes = n_cols * source.dtype.block_bytes();
        let (shape, cut) = ([n_cols, rows.len()], Cut::transposed(0, rows.len()));
        let bytes = source.bytes.slice(rows.start * row_bytes..rows.end * row_bytes);
        let (dtype, layout, n_bytes) = (Dtype::F32, Layout::Rows, 4 * shape[0] * shape[1]);
        self.add(WantedRows {
            source,
            bytes,
            n_source_cols,
            first_row: rows.start,
            cut,
            dtype,
            shape,
            layout,
            n_bytes,
            offset: 0.0,
            is_log: false,
            is_ones: false,
            is_shares: false,
            scales: Vec::new(),
        })
    }

    /// What joins a token with the hidden state before it. Each row of its matrix is two: one for the token, one for the
    /// state.
    pub(super) fn next_parts(&mut self) -> Result<NextParts, Error> {
        let (at, n_embd) = (At::Layer(0), self.config.n_embd);
        let source = self.names.tensor(at, "nextn.eh_proj")?;
        self.expect(source, [n_embd, 2 * n_embd])?;
        let [token, hidden] = self.halves(source, [n_embd, n_embd])?;
        let (token_norm, hidden_norm) = (self.norm(at, "nextn.enorm", n_embd)?, self.norm(at, "nextn.hnorm", n_embd)?);
        Ok(NextParts { token: (token_norm, token), hidden: (hidden_norm, hidden) })
    }

    /// What stands around the layers of a drafter.
    pub(super) fn assistant_parts(&mut self, assistant: &AssistantConfig) -> Result<AssistantParts, Error> {
        let Config { n_vocab, n_embd, .. } = *self.config;
        let width = assistant.n_embd_target;
        let source = self.names.tensor(At::Model, "nextn.pre_projection")?;
        self.expect(source, [n_embd, 2 * width])?;
        let [token, hidden] = self.halves(source, [n_embd, width])?;
        let out = self.matrix(At::Model, "nextn.post_projection", [width, n_embd])?;
        let clusters = match assistant.clusters {
            None => None,
            Some(clusters) => {
                let centroids = self.matrix(At::Model, "masked_embd_centroids", [clusters.n, n_embd])?;
                let source = self.names.tensor(At::Model, "masked_embd_ordering")?;
                let ordering = self.floats(source, Cut::rows(0, n_vocab), [1, n_vocab], 0.0)?;
                check_ordering(source, n_vocab)?;
                Some(ClusterParts { centroids, ordering })
            }
        };
        Ok(AssistantParts { token, hidden, out, clusters })
    }

    /// Both halves of every row of a matrix, `shape` each.
    fn halves(&mut self, source: &'a Tensor, [n_rows, n_cols]: [usize; 2]) -> Result<[TensorId; 2], Error> {
        if !n_cols.is_multiple_of(source.dtype.block_len()) {
            let what = format!("rows of {n_cols} numbers do not end with a block of {}", source.dtype);
            return Err(Error::Tensor { name: source.name.clone(), what });
        }
        let mut half = |first| {
            let cut = Cut { first, len: 1, step: 2, n: n_rows, transposed: None };
            self.push_as(source, [2 * n_rows, n_cols], cut, [n_rows, n_cols])
        };
        Ok([half(0)?, half(1)?])
    }

    pub(super) fn push(&mut self, source: &'a Tensor, cut: Cut, shape: [usize; 2]) -> Result<TensorId, Error> {
        self.push_as(source, rows_and_cols(source), cut, shape)
    }

    /// As [`push`](Self::push), of a matrix whose rows are taken to be of another length.
    fn push_as(
        &mut self,
        source: &'a Tensor,
        [n_rows, n_source_cols]: [usize; 2],
        cut: Cut,
        shape: [usize; 2],
    ) -> Result<TensorId, Error> {
        let failed = |what: String| Error::Tensor { name: source.name.clone(), what };
        if cut.end() > n_rows {
            return Err(failed(format!("{:?} has no rows {}..{}", source.shape, cut.first, cut.end())));
        }
        // Packed rows cannot be transposed as they are.
        let dtype = match cut.transposed {
            Some(_) if source.dtype.block_len() > 1 => Dtype::F32,
            _ => source.dtype,
        };
        let (dtype, (layout, n_bytes)) = (self.layout_of)(dtype, shape).map_err(|e| failed(e.to_string()))?;
        let row_bytes = source.bytes.len() / n_rows.max(1);
        let bytes = source.bytes.slice(cut.first * row_bytes..cut.end() * row_bytes);
        let (first_row, cut) = (cut.first, Cut { first: 0, ..cut });
        self.add(WantedRows {
            source,
            bytes,
            n_source_cols,
            first_row,
            cut,
            dtype,
            shape,
            layout,
            n_bytes,
            offset: 0.0,
            is_log: false,
            is_ones: false,
            is_shares: false,
            scales: Vec::new(),
        })
    }

    fn add(&mut self, wanted: WantedRows<'a>) -> Result<TensorId, Error> {
        self.wanted.push(wanted);
        Ok(TensorId(self.wanted.len() - 1))
    }

    pub(super) fn expect(&self, source: &Tensor, shape: [usize; 2]) -> Result<(), Error> {
        if rows_and_cols(source) == shape {
            return Ok(());
        }
        let (name, found) = (source.name.clone(), source.shape.clone());
        Err(Error::Shape { name, found, expected: shape.to_vec() })
    }
}

/// Every token must stand in one cluster.
fn check_ordering(source: &Tensor, n_vocab: usize) -> Result<(), Error> {
    let mut numbers = vec![0.0; n_vocab];
    ops::quant::dequantize(source.dtype, &source.bytes, &mut numbers);
    let mut is_there = vec![false; n_vocab];
    let is_new = |number: &f32| {
        let token = *number as usize;
        *number >= 0.0 && token < n_vocab && number.fract() == 0.0 && !std::mem::replace(&mut is_there[token], true)
    };
    if numbers.iter().all(is_new) {
        return Ok(());
    }
    let what = format!("each of {n_vocab} tokens must be in it once");
    Err(Error::Tensor { name: source.name.clone(), what })
}
