//! One comparison: an op, what it gets, and how exact its result must be.

use candle_core::{DType, Device, Result, Tensor};

use crate::data::{self, FLOATS, Input, Random};
use crate::judge::Bound;

type Op = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

pub struct Case {
    pub name: String,
    pub inputs: Vec<Input>,
    pub bound: Bound,
    pub op: Op,
    /// Whether f64 may decide where the CPU's own arithmetic is coarser than the bound.
    pub has_reference: bool,
    /// Another way to the same result for the CPU in f64, where `op` is not to be trusted there or does not exist.
    other_way: Option<Op>,
}

impl Case {
    pub fn new(
        name: String,
        inputs: Vec<Input>,
        bound: Bound,
        op: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) -> Self {
        let is_float = |input: &Input| FLOATS.contains(&input.dtype);
        let has_reference = inputs.iter().any(|input| is_float(input) && input.dtype != DType::F64);
        Self { name, inputs, bound, op: Box::new(op), has_reference, other_way: None }
    }

    /// For ops whose very point is the type of their input.
    pub fn without_reference(mut self) -> Self {
        self.has_reference = false;
        self
    }

    pub fn with_reference(mut self, op: impl Fn(&[Tensor]) -> Result<Tensor> + 'static) -> Self {
        self.has_reference = true;
        self.other_way = Some(Box::new(op));
        self
    }

    /// The memory of all inputs, on the CPU: the same for the same seed and name.
    pub fn memory(&self, seed: u64) -> Result<Vec<Tensor>> {
        let of_name = self.name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let mut random = Random(of_name);
        self.inputs.iter().map(|input| data::memory(input, &mut random)).collect()
    }

    /// The op's result on a device.
    pub fn run(&self, memory: &[Tensor], device: &Device) -> Result<Tensor> {
        self.run_op(&self.op, memory, device)
    }

    fn run_op(&self, op: &Op, memory: &[Tensor], device: &Device) -> Result<Tensor> {
        let views: Vec<Tensor> = self
            .inputs
            .iter()
            .zip(memory)
            .map(|(input, memory)| data::view(input, &memory.to_device(device)?))
            .collect::<Result<_>>()?;
        op(&views)?.to_device(&Device::Cpu)
    }

    /// The op in f64 on the CPU, rounded to the type that is wanted.
    pub fn reference(&self, memory: &[Tensor], dtype: DType) -> Result<Tensor> {
        let wide: Vec<Tensor> = memory
            .iter()
            .map(|memory| match memory.dtype() {
                // By way of f32: the crate float8 never returns from its own way to f64.
                DType::F8E4M3 => memory.to_dtype(DType::F32)?.to_dtype(DType::F64),
                dtype if FLOATS.contains(&dtype) => memory.to_dtype(DType::F64),
                _ => Ok(memory.clone()),
            })
            .collect::<Result<_>>()?;
        self.run_op(self.other_way.as_ref().unwrap_or(&self.op), &wide, &Device::Cpu)?.to_dtype(dtype)
    }
}
