//! The weights where the products want them: one allocation, filled from the checkpoint, in the layout of the machine
//! or of the device that holds them.

use ops::{Arena, Exec, Layout, Tensor, View, device_dtype, pack, packed, packed_on_device};
use weights::{Checkpoint, Dtype};

use crate::device::Device;
use crate::names::Names;
use crate::upload::{Job, Loaded, Source, upload};
use crate::{Config, Error};

pub struct Resident {
    pub embedding: Tensor,
    pub output_norm: Tensor,
    /// `None` where the output is tied to the embedding.
    pub output: Option<Tensor>,
    pub layers: Vec<LayerWeights>,
}

pub struct LayerWeights {
    pub attn_norm: Tensor,
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub attn_out: Tensor,
    pub ffn_norm: Tensor,
    pub gate: Tensor,
    pub up: Tensor,
    pub down: Tensor,
}

/// A tensor of the checkpoint and how it will lie.
struct Wanted<'a> {
    source: &'a weights::Tensor,
    dtype: Dtype,
    shape: [usize; 2],
    layout: Layout,
    bytes: usize,
}

impl Resident {
    /// Bytes that [`Resident::load`] will take.
    pub fn plan_bytes(exec: Exec, checkpoint: &Checkpoint, config: &Config, names: &Names) -> Result<usize, Error> {
        let all = wanted(|dtype, shape| Ok((dtype, packed(exec, dtype, shape)?)), checkpoint, config, names)?;
        Ok(all.iter().map(|wanted| Arena::padded(wanted.bytes)).sum())
    }

    /// Bytes that [`Resident::load_on_device`] will take.
    pub fn plan_bytes_on_device(checkpoint: &Checkpoint, config: &Config, names: &Names) -> Result<usize, Error> {
        let all = wanted(on_device, checkpoint, config, names)?;
        Ok(all.iter().map(|wanted| Arena::padded_on_device(wanted.bytes)).sum())
    }

    /// Sends every tensor to its place in `arena`, which has room for them.
    pub fn load_on_device(
        device: &Device,
        n_threads: usize,
        arena: &mut Arena,
        checkpoint: &Checkpoint,
        config: &Config,
        names: &Names,
    ) -> Result<(Self, Loaded), Error> {
        let all = wanted(on_device, checkpoint, config, names)?;
        let mut tensors: Vec<Tensor> =
            all.iter().map(|wanted| arena.carve_as(wanted.layout, wanted.dtype, wanted.shape)).collect();
        let jobs = all.iter().zip(&mut tensors).map(|(wanted, to)| wanted.job(to)).collect();
        let loaded = upload(device, jobs, n_threads)?;
        Ok((Self::gather(tensors.into_iter().map(Ok), checkpoint, config, names)?, loaded))
    }

    /// Copies every tensor into one allocation and lets go of the file's pages behind it.
    pub fn load(exec: Exec, checkpoint: &Checkpoint, config: &Config, names: &Names) -> Result<Self, Error> {
        let all = wanted(|dtype, shape| Ok((dtype, packed(exec, dtype, shape)?)), checkpoint, config, names)?;
        let needed_bytes = all.iter().map(|wanted| Arena::padded(wanted.bytes)).sum();
        let mut arena = Arena::new(needed_bytes).ok_or(Error::Memory { what: "the weights", needed_bytes })?;
        Self::gather(all.into_iter().map(|wanted| wanted.load(exec, &mut arena)), checkpoint, config, names)
    }

    fn gather(
        mut tensors: impl Iterator<Item = Result<Tensor, Error>>,
        checkpoint: &Checkpoint,
        config: &Config,
        names: &Names,
    ) -> Result<Self, Error> {
        let mut next = || tensors.next().expect("as many tensors as were wanted");
        let embedding = next()?;
        let output_norm = next()?;
        let output = if checkpoint.find(names.output).is_some() { Some(next()?) } else { None };
        let layers = (0..config.n_layers)
            .map(|_| {
                Ok(LayerWeights {
                    attn_norm: next()?,
                    q: next()?,
                    k: next()?,
                    v: next()?,
                    attn_out: next()?,
                    ffn_norm: next()?,
                    gate: next()?,
                    up: next()?,
                    down: next()?,
                })
            })
            .collect::<Result<_, Error>>()?;
        Ok(Self { embedding, output_norm, output, layers })
    }
}

