//! `roci upgrade`: says whether there is a newer version, and where. Installs nothing, and sends nothing but the
//! question.

use crate::report::HintExt;
use anyhow::{Context, Result, anyhow};
use std::io::Write;

/// Who is asked, where nobody else is named: the release workflow builds the address of its repository in.
const ASKED: Option<&str> = option_env!("ROCI_RELEASES_URL");

const EXAMPLES: &str = "\
Examples:
  roci upgrade
  roci upgrade --url https://api.github.com/repos/OWNER/REPO/releases/latest

Asks one address for the latest release. It installs nothing and sends nothing else. A release binary knows the
address of its project; a build from source has none, and says so.";

/// Check for a newer version
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Address to ask, in the format of GitHub's API [default: $ROCI_RELEASES, else this project's]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// For those who mean a model
    #[arg(hide = true, value_name = "MODEL")]
    model: Option<String>,
}

pub fn main(args: &Args) -> Result<()> {
    if let Some(model) = &args.model {
        return Err(anyhow!("`roci upgrade` is about roci itself, not about models")).with_hint(|| {
            format!("`roci rm {model}` and `roci pull {model}` download a model again; the hub's newest file is taken")
        });
    }
    let named = args.url.clone().or_else(|| std::env::var("ROCI_RELEASES").ok()).filter(|url| !url.is_empty());
    let own = env!("CARGO_PKG_VERSION");
    let url = named.or_else(|| ASKED.filter(|url| !url.is_empty()).map(str::to_owned));
    let url = url
        .with_context(|| {
            format!("this is roci {own}, built without the address of a project to ask for newer releases")
        })
        .hint(
            "--url or $ROCI_RELEASES names one that answers as GitHub's releases/latest does; a build from source is \
             renewed by `git pull` and `cargo install --locked --path crates/app`",
        )?;
    let release = hub::latest_release(&url)
        .with_context(|| format!("this is roci {own}; whether there is a newer one could not be found out"))?;
    let mut out = std::io::stdout().lock();
    match release.is_newer_than(own) {
        true => writeln!(out, "roci {} is out (this is {own}): {}", release.version(), release.page)?,
        false => writeln!(out, "roci {own} is the latest version")?,
    }
    Ok(())
}
