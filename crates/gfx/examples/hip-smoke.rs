//! A small program against AMD's HIP runtime: compile, load, copy, launch, events, memset, graph, check numbers.
//!
//! `crates/gfx/run target/debug/examples/hip-smoke` shows a Radeon that is not there; on a machine with a card it runs
//! as it is. Prints one line per step and fails loudly on the first wrong number. SMOKE_DEADLINE_MS gives the first
//! kernel a deadline (exit code 4 when it passes), SMOKE_ALLOC=bytes one more allocation, SMOKE_FORGET_EVENT a race.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use libloading::Library;

type Ptr = *mut c_void;
type Launch = unsafe extern "C" fn(Ptr, u32, u32, u32, u32, u32, u32, u32, Ptr, *mut Ptr, *mut Ptr) -> c_int;

const SOURCE: &CStr = cr#"
extern "C" __global__ void __launch_bounds__(256) rmsnorm(const float* x, const float* w, float* y, int n, float eps) {
    __shared__ float part[8];
    const float* row = x + (size_t)blockIdx.x * n;
    float s = 0.f;
    for (int i = threadIdx.x; i < n; i += 256) s += row[i] * row[i];
    for (int m = 16; m > 0; m >>= 1) s += __shfl_xor(s, m, 32);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    s = 0.f;
    for (int i = 0; i < 8; i++) s += part[i];
    float scale = rsqrtf(s / n + eps);
    for (int i = threadIdx.x; i < n; i += 256) y[(size_t)blockIdx.x * n + i] = row[i] * scale * w[i];
}
extern "C" __global__ void add(float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] += b[i];
}
extern "C" __global__ void count(unsigned* c) { atomicAdd(c, 1u); }
extern "C" __global__ void doubled(unsigned* c) { *c *= 2; }
"#;

struct Hip {
    hip: Library,
    rtc: Library,
}

