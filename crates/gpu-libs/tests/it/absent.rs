//! Without a vendor's library there is an error that says what was looked for.

use gpu::Vendor;
use gpu_libs::{Error, blas};

#[test]
fn an_absent_library_is_a_reasoned_error() {
    for vendor in Vendor::ALL {
        let Err(error) = blas::Calls::get(vendor) else { continue };
        let text = error.to_string();
        assert!(matches!(error, Error::Gpu(gpu::Error::NoLibrary { .. })), "{text}");
        let wanted = vendor.pick("librocblas.so.5", "libcublas.so.12");
        assert!(text.contains(wanted) && text.contains("BLAS"), "{text}");
    }
}
