//! Our table against the vendors' own headers: argument counts and widths of every call, the numbers
//! of every constant, the offsets of the fields we read. A C++ compiler does the comparing.
//!
//! Needs `ROCI_HIP_HEADERS` (an include folder of AMD's) or `ROCI_CUDA_HEADERS` (NVIDIA's);
//! `tests/fetch-headers DIR` fetches both without installing anything and prints the two.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpu::Vendor;
use gpu::tables::{
    Attribute, BlasNumbers, CAPTURE_THREAD_LOCAL, DRIVER_ROWS, DriverRow, EVENT_NO_TIMING, FUNCTION_LOCAL_BYTES,
    FUNCTION_MAX_THREADS, FUNCTION_REGISTERS, FUNCTION_SHARED_BYTES, HIP_ARCH_OFFSET_R0600, HIP_PROPERTIES_BYTES,
    HIPBLAS_3, HOST_ALLOC_PORTABLE, ROCBLAS, RTC_ROWS, STATUS_NOT_READY, STATUS_OUT_OF_MEMORY, STREAM_NON_BLOCKING,
};

/// `signature<decltype(&f)>` knows a call's argument widths and which of them are floats.
const SHAPES: &str = r#"
template <class F> struct signature;
template <class R, class... A> struct signature<R (*)(A...)> {
    static constexpr bool is(unsigned result, unsigned count, const unsigned *want) {
        const unsigned have[] = {(sizeof(A) + (std::is_floating_point<A>::value ? 100 : 0))..., 0};
        if (count != sizeof...(A) || result != sizeof(R)) return false;
        for (unsigned i = 0; i < count; ++i)
            if (have[i] != want[i]) return false;
        return true;
    }
};
"#;

/// Bytes a Rust type of the table takes in a call.
fn width(ty: &str) -> u32 {
    match ty {
        _ if ty.starts_with('*') => 8,
        "c_int" | "c_uint" | "i32" | "u32" => 4,
        "usize" | "u64" | "i64" | "Address" => 8,
        "Stream" | "Event" | "Function" | "Module" | "Graph" | "GraphExec" | "Program" => 8,
        "u8" => 1,
        _ => panic!("`{ty}` is new in the table: say how wide it is"),
    }
}

fn row_check(row: &DriverRow, vendor: Vendor) -> String {
    shape_check(row.symbol(vendor), width(row.returns), &row.args.iter().map(|ty| width(ty)).collect::<Vec<_>>())
}

fn shape_check(symbol: &str, result: u32, widths: &[u32]) -> String {
    let list: String = widths.iter().map(|width| format!("{width}, ")).collect();
    format!(
        "constexpr unsigned w_{symbol}[] = {{{list}0}};\n\
         static_assert(signature<decltype(&{symbol})>::is({result}, {}, w_{symbol}), \"{symbol}: other arguments\");\n",
        widths.len()
    )
}

fn number_check(name: &str, value: impl std::fmt::Display) -> String {
    format!("static_assert((long long)({name}) == {value}, \"{name} is not {value}\");\n")
}

fn headers(variable: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    if folder.is_none() {
        crate::skip("comparing with the headers", &format!("{variable} is not set"), "ROCI_REQUIRE_HEADERS");
    }
    folder
}

