//! Random numbers on the device: Philox, a function of the seed and of how many were drawn before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{CudaModule, CudaStream, DevicePtrMut, DeviceRepr, LaunchConfig, PushKernelArg};
use crate::nvrtc::Ptx;

const SOURCE: &str = include_str!("random.hip");
/// A Philox block.
const BYTES_PER_THREAD: usize = 16;

pub mod result {
    #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
    #[error("{0}")]
    pub struct CurandError(String);

    impl From<crate::driver::DriverError> for CurandError {
        fn from(error: crate::driver::DriverError) -> Self {
            Self(error.to_string())
        }
    }
}

pub struct CudaRng {
    seed: u64,
    /// Philox blocks drawn so far.
    drawn: AtomicU64,
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
}

/// What can be drawn.
pub trait Drawn: DeviceRepr {
    const NAME: &'static str;
}

impl Drawn for f32 {
    const NAME: &'static str = "f32";
}

impl Drawn for f64 {
    const NAME: &'static str = "f64";
}

impl CudaRng {
    pub fn new(seed: u64, stream: Arc<CudaStream>) -> Result<Self, result::CurandError> {
        let module = stream.context().load_module(Ptx::from_src(SOURCE))?;
        Ok(Self { seed, drawn: AtomicU64::new(0), stream, module })
    }

    /// Numbers between 0 and 1, neither included.
    pub fn fill_with_uniform<T: Drawn, Dst: DevicePtrMut<T>>(&self, to: &mut Dst) -> Result<(), result::CurandError> {
        self.fill("uniform", to, &[])
    }

    pub fn fill_with_normal<T: Drawn, Dst: DevicePtrMut<T>>(
        &self,
        to: &mut Dst,
        mean: T,
        deviation: T,
    ) -> Result<(), result::CurandError> {
        self.fill("normal", to, &[mean, deviation])
    }

    fn fill<T: Drawn, Dst: DevicePtrMut<T>>(
        &self,
        what: &str,
        to: &mut Dst,
        parameters: &[T],
    ) -> Result<(), result::CurandError> {
        let function = self.module.load_function(&format!("{what}_{}", T::NAME))?;
        let n = to.len() as u64;
        let n_blocks = to.num_bytes().div_ceil(BYTES_PER_THREAD) as u64;
        let start = self.drawn.fetch_add(n_blocks, Ordering::Relaxed);
        let (address, _order) = to.device_ptr_mut(&self.stream);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&address).arg(&n).arg(&self.seed).arg(&start);
        for parameter in parameters {
            launch.arg(parameter);
        }
        let grid_dim = (n_blocks.div_ceil(256) as u32, 1, 1);
        // SAFETY: the parameters of the kernels in random.hip, in their order; the kernel writes `n` elements.
        unsafe { launch.launch(LaunchConfig { grid_dim, block_dim: (256, 1, 1), shared_mem_bytes: 0 })? };
        Ok(())
    }
}
