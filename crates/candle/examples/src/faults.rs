//! What goes wrong is a Candle error that says why, and never a panic:
//!
//!     faults none       where there is no GPU, or no driver for it
//!     faults compiler   where kernels cannot be compiled for the GPU (the caller sees to that)
//!     faults            on a working GPU: PTX, nonsense, too much, and afterwards it still works

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, bail};
use candle_core::{DType, Device, Tensor};

/// `run` must end with an error that contains all of `words`.
fn refused<T>(what: &str, words: &[&str], run: impl FnOnce() -> candle_core::Result<T>) -> Result<()> {
    let error = match catch_unwind(AssertUnwindSafe(run)) {
        Err(_) => bail!("{what}: a panic"),
        Ok(Ok(_)) => bail!("{what}: no error"),
        Ok(Err(error)) => error.to_string(),
    };
    println!("{what}: {}", error.lines().next().unwrap_or_default());
    match words.iter().find(|word| !error.contains(**word)) {
        Some(word) => bail!("{what}: `{word}` is not in: {error}"),
        None => Ok(()),
    }
}

fn on_a_working_gpu() -> Result<()> {
    refused("a device that is not there", &["no GPU with number 99"], || Device::new_cuda(99))?;
    let device = Device::new_cuda(0)?;
    let cuda = device.as_cuda_device()?;
    let is_amd = cuda.cuda_stream().context().device().properties().arch.starts_with("gfx");
    if is_amd {
        let ptx = "//\n.version 8.4\n.target sm_80\n.address_size 64\n";
        refused("PTX", &["PTX", "NVIDIA"], || cuda.get_or_load_custom_func("kernel", "of PTX", ptx))?;
    }
    let nonsense = "#include \"prelude.h\"\nnonsense";
    refused("source", &["does not compile"], || cuda.get_or_load_custom_func("kernel", "nonsense", nonsense))?;
    let one = "#include \"prelude.h\"\nKERNEL(64) one(float *x) { x[thread_x()] = 1.0f; }\n";
    refused("a kernel's name", &["two"], || cuda.get_or_load_custom_func("two", "one", one))?;
    // More than any GPU's shared memory holds.
    let row = Tensor::zeros((1, 100_000), DType::F32, &device)?;
    refused("a row too long to sort", &["argsort"], || {
        row.arg_sort_last_dim(true).map_err(|error| candle_core::Error::Msg(format!("argsort: {error}")))
    })?;
    refused("too much memory", &["bytes wanted", "free"], || Tensor::zeros(1usize << 44, DType::F32, &device))?;
    let two = (Tensor::ones(3, DType::F32, &device)? + 1.0)?.to_vec1::<f32>()?;
    if two != [2.0; 3] {
        bail!("1 + 1 is {two:?} afterwards");
    }
    println!("afterwards the GPU works");
    Ok(())
}

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("none") => refused("no GPU", &["no GPU with number 0"], || Device::new_cuda(0)),
        Some("compiler") => {
            let device = Device::new_cuda(0)?;
            refused("no code for this chip", &["does not compile"], || Tensor::ones(3, DType::F32, &device)?.exp())
        }
        Some(other) => bail!("unknown argument {other}: none, compiler, or nothing"),
        None => on_a_working_gpu(),
    }
}
