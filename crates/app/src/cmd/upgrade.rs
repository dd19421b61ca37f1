//! `roci upgrade`: says whether there is a newer version, and where. Installs nothing, and sends nothing but the
//! question.

use crate::report::HintExt;
use anyhow::{Context, Result};
use std::io::Write;

/// Who is asked, where nobody else is named: the release workflow builds the address of its repository in.
const ASKED: Option<&str> = option_env!("ROCI_RELEASES_URL");

/// Say whether there is a newer version
#[derive(clap::Args)]
#[command(
    after_help = "Asks one address for the latest release; installs nothing, and sends nothing but the question."
)]
pub struct Args {
    /// Address to ask; answers as GitHub's API does [default: $ROCI_RELEASES, else this project's]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

pub fn main(args: &Args) -> Result<()> {
    let named = args.url.clone().or_else(|| std::env::var("ROCI_RELEASES").ok()).filter(|url| !url.is_empty());
    let own = env!("CARGO_PKG_VERSION");
    let url = named.or_else(|| ASKED.map(str::to_owned));
    let url = url.context("this build does not know where releases are published").hint("--url names the address")?;
    let release = hub::latest_release(&url)
        .with_context(|| format!("this is roci {own}; whether there is a newer one could not be found out"))?;
    let mut out = std::io::stdout().lock();
    match release.is_newer_than(own) {
        true => writeln!(out, "roci {} is out (this is {own}): {}", release.version(), release.page)?,
        false => writeln!(out, "roci {own} is the latest version")?,
    }
    Ok(())
}
