//! What a test can check of the documentation: links and their anchors resolve, paths and environment variables that it
//! names exist, and tables repeat the data they come from. That its commands parse is checked in
//! `src/documented_commands.rs`, where the command line is defined.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders that hold no documentation or sources of ours.
const OTHERS: [&str; 5] = ["target", ".git", ".cache", "node_modules", "carry"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below a folder that a filter takes, by name.
fn files(folder: &Path, is_wanted: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true if !OTHERS.contains(&name.as_str()) => found.extend(files(&path, is_wanted)),
            false if is_wanted(&path) => found.push(path),
            _ => {}
        }
    }
    found.sort();
    found
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|found| extensions.iter().any(|extension| found == *extension))
}

fn pages() -> Vec<PathBuf> {
    let pages = files(&root(), &|path| has_extension(path, &["md"]));
    assert!(pages.len() > 15, "{pages:?}");
    pages
}

/// A page's text without code blocks, one entry a line.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.map(|(i, line)| (i + 1, line)).collect()
}

/// Where `[text](target)` and `![text](target)` lead, outside of `code`.
fn links(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (i, part) in line.split('`').enumerate() {
        let mut rest = part;
        while let (0, Some(start)) = (i % 2, rest.find("](")) {
            rest = &rest[start + 2..];
            let Some(end) = rest.find(')') else { break };
            found.push(&rest[..end]);
            rest = &rest[end..];
        }
    }
    // A link whose text holds `code` is cut at the backticks: its target is in the part after them.
    found
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || "- _".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(page: &Path) -> HashSet<String> {
    let text = std::fs::read_to_string(page).unwrap();
    prose(&text).into_iter().filter(|(_, line)| line.starts_with('#')).map(|(_, line)| anchor(line)).collect()
}

/// Why a link on a page leads nowhere.
fn broken(page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
    let to = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
    if !to.exists() {
        return Some(format!("`{target}`: there is no such file"));
    }
    let is_heading = fragment.is_empty() || !has_extension(&to, &["md"]) || anchors(&to).contains(fragment);
    (!is_heading).then(|| format!("`{target}`: there is no such heading"))
}

#[test]
fn links_resolve() {
    let mut wrong = Vec::new();
    let mut n_links = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for (n_line, line) in prose(&text) {
            for target in links(line) {
                n_links += 1;
                wrong.extend(broken(&page, target).map(|why| format!("{}:{n_line}: {why}", page.display())));
            }
        }
    }
    assert!(n_links > 40, "only {n_links} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn links_and_anchors_are_read_as_github_does() {
    assert_eq!(links("see [a](b.md) and ![c](d.png#e), not `[x](y)`"), ["b.md", "d.png#e"]);
    assert_eq!(links("the crate [`gfx`](../gfx/README.md)"), ["../gfx/README.md"]);
    assert_eq!(anchor("## 3. Permission"), "3-permission");
    assert_eq!(anchor("### Registers, LDS and `spills`"), "registers-lds-and-spills");
    let page = root().join("README.md");
    assert!(broken(&page, "no-such-file.md").is_some() && broken(&page, "README.md#no-such-heading").is_some());
    assert!(broken(&page, "README.md#speed").is_none() && broken(&page, "https://example.com").is_none());
}

/// `crates/...`, `scripts/...` and the like in backticks.
#[test]
fn paths_that_are_named_exist() {
    let starts = ["crates/", "scripts/", "bench/", "docs/", ".github/", ".config/"];
    let mut wrong = Vec::new();
    for page in pages().into_iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for (n_line, line) in prose(&text) {
            for code in line.split('`').skip(1).step_by(2) {
                let path = code.split(' ').next().unwrap_or_default();
                let is_pattern = path.contains(['*', '<', '{']) || path.chars().any(|c| c.is_ascii_uppercase());
                if starts.iter().any(|start| path.starts_with(start)) && !is_pattern && !root().join(path).exists() {
                    wrong.push(format!("{}:{n_line}: there is no `{path}`", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Environment variables and metrics that the documentation names are read or written somewhere. `ROCI_MAX_QUEUE` and
/// its like are the flags of `roci serve`.
#[test]
fn variables_and_metrics_that_are_named_exist() {
    let is_source = |path: &Path| {
        has_extension(path, &["rs", "py", "sh", "toml", "js"])
            || ["check", "run", "fetch-rocm"].iter().any(|name| path.ends_with(name))
    };
    let is_this_file = |path: &Path| path.ends_with("tests/it/docs.rs");
    let sources: String = files(&root(), &is_source)
        .iter()
        .filter(|path| !is_this_file(path))
        .map(|path| std::fs::read_to_string(path).unwrap_or_default())
        .collect();
    let mut wrong = Vec::new();
    for page in pages().into_iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for name in
            text.split(|c| !is_part(c)).filter(|name| ["ROCI_", "GFX_", "roci_"].iter().any(|s| name.starts_with(s)))
        {
            let setting = name.trim_start_matches("ROCI_").to_lowercase();
            let is_known = sources.contains(name) || sources.contains(&format!("pub {setting}:"));
            if !is_known && !wrong.contains(&name.to_owned()) {
                wrong.push(name.to_owned());
            }
        }
    }
    assert!(wrong.is_empty(), "named in the documentation and nowhere else: {}", wrong.join(", "));
}

fn table_rows(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with('|')).collect()
}

/// The README repeats rows of the results; a figure that changes there must change here.
#[test]
fn speed_in_the_readme_is_that_of_the_results() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let results = std::fs::read_to_string(root().join("docs/developer/performance.md")).unwrap();
    let known: HashSet<&str> = table_rows(&results).into_iter().collect();
    let (_, speed) = readme.split_once("\n## Speed\n").expect("a section on speed");
    let speed = speed.split("\n## ").next().unwrap();
    let rows = table_rows(speed);
    assert!(rows.len() > 4, "{rows:?}");
    let unknown: Vec<&str> = rows.into_iter().filter(|row| !known.contains(row)).collect();
    assert!(unknown.is_empty(), "not in docs/developer/performance.md:\n{}", unknown.join("\n"));
}

/// The README counts the rows of the page that the families' test writes.
#[test]
fn the_readme_counts_what_the_models_page_lists() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let page = std::fs::read_to_string(root().join("docs/user/models.md")).unwrap();
    let all = table_rows(&page);
    let head = all.iter().position(|row| row.contains("gfx1100")).expect("a table with the software GPU's column");
    let column = all[head].split('|').position(|cell| cell.contains("gfx1100")).unwrap();
    let families: Vec<&str> = all[head + 2..].iter().map(|row| row.split('|').nth(column).unwrap().trim()).collect();
    let n_on_gpus = families.iter().filter(|cell| **cell == "yes").count();
    let counts =
        [format!("tried with {} checkpoints", families.len()), format!("{n_on_gpus} of the {}", families.len())];
    for count in counts {
        assert!(readme.contains(&count), "the README does not say `{count}`");
    }
}

#[test]
fn the_plot_shows_the_results() {
    let Some(python) = test_support::fetched::python(&["sys"]) else { return };
    let output = Command::new(python).arg(root().join("bench/plot.py")).arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
