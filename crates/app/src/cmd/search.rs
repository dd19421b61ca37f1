//! `roci search`: models that can be fetched: the names people know, and repositories of the hub.

use crate::options::{ReportFormat, print_json};
use crate::report;
use crate::table::Table;
use anyhow::Result;
use hub::ModelLibrary;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  roci search qwen
  roci search mistral small
  roci pull hf:OWNER/REPO             download one of the results

Only repositories with GGUF files are listed. Only the words are sent to the Hub (HF_ENDPOINT).";

/// Search for models on the Hugging Face Hub
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Words of the model's name
    #[arg(required = true)]
    words: Vec<String>,
    /// How many repositories to list
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    limit: u32,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: ReportFormat,
}

pub fn main(args: &Args) -> Result<()> {
    let library = ModelLibrary::builtin();
    let is_meant = |text: &str| args.words.iter().all(|word| text.to_lowercase().contains(&word.to_lowercase()));
    let known: Vec<_> =
        library.models.iter().filter(|family| is_meant(&format!("{} {}", family.name, family.about))).collect();
    let hits = hub::search(&args.words.join(" "), args.limit as usize);
    if args.output == ReportFormat::Json {
        let names: Vec<&str> = known.iter().map(|family| family.name.as_str()).collect();
        return print_json(&serde_json::json!({"names": names, "hub": hits?}));
    }
    let mut out = std::io::stdout().lock();
    if !known.is_empty() {
        let mut table = Table::new(&["NAME", "SIZES", "ABOUT"]);
        for family in &known {
            let sizes: Vec<&str> = family.sizes.iter().map(|size| size.tag.as_str()).collect();
            table.row([family.name.clone(), sizes.join(" "), family.about.clone()]);
        }
        writeln!(out, "{table}")?;
    }
    let hits = match hits {
        // The names are an answer too.
        Err(error) if !known.is_empty() => {
            report::warning(&format!("the hub could not be asked: {}", report::one_line(&error)));
            return Ok(());
        }
        hits => hits?,
    };
    if hits.is_empty() {
        writeln!(out, "the hub has no GGUF repository with these words")?;
        return Ok(());
    }
    let mut table = Table::new(&["REPOSITORY", "DOWNLOADS", "LIKES"]);
    for hit in &hits {
        table.row([format!("hf:{}", hit.id), hit.downloads.to_string(), hit.likes.to_string()]);
    }
    write!(out, "{table}")?;
    Ok(())
}
