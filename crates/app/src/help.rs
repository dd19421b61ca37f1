//! What `roci --help` shows: the commands by what they are for, most used first. clap lists commands in one block, so the
//! block is written here, from clap's own names and sentences.

use crate::report::HintExt;
use crate::table::terminal_width;
use clap::Command;

/// Wider lines are hard to read.
pub const MAX_WIDTH: usize = 100;

/// Every command that is not hidden, in the order of the help.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Talk to models", &["run", "serve", "ps", "stop", "key"]),
    ("Download and manage models", &["pull", "list", "search", "show", "create", "cp", "rm"]),
    (
        "Inspect and measure",
        &["inspect", "tokenize", "embed", "rerank", "perplexity", "bench", "quantize", "merge", "imatrix"],
    ),
    ("This machine", &["devices", "doctor", "kernels"]),
    ("roci itself", &["upgrade", "completions", "man", "help"]),
];

/// The program with its commands in groups.
pub fn grouped(mut command: Command) -> Command {
    let width = terminal_width().min(MAX_WIDTH);
    let fit = |command: Command| match command.get_after_help().map(|text| fitted(&text.to_string(), width)) {
        Some(text) => command.after_help(text),
        None => command,
    };
    command = fit(command).mut_subcommands(fit);
    // `help` is there only once the command was built.
    command.build();
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}{{after-help}}",
        groups(&command)
    );
    command.help_template(template)
}

/// Examples and what follows them, for a terminal of this width: where comments have no room beside their commands they
/// stand above them, and a paragraph is one line, which clap then wraps.
fn fitted(text: &str, width: usize) -> String {
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
    // All comments stand in one place.
    let is_narrow = text.lines().any(|line| line.trim_start().contains("  ") && line.chars().count() > width);
    let mut out = String::new();
    let mut follows_prose = false;
    for line in text.lines() {
        if !out.is_empty() {
            out.push(if follows_prose && is_prose(line) { ' ' } else { '\n' });
        }
        follows_prose = is_prose(line);
        let parts = line.strip_prefix("  ").and_then(|line| line.rsplit_once("  "));
        match parts.filter(|_| is_narrow) {
            Some((command, comment)) => {
                out.push_str(&format!("  # {}\n  {}", comment.trim(), command.trim_end()));
            }
            None => out.push_str(line),
        }
    }
    out
}

/// Flags alone ask for nothing.
pub fn no_command() -> anyhow::Error {
    let error = Err::<(), _>(anyhow::anyhow!("no command was given"));
    let hint = "`roci run MODEL` chats, `roci serve` serves, and `roci --help` lists all commands";
    error.hint(hint).expect_err("an error stays one")
}

fn groups(command: &Command) -> String {
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&format!("{title}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {name:width$}  {about}\n"));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_is_in_one_group() {
        let mut command = crate::Cli::command();
        command.build();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut there: Vec<&str> = shown.map(Command::get_name).collect();
        listed.sort_unstable();
        there.sort_unstable();
        assert_eq!(listed, there);
    }

    #[test]
    fn help_is_wrapped_once() {
        let text = "Examples:\n  roci x          a comment on it\n  roci y\n\nTwo lines of\none paragraph.";
        let narrow = "Examples:\n  # a comment on it\n  roci x\n  roci y\n\nTwo lines of one paragraph.";
        assert_eq!(fitted(text, 20), narrow);
        assert_eq!(fitted(text, 80), text.replace("of\none", "of one"));
        let program = crate::Cli::command();
        for command in std::iter::once(&program).chain(program.get_subcommands()) {
            let text = fitted(&command.get_after_help().map(ToString::to_string).unwrap_or_default(), 80);
            let wide: Vec<&str> = text.lines().filter(|line| line.starts_with(' ') && line.len() > 80).collect();
            // A command is never broken.
            assert!(wide.iter().all(|line| !line.trim().contains("  ")), "{}: {wide:?}", command.get_name());
        }
    }

    #[test]
    fn every_command_teaches_by_examples() {
        for command in crate::Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let name = format!("roci {}", command.get_name());
            assert!(text.contains("Examples:") && text.contains(&name), "`{name} --help` has no examples");
        }
    }
}
