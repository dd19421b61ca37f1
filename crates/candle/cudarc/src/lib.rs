//! The part of `cudarc` that Candle uses, for AMD and NVIDIA GPUs, over this workspace's crate `gpu`.
//!
//! Put under an unmodified Candle with `[patch.crates-io]`, it makes `Device::new_cuda(0)` an AMD GPU
//! through HIP, or an NVIDIA GPU through CUDA's driver, whichever the machine has. Libraries are found by
//! dlopen at run time; nothing is linked, and no SDK is needed to build.
//!
//! The names, and nothing else, are cudarc's. What "PTX" is called there is kernel source here (see
//! [`nvrtc`]). Not here: graphs, NCCL, unified memory, and whatever else Candle does not name; of cuDNN, which is behind its
//! feature, forward convolutions.

#[cfg(feature = "nccl")]
compile_error!("this cudarc has no NCCL: build Candle with feature `cuda`, without `nccl`");

pub mod cublas;
#[cfg(feature = "cudnn")]
pub mod cudnn;
pub mod curand;
pub mod driver;
pub mod nvrtc;
