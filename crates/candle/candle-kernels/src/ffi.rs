//! The launchers that Candle calls by C symbol: products of quantised weights, and mixtures of experts.
//!
//! Each gets device addresses and a raw stream, enqueues one or two kernels of `quantized.hip`, and returns
//! nothing. What goes wrong is kept by the stream, and the next call on it reports it.
//!
//! The layout of rounded activations is ours on both ends: q8_1 blocks, row after row, for every format.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use cudarc::driver::{
    CudaContext, CudaModule, CudaSlice, CudaStream, DevicePtr, DriverError, LaunchArgs, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

/// Threads of a row, and rows of a block.
const BLOCK: (u32, u32, u32) = (32, 4, 1);
const ROWS_PER_BLOCK: u32 = 4;
const COLUMNS_PER_BLOCK: u32 = 8;
/// Rows and columns of a block of `quantized_tiles.hip`, and how many columns are too few for it: its blocks are then too few
/// to keep a GPU busy, and weights are read twice at most without it.
const TILE: u32 = 64;
const FEW_COLUMNS: u32 = 16;
const QUANTIZE_BLOCK: u32 = 256;
/// Rows are padded to so many numbers, as Candle pads them.
const ROW_PADDING: u32 = 512;
/// The largest second and third dimension of a grid.
const MOST_BLOCKS_Y: u32 = 65535;
const Q8_1_BYTES: usize = 36;

/// The module of quantised kernels of a context, loaded once.
fn module(context: &Arc<CudaContext>) -> Result<Arc<CudaModule>, DriverError> {
    type Loaded = HashMap<usize, (Weak<CudaContext>, Arc<CudaModule>)>;
    static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
    let key = Arc::as_ptr(context) as usize;
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((kept, module)) = loaded.get(&key)
        && kept.upgrade().is_some_and(|kept| Arc::ptr_eq(&kept, context))
    {
        return Ok(module.clone());
    }
    // A context that is gone may have left its address to this one.
    loaded.retain(|_, (kept, _)| kept.strong_count() > 0);
    let module = context.load_module(Ptx::from_src(crate::QUANTIZED.ptx()))?;
    loaded.insert(key, (Arc::downgrade(context), module.clone()));
    Ok(module)
}

/// Enqueues a kernel by name.
fn enqueue(
    stream: &Arc<CudaStream>,
    kernel: &str,
    grid_dim: (u32, u32, u32),
    block_dim: (u32, u32, u32),
    arguments: impl FnOnce(&mut LaunchArgs<'_>),
) -> Result<(), DriverError> {
    let function = module(stream.context())?.load_function(kernel)?;
    let mut launch = stream.launch_builder(&function);
    arguments(&mut launch);
    // SAFETY: the callers below push the parameters of the kernel they name, in its order; the addresses are
    // Candle's, alive until the stream has passed this launch.
    unsafe { launch.launch(LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 }) }
}

/// Runs a launcher's body on the stream with this handle, and keeps its error for the next call.
fn on_stream(handle: *mut c_void, name: &str, body: impl FnOnce(&Arc<CudaStream>) -> Result<(), DriverError>) {
    // A stream that is gone has nobody left to tell.
    let Some(stream) = CudaStream::from_handle(handle) else { return };
    if let Err(error) = body(&stream) {
        stream.report_later(&format!("launcher {name}"), &error);
    }
}

/// Rounds rows of activations to q8_1.
fn quantize(
    stream: &Arc<CudaStream>,
    kernel: &str,
    [x, y]: [u64; 2],
    size_of_x: usize,
    n: u32,
    n_padded: u32,
    n_rows: u32,
) -> Result<(), DriverError> {
    let (n_as_i32, padded_as_i32) = (n as i32, n_padded as i32);
    let y_row = (n_padded / 32) as usize * Q8_1_BYTES;
    let mut row = 0;
    while row < n_rows {
        let rows = (n_rows - row).min(MOST_BLOCKS_Y);
        let (from, to) = (x + (row as usize * n as usize * size_of_x) as u64, y + (row as usize * y_row) as u64);
        let grid = (n_padded.div_ceil(QUANTIZE_BLOCK), rows, 1);
        enqueue(stream, kernel, grid, (QUANTIZE_BLOCK, 1, 1), |launch| {
            launch.arg(&from).arg(&to).arg(&n_as_i32).arg(&padded_as_i32);
        })?;
        row += rows;
    }
    Ok(())
}

