//! Adapters: small matrices that change the products of a loaded model (LoRA, rsLoRA, DoRA). `peft.rs` and `gguf.rs` read
//! the two forms they are stored in, `places.rs` finds the matrices of the model that they belong to, `fit.rs` brings them into
//! the model's order, `slots.rs` holds them in the model's memory, and `merge.rs` writes them into the weights for good.
//!
//! What an adapter does to a row is one op (`ops::low_rank`); which rows belong to which adapter is the batch's affair.

mod fit;
mod gguf;
mod merge;
mod peft;
mod places;
mod slots;

use std::path::Path;

use batch::AdapterId;
use weights::{Bytes, Checkpoint, Tensor};

use crate::names::Format;
use crate::{Config, Error};
pub use fit::{Fitting, WeightChange};
pub use merge::merge;
pub use slots::{AdapterLimits, Adapters, StepAdapters};

/// An adapter as its files have it, before it is fitted to a model.
#[derive(Debug)]
pub struct AdapterFile {
    pub id: AdapterId,
    /// The largest rank of its matrices.
    pub rank: usize,
    /// The naming scheme of its modules.
    format: Format,
    /// The architecture that it was made for, where the file says it.
    architecture: Option<String>,
    modules: Vec<LoraModule>,
}

/// What changes one matrix: `W + scale * B A`, its rows brought to the length `magnitude` where that is there.
#[derive(Debug)]
struct LoraModule {
    /// As the format calls the matrix, without `.weight`.
    name: String,
    /// Which of how many experts, where the name is that of all.
    expert: Option<(usize, usize)>,
    /// `[rank, n_in]`
    a: Tensor,
    /// `[n_out, rank]`
    b: Tensor,
    scale: f32,
    /// `[n_out]`
    magnitude: Option<Tensor>,
}

impl AdapterFile {
    /// Opens a folder as PEFT writes it, or a GGUF file. The matrices are read when it is fitted.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let in_file = |error| Error::InAdapter { path: path.to_owned(), source: Box::new(error) };
        match path.is_dir() {
            true => peft::open(path).map_err(in_file),
            false => gguf::open(path).map_err(in_file),
        }
    }

    /// Whether it changes experts of a mixture, for which a model needs more room.
    pub fn has_experts(&self) -> bool {
        self.modules.iter().any(|module| module.expert.is_some() || module.name.contains("experts."))
    }

    /// Whether it changes this model, which need not be loaded.
    pub fn check(&self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let config = Config::from_checkpoint(checkpoint)?;
        Fitting::of(checkpoint, &config)?.check(self)
    }

    /// Checks what both forms have in common.
    fn new(format: Format, architecture: Option<String>, modules: Vec<LoraModule>) -> Result<Self, Error> {
        if modules.is_empty() {
            return Err(unusable("it holds no matrices of an adapter"));
        }
        for module in &modules {
            module.check()?;
        }
        let rank = modules.iter().map(LoraModule::rank).max().unwrap_or(0);
        Ok(Self { id: identity(&modules), rank, format, architecture, modules })
    }
}

impl LoraModule {
    fn rank(&self) -> usize {
        self.a.shape[0]
    }

    fn check(&self) -> Result<(), Error> {
        let Self { name, a, b, scale, magnitude, .. } = self;
        let wrong = |what: String| Err(Error::Tensor { name: name.clone(), what });
        if !scale.is_finite() {
            return wrong(format!("its scale is {scale}"));
        }
        if a.shape.len() != 2 || b.shape.len() != 2 || a.shape[0] != b.shape[1] || a.shape[0] == 0 {
            return wrong(format!("A of shape {:?} and B of shape {:?} are no low-rank product", a.shape, b.shape));
        }
        if let Some(magnitude) = magnitude
            && magnitude.n_elements() != b.shape[0]
        {
            return wrong(format!("{} magnitudes for {} outputs", magnitude.n_elements(), b.shape[0]));
        }
        let all = [Some(a), Some(b), magnitude.as_ref()];
        match all.into_iter().flatten().find(|tensor| !tensor.dtype.is_plain()) {
            Some(tensor) => wrong(format!("{} where plain numbers are expected", tensor.dtype)),
            None => Ok(()),
        }
    }
}

/// Some bytes of a tensor as a matrix; `pick` has the places of its numbers.
fn part(tensor: &Tensor, shape: [usize; 2], pick: impl Iterator<Item = usize>) -> Result<Tensor, Error> {
    let n_bytes = tensor.dtype.block_bytes();
    let numbers = pick.flat_map(|at| tensor.bytes[at * n_bytes..][..n_bytes].iter().copied());
    Ok(Tensor::new(tensor.name.clone(), tensor.dtype, shape.to_vec(), Bytes::from_vec(numbers.collect()))?)
}

fn unusable(what: impl Into<String>) -> Error {
    Error::Adapter(what.into())
}

/// The numbers of a tensor, in rows.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    let mut out = vec![0.0; tensor.n_elements()];
    ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut out);
    out
}

/// A hash of names, scales and matrices.
fn identity(modules: &[LoraModule]) -> AdapterId {
    let mut hash = 0x9e37_79b9_7f4a_7c15_u64;
    let mut add = |bytes: &[u8]| {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            hash ^= hash >> 32;
        }
    };
    for module in modules {
        add(module.name.as_bytes());
        module.expert.iter().for_each(|(expert, _)| add(&expert.to_le_bytes()));
        add(&module.scale.to_le_bytes());
        let all = [Some(&module.a), Some(&module.b), module.magnitude.as_ref()];
        all.into_iter().flatten().for_each(|tensor| add(&tensor.bytes));
    }
    AdapterId(hash)
}
