//! `roci key`: keys for `roci serve`.

use anyhow::{Context, Result, bail};
use server::keys;
use std::fs::OpenOptions;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  roci key new --name alice --file keys.txt                       prints the key once; only its hash is stored
  roci key new --name batch --file keys.txt --rate 60 --priority -1
  roci serve smollm2 --api-key-file keys.txt --host 0.0.0.0";

/// Create API keys for `roci serve`
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(clap::Subcommand)]
enum KeyCommand {
    /// Create a key: prints the key, stores its hash in the file
    New(New),
}

#[derive(clap::Args)]
struct New {
    /// Name of the key's owner, as shown in logs
    #[arg(long)]
    name: String,
    /// Key file; without it the line is printed to standard error
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Requests per minute
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Concurrent requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrent: Option<u32>,
    /// Higher is served first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
}

pub fn main(args: &Args) -> Result<()> {
    let KeyCommand::New(new) = &args.command;
    if new.name.is_empty() || new.name.contains(|c: char| c.is_whitespace() || c == '#') {
        bail!("a key's name has no spaces and no `#`");
    }
    let (key, mut line) = keys::generate(&new.name);
    let limits = [("rate", new.rate.map(i64::from)), ("concurrent", new.concurrent.map(i64::from))];
    for (what, value) in limits.into_iter().chain([("priority", new.priority.map(i64::from))]) {
        if let Some(value) = value {
            line.push_str(&format!(" {what}={value}"));
        }
    }
    match &new.file {
        None => eprintln!("line for the key file: {line}"),
        Some(path) => {
            let mut options = OpenOptions::new();
            options.create(true).read(true).append(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let mut file = options.open(path).with_context(|| format!("cannot write `{}`", path.display()))?;
            let mut text = String::new();
            file.rewind()?;
            file.read_to_string(&mut text).with_context(|| format!("cannot read `{}`", path.display()))?;
            let start = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            keys::Keys::parse(&format!("{text}{start}{line}\n")).with_context(|| format!("`{}`", path.display()))?;
            writeln!(file, "{start}{line}")?;
        }
    }
    println!("{key}");
    Ok(())
}