impl Hip {
    /// A symbol as a function pointer of the type the caller writes.
    fn get<T: Copy>(&self, name: &str) -> T {
        let library = if name.starts_with("hiprtc") { &self.rtc } else { &self.hip };
        // SAFETY: the types below are those of AMD's headers (hip_runtime_api.h, hiprtc.h).
        *unsafe { library.get::<T>(name.as_bytes()) }.unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn check(&self, what: &str, code: c_int) {
        if code != 0 {
            let name: unsafe extern "C" fn(c_int) -> *const c_char = self.get("hipGetErrorName");
            // SAFETY: returns a static C string.
            panic!("{what}: {code} {}", unsafe { CStr::from_ptr(name(code)) }.to_string_lossy());
        }
    }

    fn upload<T: Copy>(&self, data: &[T]) -> Ptr {
        let malloc: unsafe extern "C" fn(*mut Ptr, usize) -> c_int = self.get("hipMalloc");
        let copy: unsafe extern "C" fn(Ptr, *const c_void, usize, c_int) -> c_int = self.get("hipMemcpy");
        let n_bytes = size_of_val(data);
        let mut p = null_mut();
        // SAFETY: `p` is written by hipMalloc; the copy reads `n_bytes` of `data`.
        unsafe {
            self.check("hipMalloc", malloc(&mut p, n_bytes));
            self.check("hipMemcpy to device", copy(p, data.as_ptr().cast(), n_bytes, 1));
        }
        p
    }

    fn download<T: Copy + Default>(&self, from: Ptr, n: usize) -> Vec<T> {
        let copy: unsafe extern "C" fn(Ptr, *const c_void, usize, c_int) -> c_int = self.get("hipMemcpy");
        let mut to = vec![T::default(); n];
        // SAFETY: `to` has room for `n` elements, and so has the device buffer.
        self.check("hipMemcpy to host", unsafe { copy(to.as_mut_ptr().cast(), from, n * size_of::<T>(), 2) });
        to
    }

    fn compile(&self, arch: &str) -> Ptr {
        type Create = unsafe extern "C" fn(*mut Ptr, *const c_char, *const c_char, c_int, Ptr, Ptr) -> c_int;
        let create: Create = self.get("hiprtcCreateProgram");
        let compile: unsafe extern "C" fn(Ptr, c_int, *const *const c_char) -> c_int = self.get("hiprtcCompileProgram");
        let size: unsafe extern "C" fn(Ptr, *mut usize) -> c_int = self.get("hiprtcGetCodeSize");
        let code: unsafe extern "C" fn(Ptr, *mut u8) -> c_int = self.get("hiprtcGetCode");
        let load: unsafe extern "C" fn(*mut Ptr, *const u8) -> c_int = self.get("hipModuleLoadData");
        let option = CString::new(format!("--gpu-architecture={arch}")).expect("no NUL in a chip's name");
        let (mut program, mut n, mut module) = (null_mut(), 0, null_mut());
        // SAFETY: out-parameters are live locals, strings are NUL-terminated, `image` has the size hiprtc asked for.
        unsafe {
            self.check(
                "hiprtcCreateProgram",
                create(&mut program, SOURCE.as_ptr(), c"smoke.hip".as_ptr(), 0, null_mut(), null_mut()),
            );
            self.check("hiprtcCompileProgram", compile(program, 1, [option.as_ptr()].as_ptr()));
            self.check("hiprtcGetCodeSize", size(program, &mut n));
            let mut image = vec![0u8; n];
            self.check("hiprtcGetCode", code(program, image.as_mut_ptr()));
            self.check("hipModuleLoadData", load(&mut module, image.as_ptr()));
        }
        println!("compiled by hiprtc: {n} bytes for {arch}");
        module
    }

    fn function(&self, module: Ptr, name: &CStr) -> Ptr {
        let get: unsafe extern "C" fn(*mut Ptr, Ptr, *const c_char) -> c_int = self.get("hipModuleGetFunction");
        let mut f = null_mut();
        // SAFETY: `f` is a live local, the name NUL-terminated.
        self.check("hipModuleGetFunction", unsafe { get(&mut f, module, name.as_ptr()) });
        f
    }

    fn launch(&self, f: Ptr, n_groups: u32, n_threads: u32, stream: Ptr, args: &mut [Ptr]) {
        let launch: Launch = self.get("hipModuleLaunchKernel");
        // SAFETY: `args` points at one live value per kernel parameter.
        let code = unsafe { launch(f, n_groups, 1, 1, n_threads, 1, 1, 0, stream, args.as_mut_ptr(), null_mut()) };
        self.check("hipModuleLaunchKernel", code);
    }
}

fn arg<T>(value: &mut T) -> Ptr {
    (value as *mut T).cast()
}

/// Architecture name from the device properties: the R0600 layout of HIP 6 and 7, or the one before.
fn describe(h: &Hip) -> String {
    let count: unsafe extern "C" fn(*mut c_int) -> c_int = h.get("hipGetDeviceCount");
    type Properties = unsafe extern "C" fn(*mut u8, c_int) -> c_int;
    // SAFETY: only looked up, under the name and type of AMD's header.
    let is_new = unsafe { h.hip.get::<Properties>(b"hipGetDevicePropertiesR0600") }.is_ok();
    let (name, arch_at) = if is_new { ("hipGetDevicePropertiesR0600", 1160) } else { ("hipGetDeviceProperties", 396) };
    let properties: Properties = h.get(name);
    let version: unsafe extern "C" fn(*mut c_int) -> c_int = h.get("hipRuntimeGetVersion");
    let init: unsafe extern "C" fn(c_uint) -> c_int = h.get("hipInit");
    let (mut n, mut v, mut p) = (0, 0, vec![0u8; 4096]);
    // SAFETY: the structure is at most 1472 bytes; 4096 are given.
    unsafe {
        h.check("hipInit", init(0));
        h.check("hipRuntimeGetVersion", version(&mut v));
        h.check("hipGetDeviceCount", count(&mut n));
        h.check("hipGetDeviceProperties", properties(p.as_mut_ptr(), 0));
    }
    let text = |o: usize| String::from_utf8_lossy(p[o..].split(|b| *b == 0).next().unwrap_or(&[])).into_owned();
    let arch = text(arch_at);
    println!("HIP {}.{}, {n} device: {} ({arch})", v / 10_000_000, v / 100_000 % 100, text(0));
    arch
}

fn main() {
    let open = |names: &[&str]| {
        // SAFETY: loading AMD's libraries runs their initialisers, which have no precondition.
        let load = |name: &&str| unsafe { Library::new(name) }.ok();
        names.iter().find_map(load).unwrap_or_else(|| panic!("none of {names:?} loads"))
    };
    // Up to HIP 6 the compiler may live in the runtime's own library.
    let hips = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];
    let h = Hip { hip: open(&hips), rtc: open(&["libhiprtc.so.7", "libhiprtc.so.6", hips[1], hips[2]]) };
    let arch = describe(&h);
    if let Some(n_bytes) = std::env::var("SMOKE_ALLOC").ok().and_then(|v| v.parse().ok()) {
        h.upload(&vec![0u8; n_bytes]);
    }
    let module = h.compile(&arch);
    let (n_rows, n) = (4usize, 1024usize);
    let x: Vec<f32> = (0..n_rows * n).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 100.0).collect();
    let w: Vec<f32> = (0..n).map(|i| 1.0 + (i % 7) as f32 * 0.1).collect();
    let (mut dx, mut dw, mut dy) = (h.upload(&x), h.upload(&w), h.upload(&vec![0f32; n_rows * n]));

    let new_stream: unsafe extern "C" fn(*mut Ptr, c_uint) -> c_int = h.get("hipStreamCreateWithFlags");
    let sync: unsafe extern "C" fn(Ptr) -> c_int = h.get("hipStreamSynchronize");
    let new_event: unsafe extern "C" fn(*mut Ptr) -> c_int = h.get("hipEventCreate");
    let record: unsafe extern "C" fn(Ptr, Ptr) -> c_int = h.get("hipEventRecord");
    let wait: unsafe extern "C" fn(Ptr) -> c_int = h.get("hipEventSynchronize");
    let wait_event: unsafe extern "C" fn(Ptr, Ptr, c_uint) -> c_int = h.get("hipStreamWaitEvent");
    let elapsed: unsafe extern "C" fn(*mut f32, Ptr, Ptr) -> c_int = h.get("hipEventElapsedTime");
    let (mut stream, mut other, mut e0, mut e1) = (null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: all out-parameters are live locals.
    unsafe {
        h.check("hipStreamCreate", new_stream(&mut stream, 1));
        h.check("hipStreamCreate", new_stream(&mut other, 1));
        h.check("hipEventCreate", new_event(&mut e0));
        h.check("hipEventCreate", new_event(&mut e1));
        h.check("hipEventRecord", record(e0, stream));
    }
    let (mut n_, mut eps) = (n as i32, 1e-5f32);
    let rmsnorm = h.function(module, c"rmsnorm");
    h.launch(
        rmsnorm,
        n_rows as u32,
        256,
        stream,
        &mut [arg(&mut dx), arg(&mut dw), arg(&mut dy), arg(&mut n_), arg(&mut eps)],
    );
    let mut ms = 0f32;
    // SAFETY: events and stream were created above.
    unsafe {
        h.check("hipEventRecord", record(e1, stream));
    }
    if let Some(limit_ms) = std::env::var("SMOKE_DEADLINE_MS").ok().and_then(|v| v.parse().ok()) {
        wait_until(&h, e1, limit_ms);
    }
    // SAFETY: as above.
    unsafe {
        h.check("hipEventSynchronize", wait(e1));
        h.check("hipEventElapsedTime", elapsed(&mut ms, e0, e1));
    }
    let y: Vec<f32> = h.download(dy, n_rows * n);
    let mut worst = 0f64;
    for r in 0..n_rows {
        let row = &x[r * n..(r + 1) * n];
        let mean = row.iter().map(|v| (*v as f64).powi(2)).sum::<f64>() / n as f64;
        let scale = 1.0 / (mean + 1e-5).sqrt();
        for i in 0..n {
            worst = worst.max((row[i] as f64 * scale * w[i] as f64 - y[r * n + i] as f64).abs());
        }
    }
    println!("rmsnorm: worst error {worst:.1e}, {ms:.3} ms by events");
    assert!(worst < 1e-5);
    assert!(ms > 0.0 && ms < 60_000.0, "the events' time is {ms} ms");

    let memset: unsafe extern "C" fn(Ptr, c_int, usize, Ptr) -> c_int = h.get("hipMemsetAsync");
    // SAFETY: `dy` holds n_rows * n floats.
    unsafe {
        h.check("hipMemsetAsync", memset(dy, 0, n_rows * n * 4, stream));
        h.check("hipStreamSynchronize", sync(stream));
    }
    assert!(h.download::<f32>(dy, n_rows * n).iter().all(|v| *v == 0.0));
    let copy: unsafe extern "C" fn(Ptr, Ptr, usize, c_int) -> c_int = h.get("hipMemcpy");
    // SAFETY: both buffers hold n_rows * n floats.
    h.check("hipMemcpy on device", unsafe { copy(dy, dx, n_rows * n * 4, 3) });
    assert_eq!(h.download::<f32>(dy, n_rows * n), x);
    println!("memset and device copy: right");

    graph(&h, module, stream, dy, &x);

    // Two streams ordered by one event: without it, hostile order shows.
    let mut counter = h.upload(&[0u32]);
    let (count, doubled) = (h.function(module, c"count"), h.function(module, c"doubled"));
    h.launch(count, 3, 64, stream, &mut [arg(&mut counter)]);
    if std::env::var_os("SMOKE_FORGET_EVENT").is_none() {
        // SAFETY: events and streams were created above.
        unsafe {
            h.check("hipEventRecord", record(e1, stream));
            h.check("hipStreamWaitEvent", wait_event(other, e1, 0));
        }
    }
    h.launch(doubled, 1, 1, other, &mut [arg(&mut counter)]);
    // SAFETY: as above.
    unsafe {
        h.check("hipStreamSynchronize", sync(other));
        h.check("hipStreamSynchronize", sync(stream));
    }
    assert_eq!(h.download::<u32>(counter, 1), [2 * 3 * 64], "two streams");
    println!("two streams and atomics: right");
    streams_without_order(&h, module);
    println!("ok");
}

