//! Which kernel multiplies, for CPUs and for GPUs. The ops ask once; the answer determines what they launch, and
//! whether a norm or a gate is fused into the product. The decision is a pure function: types, shapes, the machine and
//! the required order of sums go in, a [`ProductPlan`] comes out.
//!
//! One decision is made elsewhere: on a GPU, `gpu/grouped.rs` decides whether a mixture's experts are multiplied
//! together.
//!
//! With [`Numerics::RowInvariant`], every number of rows gets a kernel of the same [`SumOrder`].

use std::fmt;

use weights::Dtype;

use crate::formats::for_block;
use crate::gpu::mma;
use crate::tiles::{GROUP, TileFormat};
use crate::{Isa, Layout, Numerics, Tuning};

/// CPU: rows up to which plain weights are converted again for each activation row.
pub(crate) const FEW_ROWS: usize = 8;
/// CPU: rows up to which packed weights are unpacked again for every tile of activations.
pub(crate) const SOME_ROWS: usize = 24;
/// CPU: rows from which bytes and outliers pay for unpacking weights twice.
const MANY_ROWS: usize = 64;
/// GPU: rows up to which `matvec` runs in passes of eight.
const MATVEC_ROWS: usize = 16;
/// The same where the BLAS library reads the weights as they are. H200, F16 llama-8b, 8 sequences: 378 tokens/s by matvec.
const MATVEC_ROWS_BESIDE_BLAS: usize = 1;
/// Hopper: up to so many rows of packed weights, `matmul_mma` wastes less of the units than `matmul_wide`.
const MMA_ROWS_BESIDE_WIDE: usize = 32;

/// A kernel for products.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum ProductKernel {
    /// CPU, portable Rust: decodes to f32.
    Portable,
    /// CPU, 64-bit ARM: every type, from rows.
    Neon,
    /// CPU, x86: plain numbers, few rows, f32.
    Dot,
    /// CPU, x86: plain numbers, many rows, f32, in the order of `Dot`.
    DotTiles,
    /// CPU, x86: plain numbers, many rows, f32 panels.
    Panel,
    /// CPU, x86: tiles unpacked in registers, activations in 16 bits, some rows.
    Strip,
    /// CPU, x86: tiles unpacked once for all rows, activations in 16 bits, many rows.
    Unpacked,
    /// CPU, Zen 4: as `Unpacked` with half the multiplications.
    Winograd,
    /// CPU, AVX-512: activations in bytes, outliers in f32.
    Bytes,
    /// GPU: few rows, weights as stored, activations in 16 bits (packed weights) or f32 (plain numbers).
    Matvec,
    /// GPU: the rows that the chip's tuning says (`mma_from` to `mma_to`; sm_90: 4 to 1,024) on the matrix units of either
    /// vendor, weights as stored.
    Mma,
    /// GPU, Hopper: the same with larger tiles, packed weights.
    Wide,
    /// GPU: the vendor's BLAS library on decoded weights.
    Blas,
    /// GPU: many rows on the matrix units of either vendor, weights decoded into f16 tiles.
    MatrixTiles,
    /// GPU: many rows in f32 tiles, on any chip.
    FloatTiles,
}

/// How a kernel rounds activations and in which order it adds. Kernels of one order give a row the same bits, whatever
/// the number of rows and the row's place among them.
#[cfg(test)]
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum SumOrder {
    /// One number after the other, weights in f32.
    Sequential,
    Neon,
    /// Thirty-two sums side by side, weights in f32.
    Lanes,
    /// As `Sequential`, in runs of a panel's length.
    Panels,
    /// Activations in 16 bits with exact scales; groups one after the other, in runs of `unpacked::K_CHUNK` columns.
    ExactScales,
    /// Activations in 16 bits with scales that are powers of two, as many groups at a time as the format allows.
    PowersOfTwo,
    /// The same, with the bits that Winograd's identity leaves.
    Winograd,
    Bytes,
    /// A wave's lanes take groups in turn.
    Waves,
    /// The matrix units over steps of 128 columns, in parts. The parts are fixed where rows must not matter.
    MmaSteps,
    /// The same in the order of Hopper's larger tiles.
    WideSteps,
    /// Whatever the library does with so many rows.
    Library,
    Tiles,
}

