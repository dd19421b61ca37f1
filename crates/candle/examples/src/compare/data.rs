//! Inputs of the cases: seeded numbers of every type, laid out in the ways a kernel can meet them.

use candle_core::{DType, Device, Result, Shape, Tensor};

/// Every type that a Candle tensor computes with.
pub const DTYPES: [DType; 10] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
];
pub const FLOATS: [DType; 5] = [DType::BF16, DType::F16, DType::F32, DType::F64, DType::F8E4M3];

/// How an input lies in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    Contiguous,
    /// The last rows of something longer.
    Offset,
    /// The middle columns of something wider.
    Narrow,
    Transposed,
    /// One row for all.
    Broadcast,
    /// `[0]`
    Empty,
    /// One dimension is 0, the others are not.
    ZeroSized,
}

pub const LIES: [Lie; 7] =
    [Lie::Contiguous, Lie::Offset, Lie::Narrow, Lie::Transposed, Lie::Broadcast, Lie::Empty, Lie::ZeroSized];
/// Those with numbers in them.
pub const FULL_LIES: [Lie; 5] = [Lie::Contiguous, Lie::Offset, Lie::Narrow, Lie::Transposed, Lie::Broadcast];

/// What the numbers are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Between -4 and 4, with zeros of both signs.
    Tame,
    /// Between 1/16 and 8.
    Positive,
    /// Whole, from -3 to 3 (0 to 3 without signs): sums of them are exact in any order.
    Whole,
    /// Everything: infinities, NaNs, the largest and the smallest, halves that rounding has to decide.
    Wild,
    /// Whole, from 0 to this, exclusive.
    Below(usize),
}

#[derive(Clone, Debug)]
pub struct Input {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub lie: Lie,
    pub values: Values,
}

pub fn input(dtype: DType, shape: &[usize], lie: Lie, values: Values) -> Input {
    Input { dtype, shape: shape.to_vec(), lie, values }
}

/// SplitMix64: the same numbers from the same seed, everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

const WILD: [f64; 24] = [
    0.0,
    -0.0,
    0.5,
    1.5,
    2.5,
    -0.5,
    -1.5,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    255.0,
    256.0,
    -1.0,
    32767.5,
    -32769.0,
    4294967295.0,
    4294967296.0,
    9.3e18,
    -9.3e18,
    3.4e38,
    1e-3,
    448.0,
    65520.0,
    2147483648.0,
];

fn number(random: &mut Random, dtype: DType, values: Values) -> f64 {
    let is_unsigned = matches!(dtype, DType::U8 | DType::U32);
    let number = match values {
        Values::Tame if dtype.is_int() => random.between(-40.0, 40.0).round(),
        Values::Tame if random.below(16) == 0 => [0.0, -0.0][random.below(2)],
        Values::Tame => random.between(-4.0, 4.0),
        Values::Positive if dtype.is_int() => 1.0 + random.below(40) as f64,
        Values::Positive => random.between(0.0625, 8.0),
        Values::Whole => random.below(7) as f64 - 3.0,
        Values::Wild if random.below(2) == 0 => WILD[random.below(WILD.len())],
        Values::Wild => random.between(-300.0, 300.0),
        Values::Below(n) => random.below(n) as f64,
    };
    if is_unsigned { number.abs() } else { number }
}

/// The memory an input lies in: contiguous, on the CPU. Candle's own conversion from f64 gives it its type.
pub fn memory(input: &Input, random: &mut Random) -> Result<Tensor> {
    let shape = within(input);
    let n: usize = shape.iter().product();
    let numbers: Vec<f64> = (0..n).map(|_| number(random, input.dtype, input.values)).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(input.dtype)
}

/// The shape of the memory around an input.
fn within(input: &Input) -> Vec<usize> {
    let mut shape = input.shape.clone();
    let last = shape.len() - 1;
    match input.lie {
        Lie::Contiguous => (),
        Lie::Offset => shape[0] += 2,
        Lie::Narrow => shape[last] += 3,
        Lie::Transposed => shape.swap(last.saturating_sub(1), last),
        Lie::Broadcast => shape[0] = 1,
        Lie::Empty => shape = vec![0],
        Lie::ZeroSized => shape[last / 2] = 0,
    }
    shape
}

/// The input as a view of its memory, on whatever device that is.
pub fn view(input: &Input, memory: &Tensor) -> Result<Tensor> {
    let last = input.shape.len() - 1;
    match input.lie {
        Lie::Contiguous | Lie::Empty | Lie::ZeroSized => Ok(memory.clone()),
        Lie::Offset => memory.narrow(0, 2, input.shape[0]),
        Lie::Narrow => memory.narrow(last, 1, input.shape[last]),
        Lie::Transposed if last == 0 => Ok(memory.clone()),
        Lie::Transposed => memory.transpose(last - 1, last),
        Lie::Broadcast => memory.expand(Shape::from(input.shape.clone())),
    }
}
