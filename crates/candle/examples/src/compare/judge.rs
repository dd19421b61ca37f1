//! Whether two results are the same, by the bound of their case.

use candle_core::{DType, Result, Tensor};

/// How far a GPU's numbers may be from the CPU's.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// Bit by bit; any NaN equals any other.
    Exact,
    /// So many steps of f32 and f64, at most one of the shorter types. Zeros of both signs are one.
    Steps(u64),
    /// A sum of so many products of numbers up to about 1: 1e-5 times the root of that, and a step of the shorter types.
    Products(usize),
    /// So many steps, counted at the size of the largest number in the result.
    OfLargest(u64),
    /// This far, whatever the numbers are.
    Within(f64),
}

/// A result, element by element: its value, and its place among the numbers of its type (0 for both zeros).
struct Numbers {
    values: Vec<f64>,
    /// The bits, or the integer itself.
    bits: Vec<i64>,
    places: Vec<i64>,
}

/// The place of a sign-and-magnitude number among all of them.
fn place(bits: u64, width: u32) -> i64 {
    let sign = 1u64 << (width - 1);
    let size = (bits & (sign - 1)) as i64;
    if bits & sign == 0 { size } else { -size }
}

fn numbers(tensor: &Tensor) -> Result<Numbers> {
    let flat = tensor.flatten_all()?;
    let integers =
        |all: Vec<i64>| Numbers { values: all.iter().map(|x| *x as f64).collect(), places: all.clone(), bits: all };
    let floats = |all: Vec<(f64, u64)>, width: u32| Numbers {
        values: all.iter().map(|x| x.0).collect(),
        bits: all.iter().map(|x| x.1 as i64).collect(),
        places: all.iter().map(|x| place(x.1, width)).collect(),
    };
    Ok(match tensor.dtype() {
        DType::U8 => integers(flat.to_vec1::<u8>()?.into_iter().map(i64::from).collect()),
        DType::U32 => integers(flat.to_vec1::<u32>()?.into_iter().map(i64::from).collect()),
        DType::I16 => integers(flat.to_vec1::<i16>()?.into_iter().map(i64::from).collect()),
        DType::I32 => integers(flat.to_vec1::<i32>()?.into_iter().map(i64::from).collect()),
        DType::I64 => integers(flat.to_vec1::<i64>()?),
        DType::F64 => floats(flat.to_vec1::<f64>()?.into_iter().map(|x| (x, x.to_bits())).collect(), 64),
        DType::F32 => {
            let all = flat.to_vec1::<f32>()?;
            floats(all.into_iter().map(|x| (f64::from(x), u64::from(x.to_bits()))).collect(), 32)
        }
        DType::F16 => {
            let all = flat.to_vec1::<half::f16>()?;
            floats(all.into_iter().map(|x| (x.to_f64(), u64::from(x.to_bits()))).collect(), 16)
        }
        DType::BF16 => {
            let all = flat.to_vec1::<half::bf16>()?;
            floats(all.into_iter().map(|x| (x.to_f64(), u64::from(x.to_bits()))).collect(), 16)
        }
        DType::F8E4M3 => {
            let all = flat.to_vec1::<float8::F8E4M3>()?;
            floats(all.into_iter().map(|x| (x.to_f64(), u64::from(x.to_bits()))).collect(), 8)
        }
        dtype => candle_core::bail!("results of {dtype:?} are not compared"),
    })
}

/// The distance between a number of this type and the next, at this size.
fn step(dtype: DType, size: f64) -> f64 {
    let (bits, least) = match dtype {
        DType::F64 => (52, -1022),
        DType::F32 => (23, -126),
        DType::F16 => (10, -14),
        DType::BF16 => (7, -126),
        DType::F8E4M3 => (3, -6),
        _ => return 0.0,
    };
    2f64.powi((size.abs().log2().floor() as i32).max(least) - bits)
}

/// The first element that is out of bounds, in words; none where all are within.
pub fn difference(got: &Tensor, want: &Tensor, bound: Bound) -> Result<Option<String>> {
    if got.shape() != want.shape() || got.dtype() != want.dtype() {
        let text = |x: &Tensor| format!("{:?} of {:?}", x.dtype(), x.dims());
        return Ok(Some(format!("{}, not {}", text(got), text(want))));
    }
    let dtype = want.dtype();
    let is_short = matches!(dtype, DType::F16 | DType::BF16 | DType::F8E4M3);
    let (a, b) = (numbers(got)?, numbers(want)?);
    let largest = b.values.iter().filter(|x| x.is_finite()).fold(0.0, |most: f64, x| most.max(x.abs()));
    let mut worst: Option<(f64, String)> = None;
    for i in 0..a.values.len() {
        let (x, y) = (a.values[i], b.values[i]);
        if x.is_nan() && y.is_nan() {
            continue;
        }
        let apart = a.places[i].abs_diff(b.places[i]);
        let same = !(x.is_nan() || y.is_nan())
            && match bound {
                Bound::Exact => a.bits[i] == b.bits[i],
                Bound::Steps(_) if dtype.is_int() => apart == 0,
                Bound::Steps(n) => apart <= if is_short { n.min(1) } else { n },
                Bound::Products(n) => {
                    let exact = if dtype == DType::F64 { 1e-13 } else { 1e-5 };
                    let rounding = if is_short { step(dtype, y) } else { 0.0 };
                    x == y || (x - y).abs() <= exact * (n.max(1) as f64).sqrt() + rounding
                }
                Bound::Within(far) => (x - y).abs() <= far,
                Bound::OfLargest(n) => {
                    x == y || (x - y).abs() <= step(dtype, largest) * if is_short { 1.0 } else { n as f64 }
                }
            };
        let how_far = if x.is_nan() || y.is_nan() { f64::INFINITY } else { apart as f64 };
        if !same && worst.as_ref().is_none_or(|(most, _)| how_far > *most) {
            worst = Some((how_far, format!("element {i}: {x:e}, not {y:e} ({apart} steps apart)")));
        }
    }
    Ok(worst.map(|(_, text)| text))
}