#[cfg(test)]
impl ProductKernel {
    fn sum_order(self, isa: Option<Isa>) -> SumOrder {
        match self {
            Self::Portable => SumOrder::Sequential,
            Self::Neon => SumOrder::Neon,
            Self::Dot | Self::DotTiles => SumOrder::Lanes,
            Self::Panel => SumOrder::Panels,
            Self::Strip => SumOrder::ExactScales,
            Self::Unpacked if isa == Some(Isa::Avx2) => SumOrder::ExactScales,
            Self::Unpacked => SumOrder::PowersOfTwo,
            Self::Winograd => SumOrder::Winograd,
            Self::Bytes => SumOrder::Bytes,
            Self::Matvec => SumOrder::Waves,
            Self::Mma => SumOrder::MmaSteps,
            Self::Wide => SumOrder::WideSteps,
            Self::Blas => SumOrder::Library,
            Self::MatrixTiles | Self::FloatTiles => SumOrder::Tiles,
        }
    }
}

/// What all products of one left side share.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ProductShape<'a> {
    pub(crate) n_rows: usize,
    pub(crate) n_in: usize,
    /// The weights of each product.
    pub(crate) weights: &'a [Weight],
    /// Whether all of them may have activations in bytes.
    pub(crate) may_be_coarse: bool,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Weight {
    pub(crate) dtype: Dtype,
    pub(crate) layout: Layout,
}

impl Weight {
    fn is_packed(self) -> bool {
        self.dtype.block_len() > 1
    }
}

/// Where products run.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Machine {
    Cpu(Isa),
    Gpu(ProductChip),
}

/// What the choice depends on in a GPU.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ProductChip {
    pub(crate) tuning: Tuning,
    /// Whether there are matrix units of either vendor.
    pub(crate) has_matrix_units: bool,
    /// Whether they are Hopper's, which read one side from shared memory.
    pub(crate) has_wgmma: bool,
    pub(crate) blas: BlasTypes,
    /// Bytes of the workspace for activations.
    pub(crate) activation_bytes: usize,
}

/// What the BLAS library multiplies here.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub(crate) struct BlasTypes {
    /// Whether there is one at all.
    pub(crate) is_there: bool,
    pub(crate) halves: bool,
    pub(crate) floats: bool,
}

/// The answer.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) struct ProductPlan {
    /// One for each product.
    pub(crate) kernels: Vec<ProductKernel>,
    /// Whether a norm or a gate can be computed on the way into the product.
    pub(crate) fuses_left: bool,
    /// A faster path that this machine, type or shape rules out.
    pub(crate) refused: Option<PlanRefusal>,
}

impl ProductPlan {
    fn all(kernel: ProductKernel, shape: &ProductShape, fuses_left: bool) -> Self {
        Self { kernels: vec![kernel; shape.weights.len()], fuses_left, refused: None }
    }

    /// Whether every product has this kernel.
    pub(crate) fn is(&self, kernel: ProductKernel) -> bool {
        !self.kernels.is_empty() && self.kernels.iter().all(|k| *k == kernel)
    }
}

/// Why many rows do not go to the matrix units, or not through the library.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum PlanRefusal {
    NoUnits,
    Type(Dtype),
    Columns(usize),
    Blas(Dtype),
}

impl fmt::Display for PlanRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: &str = "products of many rows on the matrix units";
        match self {
            PlanRefusal::NoUnits => write!(f, "{UNITS}: this chip has none that the kernels use"),
            PlanRefusal::Type(dtype) => write!(f, "{UNITS}: {dtype} weights do not fit f16"),
            PlanRefusal::Columns(n) => write!(f, "{UNITS}: rows of {n} are not a multiple of {GROUP}"),
            PlanRefusal::Blas(dtype) => write!(f, "{dtype} products through the vendor's library: not usable here"),
        }
    }
}

