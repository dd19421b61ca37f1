//! `roci rerank`: a question and texts in, the texts' scores out, best first. Needs a model with a head for it.

use crate::options::{LoadArgs, print_json};
use crate::report::HintExt;
use crate::session::{Detail, Profiling, Session};
use crate::store;
use anyhow::{Result, anyhow};
use model::TokenId;
use text::{Ends, Specials, Tokenizer};

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
    let session = Session::open(&path, &args.load, Detail::Little, Profiling::Off)?;
    let handle = session.handle();
    if !handle.embeds().has_head {
        return Err(anyhow!("`{}` cannot score texts: it has no head for that", path.display()))
            .hint("use a reranker, for example bge-reranker-v2-m3; `roci embed` makes vectors with any model");
    }
    let pairs = args.documents.iter().map(|document| pair(&session.tokenizer, &args.query, document));
    let requests = pairs.map(|(tokens, n_first)| handle.score_request(tokens, n_first)).collect();
    let scores = handle.vectors(requests).hint("a longer --context holds longer texts")?;
    let mut results: Vec<(usize, f32)> =
        scores.iter().map(|s| s.first().copied().unwrap_or(f32::NAN)).enumerate().collect();
    results.sort_by(|a, b| b.1.total_cmp(&a.1));
    let results: Vec<_> =
        results.into_iter().map(|(index, score)| serde_json::json!({"index": index, "score": score})).collect();
    print_json(&serde_json::json!({"model": args.model, "results": results}))
}

/// A question and a text as encoders are trained to read them: the second without its own start, and RoBERTa's kin
/// with two ends between. Also how many tokens come before the text's own.
pub fn pair(tokenizer: &Tokenizer, query: &str, document: &str) -> (Vec<TokenId>, usize) {
    let encode = |text: &str| tokenizer.encode_with(text, Specials::Plain, Ends::Add);
    let (mut ids, document, nothing) = (encode(query), encode(document), encode(""));
    // What the vocabulary puts around nothing: a start and an end, where it has both.
    let (start, end) = match nothing[..] {
        [start, .., end] => (Some(start), Some(end)),
        _ => (None, tokenizer.eos()),
    };
    let skip = usize::from(start.is_some() && document.first().copied() == start);
    if let Some(end) = end.filter(|&end| is_roberta_end(tokenizer, end)) {
        ids.push(end);
    }
    let n_first = ids.len();
    ids.extend(&document[skip..]);
    (ids.into_iter().map(TokenId).collect(), n_first)
}

/// Special tokens may show as nothing; then their bytes tell.
fn is_roberta_end(tokenizer: &Tokenizer, end: u32) -> bool {
    tokenizer.token_text(end) == "</s>" || tokenizer.token_bytes(end).is_some_and(|bytes| bytes == b"</s>")
}
