//! The weights where the products need them: one allocation, filled from the checkpoint, in the layout of the machine
//! or device that holds them.

use std::borrow::Cow;
use std::collections::HashMap;

use ops::{Arena, Exec, Layout, Place, Tensor, View, device_dtype, pack, packed, packed_on_device};
use weights::Dtype;

use crate::device::Device;
use crate::names::Names;
use crate::parts::{Parts, TensorId, WantedRows, parts};
use crate::upload::{JobSource, UploadJob, UploadReport, upload};
use crate::{Config, Error};

pub struct Resident {
    pub parts: Parts,
    tensors: Vec<Tensor>,
    /// The tensor of the checkpoint that each came from, and which matrix of it.
    sources: Vec<(String, usize)>,
    /// What is held in another type than the file's: from, to, tensors.
    converted: Vec<(Dtype, Dtype, usize)>,
}

impl Resident {
    /// Bytes that [`Resident::load`] will take.
    pub fn plan_bytes(exec: Exec, names: Names, config: &Config) -> Result<usize, Error> {
        let (_, all) = parts(names, config, &|dtype, shape| Ok((dtype, packed(exec, dtype, shape)?)))?;
        Ok(all.iter().map(|wanted| Arena::padded(wanted.n_bytes)).sum())
    }

    /// Bytes that [`Resident::load_on_device`] will take. Refuses a model that needs an op the device does not have.
    pub fn plan_bytes_on_device(names: Names, config: &Config) -> Result<usize, Error> {
        let (parts, all) = parts(names, config, &on_device)?;
        if let Some(what) = parts.missing_on_device(config) {
            return Err(Error::NotOnDevice { what });
        }
        Ok(all.iter().map(|wanted| Arena::padded_on_device(wanted.n_bytes)).sum())
    }

    /// Sends every tensor to its place in `arena`, which has room for them.
    pub fn load_on_device(
        device: &Device,
        n_threads: usize,
        arena: &mut Arena,
        names: Names,
        config: &Config,
    ) -> Result<(Self, UploadReport), Error> {
        let (parts, all) = parts(names, config, &on_device)?;
        let mut tensors: Vec<Tensor> =
            all.iter().map(|wanted| arena.carve_as(wanted.layout, wanted.dtype, wanted.shape)).collect();
        let jobs = all.iter().zip(&mut tensors).map(|(wanted, to)| wanted.job(to)).collect();
        let loaded = upload(device, jobs, n_threads)?;
        let (sources, converted) = (sources(&all), converted(&all));
        Ok((Self { parts, tensors, sources, converted }, loaded))
    }

    /// Copies every tensor into one allocation and then releases the file's pages.
    pub fn load(exec: Exec, names: Names, config: &Config) -> Result<Self, Error> {
        let (parts, all) = parts(names, config, &|dtype, shape| Ok((dtype, packed(exec, dtype, shape)?)))?;
        let needed_bytes = all.iter().map(|wanted| Arena::padded(wanted.n_bytes)).sum();
        let mut arena = Arena::new(needed_bytes).ok_or(Error::Memory { what: "the weights", needed_bytes })?;
        let tensors = all.iter().map(|wanted| wanted.load(exec, &mut arena)).collect::<Result<_, _>>()?;
        let (sources, converted) = (sources(&all), converted(&all));
        Ok(Self { parts, tensors, sources, converted })
    }

    /// Where each tensor lies on the host, and which matrix of which of the checkpoint's tensors it is.
    pub fn addresses(&self) -> Vec<(usize, &str, usize)> {
        let all = self.tensors.iter().zip(&self.sources);
        let host = all.filter_map(|(tensor, (name, matrix))| match tensor.view().place {
            Place::Host(bytes) => Some((bytes.as_ptr().addr(), name.as_str(), *matrix)),
            Place::Device(_) => None,
        });
        host.collect()
    }

    /// A sentence for each type of matrices that this place cannot hold as the file has them.
    pub fn conversions(&self) -> Vec<String> {
        let all = self.converted.iter();
        all.map(|(from, to, n)| format!("{n} matrices of {from} are held as {to}: no kernel here reads {from}"))
            .collect()
    }

    pub fn view(&self, id: TensorId) -> View<'_> {
        self.tensors[id.0].view()
    }
}

