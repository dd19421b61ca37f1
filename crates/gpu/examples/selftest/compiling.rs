//! Checks of compiling and of the kernels' prelude, against arithmetic on the host in f64.

use half::{bf16, f16};

use gpu::{Cache, Error, Grid, Module, Program, Slice, SliceMut};

use super::kernels::{self, Bias, PRELUDE, PreludeCheck, Rmsnorm};
use super::{Bench, Failure, Numbers, Outcome, passed};
use crate::ensure;

pub fn rmsnorm(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let module = Module::load(&bench.device, &kernels::rmsnorm_program(), &bench.cache)?;
    let kernel = module.kernel::<Rmsnorm>("rmsnorm_f32")?;
    let (mut numbers, mut worst, eps) = (Numbers::new(1), 0f64, 1e-5f32);
    for (n_rows, n_cols) in [(1, 1), (3, 7), (2, 255), (5, 576), (4, 1024), (2, 4097), (2, 4100), (1, 9216)] {
        let (x, w) = (numbers.f32s(n_rows * n_cols), numbers.f32s(n_cols));
        let (dx, dw) = (queue.buffer_from(&x)?, queue.buffer_from(&w)?);
        // Room on both sides, which must stay as it was.
        let mut dy = queue.alloc::<f32>(n_rows * n_cols + 8)?;
        queue.launcher().fill(dy.all_mut(), -77.0)?;
        let y = dy.slice_mut(4..4 + n_rows * n_cols)?;
        let args = Rmsnorm { x: dx.all(), w: dw.all(), y, n_cols: n_cols as u32, eps };
        queue.launcher().launch(&kernel, Grid::line(n_rows as u32, kernels::NORM_THREADS), &args)?;
        let got = queue.read(dy.all())?;
        let (before, after) = (&got[..4], &got[4 + n_rows * n_cols..]);
        ensure!(before == [-77.0; 4] && after == [-77.0; 4], "{n_rows} x {n_cols}: wrote outside its rows");
        for (i, got) in got[4..4 + n_rows * n_cols].iter().enumerate() {
            let row = &x[i / n_cols * n_cols..][..n_cols];
            let mean: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n_cols as f64;
            let want = f64::from(x[i]) * f64::from(w[i % n_cols]) / (mean + f64::from(eps)).sqrt();
            let error = (want - f64::from(*got)).abs() / want.abs().max(1.0);
            worst = worst.max(error);
            ensure!(error < 2e-6, "{n_rows} x {n_cols} element {i}: {got}, not {want}");
        }
    }
    let used = kernel.resources();
    ensure!(used.local_bytes == 0, "it spills: {used:?}");
    ensure!(kernel.blocks_per_multiprocessor(kernels::NORM_THREADS, 0)? >= 1, "it does not fit on a multiprocessor");
    passed(format!("worst relative error {worst:.1e}, {} registers", used.registers))
}

pub fn prelude(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let kernel = Module::load(&bench.device, &kernels::prelude_program(), &bench.cache)?
        .kernel::<PreludeCheck>("prelude_check")?;
    let wave = bench.device.properties().wave_width as usize;
    let n = 2 * wave;
    let mut numbers = Numbers::new(2);
    let mut x = numbers.f32s(n);
    // What rounding gets wrong: ties, a carry into the exponent, numbers too small for a half.
    x[..6].copy_from_slice(&[1.001_953_1, 2049.0, 3.0e-6, -0.0, 1.998_046_9, 0.000_061_035_156]);
    let words: Vec<u32> = (0..2 * n).map(|_| half_pair(&mut numbers)).collect();
    let (dx, dwords) = (queue.buffer_from(&x)?, queue.buffer_from(&words)?);
    let (mut halves, mut brains) = (queue.alloc::<f16>(n)?, queue.alloc::<bf16>(n)?);
    let (mut out, mut ints) = (queue.alloc::<f32>(n * 16)?, queue.alloc::<i32>(n * 4)?);
    let args = PreludeCheck {
        x: dx.all(),
        words: dwords.all(),
        halves: halves.all_mut(),
        brains: brains.all_mut(),
        out: out.all_mut(),
        ints: ints.all_mut(),
    };
    queue.launcher().launch(&kernel, Grid::line(1, n as u32), &args)?;
    let (halves, brains) = (queue.read(halves.all())?, queue.read(brains.all())?);
    let (out, ints) = (queue.read(out.all())?, queue.read(ints.all())?);
    for t in 0..n {
        let v = x[t];
        ensure!(halves[t] == f16::from_f32(v), "f16 of {v} is {}", halves[t]);
        ensure!(brains[t] == bf16::from_f32(v), "bf16 of {v} is {}", brains[t]);
        let group = |width: usize| x[t / width * width..][..width].iter().map(|v| f64::from(*v));
        let most = |values: &[f32]| values.iter().fold(f32::MIN, |a, b| a.max(*b));
        let lane = t % wave;
        let (a, b) = (words[t * 2], words[t * 2 + 1]);
        let half = |word: u32, i: u32| f64::from(f16::from_bits((word >> (16 * i)) as u16));
        let plain = f64::from(v);
        let wants: [f64; 16] = [
            f16::from_f32(v).into(),
            bf16::from_f32(v).into(),
            group(wave).sum(),
            most(&x[t / wave * wave..][..wave]).into(),
            group(n).sum(),
            most(&x).into(),
            x[t ^ 1].into(),
            x[t / wave * wave + wave - 1 - lane].into(),
            (plain * 0.01).exp(),
            1.0 / (plain.abs() + 1.0).sqrt(),
            1.0 / (plain.abs() + 1.0),
            1.0 + half(a, 0) * half(b, 0) + half(a, 1) * half(b, 1),
            group(8).sum(),
            (plain.abs() + 1.0).ln(),
            plain.abs().sqrt(),
            plain.round_ties_even() + plain.min(0.5),
        ];
        for (i, want) in wants.iter().enumerate() {
            let got = f64::from(out[t * 16 + i]);
            // Sums of about a hundred numbers of size 4, and functions good to an ulp or two.
            ensure!((got - want).abs() <= 1e-6 * want.abs().max(20.0), "thread {t}, word {i}: {got}, not {want}");
        }
        let byte = |word: u32, i: u32| (word >> (8 * i)) as u8;
        let signed: i32 = (0..4).map(|i| i32::from(byte(a, i) as i8) * i32::from(byte(b, i) as i8)).sum();
        let mixed: i32 = (0..4).map(|i| i32::from(byte(a, i)) * i32::from(byte(b, i) as i8)).sum();
        let sum: usize = (t / wave * wave..).take(wave).sum();
        let want = [t as i32 + signed, t as i32 + mixed, sum as i32, lane as i32];
        ensure!(ints[t * 4..][..4] == want, "thread {t}: {:?}, not {want:?}", &ints[t * 4..][..4]);
    }
    passed(format!("{n} threads x 22 words, wave {wave}"))
}

