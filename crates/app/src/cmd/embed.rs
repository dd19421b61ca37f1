//! `roci embed`: texts in, vectors out, as the model was trained to make them.

use crate::options::{LoadArgs, ReportFormat, print_json};
use crate::{model_file, store};
use anyhow::Result;
use rocinante::{TokenId, Workload};
use std::io::Write;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  roci embed ./nomic-embed-text.gguf \"search_query: What is TSNE?\"
  roci embed ./bge-small.gguf \"one text\" \"another\" | jq .embeddings[0][:3]
  roci embed ./bge-small.gguf - < notes.txt          one text, from standard input";

/// Compute embeddings
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name, a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    model: String,
    /// The texts; `-` is standard input as one text
    #[arg(required = true)]
    texts: Vec<String>,
    /// The prompt to put before each text, by its name in the model's files (`query`, `document`)
    #[arg(long, value_name = "NAME")]
    prompt_name: Option<String>,
    /// Output format; text is one vector per line
    #[arg(long, value_enum, default_value_t = ReportFormat::Json)]
    output: ReportFormat,
    #[command(flatten)]
    load: LoadArgs,
}

/// JSON: `{"model", "n_tokens", "n_dimensions", "embeddings"}`, each vector of length 1; as text, its numbers.
pub fn main(args: &Args) -> Result<()> {
    let path = store::resolve(&args.model)?;
    let model = model_file::load(&path, &args.load.options(Workload::Conversation))?;
    let encode = |text: &String| -> Result<Vec<TokenId>> {
        let text = given(text)?;
        Ok(model.encode_raw(&model.text_forms().prompted(args.prompt_name.as_deref(), &text)?))
    };
    let texts: Vec<Vec<TokenId>> = args.texts.iter().map(encode).collect::<Result<_>>()?;
    let n_tokens: usize = texts.iter().map(Vec::len).sum();
    let vectors = model.embed_all(texts).map_err(|error| model_file::hinted(&path, error))?;
    if args.output == ReportFormat::Text {
        let mut out = std::io::stdout().lock();
        for vector in &vectors {
            writeln!(out, "{}", vector.iter().map(f32::to_string).collect::<Vec<_>>().join(" "))?;
        }
        return Ok(());
    }
    print_json(&serde_json::json!({
        "model": args.model,
        "n_tokens": n_tokens,
        "n_dimensions": vectors.first().map_or(0, Vec::len),
        "embeddings": vectors,
    }))
}

/// The text itself, or what standard input holds for `-`.
fn given(text: &str) -> Result<String> {
    match text {
        "-" => Ok(super::tokenize::read_text(Path::new("-"))?.trim_end_matches('\n').to_owned()),
        text => Ok(text.to_owned()),
    }
}