fn compile(name: &str, includes: &[&Path], source: &str) -> Result<(), String> {
    let file = std::env::temp_dir().join(format!("gpu-headers-{name}-{}.cpp", std::process::id()));
    std::fs::write(&file, source).unwrap();
    let mut command = Command::new("c++");
    command.args(["-std=c++17", "-fsyntax-only", "-w", "-fmax-errors=20"]);
    includes.iter().for_each(|folder| {
        command.arg("-I").arg(folder);
    });
    let output = command.arg(&file).output().expect("a C++ compiler");
    let _ = std::fs::remove_file(&file);
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// AMD's C API, read as C: in C++ some calls have template overloads, whose address is ambiguous.
const HIP_INCLUDES: &str = "#include <cstddef>\n#include <cstdint>\n#include <type_traits>\n#include <stdio.h>\n\
    #include <string.h>\n#include <stdlib.h>\n#include <stdbool.h>\n#include <limits.h>\n#include <float.h>\n\
    #define __HIP_PLATFORM_AMD__ 1\n#undef __cplusplus\n#define __HIP_DISABLE_CPP_FUNCTIONS__ 1\n\
    #include <hip/hip_runtime_api.h>\n#include <hip/hiprtc.h>\n";

fn blas_checks(text: &mut String, numbers: &BlasNumbers, names: [&str; 9]) {
    let values = [
        numbers.op_none,
        numbers.op_transpose,
        numbers.pointer_mode_host,
        numbers.f32,
        numbers.f16,
        numbers.bf16,
        numbers.i8,
        numbers.i32,
        numbers.algorithm,
    ];
    for (name, value) in names.iter().zip(values) {
        text.push_str(&number_check(name, value));
    }
    let matrix = [8, 4, 4, 8];
    let mut gemm = vec![8, 4, 4, 4, 4, 4, 8];
    gemm.extend(matrix.repeat(2));
    gemm.push(8);
    gemm.extend(matrix.repeat(if numbers.is_rocblas { 2 } else { 1 }));
    gemm.extend([4, 4, 4]);
    if numbers.is_rocblas {
        gemm.extend([4, 4]);
    }
    text.push_str(&shape_check(numbers.gemm, 4, &gemm));
    text.push_str(&shape_check(numbers.create, 4, &[8]));
    text.push_str(&shape_check(numbers.destroy, 4, &[8]));
    text.push_str(&shape_check(numbers.set_stream, 4, &[8, 8]));
    text.push_str(&shape_check(numbers.set_pointer_mode, 4, &[8, 4]));
    text.push_str(&shape_check(numbers.set_workspace, 4, &[8, 8, 8]));
    text.push_str(&shape_check(numbers.status_text, 8, &[4]));
}

#[test]
fn the_hip_column_matches_amds_headers() {
    let Some(folder) = headers("ROCI_HIP_HEADERS") else { return };
    let mut text = format!("{HIP_INCLUDES}{SHAPES}");
    for row in DRIVER_ROWS.iter().chain(RTC_ROWS) {
        text.push_str(&row_check(row, Vendor::Amd));
    }
    text.push_str(&shape_check("hipSetDevice", 4, &[4]));
    text.push_str(&shape_check("hipGetErrorName", 8, &[4]));
    text.push_str(&shape_check("hipGetErrorString", 8, &[4]));
    text.push_str(&shape_check("hipGetDevicePropertiesR0600", 4, &[8, 4]));
    for (_, name, number, ..) in Attribute::TABLE {
        text.push_str(&number_check(name, number));
    }
    let numbers: [(&str, i64); 15] = [
        ("hipStreamNonBlocking", STREAM_NON_BLOCKING.into()),
        ("hipEventDisableTiming", EVENT_NO_TIMING.into()),
        ("hipHostMallocPortable", HOST_ALLOC_PORTABLE.into()),
        ("hipStreamCaptureModeThreadLocal", CAPTURE_THREAD_LOCAL.into()),
        ("hipErrorOutOfMemory", STATUS_OUT_OF_MEMORY.into()),
        ("hipErrorNotReady", STATUS_NOT_READY.into()),
        ("hipErrorNoDevice", 100),
        ("hipErrorInvalidDevice", 101),
        ("hipErrorIllegalAddress", 700),
        ("hipErrorLaunchFailure", 719),
        ("HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK", FUNCTION_MAX_THREADS.into()),
        ("HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES", FUNCTION_SHARED_BYTES.into()),
        ("HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES", FUNCTION_LOCAL_BYTES.into()),
        ("HIP_FUNC_ATTRIBUTE_NUM_REGS", FUNCTION_REGISTERS.into()),
        ("offsetof(hipDeviceProp_tR0600, gcnArchName)", HIP_ARCH_OFFSET_R0600 as i64),
    ];
    for (name, value) in numbers {
        text.push_str(&number_check(name, value));
    }
    writeln!(text, "static_assert(sizeof(hipDeviceProp_tR0600) <= {HIP_PROPERTIES_BYTES}, \"it grew\");").unwrap();
    compile("hip", &[&folder], &text).unwrap_or_else(|errors| panic!("{errors}"));
    // The check can fail: a wrong number and a wrong width are seen.
    let wrong_number = text.clone() + &number_check("hipErrorNotReady", 601);
    assert!(compile("hip-number", &[&folder], &wrong_number).is_err(), "a wrong number passed");
    let wrong_width = text + &shape_check("hipDeviceGet", 4, &[8, 8]);
    assert!(compile("hip-width", &[&folder], &wrong_width).is_err(), "a wrong width passed");
}

#[test]
fn the_blas_numbers_match_amds_headers() {
    let Some(folder) = headers("ROCI_HIP_HEADERS") else { return };
    if !folder.join("rocblas/rocblas.h").exists() {
        return crate::skip("comparing BLAS numbers", "rocblas/rocblas.h is not there", "ROCI_REQUIRE_HEADERS");
    }
    let includes = "#include <cstddef>\n#include <type_traits>\n#define __HIP_PLATFORM_AMD__ 1\n";
    let mut text = format!("{includes}#include <rocblas/rocblas.h>\n#undef rocblas_gemm_strided_batched_ex\n{SHAPES}");
    blas_checks(
        &mut text,
        &ROCBLAS,
        [
            "rocblas_operation_none",
            "rocblas_operation_transpose",
            "rocblas_pointer_mode_host",
            "rocblas_datatype_f32_r",
            "rocblas_datatype_f16_r",
            "rocblas_datatype_bf16_r",
            "rocblas_datatype_i8_r",
            "rocblas_datatype_i32_r",
            "rocblas_gemm_algo_standard",
        ],
    );
    text.push_str(&number_check("rocblas_datatype_f64_r", ROCBLAS.f64));
    compile("rocblas", &[&folder], &text).unwrap_or_else(|errors| panic!("{errors}"));
    let mut text = format!("{includes}#include <hipblas/hipblas.h>\n{SHAPES}");
    blas_checks(
        &mut text,
        &HIPBLAS_3,
        [
            "HIPBLAS_OP_N",
            "HIPBLAS_OP_T",
            "HIPBLAS_POINTER_MODE_HOST",
            "HIP_R_32F",
            "HIP_R_16F",
            "HIP_R_16BF",
            "HIP_R_8I",
            "HIP_R_32I",
            "HIPBLAS_GEMM_DEFAULT",
        ],
    );
    text.push_str(&number_check("HIPBLAS_COMPUTE_32F", HIPBLAS_3.compute_f32));
    text.push_str(&number_check("HIPBLAS_COMPUTE_32I", HIPBLAS_3.compute_i32));
    text.push_str(&number_check("HIPBLAS_COMPUTE_64F", HIPBLAS_3.compute_f64));
    text.push_str(&number_check("HIP_R_64F", HIPBLAS_3.f64));
    compile("hipblas", &[&folder], &text).unwrap_or_else(|errors| panic!("{errors}"));
}

#[test]
fn the_cuda_column_matches_nvidias_headers() {
    let Some(folder) = headers("ROCI_CUDA_HEADERS") else { return };
    let mut text =
        format!("#include <cstddef>\n#include <type_traits>\n#include <cuda.h>\n#include <nvrtc.h>\n{SHAPES}");
    for row in DRIVER_ROWS.iter().chain(RTC_ROWS) {
        text.push_str(&row_check(row, Vendor::Nvidia));
    }
    text.push_str(&shape_check("cuCtxSetCurrent", 4, &[8]));
    text.push_str(&shape_check("cuDevicePrimaryCtxRetain", 4, &[8, 4]));
    text.push_str(&shape_check("cuGetErrorName", 4, &[4, 8]));
    text.push_str(&shape_check("cuGetErrorString", 4, &[4, 8]));
    text.push_str(&shape_check("cuFuncSetAttribute", 4, &[8, 4, 4]));
    text.push_str(&shape_check("cuLaunchKernelEx", 4, &[8, 8, 8, 8]));
    // overlap.rs: the structs of cuLaunchKernelEx.
    text.push_str("static_assert(sizeof(CUlaunchAttribute) == 72 && offsetof(CUlaunchAttribute, value) == 8);\n");
    text.push_str("static_assert(sizeof(CUlaunchConfig) == 56 && offsetof(CUlaunchConfig, blockDimX) == 12);\n");
    text.push_str(
        "static_assert(offsetof(CUlaunchConfig, sharedMemBytes) == 24 && offsetof(CUlaunchConfig, hStream) == 32);\n",
    );
    text.push_str(
        "static_assert(offsetof(CUlaunchConfig, attrs) == 40 && offsetof(CUlaunchConfig, numAttrs) == 48);\n",
    );
    text.push_str(&number_check("CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION", 6));
    for (_, _, _, name, number) in Attribute::TABLE {
        text.push_str(&number_check(&format!("CU_DEVICE_ATTRIBUTE_{name}"), number));
    }
    let numbers: [(&str, i64); 15] = [
        ("CU_STREAM_NON_BLOCKING", STREAM_NON_BLOCKING.into()),
        ("CU_EVENT_DISABLE_TIMING", EVENT_NO_TIMING.into()),
        ("CU_MEMHOSTALLOC_PORTABLE", HOST_ALLOC_PORTABLE.into()),
        ("CU_STREAM_CAPTURE_MODE_THREAD_LOCAL", CAPTURE_THREAD_LOCAL.into()),
        ("CUDA_ERROR_OUT_OF_MEMORY", STATUS_OUT_OF_MEMORY.into()),
        ("CUDA_ERROR_NOT_READY", STATUS_NOT_READY.into()),
        ("CUDA_ERROR_NO_DEVICE", 100),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", 700),
        ("CUDA_ERROR_LAUNCH_FAILED", 719),
        ("CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK", FUNCTION_MAX_THREADS.into()),
        ("CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES", FUNCTION_SHARED_BYTES.into()),
        ("CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES", FUNCTION_LOCAL_BYTES.into()),
        ("CU_FUNC_ATTRIBUTE_NUM_REGS", FUNCTION_REGISTERS.into()),
        ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 8),
        ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", 75),
    ];
    for (name, value) in numbers {
        text.push_str(&number_check(name, value));
    }
    compile("cuda", &[&folder], &text).unwrap_or_else(|errors| panic!("{errors}"));
}
