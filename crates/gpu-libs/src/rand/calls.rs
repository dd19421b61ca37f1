//! rocRAND and cuRAND as one table: they agree argument for argument.

use gpu::foreign::Address;

pub(crate) use crate::table::{Handle, LibraryChoice};
use crate::table::{Names, library, numbers};

library! {
    /// rocRAND | cuRAND
    Calls, role "random number",
    amd Names {
        name: "rocRAND", sonames: &["librocrand.so.1"], status_name: "", status_text: "", last_words: "",
        statuses: &[
            (100, "ROCRAND_STATUS_VERSION_MISMATCH"), (101, "ROCRAND_STATUS_NOT_CREATED"),
            (102, "ROCRAND_STATUS_ALLOCATION_FAILED"), (103, "ROCRAND_STATUS_TYPE_ERROR"),
            (104, "ROCRAND_STATUS_OUT_OF_RANGE"), (105, "ROCRAND_STATUS_LENGTH_NOT_MULTIPLE"),
            (106, "ROCRAND_STATUS_DOUBLE_PRECISION_REQUIRED"), (107, "ROCRAND_STATUS_LAUNCH_FAILURE"),
            (108, "ROCRAND_STATUS_INTERNAL_ERROR"),
        ],
    },
    nvidia Names {
        name: "cuRAND", sonames: &["libcurand.so.10"], status_name: "", status_text: "", last_words: "",
        statuses: &[
            (100, "CURAND_STATUS_VERSION_MISMATCH"), (101, "CURAND_STATUS_NOT_INITIALIZED"),
            (102, "CURAND_STATUS_ALLOCATION_FAILED"), (103, "CURAND_STATUS_TYPE_ERROR"),
            (104, "CURAND_STATUS_OUT_OF_RANGE"), (105, "CURAND_STATUS_LENGTH_NOT_MULTIPLE"),
            (106, "CURAND_STATUS_DOUBLE_PRECISION_REQUIRED"), (201, "CURAND_STATUS_LAUNCH_FAILURE"),
            (202, "CURAND_STATUS_PREEXISTING_FAILURE"), (203, "CURAND_STATUS_INITIALIZATION_FAILED"),
            (204, "CURAND_STATUS_ARCH_MISMATCH"), (999, "CURAND_STATUS_INTERNAL_ERROR"),
        ],
    };
    plain {
        create         | "rocrand_create_generator"  | "curandCreateGenerator"  | (generator: *mut Handle, method: LibraryChoice);
        destroy        | "rocrand_destroy_generator" | "curandDestroyGenerator" | (generator: Handle);
        set_stream     | "rocrand_set_stream"        | "curandSetStream"        | (generator: Handle, stream: Handle);
        set_seed       | "rocrand_set_seed"          | "curandSetPseudoRandomGeneratorSeed" | (generator: Handle, seed: u64);
        set_offset     | "rocrand_set_offset"        | "curandSetGeneratorOffset" | (generator: Handle, offset: u64);
        set_dimensions | "rocrand_set_quasi_random_generator_dimensions" | "curandSetQuasiRandomGeneratorDimensions" | (generator: Handle, n: u32);
        bits32         | "rocrand_generate"          | "curandGenerate"         | (generator: Handle, to: Address, n: usize);
        bits64         | "rocrand_generate_long_long" | "curandGenerateLongLong" | (generator: Handle, to: Address, n: usize);
        uniform32      | "rocrand_generate_uniform"  | "curandGenerateUniform"  | (generator: Handle, to: Address, n: usize);
        uniform64      | "rocrand_generate_uniform_double" | "curandGenerateUniformDouble" | (generator: Handle, to: Address, n: usize);
        normal32       | "rocrand_generate_normal"   | "curandGenerateNormal"   | (generator: Handle, to: Address, n: usize, mean: f32, deviation: f32);
        normal64       | "rocrand_generate_normal_double" | "curandGenerateNormalDouble" | (generator: Handle, to: Address, n: usize, mean: f64, deviation: f64);
        log_normal32   | "rocrand_generate_log_normal" | "curandGenerateLogNormal" | (generator: Handle, to: Address, n: usize, mean: f32, deviation: f32);
        log_normal64   | "rocrand_generate_log_normal_double" | "curandGenerateLogNormalDouble" | (generator: Handle, to: Address, n: usize, mean: f64, deviation: f64);
        poisson        | "rocrand_generate_poisson"  | "curandGeneratePoisson"  | (generator: Handle, to: Address, n: usize, mean: f64);
    }
    typed {}
}

numbers! {
    /// How numbers are made. The Sobol methods are quasi-random: they fill space evenly.
    pub enum Method {
        Xorwow = "ROCRAND_RNG_PSEUDO_XORWOW" 401 | "CURAND_RNG_PSEUDO_XORWOW" 101;
        Mrg32k3a = "ROCRAND_RNG_PSEUDO_MRG32K3A" 402 | "CURAND_RNG_PSEUDO_MRG32K3A" 121;
        Mtgp32 = "ROCRAND_RNG_PSEUDO_MTGP32" 403 | "CURAND_RNG_PSEUDO_MTGP32" 141;
        Mt19937 = "ROCRAND_RNG_PSEUDO_MT19937" 407 | "CURAND_RNG_PSEUDO_MT19937" 142;
        Philox = "ROCRAND_RNG_PSEUDO_PHILOX4_32_10" 404 | "CURAND_RNG_PSEUDO_PHILOX4_32_10" 161;
        Sobol32 = "ROCRAND_RNG_QUASI_SOBOL32" 501 | "CURAND_RNG_QUASI_SOBOL32" 201;
        ScrambledSobol32 = "ROCRAND_RNG_QUASI_SCRAMBLED_SOBOL32" 502 | "CURAND_RNG_QUASI_SCRAMBLED_SOBOL32" 202;
        Sobol64 = "ROCRAND_RNG_QUASI_SOBOL64" 504 | "CURAND_RNG_QUASI_SOBOL64" 203;
        ScrambledSobol64 = "ROCRAND_RNG_QUASI_SCRAMBLED_SOBOL64" 505 | "CURAND_RNG_QUASI_SCRAMBLED_SOBOL64" 204;
    }
}