macro_rules! mmvq {
    ($($name:ident = $format:literal, $number:literal;)*) => {$(
        /// A product with up to eight columns.
        ///
        /// # Safety
        /// Addresses are of live device memory in the layouts of `quantized.hip`, and `stream` is a live stream's.
        #[allow(clippy::too_many_arguments, reason = "Candle's signature")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            vx: *const c_void,
            vy: *const c_void,
            dst: *mut c_void,
            ncols_x: i32,
            nrows_x: i32,
            stride_col_y: i32,
            stride_col_dst: i32,
            b_size: i32,
            stream: *mut c_void,
        ) {
            on_stream(stream, stringify!($name), |stream| {
                let kernel = format!("mmvq_{}_{}_{b_size}", $format, $number);
                let grid = ((nrows_x as u32).div_ceil(ROWS_PER_BLOCK), 1, 1);
                let (x, y, dst) = (vx as u64, vy as u64, dst as u64);
                enqueue(stream, &kernel, grid, BLOCK, |launch| {
                    launch.arg(&x).arg(&y).arg(&dst);
                    launch.arg(&ncols_x).arg(&nrows_x).arg(&stride_col_y).arg(&stride_col_dst);
                })
            });
        }
    )*};
}

mmvq! {
    launch_mmvq_gguf_q4_0_bf16_plain = "q4_0", "bf16";
    launch_mmvq_gguf_q4_1_bf16_plain = "q4_1", "bf16";
    launch_mmvq_gguf_q5_0_bf16_plain = "q5_0", "bf16";
    launch_mmvq_gguf_q5_1_bf16_plain = "q5_1", "bf16";
    launch_mmvq_gguf_q8_0_bf16_plain = "q8_0", "bf16";
    launch_mmvq_gguf_q2_k_bf16_plain = "q2_K", "bf16";
    launch_mmvq_gguf_q3_k_bf16_plain = "q3_K", "bf16";
    launch_mmvq_gguf_q4_k_bf16_plain = "q4_K", "bf16";
    launch_mmvq_gguf_q5_k_bf16_plain = "q5_K", "bf16";
    launch_mmvq_gguf_q6_k_bf16_plain = "q6_K", "bf16";
    launch_mmvq_gguf_q4_0_f16_plain = "q4_0", "f16";
    launch_mmvq_gguf_q4_1_f16_plain = "q4_1", "f16";
    launch_mmvq_gguf_q5_0_f16_plain = "q5_0", "f16";
    launch_mmvq_gguf_q5_1_f16_plain = "q5_1", "f16";
    launch_mmvq_gguf_q8_0_f16_plain = "q8_0", "f16";
    launch_mmvq_gguf_q2_k_f16_plain = "q2_K", "f16";
    launch_mmvq_gguf_q3_k_f16_plain = "q3_K", "f16";
    launch_mmvq_gguf_q4_k_f16_plain = "q4_K", "f16";
    launch_mmvq_gguf_q5_k_f16_plain = "q5_K", "f16";
    launch_mmvq_gguf_q6_k_f16_plain = "q6_K", "f16";
    launch_mmvq_gguf_q4_0_f32_plain = "q4_0", "f32";
    launch_mmvq_gguf_q4_1_f32_plain = "q4_1", "f32";
    launch_mmvq_gguf_q5_0_f32_plain = "q5_0", "f32";
    launch_mmvq_gguf_q5_1_f32_plain = "q5_1", "f32";
    launch_mmvq_gguf_q8_0_f32_plain = "q8_0", "f32";
    launch_mmvq_gguf_q2_k_f32_plain = "q2_K", "f32";
    launch_mmvq_gguf_q3_k_f32_plain = "q3_K", "f32";
    launch_mmvq_gguf_q4_k_f32_plain = "q4_K", "f32";
    launch_mmvq_gguf_q5_k_f32_plain = "q5_K", "f32";
    launch_mmvq_gguf_q6_k_f32_plain = "q6_K", "f32";
}

