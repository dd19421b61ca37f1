//! `roci rerank`: a question and texts in, the texts' scores out, best first. Needs a model with a head for it.

use crate::options::{LoadArgs, print_json};
use crate::{model_file, store};
use anyhow::Result;
use rocinante::Workload;

const EXAMPLES: &str = "\
Examples:
  roci rerank ./bge-reranker-v2-m3.gguf \"What is a panda?\" \"A bear.\" \"A planet.\"";

/// Put texts in the order in which they fit a question
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A known name, the path of a model, or hf:OWNER/REPO[:FILE]
    model: String,
    /// The question
    query: String,
    /// The texts
    #[arg(required = true)]
    documents: Vec<String>,
    #[command(flatten)]
    load: LoadArgs,
}

/// JSON: `{"model", "results": [{"index", "score"}]}`, best first.
pub fn main(args: &Args) -> Result<()> {
    let path = store::resolve(&args.model)?;
    let model = model_file::load(&path, &args.load.options(Workload::Conversation))?;
    let scores = model.rerank(&args.query, &args.documents).map_err(|error| model_file::hinted(&path, error))?;
    let mut results: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    results.sort_by(|a, b| b.1.total_cmp(&a.1));
    let results: Vec<_> =
        results.into_iter().map(|(index, score)| serde_json::json!({"index": index, "score": score})).collect();
    print_json(&serde_json::json!({"model": args.model, "results": results}))
}
