//! rocSPARSE and cuSPARSE: one way to describe matrices, two to run a function on them. rocSPARSE has stages of one
//! call where cuSPARSE has several calls.

use gpu::foreign::Address;

use crate::scalar::ScalarKind;
pub(crate) use crate::table::{Handle, Host, Int, LibraryChoice};
use crate::table::{Names, library, numbers};

library! {
    /// rocSPARSE | cuSPARSE
    Calls, role "sparse matrix",
    amd Names {
        name: "rocSPARSE", sonames: &["librocsparse.so.1", "librocsparse.so.0"],
        status_name: "rocsparse_get_status_name", status_text: "rocsparse_get_status_description",
        statuses: &[], last_words: "",
    },
    nvidia Names {
        name: "cuSPARSE", sonames: &["libcusparse.so.12", "libcusparse.so.11"],
        status_name: "cusparseGetErrorName", status_text: "cusparseGetErrorString", statuses: &[], last_words: "",
    };
    plain {
        create           | "rocsparse_create_handle"    | "cusparseCreate"         | (handle: *mut Handle);
        destroy          | "rocsparse_destroy_handle"   | "cusparseDestroy"        | (handle: Handle);
        set_stream       | "rocsparse_set_stream"       | "cusparseSetStream"      | (handle: Handle, stream: Handle);
        set_pointer_mode | "rocsparse_set_pointer_mode" | "cusparseSetPointerMode" | (handle: Handle, mode: LibraryChoice);
        coo_create       | "rocsparse_create_coo_descr" | "cusparseCreateCoo" | (descriptor: *mut Handle, rows: i64, columns: i64, n: i64, row_indices: Address, column_indices: Address, values: Address, index: LibraryChoice, base: LibraryChoice, number: LibraryChoice);
        csr_create       | "rocsparse_create_csr_descr" | "cusparseCreateCsr" | (descriptor: *mut Handle, rows: i64, columns: i64, n: i64, offsets: Address, indices: Address, values: Address, offset: LibraryChoice, index: LibraryChoice, base: LibraryChoice, number: LibraryChoice);
        csc_create       | "rocsparse_create_csc_descr" | "cusparseCreateCsc" | (descriptor: *mut Handle, rows: i64, columns: i64, n: i64, offsets: Address, indices: Address, values: Address, offset: LibraryChoice, index: LibraryChoice, base: LibraryChoice, number: LibraryChoice);
        bsr_create_amd   | "rocsparse_create_bsr_descr" | "" | (descriptor: *mut Handle, rows: i64, columns: i64, n: i64, direction: LibraryChoice, block: i64, offsets: Address, indices: Address, values: Address, offset: LibraryChoice, index: LibraryChoice, base: LibraryChoice, number: LibraryChoice);
        bsr_create_nvidia | "" | "cusparseCreateBsr" | (descriptor: *mut Handle, rows: i64, columns: i64, n: i64, block_rows: i64, block_columns: i64, offsets: Address, indices: Address, values: Address, offset: LibraryChoice, index: LibraryChoice, base: LibraryChoice, number: LibraryChoice, order: LibraryChoice);
        matrix_destroy   | "rocsparse_destroy_spmat_descr" | "cusparseDestroySpMat" | (descriptor: Handle);
        matrix_size      | "rocsparse_spmat_get_size"   | "cusparseSpMatGetSize"   | (descriptor: Handle, rows: *mut i64, columns: *mut i64, n: *mut i64);
        matrix_set       | "rocsparse_spmat_set_attribute" | "cusparseSpMatSetAttribute" | (descriptor: Handle, attribute: LibraryChoice, value: Host, bytes: usize);
        csr_pointers     | "rocsparse_csr_set_pointers" | "cusparseCsrSetPointers" | (descriptor: Handle, offsets: Address, indices: Address, values: Address);
        csc_pointers     | "rocsparse_csc_set_pointers" | "cusparseCscSetPointers" | (descriptor: Handle, offsets: Address, indices: Address, values: Address);
        coo_pointers     | "rocsparse_coo_set_pointers" | "cusparseCooSetPointers" | (descriptor: Handle, rows: Address, columns: Address, values: Address);
        form_create      | "rocsparse_create_mat_descr"  | "cusparseCreateMatDescr"  | (form: *mut Handle);
        form_destroy     | "rocsparse_destroy_mat_descr" | "cusparseDestroyMatDescr" | (form: Handle);
        vector_create    | "rocsparse_create_dnvec_descr" | "cusparseCreateDnVec"  | (descriptor: *mut Handle, n: i64, values: Address, number: LibraryChoice);
        vector_destroy   | "rocsparse_destroy_dnvec_descr" | "cusparseDestroyDnVec" | (descriptor: Handle);
        dense_create     | "rocsparse_create_dnmat_descr" | "cusparseCreateDnMat"  | (descriptor: *mut Handle, rows: i64, columns: i64, step: i64, values: Address, number: LibraryChoice, order: LibraryChoice);
        dense_destroy    | "rocsparse_destroy_dnmat_descr" | "cusparseDestroyDnMat" | (descriptor: Handle);
        spmv_amd         | "rocsparse_spmv" | "" | (handle: Handle, op: LibraryChoice, alpha: Host, a: Handle, x: Handle, beta: Host, y: Handle, number: LibraryChoice, algorithm: LibraryChoice, stage: LibraryChoice, bytes: *mut usize, work: Address);
        spmv_bytes       | "" | "cusparseSpMV_bufferSize" | (handle: Handle, op: LibraryChoice, alpha: Host, a: Handle, x: Handle, beta: Host, y: Handle, number: LibraryChoice, algorithm: LibraryChoice, bytes: *mut usize);
        spmv_nvidia      | "" | "cusparseSpMV" | (handle: Handle, op: LibraryChoice, alpha: Host, a: Handle, x: Handle, beta: Host, y: Handle, number: LibraryChoice, algorithm: LibraryChoice, work: Address);
        spmm_amd         | "rocsparse_spmm" | "" | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, alpha: Host, a: Handle, b: Handle, beta: Host, c: Handle, number: LibraryChoice, algorithm: LibraryChoice, stage: LibraryChoice, bytes: *mut usize, work: Address);
        spmm_bytes       | "" | "cusparseSpMM_bufferSize" | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, alpha: Host, a: Handle, b: Handle, beta: Host, c: Handle, number: LibraryChoice, algorithm: LibraryChoice, bytes: *mut usize);
        spmm_nvidia      | "" | "cusparseSpMM" | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, alpha: Host, a: Handle, b: Handle, beta: Host, c: Handle, number: LibraryChoice, algorithm: LibraryChoice, work: Address);
        spgemm_amd       | "rocsparse_spgemm" | "" | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, alpha: Host, a: Handle, b: Handle, beta: Host, d: Handle, c: Handle, number: LibraryChoice, algorithm: LibraryChoice, stage: LibraryChoice, bytes: *mut usize, work: Address);
        spgemm_create    | "" | "cusparseSpGEMM_createDescr"  | (descriptor: *mut Handle);
        spgemm_destroy   | "" | "cusparseSpGEMM_destroyDescr" | (descriptor: Handle);
        spgemm_estimate  | "" | "cusparseSpGEMM_workEstimation" | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, alpha: Host, a: Handle, b: Handle, beta: Host, c: Handle, number: LibraryChoice, algorithm: LibraryChoice, descriptor: Handle, bytes: *mut usize, work: Address);
        spgemm_compute   | "" | "cusparseSpGEMM_compute" | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, alpha: Host, a: Handle, b: Handle, beta: Host, c: Handle, number: LibraryChoice, algorithm: LibraryChoice, descriptor: Handle, bytes: *mut usize, work: Address);
        spgemm_copy      | "" | "cusparseSpGEMM_copy" | (handle: Handle, op_a: LibraryChoice, op_b: LibraryChoice, alpha: Host, a: Handle, b: Handle, beta: Host, c: Handle, number: LibraryChoice, algorithm: LibraryChoice, descriptor: Handle);
        spsv_amd         | "rocsparse_spsv" | "" | (handle: Handle, op: LibraryChoice, alpha: Host, a: Handle, x: Handle, y: Handle, number: LibraryChoice, algorithm: LibraryChoice, stage: LibraryChoice, bytes: *mut usize, work: Address);
        spsv_create      | "" | "cusparseSpSV_createDescr"  | (descriptor: *mut Handle);
        spsv_destroy     | "" | "cusparseSpSV_destroyDescr" | (descriptor: Handle);
        spsv_bytes       | "" | "cusparseSpSV_bufferSize" | (handle: Handle, op: LibraryChoice, alpha: Host, a: Handle, x: Handle, y: Handle, number: LibraryChoice, algorithm: LibraryChoice, descriptor: Handle, bytes: *mut usize);
        spsv_analysis    | "" | "cusparseSpSV_analysis" | (handle: Handle, op: LibraryChoice, alpha: Host, a: Handle, x: Handle, y: Handle, number: LibraryChoice, algorithm: LibraryChoice, descriptor: Handle, work: Address);
        spsv_solve       | "" | "cusparseSpSV_solve" | (handle: Handle, op: LibraryChoice, alpha: Host, a: Handle, x: Handle, y: Handle, number: LibraryChoice, algorithm: LibraryChoice, descriptor: Handle);
        to_dense_amd     | "rocsparse_sparse_to_dense" | "" | (handle: Handle, a: Handle, b: Handle, algorithm: LibraryChoice, bytes: *mut usize, work: Address);
        to_dense_bytes   | "" | "cusparseSparseToDense_bufferSize" | (handle: Handle, a: Handle, b: Handle, algorithm: LibraryChoice, bytes: *mut usize);
        to_dense_nvidia  | "" | "cusparseSparseToDense" | (handle: Handle, a: Handle, b: Handle, algorithm: LibraryChoice, work: Address);
        sparsify_amd   | "rocsparse_dense_to_sparse" | "" | (handle: Handle, a: Handle, b: Handle, algorithm: LibraryChoice, bytes: *mut usize, work: Address);
        sparsify_bytes | "" | "cusparseDenseToSparse_bufferSize" | (handle: Handle, a: Handle, b: Handle, algorithm: LibraryChoice, bytes: *mut usize);
        sparsify_count | "" | "cusparseDenseToSparse_analysis" | (handle: Handle, a: Handle, b: Handle, algorithm: LibraryChoice, work: Address);
        sparsify_nvidia | "" | "cusparseDenseToSparse_convert" | (handle: Handle, a: Handle, b: Handle, algorithm: LibraryChoice, work: Address);
        count_blocks     | "rocsparse_csr2bsr_nnz" | "cusparseXcsr2bsrNnz" | (handle: Handle, direction: LibraryChoice, rows: Int, columns: Int, from: Handle, offsets: Address, indices: Address, block: Int, to: Handle, to_offsets: Address, n: *mut Int);
        csr_to_coo       | "rocsparse_csr2coo" | "cusparseXcsr2coo" | (handle: Handle, offsets: Address, n: Int, rows: Int, indices: Address, base: LibraryChoice);
        coo_to_csr       | "rocsparse_coo2csr" | "cusparseXcoo2csr" | (handle: Handle, indices: Address, n: Int, rows: Int, offsets: Address, base: LibraryChoice);
        csr_to_csc_bytes_amd | "rocsparse_csr2csc_buffer_size" | "" | (handle: Handle, rows: Int, columns: Int, n: Int, offsets: Address, indices: Address, action: LibraryChoice, bytes: *mut usize);
        csr_to_csc_bytes_nvidia | "" | "cusparseCsr2cscEx2_bufferSize" | (handle: Handle, rows: Int, columns: Int, n: Int, values: Address, offsets: Address, indices: Address, to_values: Address, to_offsets: Address, to_indices: Address, number: LibraryChoice, action: LibraryChoice, base: LibraryChoice, algorithm: LibraryChoice, bytes: *mut usize);
        csr_to_csc_nvidia | "" | "cusparseCsr2cscEx2" | (handle: Handle, rows: Int, columns: Int, n: Int, values: Address, offsets: Address, indices: Address, to_values: Address, to_offsets: Address, to_indices: Address, number: LibraryChoice, action: LibraryChoice, base: LibraryChoice, algorithm: LibraryChoice, work: Address);
    }
    typed {
        csr_to_bsr | "rocsparse_%csr2bsr" | "cusparse^csr2bsr" | [s d c z] | (handle: Handle, direction: LibraryChoice, rows: Int, columns: Int, from: Handle, values: Address, offsets: Address, indices: Address, block: Int, to: Handle, to_values: Address, to_offsets: Address, to_indices: Address);
        bsr_to_csr | "rocsparse_%bsr2csr" | "cusparse^bsr2csr" | [s d c z] | (handle: Handle, direction: LibraryChoice, block_rows: Int, block_columns: Int, from: Handle, values: Address, offsets: Address, indices: Address, block: Int, to: Handle, to_values: Address, to_offsets: Address, to_indices: Address);
        csr_to_csc_amd | "rocsparse_%csr2csc" | "" | [s d c z] | (handle: Handle, rows: Int, columns: Int, n: Int, values: Address, offsets: Address, indices: Address, to_values: Address, to_indices: Address, to_offsets: Address, action: LibraryChoice, base: LibraryChoice, work: Address);
    }
}

