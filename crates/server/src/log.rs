//! Logs on standard error: one line for what happened to the server, one for each request. Texts of prompts and answers
//! are written only where the operator asked for them.

use anyhow::{Context, Result};
use clap::ValueEnum;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

pub fn install(filter: &str, format: LogFormat) -> Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| format!("--log-level `{filter}`"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let installed = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(|error| anyhow::anyhow!("logs cannot be set up: {error}"))
}
