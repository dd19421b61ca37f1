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
