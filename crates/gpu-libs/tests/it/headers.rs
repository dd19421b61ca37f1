//! Our tables against the vendors' own headers: argument counts and widths of every call, the numbers of
//! every constant, the sizes of every struct. A C++ compiler does the comparing.
//!
//! Needs `ROCI_AMD_LIBRARY_HEADERS` or `ROCI_NVIDIA_LIBRARY_HEADERS`; `tests/fetch-headers DIR` fetches both
//! without installing anything and prints the two.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpu::Vendor;
use gpu_libs::table::{Row, VendorNumbers};
use gpu_libs::{blas, blas_lt, collectives, dnn, fft, rand, solver, sparse};

/// `signature<decltype(&f)>` knows a call's argument widths and which of them are floats.
const SHAPES: &str = r#"
template <class F> struct signature;
template <class R, class... A> struct signature<R (*)(A...)> {
    static constexpr bool is(unsigned count, const unsigned *want) {
        const unsigned have[] = {(sizeof(A) + (std::is_floating_point<A>::value ? 100 : 0))..., 0};
        if (count != sizeof...(A) || sizeof(R) != 4) return false;
        for (unsigned i = 0; i < count; ++i)
            if (have[i] != want[i]) return false;
        return true;
    }
};
"#;

struct Library {
    name: &'static str,
    rows: &'static [Row],
    numbers: &'static [&'static [VendorNumbers]],
    /// (C++ type, bytes) for each vendor.
    sizes: [&'static [(&'static str, usize)]; 2],
    includes: [&'static str; 2],
}

const LIBRARIES: &[Library] = &[
    Library {
        name: "blas",
        rows: blas::Calls::ROWS,
        numbers: blas::NUMBERS,
        sizes: [&[], &[]],
        includes: [
            "#include <rocblas/rocblas.h>\n#undef rocblas_gemm_strided_batched_ex\n",
            // Read as C: in C++ some calls have overloads, whose address is ambiguous.
            "#include <driver_types.h>\n#include <cuComplex.h>\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n\
             #include <library_types.h>\n#undef __cplusplus\n#include <cublas_v2.h>\n",
        ],
    },
    Library {
        name: "blas_lt",
        rows: blas_lt::Calls::ROWS,
        numbers: blas_lt::NUMBERS,
        sizes: [blas_lt::AMD_SIZES, blas_lt::NVIDIA_SIZES],
        includes: ["#include <hipblaslt/hipblaslt.h>\n", "#include <cublasLt.h>\n"],
    },
    Library {
        name: "fft",
        rows: fft::Calls::ROWS,
        numbers: fft::NUMBERS,
        sizes: [&[], &[]],
        includes: ["#include <rocfft/rocfft.h>\n", "#include <cufft.h>\n"],
    },
    Library {
        name: "collectives",
        rows: collectives::Calls::ROWS,
        numbers: collectives::NUMBERS,
        sizes: [collectives::SIZES, collectives::SIZES],
        includes: ["#include <rccl/rccl.h>\n", "#include <nccl.h>\n"],
    },
    Library {
        name: "dnn",
        rows: dnn::Calls::ROWS,
        numbers: dnn::NUMBERS,
        sizes: [dnn::AMD_SIZES, dnn::NVIDIA_SIZES],
        includes: [
            "#define MIOPEN_BETA_API 1\n#include <miopen/miopen.h>\n",
            // What a failed call is asked about is in no table: it gives back no status.
            "#include <cudnn.h>\n\
             static_assert(std::is_same<decltype(&cudnnGetLastErrorString), void (*)(char *, size_t)>::value, \"\");\n",
        ],
    },
    Library {
        name: "solver",
        rows: solver::Calls::ROWS,
        numbers: solver::NUMBERS,
        sizes: [&[], &[]],
        includes: ["#include <rocsolver/rocsolver.h>\n", "#include <cusolverDn.h>\n"],
    },
    Library {
        name: "sparse",
        rows: sparse::Calls::ROWS,
        numbers: sparse::NUMBERS,
        sizes: [&[], &[]],
        includes: ["#include <rocsparse/rocsparse.h>\n", "#include <cusparse.h>\n"],
    },
    Library {
        name: "rand",
        rows: rand::Calls::ROWS,
        numbers: rand::NUMBERS,
        sizes: [&[], &[]],
        includes: ["#include <rocrand/rocrand.h>\n", "#include <curand.h>\n"],
    },
];

