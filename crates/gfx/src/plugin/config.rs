//! What the environment asks of the plug-in. Read once, when the model is created.

use std::time::Duration;

use crate::chip::Chip;
use crate::dispatch::Options;
use crate::error::Error;

/// The host counts as busy while packets arrive closer together than this.
const QUIET: Duration = Duration::from_micros(150);

#[derive(Clone, Debug)]
pub struct Config {
    pub chip: &'static Chip,
    pub options: Options,
    /// `GFX_LOG`: every packet and allocation on stderr.
    pub is_logged: bool,
    /// `GFX_COUNTERS`: a line of counters per dispatch, to this file (`-` is stderr).
    pub counters: Option<String>,
    /// `GFX_SEED`: hostile order.
    pub seed: Option<u64>,
    /// `GFX_QUIET`: in hostile order, so long no packet must have come before one is chosen.
    pub quiet: Duration,
    /// `GFX_HANG_AT`, `GFX_FAULT_AT`: the n-th dispatch of a named kernel (from 1) never ends, or faults.
    pub hang_at: Option<u64>,
    pub fault_at: Option<u64>,
    /// `GFX_LATE_EVENTS`: so many microseconds pass between a signal's value and its event.
    pub event_delay: Option<Duration>,
}

fn wrong(name: &str, why: String) -> Error {
    Error::Io { path: format!("environment variable {name}"), source: std::io::Error::other(why) }
}

fn number(name: &str) -> Result<Option<u64>, Error> {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => {
            text.parse().map(Some).map_err(|_| wrong(name, format!("`{text}` is not a whole number")))
        }
        _ => Ok(None),
    }
}

/// The n-th of something, counted from 1.
fn nth(name: &str) -> Result<Option<u64>, Error> {
    match number(name)? {
        Some(0) => Err(wrong(name, "dispatches are counted from 1".into())),
        n => Ok(n),
    }
}

pub fn is_on(name: &str) -> bool {
    std::env::var(name).is_ok_and(|v| !v.is_empty() && v != "0")
}

/// `GFX_CHIP`, or the Radeon.
pub fn chip() -> Result<&'static Chip, Error> {
    Chip::find(&std::env::var("GFX_CHIP").unwrap_or_else(|_| "gfx1100".into()))
}

impl Config {
    pub fn from_env() -> Result<Self, Error> {
        if let Ok(text) = std::env::var("GFX_FAIL_ALLOC")
            && !text.is_empty()
            && super::interpose::parse(&text).is_none()
        {
            return Err(wrong("GFX_FAIL_ALLOC", format!("`{text}` is neither a count nor count@bytes")));
        }
        let mut options = Options { is_checked: is_on("GFX_SANITIZE"), ..Options::default() };
        if let Some(n) = number("GFX_THREADS")? {
            options.n_threads = (n as usize).clamp(1, 256);
        }
        if let Some(n) = number("GFX_MAX_INSTRUCTIONS")? {
            options.max_instructions = n;
        }
        Ok(Config {
            chip: chip()?,
            options,
            is_logged: is_on("GFX_LOG"),
            counters: std::env::var("GFX_COUNTERS").ok().filter(|s| !s.is_empty()),
            seed: number("GFX_SEED")?,
            quiet: number("GFX_QUIET")?.map_or(QUIET, Duration::from_micros),
            hang_at: nth("GFX_HANG_AT")?,
            fault_at: nth("GFX_FAULT_AT")?,
            event_delay: number("GFX_LATE_EVENTS")?.map(Duration::from_micros),
        })
    }
}
