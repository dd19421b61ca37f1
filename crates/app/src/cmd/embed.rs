//! `roci embed`: texts in, vectors out, as the model was trained to make them.

use crate::options::{LoadArgs, print_json};
use crate::report::HintExt;
use crate::session::{Detail, Profiling, Session};
use crate::store;
use anyhow::Result;
use model::TokenId;

const EXAMPLES: &str = "\
Examples:
  roci embed ./nomic-embed-text.gguf \"search_query: What is TSNE?\"
  roci embed ./bge-small.gguf \"one text\" \"another\" | jq .embeddings[0][:3]";

/// Turn texts into vectors
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A known name, the path of a model, or hf:OWNER/REPO[:FILE]
    model: String,
    /// The texts
    #[arg(required = true)]
    texts: Vec<String>,
    #[command(flatten)]
    load: LoadArgs,
}

/// JSON: `{"model", "n_tokens", "n_dimensions", "embeddings"}`, each vector of length 1.
pub fn main(args: &Args) -> Result<()> {
    let path = store::resolve(&args.model)?;
    let session = Session::open(&path, &args.load, Detail::Little, Profiling::Off)?;
    let texts: Vec<Vec<TokenId>> = args.texts.iter().map(|text| session.encode_raw(text)).collect();
    let n_tokens: usize = texts.iter().map(Vec::len).sum();
    let handle = session.handle();
    let requests = texts.into_iter().map(|tokens| handle.embed_request(tokens)).collect();
    let vectors = handle.vectors(requests).hint("a longer --context holds longer texts")?;
    print_json(&serde_json::json!({
        "model": args.model,
        "n_tokens": n_tokens,
        "n_dimensions": vectors.first().map_or(0, Vec::len),
        "embeddings": vectors,
    }))
}
