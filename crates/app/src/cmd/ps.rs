//! `roci ps`: the models that a running server has in memory.

use crate::options::{ReportFormat, print_json};
use crate::report::human_bytes;
use crate::running_server::ServerArgs;
use crate::table::Table;
use anyhow::Result;
use serde_json::Value;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  roci ps                                    of the server on this machine
  roci ps --server http://192.168.1.5:8080   of another one
  roci ps --output json                      for a program";

/// List the models that a server has in memory
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: ReportFormat,
}

pub fn main(args: &Args) -> Result<()> {
    let answer = args.server.get("/api/ps")?;
    if args.output == ReportFormat::Json {
        return print_json(&answer["models"]);
    }
    let models = answer["models"].as_array().map_or(&[][..], Vec::as_slice);
    let mut out = std::io::stdout().lock();
    if models.is_empty() {
        writeln!(out, "no model is in memory")?;
        return Ok(());
    }
    let mut table = Table::new(&["NAME", "WEIGHTS", "KV CACHE", "DEVICE", "STAYS"]);
    for model in models {
        let text = |key: &str| model[key].as_str().unwrap_or_default().to_owned();
        let bytes = |key: &str| model[key].as_u64();
        // Ollama tells the sum alone.
        let weights = human_bytes(bytes("weights_bytes").or(bytes("size")).unwrap_or(0));
        let kv = bytes("kv_bytes").map_or_else(|| "included".to_owned(), human_bytes);
        table.row([text("name"), weights, kv, device(model), stays(model)]);
    }
    write!(out, "{table}")?;
    Ok(())
}

/// How long it stays in memory if nobody uses it.
fn stays(model: &Value) -> String {
    let until = model["expires_at"].as_str().unwrap_or_default();
    match model["expires_in_s"].as_u64() {
        // Year 1 is Ollama's way to say that it stays.
        None if until.starts_with("0001-") => "until stopped".to_owned(),
        None => format!("until {until}"),
        Some(left_s @ 0..120) => format!("{left_s} s more"),
        Some(left_s) => format!("{} min more", left_s.div_ceil(60)),
    }
}
/// Where a model computes. A server that does not say so, such as Ollama's, still tells how much is on a GPU.
fn device(model: &Value) -> String {
    match (model["device"].as_str(), model["size_vram"].as_u64()) {
        (Some(device), _) => device.to_owned(),
        (None, Some(0)) => "cpu".to_owned(),
        (None, Some(_)) => "gpu".to_owned(),
        (None, None) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_device_is_the_servers_word_or_read_from_memory() {
        assert_eq!(device(&json!({"device": "cuda:0 H200", "size_vram": 5})), "cuda:0 H200");
        assert_eq!(device(&json!({"size_vram": 0})), "cpu");
        assert_eq!(device(&json!({"size_vram": 7})), "gpu");
        assert_eq!(device(&json!({})), "unknown");
    }

    #[test]
    fn how_long_it_stays_reads_as_a_phrase() {
        assert_eq!(stays(&json!({"expires_at": "0001-01-01T00:00:00Z"})), "until stopped");
        assert_eq!(stays(&json!({"expires_at": "2026-01-01T00:00:00Z"})), "until 2026-01-01T00:00:00Z");
        assert_eq!(stays(&json!({"expires_in_s": 30})), "30 s more");
        assert_eq!(stays(&json!({"expires_in_s": 250})), "5 min more");
    }
}