macro_rules! mmvq_quantize {
    ($($name:ident = $number:literal, $size:literal;)*) => {$(
        /// Activations of `num_rows` columns, rounded to q8_1.
        ///
        /// # Safety
        /// `x` holds `num_rows` times `kx` numbers, `vy` has room for as many of `kx_padded`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            x: *const c_void,
            vy: *mut c_void,
            kx: i32,
            kx_padded: i32,
            num_rows: i32,
            stream: *mut c_void,
        ) {
            on_stream(stream, stringify!($name), |stream| {
                let kernel = concat!("quantize_q8_1_", $number);
                quantize(stream, kernel, [x as u64, vy as u64], $size, kx as u32, kx_padded as u32, num_rows as u32)
            });
        }
    )*};
}

mmvq_quantize! {
    launch_mmvq_gguf_quantize_q8_1_bf16 = "bf16", 2;
    launch_mmvq_gguf_quantize_q8_1_f16 = "f16", 2;
    launch_mmvq_gguf_quantize_q8_1_f32 = "f32", 4;
}

macro_rules! mmq_quantize {
    ($($name:ident)*) => {$(
        /// Activations of `ne1` columns of `ne00` numbers, rounded to q8_1 and padded to `ne0`. Candle's own
        /// kernels lay them out in three ways; ours need one.
        ///
        /// # Safety
        /// `x` holds `ne1` columns of `ne00` numbers side by side, `vy` has room for as many of `ne0`.
        #[allow(clippy::too_many_arguments, non_snake_case, reason = "Candle's signature")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            x: *const c_void,
            _ids: *const i32,
            vy: *mut c_void,
            _type_x: i32,
            ne00: i64,
            _s01: i64,
            _s02: i64,
            _s03: i64,
            ne0: i64,
            ne1: i64,
            _ne2: i64,
            _ne3: i64,
            stream: *mut c_void,
        ) {
            on_stream(stream, stringify!($name), |stream| {
                quantize(stream, "quantize_q8_1", [x as u64, vy as u64], 4, ne00 as u32, ne0 as u32, ne1 as u32)
            });
        }
    )*};
}

mmq_quantize! { launch_mmq_quantize_q8_1_D4 launch_mmq_quantize_q8_1_DS4 launch_mmq_quantize_q8_1_D2S6 }

macro_rules! mmq {
    ($($name:ident = $format:literal;)*) => {$(
        /// A product with any number of columns.
        ///
        /// # Safety
        /// Addresses are of live device memory in the layouts of `quantized.hip`, and `stream` is a live stream's.
        #[allow(clippy::too_many_arguments, reason = "Candle's signature")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            _tmp_fixup: *mut c_void,
            x: *const c_void,
            y: *const c_void,
            dst: *mut c_void,
            ncols_x: i64,
            nrows_x: i64,
            ncols_y: i64,
            stride_row_x: i64,
            stride_col_dst: i64,
            _cc: i32,
            _nsm: i32,
            _smpbo: i64,
            _warp_size: i32,
            stream: *mut c_void,
        ) {
            on_stream(stream, stringify!($name), |stream| {
                let (x, y, dst) = (x as u64, y as u64, dst as u64);
                let (k, rows, columns) = (ncols_x as i32, nrows_x as i32, ncols_y as i32);
                let (step_x, step_dst) = (stride_row_x as i32, stride_col_dst as i32);
                let step_y = ((ncols_x as u32).next_multiple_of(ROW_PADDING) / 32) as i32;
                let (kernel, block_rows, block_columns) = if columns as u32 <= FEW_COLUMNS {
                    (concat!("mmq_few_", $format), ROWS_PER_BLOCK, COLUMNS_PER_BLOCK)
                } else {
                    (concat!("mmq_", $format), TILE, TILE)
                };
                let grid = ((rows as u32).div_ceil(block_rows), (columns as u32).div_ceil(block_columns), 1);
                enqueue(stream, kernel, grid, BLOCK, |launch| {
                    launch.arg(&x).arg(&y).arg(&dst).arg(&k).arg(&rows).arg(&columns);
                    launch.arg(&step_x).arg(&step_y).arg(&step_dst);
                })
            });
        }
    )*};
}

