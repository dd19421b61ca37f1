//! `roci list`: the models on this machine, and the well-known names that are not.

use crate::options::{ReportFormat, print_json};
use crate::report::{self, human_bytes};
use crate::table::Table;
use anyhow::Result;
use hub::{ModelLibrary, Store};
use std::io::Write;
use std::time::SystemTime;

const EXAMPLES: &str = "\
Examples:
  roci list                  the downloaded models
  roci list --all            also the names that can be downloaded
  roci list --output json    for a program

Models are kept in ~/.local/share/roci, or in $ROCI_HOME. `roci rm NAME` removes one.";

/// List downloaded models
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, visible_alias = "ls")]
pub struct Args {
    /// Also list the names that can be downloaded
    #[arg(long, short)]
    all: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: ReportFormat,
}

pub fn main(args: &Args) -> Result<()> {
    let store = Store::from_env()?;
    let entries = store.entries()?;
    let library = ModelLibrary::builtin();
    if args.output == ReportFormat::Json {
        let here = entries.iter().map(|entry| {
            serde_json::json!({"name": entry.name, "bytes": entry.n_bytes, "path": entry.path, "digest": entry.digest()})
        });
        let sizes = library.models.iter().flat_map(|family| family.sizes.iter().map(move |size| (family, size)));
        let available = sizes.map(|(family, size)| {
            serde_json::json!({"name": format!("{}:{}", family.name, size.tag), "about": family.about,
                               "billions": size.billions, "about_bytes": size.about_bytes()})
        });
        return print_json(&serde_json::json!({
            "folder": store.root(),
            "models": here.collect::<Vec<_>>(),
            "available": available.collect::<Vec<_>>(),
        }));
    }
    let mut out = std::io::stdout().lock();
    if entries.is_empty() {
        writeln!(out, "no models yet; `roci pull smollm2` fetches a small one (98.4 MB)")?;
    } else {
        let mut table = Table::new(&["NAME", "SIZE", "MODIFIED"]);
        for entry in &entries {
            table.row([entry.name.clone(), human_bytes(entry.n_bytes), age(entry.modified)]);
        }
        write!(out, "{table}")?;
    }
    if args.all {
        let mut table = Table::new(&["NAME", "SIZES", "ABOUT"]);
        for family in &library.models {
            let sizes: Vec<&str> = family.sizes.iter().map(|size| size.tag.as_str()).collect();
            table.row([family.name.clone(), sizes.join(" "), family.about.clone()]);
        }
        write!(out, "\n{table}")?;
    } else {
        report::note(&format!("`roci list --all` shows {} names that can be downloaded", library.models.len()));
    }
    if let Some(older) = store.older() {
        let (older, root) = (older.display(), store.root().display());
        report::note(&format!("models of an earlier version are still read from {older}; new ones go to {root}"));
    }
    Ok(())
}

/// How long ago, roughly.
pub fn age(time: Option<SystemTime>) -> String {
    let Some(age) = time.and_then(|time| time.elapsed().ok()) else { return "unknown".to_owned() };
    let counted = |n: u64, unit: &str| format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" });
    match age.as_secs() {
        0..60 => "just now".to_owned(),
        seconds @ 60..3600 => counted(seconds / 60, "minute"),
        seconds @ 3600..86_400 => counted(seconds / 3600, "hour"),
        seconds => counted(seconds / 86_400, "day"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ages_in_words() {
        let check = |seconds, expected: &str| {
            assert_eq!(age(SystemTime::now().checked_sub(Duration::from_secs(seconds))), expected);
        };
        check(1, "just now");
        check(60, "1 minute ago");
        check(7300, "2 hours ago");
        check(86_400 * 40, "40 days ago");
        assert_eq!(age(None), "unknown");
    }
}
