//! `roci show`: what a model is and how it is used: its settings and its system prompt. `roci inspect` shows the
//! contents of its file.

use crate::model_file;
use crate::report::human_bytes;
use crate::store;
use anyhow::{Context, Result};
use hub::{Modelfile, Named};
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  roci show smollm2                             family, size, context, license, settings
  roci show pirate --modelfile > Modelfile      a Modelfile that recreates it
  roci show smollm2 --template                  how it formats a conversation";

/// Show a model's settings: its prompt, parameters and template
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name, a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    model: String,
    /// Print it as a Modelfile
    #[arg(long, group = "what")]
    modelfile: bool,
    /// Print its settings only
    #[arg(long, group = "what")]
    parameters: bool,
    /// Print its system prompt only
    #[arg(long, group = "what")]
    system: bool,
    /// Print its chat template only
    #[arg(long, group = "what")]
    template: bool,
    /// Print its license only
    #[arg(long, group = "what")]
    license: bool,
}

pub fn main(args: &Args) -> Result<()> {
    let found = store::find_named(&args.model)?;
    let named = found.named.unwrap_or_else(|| Named { file: found.path.clone(), ..Named::default() });
    let files = model_file::open(&found.path)?;
    let metadata = files.checkpoint().metadata();
    let text = |key: &str| metadata.get(key).map(ToString::to_string).map(|text| text.trim_matches('"').to_owned());
    let own_template = || rocinante::files::template_source(files.checkpoint()).ok().flatten();
    let template = named.template.clone().or_else(own_template);
    let license = named.license.clone().or_else(|| text("general.license"));
    let mut out = std::io::stdout().lock();
    if args.modelfile {
        write!(out, "{}", Modelfile::of(&named))?;
    } else if args.parameters {
        write_parameters(&mut out, &named, "")?;
    } else if args.system {
        writeln!(out, "{}", named.system.context("this model has no system prompt")?)?;
    } else if args.template {
        writeln!(out, "{}", template.context("this model has no chat template")?)?;
    } else if args.license {
        writeln!(out, "{}", license.context("this model does not say its license")?)?;
    } else {
        let info = files.info().map_err(|error| model_file::hinted(&found.path, error))?;
        let architecture = &info.architecture;
        let context = text(&format!("{architecture}.context_length"));
        writeln!(out, "name          {}", found.name)?;
        writeln!(out, "file          {}", found.path.display())?;
        writeln!(out, "size          {}", human_bytes(info.file_bytes))?;
        writeln!(out, "architecture  {architecture}")?;
        writeln!(out, "parameters    {:.1} M", info.n_params as f64 / 1e6)?;
        writeln!(out, "quantization  {}", info.quantization)?;
        for (name, value) in [("context", context), ("license", license)] {
            if let Some(value) = value {
                writeln!(out, "{name:12}  {}", value.lines().next().unwrap_or_default())?;
            }
        }
        let kind = if template.is_some() { "its own" } else { "none: it continues text, or ChatML where it knows it" };
        writeln!(out, "template      {kind}")?;
        if !named.from.is_empty() {
            writeln!(out, "from          {}", named.from)?;
        }
        if !named.parameters.is_empty() {
            writeln!(out, "\nsettings")?;
            write_parameters(&mut out, &named, "  ")?;
        }
        if let Some(system) = &named.system {
            writeln!(out, "\nsystem\n  {}", system.trim().replace('\n', "\n  "))?;
        }
    }
    Ok(())
}

fn write_parameters(out: &mut impl Write, named: &Named, indent: &str) -> Result<()> {
    let width = named.parameters.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in &named.parameters {
        for value in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
            writeln!(out, "{indent}{name:width$}  {value}")?;
        }
    }
    Ok(())
}
