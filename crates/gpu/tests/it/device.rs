//! Every check of the example `selftest`, as a test on each GPU that is there.

use gpu::{Cache, Device, Vendor};

use crate::checks::{Bench, Check, Failure, Outcome, compiling, faults, memory, products, working};

/// All GPUs, or why there is none.
fn devices() -> Result<Vec<Device>, String> {
    let (mut devices, mut reasons) = (Vec::new(), Vec::new());
    for vendor in Vendor::ALL {
        match Device::count(vendor) {
            Ok(count) => {
                for ordinal in 0..count {
                    devices.push(Device::open(vendor, ordinal).map_err(|error| error.to_string())?);
                }
            }
            Err(error) => reasons.push(error.to_string()),
        }
    }
    if devices.is_empty() { Err(reasons.join("; ")) } else { Ok(devices) }
}

fn run(name: &str, check: Check) {
    let devices = match devices() {
        Ok(devices) => devices,
        Err(why) => return crate::skip(name, &why, "ROCI_REQUIRE_GPU"),
    };
    for device in devices {
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