/// Three streams that have nothing to do with each other: whichever goes first, the numbers are the same.
fn streams_without_order(h: &Hip, module: Ptr) {
    let new_stream: unsafe extern "C" fn(*mut Ptr, c_uint) -> c_int = h.get("hipStreamCreateWithFlags");
    let sync: unsafe extern "C" fn(Ptr) -> c_int = h.get("hipStreamSynchronize");
    let add = h.function(module, c"add");
    let (mut one, mut n) = (h.upload(&[1.0f32; 64]), 64i32);
    let mut lanes: Vec<(Ptr, Ptr)> = Vec::new();
    for _ in 0..3 {
        let mut stream = null_mut();
        // SAFETY: `stream` is a live local.
        h.check("hipStreamCreate", unsafe { new_stream(&mut stream, 1) });
        lanes.push((stream, h.upload(&[0.0f32; 64])));
    }
    for _ in 0..6 {
        for (stream, sum) in &mut lanes {
            h.launch(add, 1, 64, *stream, &mut [arg(sum), arg(&mut one), arg(&mut n)]);
        }
    }
    for (stream, sum) in lanes {
        // SAFETY: a live stream.
        h.check("hipStreamSynchronize", unsafe { sync(stream) });
        assert_eq!(h.download::<f32>(sum, 64), [6.0; 64]);
    }
    println!("three streams without order: right");
}

