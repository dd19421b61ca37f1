//! `roci rerank`: a question and texts in, the texts' scores out, best first. A reranker scores them with its head, any
//! other model by the similarity of embeddings: the scores and the errors are those of the server's `/v1/rerank`.

use crate::options::{LoadArgs, ReportFormat, print_json};
use crate::report::{self, HintExt};
use crate::{model_file, store};
use anyhow::{Result, anyhow};
use rocinante::{Error, Model, SearchSide, Workload};
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  roci rerank ./bge-reranker.gguf \"What is a panda?\" \"A bear.\" \"A planet.\"
  roci rerank ./bge-reranker.gguf \"a question\" \"one\" \"two\" --output text";

/// Rank texts by how well they answer a question
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name, a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    model: String,
    /// The question
    query: String,
    /// The texts
    #[arg(required = true)]
    documents: Vec<String>,
    /// Output format; text is one line for each text, with its score and index
    #[arg(long, value_enum, default_value_t = ReportFormat::Json)]
    output: ReportFormat,
    #[command(flatten)]
    load: LoadArgs,
}

/// JSON: `{"model", "results": [{"index", "score"}]}`, best first.
pub fn main(args: &Args) -> Result<()> {
    if args.query.is_empty() || args.documents.iter().any(String::is_empty) {
        return Err(anyhow!("the query and the documents must not be empty")).hint("is a shell variable unset?");
    }
    let path = store::resolve(&args.model)?;
    let model = model_file::load(&path, &args.load.options(Workload::Conversation))?;
    let scores = scores(&model, &args.query, &args.documents).map_err(|error| model_file::hinted(&path, error))?;
    let mut results: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    results.sort_by(|a, b| b.1.total_cmp(&a.1));
    if args.output == ReportFormat::Text {
        let mut out = std::io::stdout().lock();
        for (index, score) in results {
            writeln!(out, "{score:.6}  {index}  {}", args.documents[index].replace('\n', " "))?;
        }
        return Ok(());
    }
    let results: Vec<_> =
        results.into_iter().map(|(index, score)| serde_json::json!({"index": index, "score": score})).collect();
    print_json(&serde_json::json!({"model": args.model, "results": results}))
}

fn scores(model: &Model, query: &str, documents: &[String]) -> rocinante::Result<Vec<f32>> {
    match model.rerank(query, documents) {
        Err(Error::NoScores) => {}
        scores => return scores,
    }
    report::note("no reranker: ranked by the similarity of embeddings");
    let texts = std::iter::once((SearchSide::Query, query))
        .chain(documents.iter().map(|document| (SearchSide::Document, document.as_str())));
    let prompted = texts.map(|(side, text)| model.text_forms().prompted_for_search(side, text));
    let vectors = model.embed_all(prompted.map(|text| model.encode_raw(&text)).collect())?;
    // Each has length 1, so the product is the cosine.
    let cosine = |vector: &Vec<f32>| vectors[0].iter().zip(vector).map(|(a, b)| a * b).sum();
    Ok(vectors[1..].iter().map(cosine).collect())
}