mmq! {
    launch_mmq_gguf_q4_0 = "q4_0";
    launch_mmq_gguf_q4_1 = "q4_1";
    launch_mmq_gguf_q5_0 = "q5_0";
    launch_mmq_gguf_q5_1 = "q5_1";
    launch_mmq_gguf_q8_0 = "q8_0";
    launch_mmq_gguf_q2_k = "q2_K";
    launch_mmq_gguf_q3_k = "q3_K";
    launch_mmq_gguf_q4_k = "q4_K";
    launch_mmq_gguf_q5_k = "q5_K";
    launch_mmq_gguf_q6_k = "q6_K";
}

/// What the three launchers of mixtures share: positions sorted by expert.
struct Mixture {
    ids: u64,
    experts: u64,
    /// 0 where pairs have no weights.
    weights: u64,
    n_experts: i32,
    n_places: i32,
    n_pairs: i32,
    n: i32,
    k: i32,
}

impl Mixture {
    fn grid(&self) -> (u32, u32, u32) {
        ((self.n as u32).div_ceil(ROWS_PER_BLOCK), self.n_pairs as u32, 1)
    }

    /// Rows of the input: one for each pair where pairs have weights, else one for each token.
    fn n_inputs(&self) -> u32 {
        let n_pairs = self.n_pairs.max(0) as u32;
        if self.weights != 0 { n_pairs } else { n_pairs / self.n_places.max(1) as u32 }
    }

    /// Quantised weights: rounds the input first, in memory of the stream's pool.
    fn quantized(
        &self,
        stream: &Arc<CudaStream>,
        (kernel, size_of_input): (&str, usize),
        [input, x, dst]: [u64; 3],
        format: i32,
    ) -> Result<(), DriverError> {
        const FORMATS: [&str; 6] = ["q8_0", "q4_K", "q2_K", "q3_K", "q5_K", "q6_K"];
        let unknown = || DriverError::new(format!("no mixture of weights of type {format}"));
        let format = usize::try_from(format).ok().and_then(|i| FORMATS.get(i)).ok_or_else(unknown)?;
        let n_padded = (self.k as u32).next_multiple_of(ROW_PADDING);
        let bytes = self.n_inputs() as usize * (n_padded / 32) as usize * Q8_1_BYTES;
        // SAFETY: written by the first kernel, read by the second; its memory returns to this stream's pool.
        let rounded: CudaSlice<u8> = unsafe { stream.alloc(bytes)? };
        let (y, _order) = rounded.device_ptr(stream);
        quantize(stream, kernel, [input, y], size_of_input, self.k as u32, n_padded, self.n_inputs())?;
        let padded = n_padded as i32;
        enqueue(stream, &format!("moe_gguf_{format}"), self.grid(), BLOCK, |launch| {
            launch.arg(&x).arg(&y).arg(&self.ids).arg(&self.experts).arg(&self.weights).arg(&dst);
            launch.arg(&self.n_experts).arg(&self.n_places).arg(&self.n_pairs).arg(&self.n).arg(&self.k).arg(&padded);
        })
    }
}

