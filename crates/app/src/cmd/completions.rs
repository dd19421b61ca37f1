//! `roci completions`: a shell's completion script, made from the command line's own definition.

use anyhow::Result;
use clap_complete::Shell;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  roci completions bash > ~/.local/share/bash-completion/completions/roci
  roci completions zsh > ~/.zfunc/_roci          with ~/.zfunc in fpath
  roci completions fish > ~/.config/fish/completions/roci.fish";

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    shell: Shell,
}

pub fn main(args: &Args, mut command: clap::Command) -> Result<()> {
    // Into memory first: the generator panics if a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "roci", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}