/// The kernel for each of some products of one left side.
pub(crate) fn plan(machine: Machine, numerics: Numerics, shape: &ProductShape) -> ProductPlan {
    match (machine, numerics) {
        (Machine::Cpu(isa), _) => plan_cpu(isa, numerics, shape),
        (Machine::Gpu(chip), Numerics::Fastest) => plan_gpu(&chip, shape),
        (Machine::Gpu(chip), Numerics::RowInvariant) => plan_gpu_invariant(&chip, shape),
    }
}

fn plan_cpu(isa: Isa, numerics: Numerics, shape: &ProductShape) -> ProductPlan {
    let n_rows = shape.n_rows;
    let are_tiles = shape.weights.iter().all(|weight| weight.layout == Layout::Tiles);
    // Only rows that are rounded can be made on the way.
    let fuses_left = are_tiles && n_rows > 0 && shape.n_in > 0;
    let is_invariant = numerics == Numerics::RowInvariant;
    if !is_invariant
        && shape.may_be_coarse
        && isa >= Isa::Avx512
        && n_rows >= MANY_ROWS
        && outliers(shape.weights).is_some()
    {
        return ProductPlan::all(ProductKernel::Bytes, shape, fuses_left);
    }
    let packed = || shape.weights.iter().filter(|weight| weight.layout == Layout::Tiles);
    let is_winograd = isa == Isa::Zen4 && packed().all(|weight| has_scale_per_group(weight.dtype));
    let kernel = |weight: &Weight| match (isa, weight.layout) {
        (Isa::Plain, _) => ProductKernel::Portable,
        (Isa::Neon, _) => ProductKernel::Neon,
        (_, Layout::Tiles) if n_rows <= SOME_ROWS => ProductKernel::Strip,
        // The kernels of many rows have powers of two for scales there.
        (Isa::Avx512 | Isa::Zen4, Layout::Tiles) if is_invariant => ProductKernel::Strip,
        (_, Layout::Tiles) if is_winograd => ProductKernel::Winograd,
        (_, Layout::Tiles) => ProductKernel::Unpacked,
        _ if weight.is_packed() => ProductKernel::Portable,
        _ if n_rows <= FEW_ROWS => ProductKernel::Dot,
        _ if is_invariant => ProductKernel::DotTiles,
        _ => ProductKernel::Panel,
    };
    ProductPlan { kernels: shape.weights.iter().map(kernel).collect(), fuses_left, refused: None }
}

/// Of the types that have it: one in so many activations is left out of the bytes. `None` if any type stays with 16 bits.
pub(crate) fn outliers(weights: &[Weight]) -> Option<usize> {
    let of_type = |weight: &Weight| match weight.layout {
        Layout::Tiles => for_block!(weight.dtype,
            P => P::OUTLIERS,
            P => { let _: Option<P> = None; None }
        ),
        _ => None,
    };
    weights.iter().map(of_type).try_fold(usize::MAX, |least, outliers| Some(least.min(outliers?)))
}

/// Whether one scale serves a whole group, as Winograd's identity needs it.
fn has_scale_per_group(dtype: Dtype) -> bool {
    for_block!(dtype,
        P => P::SPAN == GROUP,
        P => { let _: Option<P> = None; false }
    )
}