/// Waits for an event as a program with a step deadline does: asks, and leaves when the answer stays "not ready".
fn wait_until(h: &Hip, event: Ptr, limit_ms: u64) {
    const NOT_READY: c_int = 600;
    let query: unsafe extern "C" fn(Ptr) -> c_int = h.get("hipEventQuery");
    let began = std::time::Instant::now();
    // SAFETY: a live event.
    let mut code = unsafe { query(event) };
    while code == NOT_READY && began.elapsed().as_millis() < limit_ms as u128 {
        std::thread::yield_now();
        // SAFETY: as above.
        code = unsafe { query(event) };
    }
    if code != NOT_READY {
        return h.check("hipEventQuery", code);
    }
    println!("hipErrorNotReady after {limit_ms} ms: the device hangs");
    // HIP's own exit handlers would wait for the device.
    unsafe extern "C" {
        safe fn _exit(code: c_int) -> !;
    }
    _exit(4)
}

fn graph(h: &Hip, module: Ptr, stream: Ptr, mut dy: Ptr, x: &[f32]) {
    let begin: unsafe extern "C" fn(Ptr, c_int) -> c_int = h.get("hipStreamBeginCapture");
    let end: unsafe extern "C" fn(Ptr, *mut Ptr) -> c_int = h.get("hipStreamEndCapture");
    let instantiate: unsafe extern "C" fn(*mut Ptr, Ptr, Ptr, Ptr, usize) -> c_int = h.get("hipGraphInstantiate");
    let replay: unsafe extern "C" fn(Ptr, Ptr) -> c_int = h.get("hipGraphLaunch");
    let sync: unsafe extern "C" fn(Ptr) -> c_int = h.get("hipStreamSynchronize");
    let add = h.function(module, c"add");
    let mut half = h.upload(&vec![0.5f32; x.len()]);
    let mut n = x.len() as i32;
    let (mut graph, mut exec) = (null_mut(), null_mut());
    // SAFETY: out-parameters are live locals; the kernel's arguments live until the graph is done.
    unsafe {
        h.check("hipStreamBeginCapture", begin(stream, 0));
        for _ in 0..3 {
            h.launch(add, (x.len() / 256) as u32, 256, stream, &mut [arg(&mut dy), arg(&mut half), arg(&mut n)]);
        }
        h.check("hipStreamEndCapture", end(stream, &mut graph));
        h.check("hipGraphInstantiate", instantiate(&mut exec, graph, null_mut(), null_mut(), 0));
        for _ in 0..4 {
            h.check("hipGraphLaunch", replay(exec, stream));
        }
        h.check("hipStreamSynchronize", sync(stream));
    }
    let y: Vec<f32> = h.download(dy, x.len());
    assert!(y.iter().zip(x).all(|(a, b)| (a - (b + 6.0)).abs() < 1e-4));
    println!("graph of 3 kernels, replayed 4 times: right");
}
