//! Every `roci` command in the documentation and in the examples of `--help` is one that the command line accepts. It is
//! parsed, not run: models and files in examples do not exist here.

use crate::Cli;
use clap::{CommandFactory, Parser};
use std::path::{Path, PathBuf};

/// A command as it is written somewhere, and where.
struct Documented {
    at: String,
    line: String,
}

#[test]
fn commands_in_the_documentation_parse() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    pages_under(&root.join("docs"), &mut pages);
    let commands: Vec<Documented> = pages.iter().flat_map(|page| fenced_commands(page)).collect();
    assert!(commands.len() > 30, "found only {} commands in {} pages", commands.len(), pages.len());
    check(commands);
}

#[test]
fn examples_in_help_parse() {
    let mut commands = Vec::new();
    examples(&Cli::command(), "roci", &mut commands);
    assert!(commands.len() > 25, "found only {} examples", commands.len());
    check(commands);
}

#[track_caller]
fn check(commands: Vec<Documented>) {
    let refused: Vec<String> = commands.iter().filter_map(refusal).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

fn refusal(command: &Documented) -> Option<String> {
    let error = Cli::try_parse_from(words(&command.line)).err()?;
    let is_answer =
        matches!(error.kind(), clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion);
    (!is_answer).then(|| format!("{}: {}\n{error}", command.at, command.line))
}

fn pages_under(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => pages_under(&path, pages),
            false if path.extension().is_some_and(|extension| extension == "md") => pages.push(path),
            false => {}
        }
    }
}

/// Lines in code blocks of no language that run `roci`, alone or at the end of a pipe.
fn fenced_commands(page: &Path) -> Vec<Documented> {
    let text = std::fs::read_to_string(page).unwrap();
    let mut commands = Vec::new();
    let mut fence: Option<&str> = None;
    for (i, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), fence) {
            (Some(_), Some(_)) => fence = None,
            (Some(language), None) => fence = Some(language),
            (None, Some("" | "text")) => {
                let at = format!("{}:{}", page.display(), i + 1);
                commands.extend(command_in(line).map(|line| Documented { at, line }));
            }
            _ => {}
        }
    }
    commands
}

fn examples(command: &clap::Command, path: &str, found: &mut Vec<Documented>) {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for line in text.lines().filter(|line| line.starts_with("  ")) {
        found.extend(command_in(line.trim()).map(|line| Documented { at: format!("{path} --help"), line }));
    }
    for sub in command.get_subcommands() {
        examples(sub, &format!("{path} {}", sub.get_name()), found);
    }
}

/// The part of a line that starts `roci`, without what explains it, pipes it on or redirects it.
fn command_in(line: &str) -> Option<String> {
    let start = if line.starts_with("roci ") { 0 } else { line.find("| roci ")? + 2 };
    let mut quote = None;
    let text = &line[start..];
    let ends = ["  ", " #", " |", " >", " &&"];
    let end = text.char_indices().find(|&(i, c)| {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
        quote.is_none() && ends.iter().any(|end| text[i..].starts_with(end))
    });
    Some(text[..end.map_or(text.len(), |(i, _)| i)].to_owned())
}

/// Words as a shell would split them, for the quoting that examples use.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut is_open) = (Vec::new(), String::new(), None, false);
    for c in line.chars() {
        match (quote, c) {
            (None, '"' | '\'') => (quote, is_open) = (Some(c), true),
            (Some(open), _) if open == c => quote = None,
            (None, ' ') if is_open || !word.is_empty() => {
                words.push(std::mem::take(&mut word));
                is_open = false;
            }
            (None, ' ') => {}
            _ => word.push(c),
        }
    }
    if is_open || !word.is_empty() {
        words.push(word);
    }
    words
}

#[test]
fn commands_are_cut_out_of_their_lines() {
    let check = |line: &str, expected: &str| assert_eq!(command_in(line).as_deref(), Some(expected));
    check("roci run smollm2 \"a  b | c\"    answer once", "roci run smollm2 \"a  b | c\"");
    check("git diff | roci run smollm2 --system 'x'", "roci run smollm2 --system 'x'");
    check("roci man DIR && man roci", "roci man DIR");
    assert_eq!(command_in("cargo build"), None);
    assert_eq!(words("roci run  m \"a b\" ''"), ["roci", "run", "m", "a b", ""]);
    let wrong = Documented { at: "here".into(), line: "roci run smollm2 --no-such-flag".into() };
    assert!(refusal(&wrong).is_some_and(|text| text.contains("here") && text.contains("--no-such-flag")));
}
