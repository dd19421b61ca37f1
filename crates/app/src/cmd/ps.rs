//! `roci ps`: the models that a running server has in memory.

use crate::options::{ReportFormat, print_json};
use crate::report::human_bytes;
use crate::running_server::ServerArgs;
use crate::table::Table;
use anyhow::Result;
use std::io::Write;

/// List the models that a server has in memory
#[derive(clap::Args)]
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
    let mut table = Table::new(&["NAME", "SIZE", "UNTIL"]);
    for model in models {
        let text = |key: &str| model[key].as_str().unwrap_or_default().to_owned();
        let size = human_bytes(model["size"].as_u64().unwrap_or(0));
        // Ollama's way to say that it stays.
        let until = text("expires_at");
        table.row([text("name"), size, if until.starts_with("0001-") { "it is stopped".to_owned() } else { until }]);
    }
    write!(out, "{table}")?;
    Ok(())
}
