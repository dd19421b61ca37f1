//! The user's settings for every command: `config.toml` in the config folder, a section for each command, a line for
//! each flag. They become arguments before those that were typed, so that one parser checks both, and what was typed
//! wins.
//!
//!   [run]
//!   temperature = 0.2
//!
//! `roci serve` has two more places for its settings (`serve_config.rs`); its section here is the weakest of them.

use crate::report::HintExt;
use crate::serve_config;
use anyhow::{Context, Result, anyhow};
use clap::Command;
use hub::{Folders, suggest};
use std::ffi::OsString;
use std::path::PathBuf;

/// Flags of llama.cpp that are not of the usual form.
const SPELLINGS: [(&str, &str); 2] = [("-ngl", "--gpu-layers"), ("-sys", "--system")];

/// What was typed, in the usual form.
pub fn typed() -> Vec<OsString> {
    let usual = |arg: OsString| {
        let spelling = SPELLINGS.iter().find(|(other, _)| arg == *other);
        spelling.map_or(arg, |(_, usual)| OsString::from(usual))
    };
    std::env::args_os().map(usual).collect()
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

/// One command's settings as arguments. Every section is checked: a mistake in another one is told too.
pub fn section(cli: &Command, command: &Command, env: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<OsString>> {
    let Ok(folders) = Folders::new(&|key| env(key).map(PathBuf::from)) else { return Ok(Vec::new()) };
    let path = folders.config_file();
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read `{}`", path.display()))?,
    };
    of_text(cli, command, &text).with_context(|| format!("`{}`", path.display()))
}

fn of_text(cli: &Command, command: &Command, text: &str) -> Result<Vec<OsString>> {
    let table: toml::Table = text.parse().context("not valid TOML")?;
    let mut arguments = Vec::new();
    for (name, section) in &table {
        let Some(found) = cli.find_subcommand(name).filter(|found| found.get_name() == name) else {
            let names: Vec<&str> = cli.get_subcommands().map(Command::get_name).collect();
            let meant = suggest::closest(name, names.iter().copied());
            return Err(anyhow!("there is no command `{name}`")).with_hint(|| match meant {
                Some(meant) => format!("did you mean [{meant}]?"),
                None => "a section is named like a command: [run], [serve]; settings stand below it".to_owned(),
            });
        };
        let section = section.as_table().with_context(|| format!("`{name}` must be a section: [{name}]"))?;
        let of_section = serve_config::from_table(found, section).with_context(|| format!("[{name}]"))?;
        if name == command.get_name().trim_start_matches("roci ") {
            serve_config::check_values(found, &of_section).with_context(|| format!("[{name}]"))?;
            arguments = of_section;
        }
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use crate::report::{hint_of, one_line};
    use clap::CommandFactory;

    fn arguments(command: &str, text: &str) -> Result<Vec<OsString>> {
        let cli = Cli::command();
        of_text(&cli, cli.find_subcommand(command).unwrap(), text)
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
            let error = arguments("run", text).unwrap_err();
            assert!(one_line(&error).contains(expected), "{}", one_line(&error));
            assert!(hint_of(&error).unwrap_or_default().contains(hint), "{:?}", hint_of(&error));
        };
        check("[rnu]\ntemperature = 1", "there is no command `rnu`", "did you mean [run]?");
        check("[run]\ntemprature = 1", "[run]: there is no setting `temprature`", "did you mean `temperature`?");
        check("[bench]\npromt = 1", "[bench]: there is no setting `promt`", "`prompt`");
        check("[run]\ntemperature = -1", "[run]: invalid value `-1` for --temperature", "roci run --help");
        check("run = 1", "`run` must be a section", "");
        check("[run", "not valid TOML", "");
    }
}
