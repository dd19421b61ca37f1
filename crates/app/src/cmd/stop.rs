//! `roci stop`: takes a model out of the memory of a running server.

use crate::report::HintExt;
use crate::running_server::ServerArgs;
use anyhow::{Result, anyhow};
use serde_json::json;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  roci stop smollm2    frees its memory; the next request loads it again";

/// Unload a model from a server
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Its name, as `roci ps` shows it
    model: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub fn main(args: &Args) -> Result<()> {
    let running = args.server.get("/api/ps")?;
    let running = running["models"].as_array().map_or(&[][..], Vec::as_slice);
    let names: Vec<&str> = running.iter().filter_map(|model| model["name"].as_str()).collect();
    if !names.iter().any(|name| hub::normal_name(name) == hub::normal_name(&args.model)) {
        let there =
            if names.is_empty() { "no model is".to_owned() } else { format!("in memory: {}", names.join(", ")) };
        return Err(anyhow!("`{}` is not in the server's memory", args.model)).hint(there);
    }
    // Ollama's way to say so: no prompt, and nothing to keep it for.
    args.server.post("/api/generate", &json!({"model": args.model, "keep_alive": 0, "stream": false}))?;
    writeln!(std::io::stdout(), "stopped {}", args.model)?;
    Ok(())
}
