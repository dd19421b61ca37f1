//! `roci cp`: another name for a model. The file is shared.

use anyhow::Result;
use hub::Store;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  roci cp smollm2 assistant    `roci run assistant` then runs the same model

The file is not copied: both names share it, and it is removed with the last name.";

/// Give a model another name
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A name as `roci list` shows it
    from: String,
    /// The new name
    to: String,
}

pub fn main(args: &Args) -> Result<()> {
    Store::from_env()?.copy(&args.from, &args.to)?;
    writeln!(std::io::stdout(), "{} is now also {}", args.from, args.to)?;
    Ok(())
}
