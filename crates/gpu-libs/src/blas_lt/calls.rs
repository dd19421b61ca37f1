//! hipBLASLt and cuBLASLt, which have the same functions with other numbers.

use std::ffi::c_int;

use gpu::foreign::Address;

pub(crate) use crate::table::{Handle, Host, HostMut, Int, LibraryChoice};
use crate::table::{Names, library, numbers};

const HIPBLAS_STATUSES: &[(c_int, &str)] = &[
    (1, "HIPBLAS_STATUS_NOT_INITIALIZED"),
    (2, "HIPBLAS_STATUS_ALLOC_FAILED"),
    (3, "HIPBLAS_STATUS_INVALID_VALUE"),
    (4, "HIPBLAS_STATUS_MAPPING_ERROR"),
    (5, "HIPBLAS_STATUS_EXECUTION_FAILED"),
    (6, "HIPBLAS_STATUS_INTERNAL_ERROR"),
    (7, "HIPBLAS_STATUS_NOT_SUPPORTED"),
    (8, "HIPBLAS_STATUS_ARCH_MISMATCH"),
    (9, "HIPBLAS_STATUS_HANDLE_IS_NULLPTR"),
    (10, "HIPBLAS_STATUS_INVALID_ENUM"),
    (11, "HIPBLAS_STATUS_UNKNOWN"),
];

library! {
    /// hipBLASLt | cuBLASLt
    Calls, role "BLASLt",
    amd Names {
        name: "hipBLASLt", sonames: &["libhipblaslt.so.1", "libhipblaslt.so.0"],
        status_name: "", status_text: "", statuses: HIPBLAS_STATUSES, last_words: "",
    },
    nvidia Names {
        name: "cuBLASLt", sonames: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"],
        status_name: "cublasLtGetStatusName", status_text: "cublasLtGetStatusString", statuses: &[], last_words: "",
    };
    plain {
        create         | "hipblasLtCreate"  | "cublasLtCreate"  | (handle: *mut Handle);
        destroy        | "hipblasLtDestroy" | "cublasLtDestroy" | (handle: Handle);
        layout_create  | "hipblasLtMatrixLayoutCreate"  | "cublasLtMatrixLayoutCreate"  | (layout: *mut Handle, number: LibraryChoice, rows: u64, columns: u64, step: i64);
        layout_destroy | "hipblasLtMatrixLayoutDestroy" | "cublasLtMatrixLayoutDestroy" | (layout: Handle);
        layout_set     | "hipblasLtMatrixLayoutSetAttribute" | "cublasLtMatrixLayoutSetAttribute" | (layout: Handle, attribute: LibraryChoice, value: Host, bytes: usize);
        product_create  | "hipblasLtMatmulDescCreate"  | "cublasLtMatmulDescCreate"  | (product: *mut Handle, compute: LibraryChoice, scale: LibraryChoice);
        product_destroy | "hipblasLtMatmulDescDestroy" | "cublasLtMatmulDescDestroy" | (product: Handle);
        product_set     | "hipblasLtMatmulDescSetAttribute" | "cublasLtMatmulDescSetAttribute" | (product: Handle, attribute: LibraryChoice, value: Host, bytes: usize);
        preference_create  | "hipblasLtMatmulPreferenceCreate"  | "cublasLtMatmulPreferenceCreate"  | (preference: *mut Handle);
        preference_destroy | "hipblasLtMatmulPreferenceDestroy" | "cublasLtMatmulPreferenceDestroy" | (preference: Handle);
        preference_set     | "hipblasLtMatmulPreferenceSetAttribute" | "cublasLtMatmulPreferenceSetAttribute" | (preference: Handle, attribute: LibraryChoice, value: Host, bytes: usize);
        heuristic | "hipblasLtMatmulAlgoGetHeuristic" | "cublasLtMatmulAlgoGetHeuristic" | (handle: Handle, product: Handle, a: Handle, b: Handle, c: Handle, d: Handle, preference: Handle, limit: Int, found: HostMut, n: *mut Int);
        matmul    | "hipblasLtMatmul" | "cublasLtMatmul" | (handle: Handle, product: Handle, alpha: Host, a_at: Address, a: Handle, b_at: Address, b: Handle, beta: Host, c_at: Address, c: Handle, d_at: Address, d: Handle, algorithm: Host, work: Address, bytes: usize, stream: Handle);
    }
    typed {}
}