fn plan_gpu(chip: &ProductChip, shape: &ProductShape) -> ProductPlan {
    let (n_rows, n_in) = (shape.n_rows, shape.n_in);
    let are_halves = shape.weights.iter().all(|weight| weight.dtype == Dtype::F16);
    let are_packed = shape.weights.iter().all(|weight| weight.is_packed());
    let mma_rows = if are_halves {
        chip.tuning.mma_f16_from..=chip.tuning.mma_f16_to
    } else {
        chip.tuning.mma_from..=chip.tuning.mma_to
    };
    let fits_mma = n_in > 0 && n_in.is_multiple_of(GROUP) && mma::n_bytes([n_rows, n_in]) <= chip.activation_bytes;
    if chip.has_matrix_units && mma_rows.contains(&n_rows) && (are_packed || are_halves) && fits_mma {
        let is_wide = chip.has_wgmma && are_packed && n_rows > MMA_ROWS_BESIDE_WIDE;
        return ProductPlan::all(if is_wide { ProductKernel::Wide } else { ProductKernel::Mma }, shape, true);
    }
    let matvec_rows = if are_halves && chip.blas.halves { MATVEC_ROWS_BESIDE_BLAS } else { MATVEC_ROWS };
    if n_rows <= matvec_rows {
        return ProductPlan::all(ProductKernel::Matvec, shape, are_packed && n_in.is_multiple_of(GROUP));
    }
    let mut refused = None;
    let kernels: Vec<_> = shape.weights.iter().map(|weight| many_rows(chip, shape, weight, &mut refused)).collect();
    let fuses_left = shape
        .weights
        .iter()
        .zip(&kernels)
        .all(|(w, k)| *k == ProductKernel::Blas && fits_f16(w.dtype) && chip.blas.halves);
    ProductPlan { kernels, fuses_left, refused }
}

/// One kernel for any number of rows: the matrix units where they can read the weights as stored, else `matvec`.
fn plan_gpu_invariant(chip: &ProductChip, shape: &ProductShape) -> ProductPlan {
    let n_in = shape.n_in;
    let are_halves = shape.weights.iter().all(|weight| weight.dtype == Dtype::F16);
    let are_packed = shape.weights.iter().all(|weight| weight.is_packed());
    // The workspace is made for the largest batch: whether one row fits must decide for all.
    let fits_mma = n_in > 0 && n_in.is_multiple_of(GROUP) && mma::n_bytes([1, n_in]) <= chip.activation_bytes;
    if chip.has_matrix_units && (are_packed || are_halves) && fits_mma {
        return ProductPlan::all(ProductKernel::Mma, shape, true);
    }
    ProductPlan::all(ProductKernel::Matvec, shape, are_packed && n_in.is_multiple_of(GROUP))
}

/// The kernel for more rows than `matvec` and `mma` take.
fn many_rows(
    chip: &ProductChip,
    shape: &ProductShape,
    weight: &Weight,
    refused: &mut Option<PlanRefusal>,
) -> ProductKernel {
    let wants_units = shape.n_rows >= (chip.tuning.units_rows as usize).max(1);
    let why = if !chip.has_matrix_units {
        Some(PlanRefusal::NoUnits)
    } else if !fits_f16(weight.dtype) {
        Some(PlanRefusal::Type(weight.dtype))
    } else if !shape.n_in.is_multiple_of(GROUP) {
        Some(PlanRefusal::Columns(shape.n_in))
    } else {
        None
    };
    let takes_units = wants_units && why.is_none();
    let blas_rows = chip.tuning.blas_rows as usize;
    let wants_blas = chip.blas.is_there && ((blas_rows > 0 && shape.n_rows >= blas_rows) || !takes_units);
    if wants_blas {
        let can = if fits_f16(weight.dtype) { chip.blas.halves } else { chip.blas.floats };
        if can {
            return ProductKernel::Blas;
        }
        *refused = Some(PlanRefusal::Blas(weight.dtype));
    }
    if takes_units {
        return ProductKernel::MatrixTiles;
    }
    if wants_units {
        *refused = why;
    }
    ProductKernel::FloatTiles
}

/// Whether f16 holds these weights: packed ones are small integers times a scale, and the matrix units take halves.
pub(crate) fn fits_f16(dtype: Dtype) -> bool {
    dtype == Dtype::F16 || dtype.block_len() > 1
}

#[cfg(test)]
mod tests;
