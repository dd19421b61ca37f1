//! Without a vendor's library there is an error that says what was looked for.

use gpu::Vendor;
use gpu_libs::{Error, blas, blas_lt, collectives, dnn, fft, rand, solver, sparse};

/// The errors of the libraries that are not here, each with a file and a word that it has to name.
fn missing(vendor: Vendor) -> Vec<(Error, &'static str, &'static str)> {
    let pick = |amd, nvidia| vendor.pick(amd, nvidia);
    let all = [
        (blas::Calls::get(vendor).err(), pick("librocblas.so.5", "libcublas.so.12"), "BLAS"),
        (blas_lt::Calls::get(vendor).err(), pick("libhipblaslt.so.1", "libcublasLt.so.12"), "BLASLt"),
        (collectives::Calls::get(vendor).err(), pick("librccl.so.1", "libnccl.so.2"), "collectives"),
        (dnn::Calls::get(vendor).err(), pick("libMIOpen.so.1", "libcudnn.so.9"), "neural network"),
        (fft::Calls::get(vendor).err(), pick("librocfft.so.0", "libcufft.so.12"), "FFT"),
        (rand::Calls::get(vendor).err(), pick("librocrand.so.1", "libcurand.so.10"), "random number"),
        (solver::Calls::get(vendor).err(), pick("librocsolver.so.0", "libcusolver.so.12"), "solver"),
        (sparse::Calls::get(vendor).err(), pick("librocsparse.so.1", "libcusparse.so.12"), "sparse matrix"),
    ];
    all.into_iter().filter_map(|(error, file, role)| Some((error?, file, role))).collect()
}

#[test]
fn an_absent_library_is_a_reasoned_error() {
    for vendor in Vendor::ALL {
        for (error, file, role) in missing(vendor) {
            let text = error.to_string();
            assert!(matches!(error, Error::Gpu(gpu::Error::NoLibrary { .. })), "{text}");
            assert!(text.contains(file) && text.contains(role), "{file}, {role}: {text}");
        }
    }
}
