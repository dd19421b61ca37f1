//! The compiled kernels of one device, and the executor that ops launch them with.
//!
//! A translation unit is one op's file with its defines (format, KV type, head size); it is compiled, or taken from the
//! cache on disk, when something first needs it. A model runs a step while it is being loaded, so that no request waits
//! for a compiler and no capture meets one.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;

use gpu::{Blas, Buffer, Cache, Device, Launcher, Module, Program};
use weights::Dtype;

use crate::{Error, Tuning};

const PRELUDE: &str = include_str!("../../kernels/prelude.h");
const QUANT: &str = include_str!("../../kernels/quant.h");
const FUNCTIONS: &str = include_str!("../../kernels/functions.h");
const ROUND: &str = include_str!("../../kernels/round.h");
const RMSNORM: &str = include_str!("../../kernels/rmsnorm.h");
const GATE: &str = include_str!("../../kernels/gate.h");
const EXPERTS: &str = include_str!("../../kernels/experts.h");
const MMA_WEIGHTS: &str = include_str!("../../kernels/mma_weights.h");
const UNIT_WEIGHTS: &str = include_str!("../../kernels/unit_weights.h");
const WGMMA: &str = include_str!("../../kernels/wgmma.h");

/// Which translation unit: the op's name and what its defines are made from.
type Key = (&'static str, [u32; 3]);

pub struct Kernels {
    device: Device,
    cache: Cache,
    pub(crate) tuning: Tuning,
    loaded: RefCell<HashMap<Key, Box<dyn Any + Send>>>,
    /// Fast paths that were refused, with the reason and how often.
    refused: RefCell<Vec<(String, u64)>>,
}

impl Kernels {
    pub fn new(device: &Device, cache: Cache) -> Self {
        let (tuning, refused) = Tuning::of(device);
        let refused = RefCell::new(refused.into_iter().map(|why| (why, 1)).collect());
        Self { device: device.clone(), cache, tuning, loaded: RefCell::default(), refused }
    }

    /// Launch parameters of this chip, and its limits where they are known.
    pub fn tuning(&self) -> Tuning {
        self.tuning
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Fast paths that this run does without, why, and how often they were asked for.
    pub fn refused(&self) -> Vec<(String, u64)> {
        self.refused.borrow().clone()
    }

    /// Takes note of a fast path that cannot be used.
    pub fn refuse(&self, why: String) {
        let mut refused = self.refused.borrow_mut();
        match refused.iter_mut().find(|(known, _)| *known == why) {
            Some((_, n)) => *n += 1,
            None => refused.push((why, 1)),
        }
    }

    /// The kernels of one unit, made by `program` and `pick` the first time.
    pub(crate) fn get<T: Clone + Send + 'static>(
        &self,
        key: Key,
        program: impl FnOnce() -> Program,
        pick: impl FnOnce(&Module) -> gpu::Result<T>,
    ) -> Result<T, Error> {
        if let Some(kernels) = self.loaded.borrow().get(&key) {
            return Ok(kernels.downcast_ref::<T>().expect("a key names one type").clone());
        }
        let headers = [
            ("prelude.h", PRELUDE),
            ("functions.h", FUNCTIONS),
            ("quant.h", QUANT),
            ("round.h", ROUND),
            ("rmsnorm.h", RMSNORM),
            ("gate.h", GATE),
            ("experts.h", EXPERTS),
            ("mma_weights.h", MMA_WEIGHTS),
            ("unit_weights.h", UNIT_WEIGHTS),
            ("wgmma.h", WGMMA),
        ];
        let program = headers.into_iter().fold(program(), |program, (name, text)| program.header(name, text));
        let kernels = pick(&Module::load(&self.device, &program, &self.cache)?)?;
        self.loaded.borrow_mut().insert(key, Box::new(kernels.clone()));
        Ok(kernels)
    }
}

/// How an op reaches a GPU: something that launches, kernels to launch, and memory to work in.
pub struct Gpu<'a> {
    pub launcher: &'a Launcher<'a>,
    pub kernels: &'a Kernels,
    /// The vendor's products, where they work.
    pub blas: Option<&'a Blas>,
    pub workspace: &'a RefCell<Workspace>,
}

/// Memory that ops use inside one call: rounded activations, decoded weights, parts of a split context.
pub struct Workspace {
    pub activations: Buffer<u8>,
    pub weights: Buffer<u8>,
    pub parts: Buffer<u8>,
}

impl Workspace {
    /// `[activations, weights, parts]` in bytes for batches of `max_rows` rows of at most `max_cols` columns.
    pub fn plan(max_rows: usize, max_cols: usize, largest_weight: usize) -> [usize; 3] {
        // Rounded: 2 bytes a number and 8 bytes a group of 32. As f32, for products in f32: in place.
        // As halves for the matrix units: rows in blocks of 64, columns in steps of 128.
        let n_rows = max_rows.next_multiple_of(64);
        let activations = n_rows.saturating_mul(max_cols.next_multiple_of(128)).saturating_mul(5) / 2;
        [activations.max(256), largest_weight.max(256), PARTS_BYTES]
    }
}

/// Room for the parts of split contexts: splits are chosen so that they fit.
pub(crate) const PARTS_BYTES: usize = 32 << 20;

/// A format's number in quant.h; `None` where the device's kernels do not know it.
const fn known_format(dtype: Dtype) -> Option<u32> {
    Some(match dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::BF16 => 2,
        Dtype::Q4_0 => 3,
        Dtype::Q4_1 => 4,
        Dtype::Q8_0 => 5,
        Dtype::Q4K => 6,
        Dtype::Q6K => 7,
        _ => return None,
    })
}

pub(crate) fn format_number(dtype: Dtype) -> Result<u32, Error> {
    known_format(dtype).ok_or_else(|| Error::Argument {
        op: "kernels",
        what: format!("no kernel of the device reads {dtype}; weights come as {}", device_dtype(dtype)),
    })
}

/// The type that weights of `dtype` take on a device: their own, or where its kernels do not know that, F16 for packed
/// weights and F32 for plain numbers.
pub const fn device_dtype(dtype: Dtype) -> Dtype {
    match known_format(dtype) {
        Some(_) => dtype,
        None if dtype.is_plain() => Dtype::F32,
        None => Dtype::F16,
    }
}

/// A count as kernels take it.
pub(crate) fn count(op: &'static str, what: &'static str, n: usize) -> Result<u32, Error> {
    u32::try_from(n).map_err(|_| Error::Argument { op, what: format!("{what}: {n} is more than a kernel counts") })
}