/// Two halves between -4 and 4 in a word; as bytes they cover the whole range.
fn half_pair(numbers: &mut Numbers) -> u32 {
    let mut half = || u32::from(f16::from_f32(numbers.next_f32()).to_bits());
    half() | half() << 16
}

gpu::args! {
    /// As `Rmsnorm`, with two parameters the wrong way round.
    struct Crooked<'a> {
        x: Slice<'a, f32>,
        w: Slice<'a, f32>,
        y: SliceMut<'a, f32>,
        eps: f32,
        n_cols: u32,
    }
}

pub fn wrong_host_side(bench: &Bench) -> Result<Outcome, Failure> {
    let program = Program::new("rmsnorm", kernels::RMSNORM)
        .header("prelude.h", PRELUDE)
        .header("rmsnorm.h", kernels::NORM_ROW)
        .kernel::<Crooked>("rmsnorm_f32");
    let Err(Error::Compile { log, .. }) = Module::load(&bench.device, &program, &Cache::off()).map(drop) else {
        return Err(Failure("a kernel compiled against the wrong argument struct".into()));
    };
    ensure!(log.contains("rmsnorm_f32"), "the log does not name the kernel: {log}");
    let module = Module::load(&bench.device, &kernels::rmsnorm_program(), &bench.cache)?;
    ensure!(module.kernel::<Crooked>("rmsnorm_f32").is_err(), "a kernel was given out with other arguments");
    ensure!(module.kernel::<Rmsnorm>("rmsnorm_f64").is_err(), "a kernel nobody declared was given out");
    passed("refused when compiling and when asking")
}

pub fn compile_error(bench: &Bench) -> Result<Outcome, Failure> {
    let program = Program::new("broken", "extern \"C\" __global__ void k(float* x) { x[0] = nonsense; }");
    let Err(error @ Error::Compile { .. }) = Module::load(&bench.device, &program, &Cache::off()).map(drop) else {
        return Err(Failure("nonsense compiled".into()));
    };
    let words = error.to_string();
    ensure!(words.contains("broken") && words.contains("nonsense"), "{words}");
    passed("names the program and the line")
}

pub fn kernel_cache(bench: &Bench) -> Result<Outcome, Failure> {
    let folder = std::env::temp_dir().join(format!("gpu-selftest-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let (cache, target) = (Cache::at(&folder), gpu::Target::of(&bench.device));
    let program = kernels::rmsnorm_program();
    let first = program.compile(&target, &cache)?;
    let second = program.compile(&target, &cache)?;
    let changed = program.clone().define("SOMETHING", 1).compile(&target, &cache)?;
    let entries = cache.entries()?.len();
    let _ = std::fs::remove_dir_all(&folder);
    ensure!(!first.is_cached && second.is_cached && first.bytes == second.bytes, "the second compile was a compile");
    ensure!(!changed.is_cached && entries == 2, "a changed define found the old code");
    Module::from_code(&bench.device, &program, &second)?.kernel::<Rmsnorm>("rmsnorm_f32")?;
    passed(format!("{} bytes", first.bytes.len()))
}

pub fn optional_argument(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let bias = queue.buffer_from(&[1f32, 2.0, 3.0])?;
    let mut y = queue.alloc_zeroed::<f32>(3)?;
    let launcher = queue.launcher();
    let args = Bias { bias: Some(bias.all()), y: y.all_mut(), n: 3 };
    launcher.launch(&small.bias, Grid::line(1, 256), &args)?;
    launcher.launch(&small.bias, Grid::line(1, 256), &Bias { bias: None, y: y.all_mut(), n: 3 })?;
    ensure!(queue.read(y.all())? == [101.0, 102.0, 103.0], "None is not a null pointer");
    passed("")
}
