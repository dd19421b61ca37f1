//! rocSOLVER and cuSOLVER. rocSOLVER takes rocBLAS's handle and finds its own workspace; cuSOLVER has a handle of
//! its own and asks for the workspace call by call. Batches are rocSOLVER's strided calls on one side, and lists of
//! addresses in cuBLAS and cuSOLVER on the other.

use std::ffi::c_int;

use gpu::foreign::Address;

pub(crate) use crate::table::{Handle, Int, LibraryChoice};
use crate::table::{Names, library, numbers};

const CUSOLVER_STATUSES: &[(c_int, &str)] = &[
    (1, "CUSOLVER_STATUS_NOT_INITIALIZED"),
    (2, "CUSOLVER_STATUS_ALLOC_FAILED"),
    (3, "CUSOLVER_STATUS_INVALID_VALUE"),
    (4, "CUSOLVER_STATUS_ARCH_MISMATCH"),
    (6, "CUSOLVER_STATUS_EXECUTION_FAILED"),
    (7, "CUSOLVER_STATUS_INTERNAL_ERROR"),
    (9, "CUSOLVER_STATUS_NOT_SUPPORTED"),
];

library! {
    /// rocSOLVER | cuSOLVER
    Calls, role "solver",
    amd Names {
        name: "rocSOLVER", sonames: &["librocsolver.so.0"],
        // rocSOLVER answers with rocBLAS's statuses and brings rocBLAS along.
        status_name: "rocblas_status_to_string", status_text: "", statuses: &[], last_words: "",
    },
    nvidia Names {
        name: "cuSOLVER", sonames: &["libcusolver.so.12", "libcusolver.so.11"],
        status_name: "", status_text: "", statuses: CUSOLVER_STATUSES, last_words: "",
    };
    plain {
        create     | "" | "cusolverDnCreate"    | (handle: *mut Handle);
        destroy    | "" | "cusolverDnDestroy"   | (handle: Handle);
        set_stream | "" | "cusolverDnSetStream" | (handle: Handle, stream: Handle);
    }
    typed {
        getrf_amd | "rocsolver_%getrf" | "" | [s d c z] | (handle: Handle, m: Int, n: Int, a: Address, lda: Int, pivots: Address, info: Address);
        getrf_bytes | "" | "cusolverDn^getrf_bufferSize" | [s d c z] | (handle: Handle, m: Int, n: Int, a: Address, lda: Int, n_work: *mut Int);
        getrf_nvidia | "" | "cusolverDn^getrf" | [s d c z] | (handle: Handle, m: Int, n: Int, a: Address, lda: Int, work: Address, pivots: Address, info: Address);
        getrs_amd | "rocsolver_%getrs" | "" | [s d c z] | (handle: Handle, op: LibraryChoice, n: Int, n_right: Int, a: Address, lda: Int, pivots: Address, b: Address, ldb: Int);
        getrs_nvidia | "" | "cusolverDn^getrs" | [s d c z] | (handle: Handle, op: LibraryChoice, n: Int, n_right: Int, a: Address, lda: Int, pivots: Address, b: Address, ldb: Int, info: Address);
        getri_amd | "rocsolver_%getri" | "" | [s d c z] | (handle: Handle, n: Int, a: Address, lda: Int, pivots: Address, info: Address);
        potrf_amd | "rocsolver_%potrf" | "" | [s d c z] | (handle: Handle, fill: LibraryChoice, n: Int, a: Address, lda: Int, info: Address);
        potrf_bytes | "" | "cusolverDn^potrf_bufferSize" | [s d c z] | (handle: Handle, fill: LibraryChoice, n: Int, a: Address, lda: Int, n_work: *mut Int);
        potrf_nvidia | "" | "cusolverDn^potrf" | [s d c z] | (handle: Handle, fill: LibraryChoice, n: Int, a: Address, lda: Int, work: Address, n_work: Int, info: Address);
        potrs_amd | "rocsolver_%potrs" | "" | [s d c z] | (handle: Handle, fill: LibraryChoice, n: Int, n_right: Int, a: Address, lda: Int, b: Address, ldb: Int);
        potrs_nvidia | "" | "cusolverDn^potrs" | [s d c z] | (handle: Handle, fill: LibraryChoice, n: Int, n_right: Int, a: Address, lda: Int, b: Address, ldb: Int, info: Address);
        geqrf_amd | "rocsolver_%geqrf" | "" | [s d c z] | (handle: Handle, m: Int, n: Int, a: Address, lda: Int, tau: Address);
        geqrf_bytes | "" | "cusolverDn^geqrf_bufferSize" | [s d c z] | (handle: Handle, m: Int, n: Int, a: Address, lda: Int, n_work: *mut Int);
        geqrf_nvidia | "" | "cusolverDn^geqrf" | [s d c z] | (handle: Handle, m: Int, n: Int, a: Address, lda: Int, tau: Address, work: Address, n_work: Int, info: Address);
        orgqr_amd | "rocsolver_%" | "" | [sorgqr dorgqr cungqr zungqr] | (handle: Handle, m: Int, n: Int, k: Int, a: Address, lda: Int, tau: Address);
        orgqr_bytes | "" | "cusolverDn^_bufferSize" | [sorgqr dorgqr cungqr zungqr] | (handle: Handle, m: Int, n: Int, k: Int, a: Address, lda: Int, tau: Address, n_work: *mut Int);
        orgqr_nvidia | "" | "cusolverDn^" | [sorgqr dorgqr cungqr zungqr] | (handle: Handle, m: Int, n: Int, k: Int, a: Address, lda: Int, tau: Address, work: Address, n_work: Int, info: Address);
        gesvd_amd | "rocsolver_%gesvd" | "" | [s d c z] | (handle: Handle, left: LibraryChoice, right: LibraryChoice, m: Int, n: Int, a: Address, lda: Int, s: Address, u: Address, ldu: Int, v: Address, ldv: Int, e: Address, mode: LibraryChoice, info: Address);
        gesvd_bytes | "" | "cusolverDn^gesvd_bufferSize" | [s d c z] | (handle: Handle, m: Int, n: Int, n_work: *mut Int);
        gesvd_nvidia | "" | "cusolverDn^gesvd" | [s d c z] | (handle: Handle, left: i8, right: i8, m: Int, n: Int, a: Address, lda: Int, s: Address, u: Address, ldu: Int, v: Address, ldv: Int, work: Address, n_work: Int, real_work: Address, info: Address);
        syevd_amd | "rocsolver_%" | "" | [ssyevd dsyevd cheevd zheevd] | (handle: Handle, vectors: LibraryChoice, fill: LibraryChoice, n: Int, a: Address, lda: Int, d: Address, e: Address, info: Address);
        syevd_bytes | "" | "cusolverDn^_bufferSize" | [ssyevd dsyevd cheevd zheevd] | (handle: Handle, vectors: LibraryChoice, fill: LibraryChoice, n: Int, a: Address, lda: Int, d: Address, n_work: *mut Int);
        syevd_nvidia | "" | "cusolverDn^" | [ssyevd dsyevd cheevd zheevd] | (handle: Handle, vectors: LibraryChoice, fill: LibraryChoice, n: Int, a: Address, lda: Int, d: Address, work: Address, n_work: Int, info: Address);
        getrf_batched_amd | "rocsolver_%getrf_strided_batched" | "" | [s d c z] | (handle: Handle, m: Int, n: Int, a: Address, lda: Int, stride_a: i64, pivots: Address, stride_p: i64, info: Address, batch: Int);
        getrs_batched_amd | "rocsolver_%getrs_strided_batched" | "" | [s d c z] | (handle: Handle, op: LibraryChoice, n: Int, n_right: Int, a: Address, lda: Int, stride_a: i64, pivots: Address, stride_p: i64, b: Address, ldb: Int, stride_b: i64, batch: Int);
        potrf_batched_amd | "rocsolver_%potrf_strided_batched" | "" | [s d c z] | (handle: Handle, fill: LibraryChoice, n: Int, a: Address, lda: Int, stride_a: i64, info: Address, batch: Int);
        potrf_batched_nvidia | "" | "cusolverDn^potrfBatched" | [s d c z] | (handle: Handle, fill: LibraryChoice, n: Int, a: Address, lda: Int, info: Address, batch: Int);
    }
}

numbers! {
    /// Which singular vectors are computed.
    pub(crate) enum SingularVectors {
        Singular = "rocblas_svect_singular" 192 | "" 0;
    }
    pub(crate) enum WorkMode {
        OutOfPlace = "rocblas_outofplace" 201 | "" 0;
    }
    /// Whether eigenvectors are computed.
    pub enum Vectors {
        None = "rocblas_evect_none" 213 | "CUSOLVER_EIG_MODE_NOVECTOR" 0;
        All = "rocblas_evect_original" 211 | "CUSOLVER_EIG_MODE_VECTOR" 1;
    }
}
