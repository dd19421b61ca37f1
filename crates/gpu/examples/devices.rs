//! Lists the GPUs of this machine, and says why one cannot be used: `cargo run -p roci-gpu --example devices`.
//!
//! Drivers can hang or abort, so each is asked in a child process, which is this same program.

use gpu::discovery::{Probe, answer_if_asked};

fn main() -> gpu::Result<()> {
    answer_if_asked();
    let found = Probe::this_program()?.discover();
    for gpu in &found.devices {
        println!("{gpu}");
    }
    for (vendor, why) in &found.absent {
        println!("no {vendor} GPU: {why}");
    }
    Ok(())
}
