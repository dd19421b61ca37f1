//! `roci stop`: takes a model out of the memory of a running server.

use crate::running_server::ServerArgs;
use anyhow::Result;
use serde_json::json;
use std::io::Write;

/// Take a model out of a server's memory
#[derive(clap::Args)]
pub struct Args {
    /// Its name, as `roci ps` shows it
    model: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub fn main(args: &Args) -> Result<()> {
    // Ollama's way to say so: no prompt, and nothing to keep it for.
    args.server.post("/api/generate", &json!({"model": args.model, "keep_alive": 0, "stream": false}))?;
    writeln!(std::io::stdout(), "stopped {}", args.model)?;
    Ok(())
}