/// `hipblasLtMatmulHeuristicResult_t`, which begins with the algorithm (`hipblasLtMatmulAlgo_t`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AmdFound {
    pub algorithm: [u64; 3],
    pub bytes: usize,
    pub status: LibraryChoice,
    pub waves: f32,
    pub reserved: [Int; 4],
}

/// `cublasLtMatmulHeuristicResult_t`, which begins with the algorithm (`cublasLtMatmulAlgo_t`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct NvidiaFound {
    pub algorithm: [u64; 8],
    pub bytes: usize,
    pub status: LibraryChoice,
    pub waves: f32,
    pub reserved: [Int; 4],
}

/// Structs passed to the library, for the check against the headers: (C++ type, bytes).
#[doc(hidden)]
pub const AMD_SIZES: &[(&str, usize)] =
    &[("hipblasLtMatmulHeuristicResult_t", size_of::<AmdFound>()), ("hipblasLtMatmulAlgo_t", size_of::<[u64; 3]>())];
#[doc(hidden)]
pub const NVIDIA_SIZES: &[(&str, usize)] =
    &[("cublasLtMatmulHeuristicResult_t", size_of::<NvidiaFound>()), ("cublasLtMatmulAlgo_t", size_of::<[u64; 8]>())];

numbers! {
    /// Element types, in the order of `blas::DataType`'s first three.
    pub(crate) enum DataType {
        F16 = "HIP_R_16F" 2 | "CUDA_R_16F" 2;
        BF16 = "HIP_R_16BF" 14 | "CUDA_R_16BF" 14;
        F32 = "HIP_R_32F" 0 | "CUDA_R_32F" 0;
    }
    pub(crate) enum Compute {
        F32 = "HIPBLAS_COMPUTE_32F" 2 | "CUBLAS_COMPUTE_32F" 68;
    }
    pub(crate) enum Operation {
        None = "HIPBLAS_OP_N" 111 | "CUBLAS_OP_N" 0;
        Transpose = "HIPBLAS_OP_T" 112 | "CUBLAS_OP_T" 1;
    }
    /// What is done to a product before it is written.
    pub enum Epilogue {
        None = "HIPBLASLT_EPILOGUE_DEFAULT" 1 | "CUBLASLT_EPILOGUE_DEFAULT" 1;
        /// max(0, x)
        Relu = "HIPBLASLT_EPILOGUE_RELU" 2 | "CUBLASLT_EPILOGUE_RELU" 2;
        /// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
        Gelu = "HIPBLASLT_EPILOGUE_GELU" 32 | "CUBLASLT_EPILOGUE_GELU" 32;
        /// A bias is added.
        Bias = "HIPBLASLT_EPILOGUE_BIAS" 4 | "CUBLASLT_EPILOGUE_BIAS" 4;
        /// A bias is added, then as `Relu`.
        BiasRelu = "HIPBLASLT_EPILOGUE_RELU_BIAS" 6 | "CUBLASLT_EPILOGUE_RELU_BIAS" 6;
        /// A bias is added, then as `Gelu`.
        BiasGelu = "HIPBLASLT_EPILOGUE_GELU_BIAS" 36 | "CUBLASLT_EPILOGUE_GELU_BIAS" 36;
    }
    pub(crate) enum ProductAttribute {
        OperationA = "HIPBLASLT_MATMUL_DESC_TRANSA" 0 | "CUBLASLT_MATMUL_DESC_TRANSA" 3;
        OperationB = "HIPBLASLT_MATMUL_DESC_TRANSB" 1 | "CUBLASLT_MATMUL_DESC_TRANSB" 4;
        Epilogue = "HIPBLASLT_MATMUL_DESC_EPILOGUE" 2 | "CUBLASLT_MATMUL_DESC_EPILOGUE" 7;
        Bias = "HIPBLASLT_MATMUL_DESC_BIAS_POINTER" 3 | "CUBLASLT_MATMUL_DESC_BIAS_POINTER" 8;
        BiasType = "HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE" 4 | "CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE" 26;
    }
    pub(crate) enum LayoutAttribute {
        Batch = "HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT" 0 | "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT" 5;
        Stride = "HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET" 1 | "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET" 6;
    }
    pub(crate) enum PreferenceAttribute {
        WorkspaceBytes = "HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES" 1 | "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES" 1;
    }
}