/// Bytes a Rust type of a table takes in a call; floats are passed elsewhere than integers and count 100 more.
fn width(ty: &str) -> u32 {
    match ty {
        _ if ty.starts_with('*') => 8,
        "Handle" | "Host" | "HostMut" | "Address" | "usize" | "u64" | "i64" => 8,
        "Int" | "LibraryChoice" | "c_int" | "i32" | "u32" => 4,
        "i8" | "bool" => 1,
        "UniqueId" => 128,
        "f32" => 104,
        "f64" => 108,
        _ => panic!("`{ty}` is new in a table: say how wide it is"),
    }
}

fn shape_check(symbol: &str, widths: &[u32]) -> String {
    let list: String = widths.iter().map(|width| format!("{width}, ")).collect();
    format!(
        "constexpr unsigned w_{symbol}[] = {{{list}0}};\n\
         static_assert(signature<decltype(&{symbol})>::is({}, w_{symbol}), \"{symbol}: other arguments\");\n",
        widths.len()
    )
}

fn number_check(name: &str, value: i64) -> String {
    format!("static_assert((long long)({name}) == {value}, \"{name} is not {value}\");\n")
}

fn compile(name: &str, folder: &Path, source: &str) -> Result<(), String> {
    let file = std::env::temp_dir().join(format!("gpu-libs-headers-{name}-{}.cpp", std::process::id()));
    std::fs::write(&file, source).unwrap();
    let output = Command::new("c++")
        .args(["-std=c++17", "-fsyntax-only", "-w", "-fmax-errors=20", "-D__HIP_PLATFORM_AMD__=1", "-I"])
        .args([folder, &file])
        .output()
        .expect("a C++ compiler");
    let _ = std::fs::remove_file(&file);
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn source(library: &Library, vendor: Vendor) -> String {
    let includes = vendor.pick(library.includes[0], library.includes[1]);
    let mut text = format!("#include <cstddef>\n#include <cstdint>\n#include <type_traits>\n{includes}{SHAPES}");
    let mut seen = std::collections::HashSet::new();
    for row in library.rows {
        let widths: Vec<u32> = row.args.iter().map(|ty| width(ty)).collect();
        for symbol in (0..4).filter_map(|kind| row.symbol(vendor, kind)) {
            if seen.insert(symbol.clone()) {
                text.push_str(&shape_check(&symbol, &widths));
            }
        }
    }
    for &(amd, amd_number, nvidia, nvidia_number) in library.numbers.iter().copied().flatten() {
        let name = vendor.pick(amd, nvidia);
        if !name.is_empty() {
            text.push_str(&number_check(name, vendor.pick(amd_number, nvidia_number)));
        }
    }
    for (ty, bytes) in vendor.pick(library.sizes[0], library.sizes[1]) {
        text.push_str(&number_check(&format!("sizeof({ty})"), *bytes as i64));
    }
    text
}

fn compare(vendor: Vendor, variable: &str) {
    let Some(folder) = std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from) else {
        return test_support::skip(
            &format!("comparing with the headers: {variable} is not set"),
            "ROCI_REQUIRE_HEADERS",
        );
    };
    for library in LIBRARIES.iter().filter(|library| !vendor.pick(library.includes[0], library.includes[1]).is_empty())
    {
        let text = source(library, vendor);
        let name = format!("{}-{}", library.name, vendor.word());
        compile(&name, &folder, &text).unwrap_or_else(|errors| panic!("{name}: {errors}"));
        // The check can fail: a wrong width is seen.
        let row =
            library.rows.iter().find(|row| !row.args.is_empty() && row.symbol(vendor, 0).is_some()).expect("a call");
        let symbol = row.symbol(vendor, 0).expect("just found");
        let wrong = text.replace(&format!("w_{symbol}[] = {{"), &format!("w_{symbol}[] = {{16, "));
        assert!(compile(&format!("{name}-wrong"), &folder, &wrong).is_err(), "{name}: a wrong width passed");
    }
}

#[test]
fn tables_match_amds_headers() {
    compare(Vendor::Amd, "ROCI_AMD_LIBRARY_HEADERS");
}

#[test]
fn tables_match_nvidias_headers() {
    compare(Vendor::Nvidia, "ROCI_NVIDIA_LIBRARY_HEADERS");
}
