//! Every check of the example `selftest`, as a test on each GPU that is there.

use gpu::Cache;

use crate::checks::{Bench, Check, Failure, Outcome, compiling, faults, memory, products, working};

fn run(name: &str, check: Check) {
    for device in test_support::gpus::open() {
        let bench = Bench { device, cache: Cache::of_user(), child: crate::child_command() };
        match check(&bench) {
            Ok(Outcome::Passed(what)) => eprintln!("{:?}: {name}: {what}", bench.device),
            Ok(Outcome::Skipped(why)) => eprintln!("skipped: {name} on {:?}: {why}", bench.device),
            Err(Failure(why)) => panic!("{:?}: {why}", bench.device),
        }
    }
}

macro_rules! tests {
    ($($name:ident = $function:path),* $(,)?) => {$(
        #[test]
        fn $name() {
            let _turn = turn();
            run(stringify!($name), $function);
        }
    )*};
}
crate::for_each_check!(tests);

/// Counters are per process: one check at a time.
fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A code object that was written to a file runs as it did from memory; a broken file is refused.
#[test]
fn code_objects_load_from_files() {
    use gpu::{Program, Target, unchecked};
    let _turn = turn();
    let source = "extern \"C\" __global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }";
    for device in test_support::gpus::open() {
        let code = Program::new("twice", source).compile(&Target::of(&device), &Cache::of_user()).unwrap();
        let file = std::env::temp_dir().join(format!("twice-{}.hsaco", std::process::id()));
        std::fs::write(&file, &code.bytes).unwrap();
        // SAFETY: a whole code object that this device's own compiler made.
        let module = unsafe { unchecked::load_file(&device, &file) }.unwrap();
        let kernel = unchecked::Kernel::find(&module, "twice").unwrap();
        let stream = unchecked::Stream::new(&device).unwrap();
        let mut numbers = [1f32, 2.0, 3.0, 4.0];
        let mut at = stream.alloc(16).unwrap();
        // SAFETY: sixteen bytes on both sides, which outlive the wait; the kernel takes one address.
        unsafe {
            stream.copy_to_device(at, numbers.as_ptr().cast(), 16).unwrap();
            let mut arguments = [std::ptr::from_mut(&mut at).cast()];
            stream.launch(&kernel, gpu::Grid::line(1, 4), &mut arguments).unwrap();
            stream.copy_to_host(numbers.as_mut_ptr().cast(), at, 16).unwrap();
            stream.wait().unwrap();
            stream.free(at, 16);
        }
        assert_eq!(numbers, [2.0, 4.0, 6.0, 8.0]);
        std::fs::write(&file, [0u8, 1, 2, 3]).unwrap();
        // SAFETY: refused before the driver sees it.
        let error = unsafe { unchecked::load_file(&device, &file) }.err().expect("no code object");
        assert!(error.to_string().contains("neither a code object nor text"), "{error}");
        std::fs::remove_file(&file).unwrap();
    }
}
