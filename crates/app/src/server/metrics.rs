//! What an operator sees: counters and histograms as requests go by, gauges read from the engines when asked.

use std::time::Duration;

pub fn refused() {}
pub fn abandoned() {}
pub fn first_token(_after: Duration) {}
pub fn next_token(_after: Duration) {}
pub fn finished(_usage: &engine::Usage, _reason: engine::FinishReason) {}
