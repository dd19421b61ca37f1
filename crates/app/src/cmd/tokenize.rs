//! `roci tokenize`: text in, token ids and their text out. Needs the file's vocabulary only.

use crate::options::{ReportFormat, print_json};
use crate::report::{self, HintExt};
use crate::{model_file, store};
use anyhow::{Context, Result, anyhow};
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use text::{Ends, Specials};

const EXAMPLES: &str = "\
Examples:
  roci tokenize smollm2 \"Hello world\"
  roci tokenize smollm2 --file notes.txt --output json
  echo \"Hello\" | roci tokenize smollm2
  roci tokenize smollm2 --no-special \"<|im_start|>\"    the text, not the special token";

/// Convert text to tokens
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name, a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    model: String,
    /// The text [default: standard input]
    #[arg(conflicts_with = "file")]
    text: Option<String>,
    /// Read the text from a file; `-` is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Add no BOS or EOS, and treat special tokens in the text as plain text
    #[arg(long)]
    no_special: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: ReportFormat,
}

pub fn main(args: &Args) -> Result<()> {
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_text(file)?,
        (None, None) if std::io::stdin().is_terminal() => {
            return Err(anyhow!("there is no text")).hint("give it as an argument, on standard input, or with --file");
        }
        (None, None) => read_text(Path::new("-"))?,
    };
    let path = store::resolve(&args.model)?;
    let tokenizer = model_file::tokenizer(&model_file::open(&path)?)?;
    let ids = if args.no_special {
        tokenizer.encode_with(&text, Specials::Plain, Ends::None)
    } else {
        tokenizer.encode_with(&text, Specials::Parse, Ends::Add)
    };
    let pieces = ids.iter().map(|&id| tokenizer.token_text(id));
    if args.output == ReportFormat::Json {
        let pieces: Vec<String> = pieces.collect();
        return print_json(&serde_json::json!({"n_tokens": ids.len(), "tokens": ids, "pieces": pieces}));
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (id, piece) in ids.iter().zip(pieces) {
        writeln!(out, "{id:>7}  {piece:?}")?;
    }
    writeln!(out, "{}", report::counted(ids.len(), "token"))?;
    out.flush()?;
    Ok(())
}

/// The text of a file, or of standard input for `-`.
pub fn read_text(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
    } else {
        bytes = std::fs::read(file)
            .with_context(|| format!("cannot read `{}`", file.display()))
            .hint("give the path of a text file, or `-` for standard input")?;
    }
    String::from_utf8(bytes)
        .with_context(|| format!("`{}` is not UTF-8 text", file.display()))
        .hint("convert it first, for example with iconv")
}
