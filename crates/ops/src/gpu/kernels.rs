//! The compiled kernels of one device, and the executor that ops launch them with.
//!
//! A translation unit is one op's file with its defines (format, KV type, head size); it is compiled, or taken from the
//! cache on disk, when something first needs it. A model runs a step while it is being loaded, so that no request waits
//! for a compiler and no capture meets one; before that it rehearses steps, so that units are compiled side by side.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;

use gpu::{Blas, Buffer, BuildProgress, Cache, Code, Device, Launcher, Module, Program, Target};

use super::unit::KernelFile;
use crate::{Error, Numerics, Tuning};

/// What the kernels include, by name.
const HEADERS: [(&str, &str); 17] = [
    ("prelude.h", include_str!("../../kernels/prelude.h")),
    ("functions.h", include_str!("../../kernels/functions.h")),
    ("formats.h", include_str!("../../kernels/formats.h")),
    ("grids.h", include_str!("../../kernels/grids.h")),
    ("quant.h", include_str!("../../kernels/quant.h")),
    ("more_quants.h", include_str!("../../kernels/more_quants.h")),
    ("scan.h", include_str!("../../kernels/scan.h")),
    ("chunk.h", include_str!("../../kernels/chunk.h")),
    ("round.h", include_str!("../../kernels/round.h")),
    ("rmsnorm.h", include_str!("../../kernels/rmsnorm.h")),
    ("gate.h", include_str!("../../kernels/gate.h")),
    ("experts.h", include_str!("../../kernels/experts.h")),
    ("kv.h", include_str!("../../kernels/kv.h")),
    ("mma_products.h", include_str!("../../kernels/mma_products.h")),
    ("mma_weights.h", include_str!("../../kernels/mma_weights.h")),
    ("unit_weights.h", include_str!("../../kernels/unit_weights.h")),
    ("wgmma.h", include_str!("../../kernels/wgmma.h")),
];

/// Which translation unit: the op's name and what its defines are made from.
type UnitKey = (&'static str, [u32; 3]);

pub struct Kernels {
    device: Device,
    cache: Cache,
    pub(crate) tuning: Tuning,
    numerics: Numerics,
    loaded: RefCell<HashMap<UnitKey, Box<dyn Any + Send>>>,
    /// Machine code of units that nothing has asked for since it was made.
    made: RefCell<HashMap<UnitKey, (Program, Code)>>,
    /// Units that a rehearsal has met, while there is one.
    rehearsed: RefCell<Option<HashMap<UnitKey, Program>>>,
    /// Fast paths that were refused, with the reason and how often.
    refused: RefCell<Vec<(String, u64)>>,
}

impl Kernels {
    pub fn new(device: &Device, cache: Cache) -> Self {
        let (tuning, refused) = Tuning::of(device);
        let refused = RefCell::new(refused.into_iter().map(|why| (why, 1)).collect());
        let numerics = Numerics::default();
        Self {
            device: device.clone(),
            cache,
            tuning,
            numerics,
            loaded: RefCell::default(),
            made: RefCell::default(),
            rehearsed: RefCell::default(),
            refused,
        }
    }

    /// The same kernels, chosen for this order of sums.
    pub fn with_numerics(self, numerics: Numerics) -> Self {
        Self { numerics, ..self }
    }

    pub fn numerics(&self) -> Numerics {
        self.numerics
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

    /// The kernels of a declared file ([`super::unit`]), compiled with these values of its defines.
    pub(crate) fn unit<T: Clone + Send + 'static>(
        &self,
        file: &KernelFile,
        values: &[u32],
        declare: impl FnOnce(Program) -> Program,
        pick: impl FnOnce(&Module) -> gpu::Result<T>,
    ) -> Result<T, Error> {
        let mut key = [0; 3];
        key[..values.len()].copy_from_slice(values);
        self.get((file.name, key), || declare(file.program(values)), pick)
    }

    /// From now on units that are not loaded are noted and not compiled, and launching their kernels does nothing.
    pub fn rehearse(&self) {
        *self.rehearsed.borrow_mut() = Some(HashMap::new());
    }

    /// Ends a rehearsal, and compiles what it met on all cores; `tell` hears how far that is.
    pub fn compile_rehearsed(&self, tell: impl FnMut(BuildProgress)) -> Result<(), Error> {
        let Some(rehearsed) = self.rehearsed.borrow_mut().take() else { return Ok(()) };
        let (keys, programs): (Vec<UnitKey>, Vec<Program>) = rehearsed.into_iter().unzip();
        let codes = gpu::build(&programs, &Target::of(&self.device), &self.cache, tell)?;
        self.made.borrow_mut().extend(keys.into_iter().zip(programs.into_iter().zip(codes)));
        Ok(())
    }

    /// The kernels of one unit, made by `program` and `pick` the first time.
    pub(crate) fn get<T: Clone + Send + 'static>(
        &self,
        key: UnitKey,
        program: impl FnOnce() -> Program,
        pick: impl FnOnce(&Module) -> gpu::Result<T>,
    ) -> Result<T, Error> {
        if let Some(kernels) = self.loaded.borrow().get(&key) {
            return Ok(kernels.downcast_ref::<T>().expect("a key names one type").clone());
        }
        let full = || HEADERS.into_iter().fold(program(), |program, (name, text)| program.header(name, text));
        if let Some(rehearsed) = self.rehearsed.borrow_mut().as_mut() {
            let program = rehearsed.entry(key).or_insert_with(full);
            return Ok(pick(&Module::rehearsed(&self.device, program))?);
        }
        let made = self.made.borrow_mut().remove(&key);
        let module = match made {
            Some((program, code)) => Module::from_code(&self.device, &program, &code)?,
            None => Module::load(&self.device, &full(), &self.cache)?,
        };
        let kernels = pick(&module)?;
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
        // As halves for the matrix units: rows in blocks of up to 128, columns in steps of 128.
        let n_rows = max_rows.next_multiple_of(128);
        let activations = n_rows.saturating_mul(max_cols.next_multiple_of(128)).saturating_mul(5) / 2;
        [activations.max(256), largest_weight.max(256), PARTS_BYTES]
    }
}

/// Room for the parts of split contexts: splits are chosen so that they fit.
pub(crate) const PARTS_BYTES: usize = 32 << 20;

/// A count as kernels take it.
pub(crate) fn count(op: &'static str, what: &'static str, n: usize) -> Result<u32, Error> {
    u32::try_from(n).map_err(|_| Error::Argument { op, what: format!("{what}: {n} is more than a kernel counts") })
}
