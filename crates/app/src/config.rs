//! The user's settings for every command: `config.toml` in the config folder, a section for each command, a line for
//! each flag. They become arguments before those that were typed, so that one parser checks both, and what was typed
//! wins.
//!
//!   [run]
//!   temperature = 0.2
//!
//! `roci serve` has two more places for its settings (`serve_config.rs`); its section here is the weakest of them.

use crate::report::{self, HintExt};
use crate::{habits, serve_config};
use anyhow::{Context, Result, anyhow};
use clap::Command;
use hub::{Folders, suggest};
use std::ffi::OsString;
use std::path::PathBuf;

/// The command line in roci's own flags.
pub fn typed() -> Vec<OsString> {
    habits::translate(std::env::args_os().collect()).arguments
}

/// What was typed, with the settings of its command before it.
pub fn with_settings(cli: &Command, typed: Vec<OsString>) -> Result<Vec<OsString>> {
    let Some(place) = typed.iter().skip(1).position(|arg| !arg.to_string_lossy().starts_with('-')) else {
        return Ok(typed);
    };
    let place = place + 1;
    let name = typed[place].to_string_lossy().into_owned();
    let Some(command) = cli.find_subcommand(&name).filter(|command| command.get_name() != "serve") else {
        return Ok(typed);
    };
    let env = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty());
    let settings = section(cli, command, &env)?;
    let (before, after) = typed.split_at(place + 1);
    Ok([before, &settings[..], after].concat())
}

/// The arguments after the command's name that were typed for it, with others before them.
pub fn typed_with(name: &str, before: Vec<OsString>) -> Vec<OsString> {
    let own = typed().into_iter().skip_while(|arg| *arg != *name).skip(1);
    before.into_iter().chain(own.filter(|arg| arg != "-q" && arg != "--quiet")).collect()
}

/// One command's settings as arguments. Every section is checked: a mistake in the command's own is an error, one in
/// another section a warning.
pub fn section(cli: &Command, command: &Command, env: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<OsString>> {
    let Ok(folders) = Folders::new(&|key| env(key).map(PathBuf::from)) else { return Ok(Vec::new()) };
    let path = folders.config_file();
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read `{}`", path.display()))?,
    };
    let found = of_text(cli, command, &text).with_context(|| format!("`{}`", path.display()))?;
    for mistake in &found.elsewhere {
        let hint = report::hint_of(mistake).map(|hint| format!(" ({hint})")).unwrap_or_default();
        report::warning(&format!("`{}`: {}{hint}", path.display(), report::one_line(mistake)));
    }
    Ok(found.arguments)
}

/// What the file says to one command.
#[derive(Default)]
struct CommandSettings {
    arguments: Vec<OsString>,
    /// Mistakes in sections that this command does not use.
    elsewhere: Vec<anyhow::Error>,
}

fn of_text(cli: &Command, command: &Command, text: &str) -> Result<CommandSettings> {
    let table: toml::Table = text.parse().context("not valid TOML").hint(
        "a setting is a line `name = value` below a line with its command, such as [run]; texts stand in quotes",
    )?;
    let own = command.get_name().trim_start_matches("roci ");
    let mut settings = CommandSettings::default();
    for (name, section) in &table {
        match of_section(cli, name, section, text) {
            Ok(arguments) if name == own => settings.arguments = arguments,
            Ok(_) => {}
            Err(error) if name == own => return Err(error),
            Err(error) => settings.elsewhere.push(error),
        }
    }
    Ok(settings)
}

fn of_section(cli: &Command, name: &str, section: &toml::Value, text: &str) -> Result<Vec<OsString>> {
    let has_setting = |command: &&Command| command.get_arguments().any(|arg| arg.get_long() == Some(name));
    if !section.is_table()
        && let Some(command) = cli.get_subcommands().find(has_setting)
    {
        let line = line_of(text, None, name);
        return Err(anyhow!("{line}`{name}` is outside of any section"))
            .with_hint(|| format!("put it below a line with its command: [{}]", command.get_name()));
    }
    let Some(command) = cli.find_subcommand(name).filter(|found| found.get_name() == name) else {
        let names: Vec<&str> = cli.get_subcommands().map(Command::get_name).collect();
        let meant = suggest::closest(name, names.iter().copied());
        let line = line_of(text, Some(name), "");
        return Err(anyhow!("{line}there is no command `{name}`")).with_hint(|| match meant {
            Some(meant) => format!("did you mean [{meant}]?"),
            None => "a section is named like a command: [run], [serve]; settings stand below it".to_owned(),
        });
    };
    let Some(section) = section.as_table() else {
        return Err(anyhow!("{}`{name}` must be a section", line_of(text, None, name)))
            .with_hint(|| format!("write [{name}] on a line of its own, and its settings below"));
    };
    let mut arguments = Vec::new();
    for (key, value) in section {
        // One at a time, so that a mistake has its line.
        let place = || format!("{}[{name}]", line_of(text, Some(name), key));
        let one = toml::Table::from_iter([(key.clone(), value.clone())]);
        let of_key = serve_config::from_table(command, &one).with_context(place)?;
        serve_config::check_values(command, &of_key).with_context(place)?;
        arguments.extend(of_key);
    }
    Ok(arguments)
}

