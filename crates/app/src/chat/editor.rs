//! The line editor of the chat: history, Tab completion, and entries of several lines.

use super::settings;
use hub::{ModelLibrary, Store};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper, Result};

const FENCE: &str = "\"\"\"";

/// What begins with `/`.
pub const COMMANDS: [&str; 13] = [
    "/clear", "/exit", "/help", "/load", "/model", "/regen", "/save", "/set", "/show", "/stats", "/system", "/undo",
    "/bye",
];

/// What was typed.
#[derive(Debug, PartialEq)]
pub enum TypedLine {
    /// A line, or several where each but the last ends with a backslash: something to say, or a command.
    Line(String),
    /// What stood between `"""`: something to say.
    Block(String),
}

pub fn new() -> Result<Editor<Completion, DefaultHistory>> {
    let config = Config::builder().completion_type(CompletionType::List).build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(Completion { files: FilenameCompleter::new() }));
    Ok(editor)
}

pub fn read(editor: &mut Editor<Completion, DefaultHistory>) -> Result<TypedLine> {
    let mut text = editor.readline("> ")?;
    if let Some(opened) = text.trim_start().strip_prefix(FENCE) {
        let mut block = opened.to_owned();
        while !block.contains(FENCE) {
            block.push('\n');
            block.push_str(&editor.readline(". ")?);
        }
        let block = block.split(FENCE).next().unwrap_or_default();
        return Ok(TypedLine::Block(block.trim_matches('\n').to_owned()));
    }
    while text.ends_with('\\') {
        text.pop();
        text.push('\n');
        text.push_str(&editor.readline(". ")?);
    }
    Ok(TypedLine::Line(text))
}

/// Completes commands, the names of settings and models, and files.
pub struct Completion {
    files: FilenameCompleter,
}

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(&self, line: &str, position: usize, context: &Context<'_>) -> Result<(usize, Vec<Pair>)> {
        let before = &line[..position];
        if before.starts_with("/save ") || before.starts_with("/load ") {
            return self.files.complete(line, position, context);
        }
        let (start, names) = candidates(before);
        Ok((start, names.into_iter().map(|name| Pair { display: name.clone(), replacement: name }).collect()))
    }
}

/// Where the word begins that is being typed, and what it may become.
fn candidates(before: &str) -> (usize, Vec<String>) {
    let matching = |word: &str, names: Vec<String>| names.into_iter().filter(|name| name.starts_with(word)).collect();
    if let Some(word) = before.strip_prefix("/set ") {
        let names = settings::NAMES.map(str::to_owned).to_vec();
        return ("/set ".len(), if word.contains(' ') { Vec::new() } else { matching(word, names) });
    }
    if let Some(word) = before.strip_prefix("/model ") {
        let own = Store::from_env().and_then(|store| store.entries()).unwrap_or_default();
        let mut names: Vec<String> = own.into_iter().map(|entry| entry.name).collect();
        names.extend(ModelLibrary::builtin().names());
        names.sort();
        names.dedup();
        return ("/model ".len(), matching(word, names));
    }
    match before.starts_with('/') && !before.contains(' ') {
        true => (0, matching(before, COMMANDS.map(str::to_owned).to_vec())),
        false => (before.len(), Vec::new()),
    }
}

impl Hinter for Completion {
    type Hint = String;
}

impl Highlighter for Completion {}
impl Validator for Completion {}
impl Helper for Completion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completes_commands_settings_and_names() {
        assert_eq!(candidates("/s"), (0, ["/save", "/set", "/show", "/stats", "/system"].map(str::to_owned).to_vec()));
        assert_eq!(candidates("/set te"), (5, vec!["temperature".to_owned()]));
        assert_eq!(candidates("/set temperature 0"), (5, Vec::new()));
        let (start, names) = candidates("/model qwen3:0");
        assert_eq!((start, names), (7, vec!["qwen3:0.6b".to_owned()]));
        assert_eq!(candidates("what is /s").1, Vec::<String>::new());
    }

    #[test]
    fn every_command_of_the_help_is_completed() {
        let in_help = super::super::HELP.lines().filter(|line| line.starts_with('/'));
        for command in in_help.filter_map(|line| line.split_whitespace().next()) {
            assert!(COMMANDS.contains(&command), "{command}");
        }
    }
}
