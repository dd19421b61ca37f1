//! What `roci --help` shows: the commands by what they are for, most used first. clap lists commands in one block, so the
//! block is written here, from clap's own names and sentences.

use clap::Command;

/// Every command that is not hidden, in the order of the help.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Talk to models", &["run", "serve", "ps", "stop", "key"]),
    ("Get and keep models", &["pull", "list", "search", "show", "create", "cp", "rm"]),
    ("Look closer", &["inspect", "tokenize", "embed", "rerank", "perplexity", "bench", "quantize", "imatrix"]),
    ("This machine", &["devices", "doctor", "kernels"]),
    ("roci itself", &["upgrade", "completions", "man", "help"]),
];

/// The program with its commands in groups.
pub fn grouped(mut command: Command) -> Command {
    // `help` is there only once the command was built.
    command.build();
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}{{after-help}}",
        groups(&command)
    );
    command.help_template(template)
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
    fn every_command_teaches_by_examples() {
        for command in crate::Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let name = format!("roci {}", command.get_name());
            assert!(text.contains("Examples:") && text.contains(&name), "`{name} --help` has no examples");
        }
    }
}
