//! rocBLAS and cuBLAS as one table. They agree argument for argument, but for products of mixed types.

use gpu::foreign::Address;

pub(crate) use crate::table::{Handle, Host, HostMut, Int, LibraryChoice};
use crate::table::{Names, library, numbers};

library! {
    /// rocBLAS | cuBLAS
    Calls, role "BLAS",
    amd Names {
        name: "rocBLAS",
        sonames: &["librocblas.so.5", "librocblas.so.4", "librocblas.so.3", "librocblas.so.0"],
        status_name: "rocblas_status_to_string", status_text: "", statuses: &[], last_words: "",
    },
    nvidia Names {
        name: "cuBLAS",
        sonames: &["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"],
        status_name: "cublasGetStatusName", status_text: "cublasGetStatusString", statuses: &[], last_words: "",
    };
    plain {
        create           | "rocblas_create_handle"    | "cublasCreate_v2"         | (handle: *mut Handle);
        destroy          | "rocblas_destroy_handle"   | "cublasDestroy_v2"        | (handle: Handle);
        set_stream       | "rocblas_set_stream"       | "cublasSetStream_v2"      | (handle: Handle, stream: Handle);
        set_pointer_mode | "rocblas_set_pointer_mode" | "cublasSetPointerMode_v2" | (handle: Handle, mode: LibraryChoice);
        set_workspace    | "rocblas_set_workspace"    | "cublasSetWorkspace_v2"   | (handle: Handle, at: Address, bytes: usize);
        gemm_mixed_amd   | "rocblas_gemm_strided_batched_ex" | "" | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, m: Int, n: Int, k: Int, alpha: Host, a: Address, a_type: LibraryChoice, lda: Int, stride_a: i64, b: Address, b_type: LibraryChoice, ldb: Int, stride_b: i64, beta: Host, c: Address, c_type: LibraryChoice, ldc: Int, stride_c: i64, d: Address, d_type: LibraryChoice, ldd: Int, stride_d: i64, batch: Int, compute: LibraryChoice, algorithm: LibraryChoice, solution: i32, flags: u32);
        gemm_mixed_nvidia | "" | "cublasGemmStridedBatchedEx" | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, m: Int, n: Int, k: Int, alpha: Host, a: Address, a_type: LibraryChoice, lda: Int, stride_a: i64, b: Address, b_type: LibraryChoice, ldb: Int, stride_b: i64, beta: Host, c: Address, c_type: LibraryChoice, ldc: Int, stride_c: i64, batch: Int, compute: LibraryChoice, algorithm: LibraryChoice);
    }
    typed {
        axpy  | "rocblas_%axpy"  | "cublas^axpy_v2"  | [s d c z] | (handle: Handle, n: Int, alpha: Host, x: Address, incx: Int, y: Address, incy: Int);
        scal  | "rocblas_%scal"  | "cublas^scal_v2"  | [s d c z] | (handle: Handle, n: Int, alpha: Host, x: Address, incx: Int);
        copy  | "rocblas_%copy"  | "cublas^copy_v2"  | [s d c z] | (handle: Handle, n: Int, x: Address, incx: Int, y: Address, incy: Int);
        swap  | "rocblas_%swap"  | "cublas^swap_v2"  | [s d c z] | (handle: Handle, n: Int, x: Address, incx: Int, y: Address, incy: Int);
        dot   | "rocblas_%"      | "cublas^_v2"      | [sdot ddot cdotu zdotu] | (handle: Handle, n: Int, x: Address, incx: Int, y: Address, incy: Int, result: HostMut);
        dotc  | "rocblas_%"      | "cublas^_v2"      | [sdot ddot cdotc zdotc] | (handle: Handle, n: Int, x: Address, incx: Int, y: Address, incy: Int, result: HostMut);
        nrm2  | "rocblas_%nrm2"  | "cublas^nrm2_v2"  | [s d sc dz] | (handle: Handle, n: Int, x: Address, incx: Int, result: HostMut);
        asum  | "rocblas_%asum"  | "cublas^asum_v2"  | [s d sc dz] | (handle: Handle, n: Int, x: Address, incx: Int, result: HostMut);
        iamax | "rocblas_i%amax" | "cublasI%amax_v2" | [s d c z] | (handle: Handle, n: Int, x: Address, incx: Int, result: *mut Int);
        iamin | "rocblas_i%amin" | "cublasI%amin_v2" | [s d c z] | (handle: Handle, n: Int, x: Address, incx: Int, result: *mut Int);
        rot   | "rocblas_%rot"   | "cublas^rot_v2"   | [s d c z] | (handle: Handle, n: Int, x: Address, incx: Int, y: Address, incy: Int, c: Host, s: Host);
        rotg  | "rocblas_%rotg"  | "cublas^rotg_v2"  | [s d c z] | (handle: Handle, a: HostMut, b: HostMut, c: HostMut, s: HostMut);
        rotm  | "rocblas_%rotm"  | "cublas^rotm_v2"  | [s d - -] | (handle: Handle, n: Int, x: Address, incx: Int, y: Address, incy: Int, parameters: Host);
        rotmg | "rocblas_%rotmg" | "cublas^rotmg_v2" | [s d - -] | (handle: Handle, d1: HostMut, d2: HostMut, x1: HostMut, y1: Host, parameters: HostMut);
        gemv  | "rocblas_%gemv"  | "cublas^gemv_v2"  | [s d c z] | (handle: Handle, op: LibraryChoice, m: Int, n: Int, alpha: Host, a: Address, lda: Int, x: Address, incx: Int, beta: Host, y: Address, incy: Int);
        gbmv  | "rocblas_%gbmv"  | "cublas^gbmv_v2"  | [s d c z] | (handle: Handle, op: LibraryChoice, m: Int, n: Int, below: Int, above: Int, alpha: Host, a: Address, lda: Int, x: Address, incx: Int, beta: Host, y: Address, incy: Int);
        ger   | "rocblas_%"      | "cublas^_v2"      | [sger dger cgeru zgeru] | (handle: Handle, m: Int, n: Int, alpha: Host, x: Address, incx: Int, y: Address, incy: Int, a: Address, lda: Int);
        gerc  | "rocblas_%"      | "cublas^_v2"      | [sger dger cgerc zgerc] | (handle: Handle, m: Int, n: Int, alpha: Host, x: Address, incx: Int, y: Address, incy: Int, a: Address, lda: Int);
        symv  | "rocblas_%symv"  | "cublas^symv_v2"  | [s d c z] | (handle: Handle, fill: LibraryChoice, n: Int, alpha: Host, a: Address, lda: Int, x: Address, incx: Int, beta: Host, y: Address, incy: Int);
        hemv  | "rocblas_%"      | "cublas^_v2"      | [ssymv dsymv chemv zhemv] | (handle: Handle, fill: LibraryChoice, n: Int, alpha: Host, a: Address, lda: Int, x: Address, incx: Int, beta: Host, y: Address, incy: Int);
        syr   | "rocblas_%syr"   | "cublas^syr_v2"   | [s d c z] | (handle: Handle, fill: LibraryChoice, n: Int, alpha: Host, x: Address, incx: Int, a: Address, lda: Int);
        syr2  | "rocblas_%syr2"  | "cublas^syr2_v2"  | [s d c z] | (handle: Handle, fill: LibraryChoice, n: Int, alpha: Host, x: Address, incx: Int, y: Address, incy: Int, a: Address, lda: Int);
        hbmv  | "rocblas_%"      | "cublas^_v2"      | [ssbmv dsbmv chbmv zhbmv] | (handle: Handle, fill: LibraryChoice, n: Int, k: Int, alpha: Host, a: Address, lda: Int, x: Address, incx: Int, beta: Host, y: Address, incy: Int);
        hpmv  | "rocblas_%"      | "cublas^_v2"      | [sspmv dspmv chpmv zhpmv] | (handle: Handle, fill: LibraryChoice, n: Int, alpha: Host, a: Address, x: Address, incx: Int, beta: Host, y: Address, incy: Int);
        her   | "rocblas_%"      | "cublas^_v2"      | [ssyr dsyr cher zher] | (handle: Handle, fill: LibraryChoice, n: Int, alpha: Host, x: Address, incx: Int, a: Address, lda: Int);
        her2  | "rocblas_%"      | "cublas^_v2"      | [ssyr2 dsyr2 cher2 zher2] | (handle: Handle, fill: LibraryChoice, n: Int, alpha: Host, x: Address, incx: Int, y: Address, incy: Int, a: Address, lda: Int);
        hpr   | "rocblas_%"      | "cublas^_v2"      | [sspr dspr chpr zhpr] | (handle: Handle, fill: LibraryChoice, n: Int, alpha: Host, x: Address, incx: Int, a: Address);
        hpr2  | "rocblas_%"      | "cublas^_v2"      | [sspr2 dspr2 chpr2 zhpr2] | (handle: Handle, fill: LibraryChoice, n: Int, alpha: Host, x: Address, incx: Int, y: Address, incy: Int, a: Address);
        tbmv  | "rocblas_%tbmv"  | "cublas^tbmv_v2"  | [s d c z] | (handle: Handle, fill: LibraryChoice, op: LibraryChoice, diagonal: LibraryChoice, n: Int, k: Int, a: Address, lda: Int, x: Address, incx: Int);
        tbsv  | "rocblas_%tbsv"  | "cublas^tbsv_v2"  | [s d c z] | (handle: Handle, fill: LibraryChoice, op: LibraryChoice, diagonal: LibraryChoice, n: Int, k: Int, a: Address, lda: Int, x: Address, incx: Int);
        tpmv  | "rocblas_%tpmv"  | "cublas^tpmv_v2"  | [s d c z] | (handle: Handle, fill: LibraryChoice, op: LibraryChoice, diagonal: LibraryChoice, n: Int, a: Address, x: Address, incx: Int);
        tpsv  | "rocblas_%tpsv"  | "cublas^tpsv_v2"  | [s d c z] | (handle: Handle, fill: LibraryChoice, op: LibraryChoice, diagonal: LibraryChoice, n: Int, a: Address, x: Address, incx: Int);
        trmv  | "rocblas_%trmv"  | "cublas^trmv_v2"  | [s d c z] | (handle: Handle, fill: LibraryChoice, op: LibraryChoice, diagonal: LibraryChoice, n: Int, a: Address, lda: Int, x: Address, incx: Int);
        trsv  | "rocblas_%trsv"  | "cublas^trsv_v2"  | [s d c z] | (handle: Handle, fill: LibraryChoice, op: LibraryChoice, diagonal: LibraryChoice, n: Int, a: Address, lda: Int, x: Address, incx: Int);
        gemm  | "rocblas_%gemm"  | "cublas^gemm_v2"  | [s d c z] | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, m: Int, n: Int, k: Int, alpha: Host, a: Address, lda: Int, b: Address, ldb: Int, beta: Host, c: Address, ldc: Int);
        gemm_strided_batched | "rocblas_%gemm_strided_batched" | "cublas^gemmStridedBatched" | [s d c z] | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, m: Int, n: Int, k: Int, alpha: Host, a: Address, lda: Int, stride_a: i64, b: Address, ldb: Int, stride_b: i64, beta: Host, c: Address, ldc: Int, stride_c: i64, batch: Int);
        gemm_batched | "rocblas_%gemm_batched" | "cublas^gemmBatched" | [s d c z] | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, m: Int, n: Int, k: Int, alpha: Host, a: Address, lda: Int, b: Address, ldb: Int, beta: Host, c: Address, ldc: Int, batch: Int);
        symm  | "rocblas_%symm"  | "cublas^symm_v2"  | [s d c z] | (handle: Handle, side: LibraryChoice, fill: LibraryChoice, m: Int, n: Int, alpha: Host, a: Address, lda: Int, b: Address, ldb: Int, beta: Host, c: Address, ldc: Int);
        syrk  | "rocblas_%syrk"  | "cublas^syrk_v2"  | [s d c z] | (handle: Handle, fill: LibraryChoice, op: LibraryChoice, n: Int, k: Int, alpha: Host, a: Address, lda: Int, beta: Host, c: Address, ldc: Int);
        herk  | "rocblas_%"      | "cublas^_v2"      | [ssyrk dsyrk cherk zherk] | (handle: Handle, fill: LibraryChoice, op: LibraryChoice, n: Int, k: Int, alpha: Host, a: Address, lda: Int, beta: Host, c: Address, ldc: Int);
        syr2k | "rocblas_%syr2k" | "cublas^syr2k_v2" | [s d c z] | (handle: Handle, fill: LibraryChoice, op: LibraryChoice, n: Int, k: Int, alpha: Host, a: Address, lda: Int, b: Address, ldb: Int, beta: Host, c: Address, ldc: Int);
        her2k | "rocblas_%"      | "cublas^_v2"      | [ssyr2k dsyr2k cher2k zher2k] | (handle: Handle, fill: LibraryChoice, op: LibraryChoice, n: Int, k: Int, alpha: Host, a: Address, lda: Int, b: Address, ldb: Int, beta: Host, c: Address, ldc: Int);
        hemm  | "rocblas_%"      | "cublas^_v2"      | [ssymm dsymm chemm zhemm] | (handle: Handle, side: LibraryChoice, fill: LibraryChoice, m: Int, n: Int, alpha: Host, a: Address, lda: Int, b: Address, ldb: Int, beta: Host, c: Address, ldc: Int);
        trmm  | "rocblas_%trmm"  | "cublas^trmm_v2"  | [s d c z] | (handle: Handle, side: LibraryChoice, fill: LibraryChoice, op: LibraryChoice, diagonal: LibraryChoice, m: Int, n: Int, alpha: Host, a: Address, lda: Int, b: Address, ldb: Int, c: Address, ldc: Int);
        trsm  | "rocblas_%trsm"  | "cublas^trsm_v2"  | [s d c z] | (handle: Handle, side: LibraryChoice, fill: LibraryChoice, op: LibraryChoice, diagonal: LibraryChoice, m: Int, n: Int, alpha: Host, a: Address, lda: Int, b: Address, ldb: Int);
        geam  | "rocblas_%geam"  | "cublas^geam"     | [s d c z] | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, m: Int, n: Int, alpha: Host, a: Address, lda: Int, beta: Host, b: Address, ldb: Int, c: Address, ldc: Int);
        getrf_batched | "" | "cublas^getrfBatched" | [s d c z] | (handle: Handle, n: Int, a: Address, lda: Int, pivots: Address, info: Address, batch: Int);
        getrs_batched | "" | "cublas^getrsBatched" | [s d c z] | (handle: Handle, op: LibraryChoice, n: Int, n_right: Int, a: Address, lda: Int, pivots: Address, b: Address, ldb: Int, info: *mut Int, batch: Int);
        dgmm  | "rocblas_%dgmm"  | "cublas^dgmm"     | [s d c z] | (handle: Handle, side: LibraryChoice, m: Int, n: Int, a: Address, lda: Int, x: Address, incx: Int, c: Address, ldc: Int);
    }
}