numbers! {
    pub(crate) enum Operation {
        None = "rocsparse_operation_none" 111 | "CUSPARSE_OPERATION_NON_TRANSPOSE" 0;
    }
    pub(crate) enum PointerMode {
        Host = "rocsparse_pointer_mode_host" 0 | "CUSPARSE_POINTER_MODE_HOST" 0;
    }
    pub(crate) enum Index {
        I32 = "rocsparse_indextype_i32" 2 | "CUSPARSE_INDEX_32I" 2;
    }
    pub(crate) enum Base {
        Zero = "rocsparse_index_base_zero" 0 | "CUSPARSE_INDEX_BASE_ZERO" 0;
    }
    /// In the order of `ScalarKind`.
    pub(crate) enum DataType {
        F32 = "rocsparse_datatype_f32_r" 151 | "CUDA_R_32F" 0;
        F64 = "rocsparse_datatype_f64_r" 152 | "CUDA_R_64F" 1;
        C32 = "rocsparse_datatype_f32_c" 154 | "CUDA_C_32F" 4;
        C64 = "rocsparse_datatype_f64_c" 155 | "CUDA_C_64F" 5;
    }
    /// How a dense matrix, or the blocks of a sparse one, lie.
    pub(crate) enum DenseOrder {
        Rows = "rocsparse_order_row" 0 | "CUSPARSE_ORDER_ROW" 2;
        Columns = "rocsparse_order_column" 1 | "CUSPARSE_ORDER_COL" 1;
    }
    pub(crate) enum BlockDirection {
        Rows = "rocsparse_direction_row" 0 | "CUSPARSE_DIRECTION_ROW" 0;
    }
    pub(crate) enum Attribute {
        Fill = "rocsparse_spmat_fill_mode" 0 | "CUSPARSE_SPMAT_FILL_MODE" 0;
        Diagonal = "rocsparse_spmat_diag_type" 1 | "CUSPARSE_SPMAT_DIAG_TYPE" 1;
    }
    pub(crate) enum Fill {
        Lower = "rocsparse_fill_mode_lower" 0 | "CUSPARSE_FILL_MODE_LOWER" 0;
        Upper = "rocsparse_fill_mode_upper" 1 | "CUSPARSE_FILL_MODE_UPPER" 1;
    }
    pub(crate) enum DiagonalType {
        Stored = "rocsparse_diag_type_non_unit" 0 | "CUSPARSE_DIAG_TYPE_NON_UNIT" 0;
        Ones = "rocsparse_diag_type_unit" 1 | "CUSPARSE_DIAG_TYPE_UNIT" 1;
    }
    /// rocSPARSE's stages of a product or a solution; `spgemm` counts at `Preprocess`.
    pub(crate) enum Stage {
        Size = "rocsparse_spmv_stage_buffer_size" 1 | "" 0;
        Preprocess = "rocsparse_spmv_stage_preprocess" 2 | "" 0;
        Compute = "rocsparse_spmv_stage_compute" 3 | "" 0;
    }
    pub(crate) enum Action {
        Numeric = "rocsparse_action_numeric" 1 | "CUSPARSE_ACTION_NUMERIC" 1;
    }
    /// The libraries' own choice; for `csr_to_csc` cuSPARSE has one algorithm, which is number 1.
    pub(crate) enum Algorithm {
        SpMv = "rocsparse_spmv_alg_default" 0 | "CUSPARSE_SPMV_ALG_DEFAULT" 0;
        SpMm = "rocsparse_spmm_alg_default" 0 | "CUSPARSE_SPMM_ALG_DEFAULT" 0;
        SpGemm = "rocsparse_spgemm_alg_default" 0 | "CUSPARSE_SPGEMM_DEFAULT" 0;
        SpSv = "rocsparse_spsv_alg_default" 0 | "CUSPARSE_SPSV_ALG_DEFAULT" 0;
        ToDense = "rocsparse_sparse_to_dense_alg_default" 0 | "CUSPARSE_SPARSETODENSE_ALG_DEFAULT" 0;
        FromDense = "rocsparse_dense_to_sparse_alg_default" 0 | "CUSPARSE_DENSETOSPARSE_ALG_DEFAULT" 0;
        ToCsc = "" 0 | "CUSPARSE_CSR2CSC_ALG1" 1;
    }
}

impl DataType {
    pub fn of(kind: ScalarKind) -> Self {
        match kind {
            ScalarKind::F32 => DataType::F32,
            ScalarKind::F64 => DataType::F64,
            ScalarKind::C32 => DataType::C32,
            ScalarKind::C64 => DataType::C64,
        }
    }
}