/// `line 3: `, where a setting stands, or the heading of a section for no setting; nothing where it is written in a way
/// that is not looked for (dotted keys, tables in one line).
fn line_of(text: &str, section: Option<&str>, key: &str) -> String {
    let mut current: Option<String> = None;
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        let heading = line.strip_prefix('[').and_then(|rest| rest.split(']').next());
        if let Some(heading) = heading {
            current = Some(heading.trim().trim_matches('"').to_owned());
        }
        let is_in = current.as_deref() == section;
        let is_key = line.split_once('=').is_some_and(|(name, _)| name.trim().trim_matches('"') == key);
        if is_in && (is_key || key.is_empty() && heading.is_some()) {
            return format!("line {}: ", i + 1);
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use crate::report::{hint_of, one_line};
    use clap::CommandFactory;

    fn settings(command: &str, text: &str) -> Result<CommandSettings> {
        let cli = Cli::command();
        of_text(&cli, cli.find_subcommand(command).unwrap(), text)
    }

    fn arguments(command: &str, text: &str) -> Result<Vec<OsString>> {
        settings(command, text).map(|settings| settings.arguments)
    }

    #[test]
    fn a_section_becomes_arguments() {
        let text = "[run]\ntemperature = 0.2\nstop = [\"a\", \"b\"]\nraw = true\n[bench]\nprompt = 64\n";
        let expected = ["--temperature=0.2", "--stop=a", "--stop=b", "--raw"];
        let mut found = arguments("run", text).unwrap();
        found.sort();
        let mut expected = expected.map(OsString::from);
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(arguments("bench", text).unwrap(), ["--prompt=64"]);
        assert!(arguments("list", text).unwrap().is_empty());
    }

    #[test]
    fn mistakes_are_named_with_what_was_meant() {
        let check = |text: &str, expected: &str, hint: &str| {
            let error = match settings("run", text) {
                Ok(settings) => settings.elsewhere.into_iter().next().expect("a mistake"),
                Err(error) => error,
            };
            assert!(one_line(&error).contains(expected), "{}", one_line(&error));
            assert!(hint_of(&error).unwrap_or_default().contains(hint), "{:?}", hint_of(&error));
        };
        check("[rnu]\ntemperature = 1", "line 1: there is no command `rnu`", "did you mean [run]?");
        check(
            "[run]\ntemprature = 1",
            "line 2: [run]: there is no setting `temprature`",
            "did you mean `temperature`?",
        );
        check("[bench]\npromt = 1", "[bench]: there is no setting `promt`", "`prompt`");
        check("[run]\ntemperature = -1", "line 2: [run]: invalid value `-1` for --temperature", "roci run --help");
        check("[run]\n\ntop-k = \"x\"", "line 3: [run]: invalid value `x` for --top-k", "roci run --help");
        check("# mine\ntemperature = 1", "line 2: `temperature` is outside of any section", "[run]");
        check("run = 1", "line 1: `run` must be a section", "write [run] on a line of its own");
        check("[run\nseed = 1", "line 1, column 5", "a setting is a line `name = value`");
        check("[run]\nseed = 1x", "line 2, column 8", "a setting is a line `name = value`");
    }

    #[test]
    fn a_mistake_stops_only_the_command_it_is_about() {
        let text = "[bench]\nprompt = 64\n[run]\ntemprature = 1\n[rnu]\nraw = true\n";
        assert!(settings("run", text).is_err());
        let bench = settings("bench", text).unwrap();
        assert_eq!((bench.arguments, bench.elsewhere.len()), (vec!["--prompt=64".into()], 2));
    }
}
