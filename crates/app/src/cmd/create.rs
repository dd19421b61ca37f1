//! `roci create`: a custom model from a Modelfile: a base with a system prompt, settings and a conversation.

use crate::report::{self, HintExt};
use crate::store;
use anyhow::{Context, Result};
use hub::{Modelfile, Named, Store};
use std::io::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  roci create pirate -f Modelfile
  roci run pirate

A Modelfile:
  FROM smollm2
  PARAMETER temperature 0.8
  SYSTEM \"\"\"You are a pirate. Answer briefly.\"\"\"

FROM takes what `roci run` takes. PARAMETER, SYSTEM, MESSAGE, TEMPLATE (Jinja) and LICENSE are supported too.";

/// Create a custom model from a Modelfile
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Its name
    name: String,
    /// The Modelfile
    #[arg(short, long, value_name = "FILE", default_value = "Modelfile")]
    file: PathBuf,
}

pub fn main(args: &Args) -> Result<()> {
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read `{}`", args.file.display()))
        .hint("-f names the Modelfile; `roci create --help` shows one")?;
    let recipe = Modelfile::parse(&text).with_context(|| format!("`{}`", args.file.display()))?;
    recipe.notes.iter().for_each(|note| report::note(note));
    // A path in a Modelfile is meant from where the Modelfile is.
    let beside = args.file.parent().unwrap_or(Path::new("")).join(&recipe.from);
    let from = if beside.exists() { std::path::absolute(&beside)?.display().to_string() } else { recipe.from.clone() };
    let base = store::resolve_named(&from)?;
    let file = std::path::absolute(&base.path)?;
    let named = base.named.unwrap_or_else(|| Named { file, ..Named::default() });
    Store::from_env()?.set_name(&args.name, &Modelfile { from, ..recipe }.over(&named))?;
    writeln!(std::io::stdout(), "created {}", args.name)?;
    Ok(())
}
