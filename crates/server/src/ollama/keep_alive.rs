//! `keep_alive`: how long a model stays in memory after an answer. A request's value holds until the next request for
//! the model sets one; without it, the operator's `--idle-unload` applies. A key needs `unload=yes` for it to have an
//! effect.

use crate::App;
use crate::error::{ApiError, Result};
use crate::generation::Caller;
use crate::models::IdleLimit;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// Seconds, or a time as Go writes it; negative: for ever.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum KeepAlive {
    #[default]
    Unsaid,
    Seconds(f64),
    Time(String),
}

impl KeepAlive {
    /// Notes how long the model stays. What is returned takes it out of memory, where that was asked for.
    pub fn apply(&self, app: &Arc<App>, model: &str, caller: Caller) -> Result<Option<UnloadOnDrop>> {
        let seconds = match self {
            Self::Unsaid => return Ok(None),
            Self::Seconds(seconds) => *seconds,
            Self::Time(text) => parse(text).ok_or_else(|| {
                let text = format!(
                    "`{text}` is not a time: expected a number of seconds, or text such as \"10m\" or \"1h30m\""
                );
                ApiError::bad(text).param("keep_alive")
            })?,
        };
        if caller.keeps_models {
            return Ok(None);
        }
        if seconds == 0.0 {
            return Ok(Some(UnloadOnDrop { app: Arc::clone(app), model: model.to_owned() }));
        }
        let stay = match Duration::try_from_secs_f64(seconds) {
            Ok(time) => IdleLimit::For(time),
            Err(_) => IdleLimit::Forever,
        };
        app.models.find(model)?.set_idle_limit(Some(stay));
        Ok(None)
    }
}

/// The seconds of `1h30m`, `90s`, `-1m`, `500ms` or `0`.
fn parse(text: &str) -> Option<f64> {
    let (sign, mut rest): (f64, &str) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    if let Ok(seconds) = rest.parse::<f64>() {
        return Some(sign * seconds).filter(|seconds| seconds.is_finite());
    }
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let n_digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..n_digits].parse().ok()?;
        rest = &rest[n_digits..];
        // Longer names first: `m` begins `ms`.
        let units = [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
        let (unit, factor) = units.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        seconds += number * factor;
    }
    Some(sign * seconds)
}

/// Takes a model out of memory when dropped; one that others use goes when they are done.
pub struct UnloadOnDrop {
    app: Arc<App>,
    model: String,
}

impl Drop for UnloadOnDrop {
    fn drop(&mut self) {
        let (app, model) = (Arc::clone(&self.app), std::mem::take(&mut self.model));
        // Dropped by the server's own threads: there is a runtime, unless it is going down.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Ok(entry) = app.models.find(&model) {
                app.models.unload(&entry).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn times_as_go_writes_them() {
        for (text, seconds) in [
            ("0", 0.0),
            ("0s", 0.0),
            ("5m", 300.0),
            ("1h30m", 5400.0),
            ("-1", -1.0),
            ("-1m", -60.0),
            ("1.5h", 5400.0),
            ("500ms", 0.5),
            ("24h", 86_400.0),
        ] {
            assert_eq!(parse(text), Some(seconds), "{text}");
        }
        for text in ["", "-", "m", "5x", "1h30", "five minutes", "inf", "NaN"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