numbers! {
    /// What is done to a matrix before it is used.
    pub enum Operation {
        None = "rocblas_operation_none" 111 | "CUBLAS_OP_N" 0;
        Transpose = "rocblas_operation_transpose" 112 | "CUBLAS_OP_T" 1;
        /// Transposed and conjugated.
        Conjugate = "rocblas_operation_conjugate_transpose" 113 | "CUBLAS_OP_C" 2;
    }
    /// Which triangle of a matrix is used; the other is neither read nor written.
    pub enum Triangle {
        Upper = "rocblas_fill_upper" 121 | "CUBLAS_FILL_MODE_UPPER" 1;
        Lower = "rocblas_fill_lower" 122 | "CUBLAS_FILL_MODE_LOWER" 0;
    }
    /// What stands on a triangle's diagonal.
    pub enum Diagonal {
        /// What is in memory.
        Stored = "rocblas_diagonal_non_unit" 131 | "CUBLAS_DIAG_NON_UNIT" 0;
        /// Ones, whatever is in memory.
        Ones = "rocblas_diagonal_unit" 132 | "CUBLAS_DIAG_UNIT" 1;
    }
    /// On which side of the other a special matrix stands.
    pub enum Side {
        Left = "rocblas_side_left" 141 | "CUBLAS_SIDE_LEFT" 0;
        Right = "rocblas_side_right" 142 | "CUBLAS_SIDE_RIGHT" 1;
    }
    /// Where scalars are.
    pub(crate) enum PointerMode {
        Host = "rocblas_pointer_mode_host" 0 | "CUBLAS_POINTER_MODE_HOST" 0;
    }
    /// Element types of mixed products.
    pub enum DataType {
        F16 = "rocblas_datatype_f16_r" 150 | "CUDA_R_16F" 2;
        BF16 = "rocblas_datatype_bf16_r" 168 | "CUDA_R_16BF" 14;
        F32 = "rocblas_datatype_f32_r" 151 | "CUDA_R_32F" 0;
        I8 = "rocblas_datatype_i8_r" 160 | "CUDA_R_8I" 3;
        I32 = "rocblas_datatype_i32_r" 162 | "CUDA_R_32I" 10;
    }
    /// What mixed products accumulate in.
    pub(crate) enum Compute {
        F32 = "rocblas_datatype_f32_r" 151 | "CUBLAS_COMPUTE_32F" 68;
        I32 = "rocblas_datatype_i32_r" 162 | "CUBLAS_COMPUTE_32I" 72;
    }
    /// The library's own choice of kernel.
    pub(crate) enum Algorithm {
        Default = "rocblas_gemm_algo_standard" 0 | "CUBLAS_GEMM_DEFAULT" -1;
    }
}

impl Triangle {
    /// The triangle of the transposed matrix.
    pub fn flipped(self) -> Self {
        match self {
            Triangle::Upper => Triangle::Lower,
            Triangle::Lower => Triangle::Upper,
        }
    }
}

impl Side {
    /// The side after transposing a product.
    pub fn flipped(self) -> Self {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}
