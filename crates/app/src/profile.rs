//! What a profiled run says: a table of ops with their device times and their share of the device's limits, and a file
//! for chrome://tracing (or ui.perfetto.dev). `roci run --profile` and `roci bench --profile` share it.

use crate::report::{HintExt, human_bytes};
use anyhow::{Context, Result};
use model::{DeviceLimits, StepProfile};
use serde_json::json;
use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// Where the trace goes unless it is said.
pub const FILE: &str = "roci-profile.json";

/// One op over all steps.
#[derive(Debug, Clone, Default, PartialEq)]
struct OpSum {
    name: &'static str,
    n_calls: usize,
    time: Duration,
    bytes: u64,
    flops: u64,
}

fn sums(steps: &[StepProfile]) -> Vec<OpSum> {
    let mut sums: Vec<OpSum> = Vec::new();
    for op in steps.iter().flat_map(|step| &step.ops) {
        let found = sums.iter().position(|sum| sum.name == op.name);
        let found = found.unwrap_or_else(|| {
            sums.push(OpSum { name: op.name, ..OpSum::default() });
            sums.len() - 1
        });
        let sum = &mut sums[found];
        sum.n_calls += 1;
        sum.time += op.time;
        sum.bytes += op.work.bytes;
        sum.flops += op.work.flops;
    }
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.time));
    sums
}

/// The share of a limit that work in this time reaches, in percent.
fn share(work: u64, time: Duration, limit_per_s: f64) -> Option<f64> {
    (limit_per_s > 0.0 && !time.is_zero() && work > 0).then(|| 100.0 * work as f64 / time.as_secs_f64() / limit_per_s)
}

/// The table. An op is held against the limit it comes closer to.
pub fn table(steps: &[StepProfile], limits: &DeviceLimits) -> String {
    let sums = sums(steps);
    let all: Duration = sums.iter().map(|sum| sum.time).sum();
    let n_rows: usize = steps.iter().map(|step| step.n_rows).sum();
    let mut out = format!("{} steps, {n_rows} tokens, {:.3} ms in ops\n", steps.len(), all.as_secs_f64() * 1e3);
    let _ = writeln!(
        out,
        "  {:12} {:>7} {:>11} {:>6} {:>9} {:>9}  of the limit",
        "op", "calls", "us", "%", "bytes", "GFLOP"
    );
    for sum in &sums {
        let percent = 100.0 * sum.time.as_secs_f64() / all.as_secs_f64().max(1e-12);
        let memory = share(sum.bytes, sum.time, limits.memory_bytes_per_s).map(|share| (share, "memory"));
        let matrix = share(sum.flops, sum.time, limits.matrix_flops_per_s).map(|share| (share, "matrix"));
        let reached = [memory, matrix].into_iter().flatten().max_by(|a, b| a.0.total_cmp(&b.0));
        let reached = reached.map_or("-".to_owned(), |(share, of)| format!("{share:.0} % {of}"));
        let _ = writeln!(
            out,
            "  {:12} {:>7} {:>11.1} {percent:>6.1} {:>9} {:>9.2}  {reached}",
            sum.name,
            sum.n_calls,
            sum.time.as_secs_f64() * 1e6,
            human_bytes(sum.bytes),
            sum.flops as f64 / 1e9,
        );
    }
    let limit = |value: f64, unit: f64, name: &str| match value > 0.0 {
        true => format!("{:.0} {name}", value / unit),
        false => format!("{name} not known"),
    };
    let (memory, matrix) = (limits.memory_bytes_per_s, limits.matrix_flops_per_s);
    let _ = write!(out, "  limits: memory {}, matrix {}", limit(memory, 1e9, "GB/s"), limit(matrix, 1e12, "TFLOP/s"));
    out
}

/// Writes the steps in Chrome's trace event format: one row for steps by the host's clock, one for ops by the device's.
pub fn write_trace(path: &Path, steps: &[StepProfile], limits: &DeviceLimits) -> Result<()> {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let mut events = vec![
        json!({"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "steps"}}),
        json!({"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "ops on the device"}}),
    ];
    for step in steps {
        let length = step.ops.iter().map(|op| op.start + op.time).max().unwrap_or_default();
        let kind = if step.n_rows == step.n_seqs { "decode" } else { "prefill" };
        events.push(json!({"ph": "X", "pid": 1, "tid": 1, "name": kind, "ts": us(step.start), "dur": us(length),
                           "args": {"rows": step.n_rows, "sequences": step.n_seqs}}));
        for op in &step.ops {
            events.push(json!({
                "ph": "X", "pid": 1, "tid": 2, "name": op.name,
                "ts": us(step.start + op.start), "dur": us(op.time),
                "args": {"bytes": op.work.bytes, "flops": op.work.flops,
                         "memory_percent": share(op.work.bytes, op.time, limits.memory_bytes_per_s),
                         "matrix_percent": share(op.work.flops, op.time, limits.matrix_flops_per_s)},
            }));
        }
    }
    let write = || -> Result<()> {
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        serde_json::to_writer(&mut file, &json!({"traceEvents": events, "displayTimeUnit": "ns"}))?;
        Ok(file.flush()?)
    };
    write().with_context(|| format!("cannot write `{}`", path.display())).hint("use another file: --profile=FILE")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu::{OpTime, Work};

    fn step(ops: &[(&'static str, u64, u64, u64)]) -> StepProfile {
        let mut start = Duration::ZERO;
        let ops = ops.iter().map(|&(name, us, bytes, flops)| {
            let op = OpTime { name, start, time: Duration::from_micros(us), work: Work { bytes, flops } };
            start += op.time;
            op
        });
        StepProfile { n_rows: 1, n_seqs: 1, start: Duration::from_millis(5), ops: ops.collect() }
    }

    const LIMITS: DeviceLimits = DeviceLimits { memory_bytes_per_s: 1e12, matrix_flops_per_s: 1e14 };

    #[test]
    fn ops_are_summed_and_held_against_the_nearer_limit() {
        // 50 MB in 100 us is half of 1 TB/s; 9 GFLOP in 100 us is 90 % of 100 TFLOP/s.
        let steps =
            [step(&[("matmul", 100, 50_000_000, 9_000_000_000), ("rope", 10, 0, 0)]), step(&[("rope", 10, 0, 0)])];
        let table = table(&steps, &LIMITS);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("2 steps, 2 tokens, 0.120 ms"), "{table}");
        assert!(lines[2].contains("matmul") && lines[2].ends_with("90 % matrix"), "{table}");
        assert!(lines[3].contains("rope") && lines[3].contains(" 2 ") && lines[3].ends_with("  -"), "{table}");
        assert!(lines[4].contains("memory 1000 GB/s, matrix 100 TFLOP/s"), "{table}");
    }

    #[test]
    fn the_trace_is_what_chrome_reads() {
        let path = std::env::temp_dir().join(format!("roci-trace-{}.json", std::process::id()));
        write_trace(&path, &[step(&[("matmul", 100, 50_000_000, 0), ("rope", 10, 0, 0)])], &LIMITS).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let ops: Vec<_> = events.iter().filter(|event| event["tid"] == 2 && event["ph"] == "X").collect();
        assert_eq!(ops.len(), 2);
        assert_eq!(
            (ops[1]["name"].as_str(), ops[1]["ts"].as_f64(), ops[1]["dur"].as_f64()),
            (Some("rope"), Some(5100.0), Some(10.0))
        );
        assert_eq!(ops[0]["args"]["memory_percent"], 50.0);
        assert_eq!(events.iter().filter(|event| event["name"] == "decode").count(), 1);
    }
}
