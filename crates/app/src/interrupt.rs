//! Ctrl-C stops the answer, not the program. While an answer is being made the first Ctrl-C asks it to
//! end; at any other time, and a second time, it ends the program as usual.

use anyhow::{Context, Result};
use std::sync::Once;
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const ARMED: u8 = 1;
const HIT: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);
static INSTALL: Once = Once::new();

/// Exit status of a program that Ctrl-C ended, by the shells' convention.
pub const EXIT_STATUS: u8 = 130;

/// While it lives, Ctrl-C is a request to stop.
#[derive(Debug)]
pub struct InterruptGuard(());

pub fn arm() -> Result<InterruptGuard> {
    let mut installed = Ok(());
    INSTALL.call_once(|| {
        installed = ctrlc::set_handler(|| {
            if STATE.compare_exchange(ARMED, HIT, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                std::process::exit(i32::from(EXIT_STATUS));
            }
        });
    });
    installed.context("cannot handle Ctrl-C")?;
    STATE.store(ARMED, Ordering::SeqCst);
    Ok(InterruptGuard(()))
}

impl InterruptGuard {
    pub fn is_hit(&self) -> bool {
        STATE.load(Ordering::SeqCst) == HIT
    }
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        STATE.store(IDLE, Ordering::SeqCst);
    }
}