/// A mixture of experts whose weights and inputs are halves: type 0 is f16, 1 bf16.
///
/// # Safety
/// As Candle calls it: `input` holds a row for each pair (with weights) or for each token, `output` a row for each pair.
#[allow(clippy::too_many_arguments, reason = "Candle's signature")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moe_gemm_wmma(
    input: *const c_void,
    weights: *const c_void,
    sorted_token_ids: *const i32,
    expert_ids: *const i32,
    topk_weights: *const f32,
    output: *mut c_void,
    _expert_counts: *mut i32,
    _expert_offsets: *mut i32,
    num_experts: i32,
    topk: i32,
    size_m: i32,
    size_n: i32,
    size_k: i32,
    dtype: i32,
    _is_prefill: bool,
    stream: i64,
) {
    let mixture = Mixture {
        ids: sorted_token_ids as u64,
        experts: expert_ids as u64,
        weights: topk_weights as u64,
        n_experts: num_experts,
        n_places: topk,
        n_pairs: size_m,
        n: size_n,
        k: size_k,
    };
    on_stream(stream as *mut c_void, "moe_gemm_wmma", |stream| {
        let m = &mixture;
        let (x, y, dst) = (weights as u64, input as u64, output as u64);
        enqueue(stream, if dtype == 0 { "moe_f16" } else { "moe_bf16" }, m.grid(), BLOCK, |launch| {
            launch.arg(&x).arg(&y).arg(&m.ids).arg(&m.experts).arg(&m.weights).arg(&dst);
            launch.arg(&m.n_experts).arg(&m.n_places).arg(&m.n_pairs).arg(&m.n).arg(&m.k);
        })
    });
}

/// A mixture of experts with quantised weights and f32 inputs.
///
/// # Safety
/// As [`moe_gemm_wmma`].
#[allow(clippy::too_many_arguments, reason = "Candle's signature")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moe_gemm_gguf(
    input: *const f32,
    weights: *const c_void,
    sorted_token_ids: *const i32,
    expert_ids: *const i32,
    topk_weights: *const f32,
    output: *mut c_void,
    num_experts: i32,
    topk: i32,
    size_m: i32,
    size_n: i32,
    size_k: i32,
    gguf_dtype: i32,
    stream: i64,
) {
    let mixture = Mixture {
        ids: sorted_token_ids as u64,
        experts: expert_ids as u64,
        weights: topk_weights as u64,
        n_experts: num_experts,
        n_places: topk,
        n_pairs: size_m,
        n: size_n,
        k: size_k,
    };
    on_stream(stream as *mut c_void, "moe_gemm_gguf", |stream| {
        let memory = [input as u64, weights as u64, output as u64];
        mixture.quantized(stream, ("quantize_q8_1_f32", 4), memory, gguf_dtype)
    });
}

/// The same for many tokens, whose inputs come as halves: type 0 is f16, 1 bf16.
///
/// # Safety
/// As [`moe_gemm_wmma`].
#[allow(clippy::too_many_arguments, reason = "Candle's signature")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moe_gemm_gguf_prefill(
    input: *const c_void,
    weights: *const u8,
    sorted_token_ids: *const i32,
    expert_ids: *const i32,
    topk_weights: *const f32,
    output: *mut c_void,
    num_experts: i32,
    topk: i32,
    size_m: i32,
    size_n: i32,
    size_k: i32,
    input_dtype: i32,
    gguf_dtype: i32,
    stream: i64,
) {
    let mixture = Mixture {
        ids: sorted_token_ids as u64,
        experts: expert_ids as u64,
        weights: topk_weights as u64,
        n_experts: num_experts,
        n_places: topk,
        n_pairs: size_m,
        n: size_n,
        k: size_k,
    };
    on_stream(stream as *mut c_void, "moe_gemm_gguf_prefill", |stream| {
        let kernel = if input_dtype == 0 { "quantize_q8_1_f16" } else { "quantize_q8_1_bf16" };
        let memory = [input as u64, weights as u64, output as u64];
        mixture.quantized(stream, (kernel, 2), memory, gguf_dtype)
    });
}
