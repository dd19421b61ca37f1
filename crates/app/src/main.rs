//! `roci`: parse what was typed, turn it into what was meant, do it. This file is the table of
//! contents; each command is one file under `cmd`.
//!
//! What this crate does not do: arithmetic on weights (ops), scheduling or sampling (engine), or
//! tokenizing (text). It connects them, reads the command line and prints.
#![forbid(unsafe_code)]
#![allow(rustdoc::broken_intra_doc_links, reason = "doc comments of arguments are the help text: hf:OWNER/REPO[:FILE]")]

mod chat;
mod cmd;
mod compiling;
mod config;
mod doctor;
#[cfg(test)]
mod documented_commands;
mod drive;
mod habits;
mod help;
mod interrupt;
mod keep_args;
mod kv_args;
mod logits_file;
mod lora_args;
mod machine;
mod markdown;
mod model_file;
mod options;
mod profile;
mod progress;
mod report;
mod running_server;
mod sampling_args;
mod serve_config;
mod session;
mod soak;
mod speculation_bench;
mod store;
mod table;

use cmd::doctor::Health;
use habits::TranslatedArgs;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use report::HintExt;
use std::process::ExitCode;

const EXAMPLES: &str = "\
First steps:
  roci run smollm2 \"Why is the sky blue?\"    answer once (downloads the model the first time)
  roci run smollm2                           chat; /help lists the commands
  git diff | roci run smollm2 \"Summarise this change\"
  roci pull qwen3:8b                         download a well-known model (`roci list --all`)
  roci serve                                 serve a chat page and the APIs at http://127.0.0.1:8080
  roci doctor                                diagnose and test GPUs

MODEL is a well-known name (roci list --all), a GGUF file, a folder of safetensors, or
hf:OWNER/REPO[:FILE] from the Hugging Face Hub. `roci COMMAND --help` explains each command.
Settings for every command can be set in ~/.config/roci/config.toml, in a section for each.";

/// Runs large language models on this machine.
#[derive(Parser)]
#[command(name = "roci", version, after_help = EXAMPLES, max_term_width = help::MAX_WIDTH, args_override_self = true)]
struct Cli {
    /// Print nothing but results and errors
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: RociCommand,
}

#[derive(Subcommand)]
enum RociCommand {
    /// Ask a model once, or chat with it
    #[command(alias = "chat")]
    Run(cmd::run::Args),
    /// Serve models over HTTP
    Serve(cmd::serve::Args),
    /// Create API keys for `roci serve`
    Key(cmd::key::Args),
    /// Download a model
    Pull(cmd::pull::Args),
    /// Search for models on the Hugging Face Hub
    Search(cmd::search::Args),
    /// List downloaded models
    List(cmd::list::Args),
    /// Remove downloaded models
    #[command(alias = "remove")]
    Rm(cmd::rm::Args),
    /// Give a model another name
    Cp(cmd::cp::Args),
    /// Create a custom model from a Modelfile
    Create(cmd::create::Args),
    /// Show a model's settings: its prompt, parameters and template
    Show(cmd::show::Args),
    /// List the models that a server has in memory
    Ps(cmd::ps::Args),
    /// Unload a model from a server
    Stop(cmd::stop::Args),
    /// Show the contents of a model file
    Inspect(cmd::inspect::Args),
    /// Convert text to tokens
    Tokenize(cmd::tokenize::Args),
    /// Compute embeddings
    Embed(cmd::embed::Args),
    /// Rank texts by how well they answer a question
    Rerank(cmd::rerank::Args),
    /// Measure speed
    Bench(cmd::bench::Args),
    /// Measure how well a model predicts a text
    Perplexity(cmd::perplexity::Args),
    /// Quantize a model
    Quantize(cmd::quantize::Args),
    /// Merge an adapter into a model's weights
    Merge(cmd::merge::Args),
    /// Compute an importance matrix for `roci quantize`
    Imatrix(cmd::imatrix::Args),
    /// List devices, and why a GPU was refused
    Devices(cmd::devices::Args),
    /// Diagnose and test GPUs
    Doctor(cmd::doctor::Args),
    /// Build, list or clear compiled GPU kernels
    Kernels(cmd::kernels::Args),
    /// Check for a newer version
    Upgrade(cmd::upgrade::Args),
    /// Print a completion script for a shell
    Completions(cmd::completions::Args),
    /// Write man pages to a folder
    Man(cmd::man::Args),
    /// Compute for the `roci` that started this process
    #[command(hide = true)]
    Engine,
}

