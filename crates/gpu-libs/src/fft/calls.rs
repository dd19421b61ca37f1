//! rocFFT and cuFFT. Their interfaces have little in common: rocFFT describes, plans and executes with three
//! objects, cuFFT has one plan, which is a number. So most rows are one vendor's.

use gpu::foreign::Address;

pub(crate) use crate::table::{Handle, Int, LibraryChoice};
use crate::table::{Names, library, numbers};

library! {
    /// rocFFT | cuFFT
    Calls, role "FFT",
    amd Names {
        name: "rocFFT", sonames: &["librocfft.so.0"], status_name: "", status_text: "", last_words: "",
        statuses: &[
            (1, "rocfft_status_failure"), (2, "rocfft_status_invalid_arg_value"),
            (3, "rocfft_status_invalid_dimensions"), (4, "rocfft_status_invalid_array_type"),
            (5, "rocfft_status_invalid_strides"), (6, "rocfft_status_invalid_distance"),
            (7, "rocfft_status_invalid_offset"), (8, "rocfft_status_invalid_work_buffer"),
        ],
    },
    nvidia Names {
        name: "cuFFT", sonames: &["libcufft.so.12", "libcufft.so.11", "libcufft.so.10"], status_name: "", status_text: "", last_words: "",
        statuses: &[
            (1, "CUFFT_INVALID_PLAN"), (2, "CUFFT_ALLOC_FAILED"), (3, "CUFFT_INVALID_TYPE"), (4, "CUFFT_INVALID_VALUE"),
            (5, "CUFFT_INTERNAL_ERROR"), (6, "CUFFT_EXEC_FAILED"), (7, "CUFFT_SETUP_FAILED"), (8, "CUFFT_INVALID_SIZE"),
            (9, "CUFFT_UNALIGNED_DATA"), (11, "CUFFT_INVALID_DEVICE"), (13, "CUFFT_NO_WORKSPACE"),
            (14, "CUFFT_NOT_IMPLEMENTED"), (16, "CUFFT_NOT_SUPPORTED"),
        ],
    };
    plain {
        setup               | "rocfft_setup" | "" | ();
        description_create  | "rocfft_plan_description_create" | "" | (description: *mut Handle);
        description_destroy | "rocfft_plan_description_destroy" | "" | (description: Handle);
        description_layout  | "rocfft_plan_description_set_data_layout" | "" | (description: Handle, in_type: LibraryChoice, out_type: LibraryChoice, in_offsets: *const usize, out_offsets: *const usize, n_in_strides: usize, in_strides: *const usize, in_distance: usize, n_out_strides: usize, out_strides: *const usize, out_distance: usize);
        plan_create         | "rocfft_plan_create" | "" | (plan: *mut Handle, placement: LibraryChoice, transform: LibraryChoice, precision: LibraryChoice, n_dimensions: usize, lengths: *const usize, batch: usize, description: Handle);
        plan_destroy        | "rocfft_plan_destroy" | "" | (plan: Handle);
        work_bytes          | "rocfft_plan_get_work_buffer_size" | "" | (plan: Handle, bytes: *mut usize);
        info_create         | "rocfft_execution_info_create" | "" | (info: *mut Handle);
        info_destroy        | "rocfft_execution_info_destroy" | "" | (info: Handle);
        info_work           | "rocfft_execution_info_set_work_buffer" | "" | (info: Handle, at: Address, bytes: usize);
        info_stream         | "rocfft_execution_info_set_stream" | "" | (info: Handle, stream: Handle);
        execute             | "rocfft_execute" | "" | (plan: Handle, inputs: *mut Address, outputs: *mut Address, info: Handle);
        create              | "" | "cufftCreate" | (plan: *mut Int);
        destroy             | "" | "cufftDestroy" | (plan: Int);
        set_stream          | "" | "cufftSetStream" | (plan: Int, stream: Handle);
        set_auto            | "" | "cufftSetAutoAllocation" | (plan: Int, is_automatic: Int);
        set_work            | "" | "cufftSetWorkArea" | (plan: Int, at: Address);
        make_plan           | "" | "cufftMakePlanMany64" | (plan: Int, rank: Int, lengths: *mut i64, in_extent: *mut i64, in_stride: i64, in_distance: i64, out_extent: *mut i64, out_stride: i64, out_distance: i64, transform: LibraryChoice, batch: i64, bytes: *mut usize);
        exec_c2c            | "" | "cufftExecC2C" | (plan: Int, from: Address, to: Address, direction: Int);
        exec_z2z            | "" | "cufftExecZ2Z" | (plan: Int, from: Address, to: Address, direction: Int);
        exec_r2c            | "" | "cufftExecR2C" | (plan: Int, from: Address, to: Address);
        exec_d2z            | "" | "cufftExecD2Z" | (plan: Int, from: Address, to: Address);
        exec_c2r            | "" | "cufftExecC2R" | (plan: Int, from: Address, to: Address);
        exec_z2d            | "" | "cufftExecZ2D" | (plan: Int, from: Address, to: Address);
    }
    typed {}
}

numbers! {
    /// Which way a transform goes. Neither way divides by the length.
    pub enum Direction {
        Forward = "rocfft_transform_type_complex_forward" 0 | "CUFFT_FORWARD" -1;
        Inverse = "rocfft_transform_type_complex_inverse" 1 | "CUFFT_INVERSE" 1;
    }
    pub(crate) enum RealDirection {
        Forward = "rocfft_transform_type_real_forward" 2 | "" 0;
        Inverse = "rocfft_transform_type_real_inverse" 3 | "" 0;
    }
    pub(crate) enum Precision {
        Single = "rocfft_precision_single" 0 | "" 0;
        Double = "rocfft_precision_double" 1 | "" 0;
    }
    pub(crate) enum Placement {
        InPlace = "rocfft_placement_inplace" 0 | "" 0;
        Apart = "rocfft_placement_notinplace" 1 | "" 0;
    }
    pub(crate) enum ArrayType {
        Complex = "rocfft_array_type_complex_interleaved" 0 | "" 0;
        Real = "rocfft_array_type_real" 2 | "" 0;
        Half = "rocfft_array_type_hermitian_interleaved" 3 | "" 0;
    }
    /// cuFFT's kinds of plan.
    pub(crate) enum PlanType {
        C2C = "" 0 | "CUFFT_C2C" 0x29;
        Z2Z = "" 0 | "CUFFT_Z2Z" 0x69;
        R2C = "" 0 | "CUFFT_R2C" 0x2a;
        D2Z = "" 0 | "CUFFT_D2Z" 0x6a;
        C2R = "" 0 | "CUFFT_C2R" 0x2c;
        Z2D = "" 0 | "CUFFT_Z2D" 0x6c;
    }
}