/// Experts are taken out of one tensor in order; other cuts of a tensor see the same input and count as one.
fn sources(all: &[WantedRows]) -> Vec<(String, usize)> {
    let mut n_seen: HashMap<&str, usize> = HashMap::new();
    let mut sources = Vec::with_capacity(all.len());
    for wanted in all {
        let is_experts = wanted.source.shape.len() > 2;
        let n = n_seen.entry(wanted.source.name.as_str()).or_default();
        sources.push((wanted.source.name.clone(), if is_experts { *n } else { 0 }));
        *n += 1;
    }
    sources
}

/// Packed matrices that take another type, counted. Vectors are f32 everywhere, and nobody need be told.
fn converted(all: &[WantedRows]) -> Vec<(Dtype, Dtype, usize)> {
    let mut counts: Vec<(Dtype, Dtype, usize)> = Vec::new();
    for wanted in all.iter().filter(|wanted| wanted.source.dtype.block_len() > 1) {
        let (from, to) = (wanted.source.dtype, wanted.dtype);
        match counts.iter_mut().find(|(a, b, _)| (*a, *b) == (from, to)) {
            _ if from == to => {}
            Some((.., n)) => *n += 1,
            None => counts.push((from, to, 1)),
        }
    }
    counts
}

/// How a device holds weights of a type: as they are, or in the type its kernels know.
fn on_device(dtype: Dtype, shape: [usize; 2]) -> Result<(Dtype, (Layout, usize)), ops::Error> {
    let dtype = device_dtype(dtype);
    Ok((dtype, packed_on_device(dtype, shape)?))
}

impl WantedRows<'_> {
    fn job<'t>(&'t self, to: &'t mut Tensor) -> UploadJob<'t> {
        let from = match self.rows() {
            Cow::Borrowed(_) => JobSource::File(&self.bytes),
            Cow::Owned(rows) => JobSource::Made(rows),
        };
        UploadJob { dtype: self.dtype, from, to }
    }

    fn load(&self, exec: Exec, arena: &mut Arena) -> Result<Tensor, Error> {
        let mut tensor = arena.carve_as(self.layout, self.dtype, self.shape);
        let failed = |e: ops::Error| Error::Tensor { name: self.source.name.clone(), what: e.to_string() };
        let rows = self.rows();
        pack(exec, View::host(self.dtype, self.shape, &rows), &mut tensor.view_mut()).map_err(failed)?;
        self.bytes.release_pages();
        Ok(tensor)
    }

    /// The wanted rows as they will be packed: borrowed if they are all of `bytes`.
    fn rows(&self) -> Cow<'_, [u8]> {
        if self.cut.is_whole() && self.source.dtype == self.dtype && self.is_plain() {
            return Cow::Borrowed(&self.bytes);
        }
        if self.source.dtype == self.dtype && self.is_plain() {
            return Cow::Owned(self.picked_bytes());
        }
        let numbers = self.numbers();
        let mut bytes = vec![0; self.dtype.row_bytes(numbers.len()).unwrap_or(0)];
        ops::quant::quantize(self.dtype, &numbers, &mut bytes);
        Cow::Owned(bytes)
    }

    /// Whether the numbers are wanted as the file has them.
    fn is_plain(&self) -> bool {
        self.offset == 0.0 && !self.is_log && !self.is_ones && !self.is_shares && self.scales.is_empty()
    }

    /// The wanted numbers, decoded.
    fn numbers(&self) -> Vec<f32> {
        if self.is_ones {
            return vec![1.0; self.shape[0] * self.shape[1]];
        }
        let mut out = self.cut.numbers(self.source.dtype, &self.bytes, self.n_source_cols);
        out.iter_mut().for_each(|x| *x += self.offset);
        if self.is_log {
            out.iter_mut().for_each(|x| *x = -x.exp());
        }
        if self.is_shares {
            let half = out.len() / 2;
            out[half..].iter_mut().for_each(|x| *x = 1.0 - *x);
        }
        let mut rest = out.as_mut_slice();
        for (n_rows, scale) in &self.scales {
            let (part, others) = rest.split_at_mut((n_rows * self.shape[1]).min(rest.len()));
            part.iter_mut().for_each(|x| *x *= scale);
            rest = others;
        }
        out
    }

    /// The wanted rows without decoding them.
    fn picked_bytes(&self) -> Vec<u8> {
        let row_bytes = self.bytes.len() / self.cut.end().max(1);
        self.cut.pick_bytes(&self.bytes, row_bytes, self.source.dtype.block_bytes())
    }
}