fn main() -> ExitCode {
    // Discovery asks drivers, which may hang or abort, through a child that is this same program.
    rocinante::answer_if_asked();
    // So are constraints tried out that might take all memory.
    server::constraint_probe::answer_if_asked();
    let command = help::grouped(Cli::command());
    let TranslatedArgs { arguments, ignored, refused } = habits::translate(std::env::args_os().collect());
    if let Some((flag, why)) = refused {
        if let Err(error) = Err::<(), _>(anyhow::anyhow!("there is no {flag} here")).hint(why) {
            report::error(&error);
        }
        return ExitCode::from(2);
    }
    let cli = match config::with_settings(&command, arguments) {
        Ok(arguments) => match command.try_get_matches_from(arguments) {
            Ok(matches) => Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()),
            Err(error) if error.kind() == clap::error::ErrorKind::MissingSubcommand => {
                // clap's own list would name the commands that are hidden.
                report::error(&help::no_command());
                return ExitCode::from(2);
            }
            Err(error) => error.exit(),
        },
        Err(error) => {
            report::error(&error);
            return ExitCode::FAILURE;
        }
    };
    if cli.quiet {
        report::be_quiet();
    }
    if !ignored.is_empty() {
        report::note(&format!("{}: not needed here, ignored", ignored.join(", ")));
    }
    if let Ok(folders) = hub::Folders::from_env() {
        folders.adopt().iter().for_each(|moved| report::note(moved));
    }
    let outcome = match cli.command {
        RociCommand::Run(args) => cmd::run::main(&args),
        RociCommand::Serve(args) => cmd::serve::main(&args),
        RociCommand::Key(args) => cmd::key::main(&args),
        RociCommand::Pull(args) => cmd::pull::main(&args),
        RociCommand::Search(args) => cmd::search::main(&args),
        RociCommand::Cp(args) => cmd::cp::main(&args),
        RociCommand::Create(args) => cmd::create::main(&args),
        RociCommand::Show(args) => cmd::show::main(&args),
        RociCommand::Ps(args) => cmd::ps::main(&args),
        RociCommand::Stop(args) => cmd::stop::main(&args),
        RociCommand::Upgrade(args) => cmd::upgrade::main(&args),
        RociCommand::List(args) => cmd::list::main(&args),
        RociCommand::Rm(args) => cmd::rm::main(&args),
        RociCommand::Inspect(args) => cmd::inspect::main(&args),
        RociCommand::Tokenize(args) => cmd::tokenize::main(&args),
        RociCommand::Embed(args) => cmd::embed::main(&args),
        RociCommand::Rerank(args) => cmd::rerank::main(&args),
        RociCommand::Bench(args) => cmd::bench::main(&args),
        RociCommand::Perplexity(args) => cmd::perplexity::main(&args),
        RociCommand::Quantize(args) => cmd::quantize::main(&args),
        RociCommand::Merge(args) => cmd::merge::main(&args),
        RociCommand::Imatrix(args) => cmd::imatrix::main(&args),
        RociCommand::Devices(args) => cmd::devices::main(&args),
        RociCommand::Doctor(args) => match cmd::doctor::main(&args) {
            Ok(Health::Ill) => return ExitCode::FAILURE,
            outcome => outcome.map(drop),
        },
        RociCommand::Kernels(args) => cmd::kernels::main(&args),
        RociCommand::Completions(args) => cmd::completions::main(&args, Cli::command()),
        RociCommand::Man(args) => cmd::man::main(&args, Cli::command()),
        RociCommand::Engine => cmd::engine::main(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if report::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report::error(&error);
            ExitCode::FAILURE
        }
    }
}
