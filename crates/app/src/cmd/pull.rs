//! `roci pull`: fetch a model now, use it later.

use crate::report::human_bytes;
use crate::store;
use anyhow::Result;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  roci pull qwen3                     the usual size and quantization for this machine's memory
  roci pull qwen3:4b-q8_0             this size, this quantization
  roci pull hf:OWNER/REPO             the best GGUF file of a Hub repository
  roci pull hf:OWNER/REPO:Q8_0        the one with this word in its name
  roci pull hf:OWNER/REPO:FILE.gguf   exactly this one

An interrupted download resumes. Models are kept in ~/.local/share/roci, or in $ROCI_HOME.
Respects HTTPS_PROXY, SSL_CERT_FILE, pip's index-url, cert and proxy settings, HF_ENDPOINT, HF_TOKEN.";

/// Download a model
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name (see `roci list --all`) or hf:OWNER/REPO[:FILE]
    model: String,
}

pub fn main(args: &Args) -> Result<()> {
    let path = store::resolve(&args.model)?;
    let n_bytes = rocinante::stored_bytes(&path);
    writeln!(std::io::stdout(), "{} ({})", path.display(), human_bytes(n_bytes))?;
    Ok(())
}