/// How a device holds weights of a type: as they are, or in the type its kernels know.
fn on_device(dtype: Dtype, shape: [usize; 2]) -> Result<(Dtype, (Layout, usize)), ops::Error> {
    let dtype = device_dtype(dtype);
    Ok((dtype, packed_on_device(dtype, shape)?))
}

/// Every tensor in the order `load` takes them.
fn wanted<'a>(
    layout_of: impl Fn(Dtype, [usize; 2]) -> Result<(Dtype, (Layout, usize)), ops::Error>,
    checkpoint: &'a Checkpoint,
    config: &Config,
    names: &Names,
) -> Result<Vec<Wanted<'a>>, Error> {
    let matrix = |name: &str, shape: [usize; 2]| {
        let source = checkpoint.tensor(name)?;
        if source.shape != shape {
            return Err(Error::Shape { name: name.into(), found: source.shape.clone(), expected: shape.to_vec() });
        }
        let (dtype, (layout, bytes)) =
            layout_of(source.dtype, shape).map_err(|e| Error::Tensor { name: name.into(), what: e.to_string() })?;
        Ok(Wanted { source, dtype, shape, layout, bytes })
    };
    // Norm weights are few and are kept as f32 whatever the file has.
    let vector = |name: &str, len: usize| {
        let source = checkpoint.tensor(name)?;
        if source.shape != [len] {
            return Err(Error::Shape { name: name.into(), found: source.shape.clone(), expected: vec![len] });
        }
        Ok(Wanted { source, dtype: Dtype::F32, shape: [1, len], layout: Layout::Rows, bytes: 4 * len })
    };
    let Config { n_vocab, n_embd, n_ff, .. } = *config;
    let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
    let mut all = vec![matrix(names.embedding, [n_vocab, n_embd])?, vector(names.output_norm, n_embd)?];
    if checkpoint.find(names.output).is_some() {
        all.push(matrix(names.output, [n_vocab, n_embd])?);
    }
    for layer_idx in 0..config.n_layers {
        let name = |name| names.in_layer(layer_idx, name);
        all.push(vector(&name(names.attn_norm), n_embd)?);
        all.push(matrix(&name(names.q), [q_dim, n_embd])?);
        all.push(matrix(&name(names.k), [kv_dim, n_embd])?);
        all.push(matrix(&name(names.v), [kv_dim, n_embd])?);
        all.push(matrix(&name(names.attn_out), [n_embd, q_dim])?);
        all.push(vector(&name(names.ffn_norm), n_embd)?);
        all.push(matrix(&name(names.gate), [n_ff, n_embd])?);
        all.push(matrix(&name(names.up), [n_ff, n_embd])?);
        all.push(matrix(&name(names.down), [n_embd, n_ff])?);
    }
    Ok(all)
}

impl Wanted<'_> {
    fn job<'t>(&'t self, to: &'t mut Tensor) -> Job<'t> {
        if self.dtype == self.source.dtype {
            return Job { dtype: self.dtype, from: Source::File(&self.source.bytes), to };
        }
        let mut numbers = vec![0.0_f32; self.shape[0] * self.shape[1]];
        ops::quant::dequantize(self.source.dtype, &self.source.bytes, &mut numbers);
        let mut bytes = vec![0; numbers.len() * self.dtype.block_bytes()];
        ops::quant::quantize(self.dtype, &numbers, &mut bytes);
        Job { dtype: self.dtype, from: Source::Made(bytes), to }
    }

    fn load(&self, exec: Exec, arena: &mut Arena) -> Result<Tensor, Error> {
        let mut tensor = arena.carve_as(self.layout, self.dtype, self.shape);
        let failed = |e: ops::Error| Error::Tensor { name: self.source.name.clone(), what: e.to_string() };
        if self.dtype == self.source.dtype {
            let rows = View::host(self.dtype, self.shape, &self.source.bytes);
            pack(exec, rows, &mut tensor.view_mut()).map_err(failed)?;
        } else {
            let mut numbers = vec![0.0; self.shape[1]];
            ops::quant::dequantize(self.source.dtype, &self.source.bytes, &mut numbers);
            pack(exec, View::of_f32(&numbers, self.shape[1]), &mut tensor.view_mut()).map_err(failed)?;
        }
        self.source.bytes.release_pages();
        Ok(tensor)
    }
}
