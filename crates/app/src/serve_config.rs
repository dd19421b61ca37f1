//! Settings of the server from more places, one spelling: the flag `--max-queue 64`, the variable `ROCI_MAX_QUEUE=64`, the line
//! `max-queue = 64` in a TOML file (`--config`, and below it the section `[serve]` of the user's own). All become arguments in that order of strength, so that what a flag accepts
//! is what the others accept, and one parser checks everything.

use crate::report::HintExt;
use anyhow::{Context, Result, anyhow, bail};
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory};
use std::ffi::OsString;
use std::path::Path;

/// The argument that names models; it has no flag.
const MODELS: &str = "models";
/// Its variable: names or paths with commas between.
const MODELS_VARIABLE: &str = "ROCI_MODELS";

/// Arguments from the file and the environment, weakest first, to be put before those that were typed.
pub fn arguments(
    command: &Command,
    file: Option<&Path>,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Vec<OsString>> {
    let mut arguments = crate::config::section(&crate::Cli::command(), command, env)?;
    if let Some(path) = file {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let named = || format!("`{}`", path.display());
        let of_file = from_toml(command, &text).with_context(named)?;
        if of_file.iter().any(|argument| !argument.to_string_lossy().starts_with("--")) {
            // Models of the stronger place stand instead of the others.
            arguments.retain(|argument| argument.to_string_lossy().starts_with("--"));
        }
        arguments.extend(of_file);
        check_values(command, &arguments).with_context(named)?;
    }
    for arg in command.get_arguments() {
        let (Some(long), Some(value)) = (arg.get_long(), env(&variable(arg))) else { continue };
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            match value.to_string_lossy().as_ref() {
                "1" | "true" | "yes" => arguments.push(format!("--{long}").into()),
                "" => {}
                // Stronger than the file's.
                "0" | "false" | "no" => arguments.retain(|argument| *argument != *format!("--{long}")),
                other => bail!("{}=`{other}`: expected 1 or 0", variable(arg)),
            }
        } else if !value.is_empty() {
            let mut argument = OsString::from(format!("--{long}="));
            argument.push(value);
            check_values(command, std::slice::from_ref(&argument)).with_context(|| variable(arg))?;
            arguments.push(argument);
        }
    }
    if let Some(models) = env(MODELS_VARIABLE).filter(|models| !models.is_empty()) {
        let models = models.into_string().map_err(|_| anyhow!("{MODELS_VARIABLE} is not valid UTF-8"))?;
        arguments.retain(|argument| argument.to_string_lossy().starts_with("--"));
        arguments.extend(models.split(',').map(|model| OsString::from(model.trim())));
    }
    Ok(arguments)
}

/// A value that no flag would take is told with where it stands; what only all places together can show is not.
pub fn check_values(command: &Command, arguments: &[OsString]) -> Result<()> {
    use clap::error::{ContextKind, ErrorKind};
    let Err(error) = command.clone().no_binary_name(true).try_get_matches_from(arguments) else { return Ok(()) };
    if !matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) {
        return Ok(());
    }
    let part = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (flag, value) = (part(ContextKind::InvalidArg), part(ContextKind::InvalidValue));
    let why = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
    let name = command.get_name().trim_start_matches("roci ").to_owned();
    Err(anyhow!("invalid value `{value}` for {flag}{why}")).hint(format!("`roci {name} --help` explains each setting"))
}

/// `--max-queue` is `ROCI_MAX_QUEUE`.
fn variable(arg: &Arg) -> String {
    format!("ROCI_{}", arg.get_long().unwrap_or_default().replace('-', "_").to_uppercase())
}

fn from_toml(command: &Command, text: &str) -> Result<Vec<OsString>> {
    from_table(command, &text.parse().context("not valid TOML")?)
}

/// A table's settings as arguments of a command.
pub fn from_table(command: &Command, table: &toml::Table) -> Result<Vec<OsString>> {
    let mut arguments = Vec::new();
    let mut models = Vec::new();
    for (key, value) in table {
        if key == MODELS && command.get_name().ends_with("serve") {
            let list = value.as_array().context("`models` must be a list of strings")?;
            for model in list {
                models.push(OsString::from(model.as_str().context("`models` must be a list of strings")?));
            }
            continue;
        }
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(key) && key != "config");
        let Some(arg) = arg else {
            let names: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
            let name = command.get_name().trim_start_matches("roci ").to_owned();
            let meant = hub::suggest::closest(key, names);
            return Err(anyhow!("there is no setting `{key}`")).with_hint(|| match meant {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("`roci {name} --help` names them, without the `--`"),
            });
        };
        let values = match value {
            toml::Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for value in values {
            match (value, arg.get_action()) {
                (toml::Value::Boolean(true), ArgAction::SetTrue) => arguments.push(format!("--{key}").into()),
                (toml::Value::Boolean(false), ArgAction::SetTrue) => {}
                (_, ArgAction::SetTrue) => bail!("`{key}` must be true or false"),
                (toml::Value::String(text), _) => arguments.push(format!("--{key}={text}").into()),
                (toml::Value::Integer(_) | toml::Value::Float(_), _) => {
                    arguments.push(format!("--{key}={value}").into());
                }
                _ => bail!("`{key}` must be a string, a number or a list of them"),
            }
        }
    }
    arguments.extend(models);
    Ok(arguments)
}

/// The settings that hold, as a file that would make them.
pub fn print(command: &Command, matches: &ArgMatches) -> String {
    let mut text = String::new();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let name = arg.get_long().unwrap_or(id);
        if matches!(name, "config" | "print-config" | "help" | "version") {
            continue;
        }
        let values: Vec<String> = match matches.try_get_raw(id) {
            Ok(Some(values)) => values.map(|value| value.to_string_lossy().into_owned()).collect(),
            _ => Vec::new(),
        };
        let shown: Vec<toml::Value> = values.iter().map(|value| as_toml(value)).collect();
        let is_list = name == MODELS || matches!(arg.get_action(), ArgAction::Append);
        match shown.as_slice() {
            [] if is_list => {}
            // No default: said as a comment.
            [] => text.push_str(&format!("# {name} =\n")),
            _ if is_list => text.push_str(&format!("{name} = {}\n", toml::Value::Array(shown))),
            [.., last] => text.push_str(&format!("{name} = {last}\n")),
        }
    }
    text
}

fn as_toml(text: &str) -> toml::Value {
    match text {
        "true" => true.into(),
        "false" => false.into(),
        _ => text
            .parse::<i64>()
            .map(Into::into)
            .or_else(|_| text.parse::<f64>().map(Into::into))
            .unwrap_or_else(|_| text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        Command::new("serve")
            .no_binary_name(true)
            .args_override_self(true)
            .arg(Arg::new("models").action(ArgAction::Append))
            .arg(Arg::new("port").long("port").default_value("8080").value_parser(clap::value_parser!(u16)))
            .arg(Arg::new("cors").long("cors-origin").action(ArgAction::Append))
            .arg(Arg::new("strict").long("strict-model-names").action(ArgAction::SetTrue))
    }

    fn parse(file: &str, env: &[(&str, &str)], typed: &[&str]) -> Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("roci.toml");
        std::fs::write(&path, file).unwrap();
        let read = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        let mut all = arguments(&command(), Some(&path), &read)?;
        all.extend(typed.iter().map(OsString::from));
        Ok(print(&command(), &command().try_get_matches_from(all)?))
    }

    #[test]
    fn the_stronger_place_wins() {
        let file = "models = [\"a\", \"b=c.gguf\"]\nport = 1\ncors-origin = [\"x\"]\nstrict-model-names = true\n";
        let plain = "models = [\"a\", \"b=c.gguf\"]\nport = 1\ncors-origin = [\"x\"]\nstrict-model-names = true\n";
        assert_eq!(parse(file, &[], &[]).unwrap(), plain);
        assert!(parse(file, &[("ROCI_PORT", "2")], &[]).unwrap().contains("port = 2\n"));
        assert!(parse(file, &[("ROCI_PORT", "2")], &["--port", "3"]).unwrap().contains("port = 3\n"));
        assert!(parse(file, &[("ROCI_STRICT_MODEL_NAMES", "0")], &[]).unwrap().contains("strict-model-names = false"));
        let models = parse(file, &[("ROCI_MODELS", "c, d=/e.gguf")], &[]).unwrap();
        assert!(models.starts_with("models = [\"c\", \"d=/e.gguf\"]\nport = 1\n"), "{models}");
        assert!(
            parse("", &[("ROCI_STRICT_MODEL_NAMES", "yes")], &["m"]).unwrap().contains("strict-model-names = true")
        );
        // What is printed can be read again.
        assert_eq!(parse(plain, &[], &[]).unwrap(), plain);
    }

    #[test]
    fn mistakes_are_named() {
        let check = |file: &str, env: &[(&str, &str)], expected: &str| {
            let error = format!("{:#}", parse(file, env, &[]).unwrap_err());
            assert!(error.contains(expected), "`{error}` does not contain `{expected}`");
        };
        check("prot = 1", &[], "there is no setting `prot`");
        check("port = [", &[], "not valid TOML");
        check("port = true", &[], "`port` must be a string, a number");
        check("models = \"a\"", &[], "`models` must be a list");
        check("strict-model-names = 1", &[], "must be true or false");
        check("", &[("ROCI_STRICT_MODEL_NAMES", "perhaps")], "expected 1 or 0");
        check("port = 70000", &[], "roci.toml`: invalid value `70000` for --port <port>: 70000 is not in 0..=65535");
        check("", &[("ROCI_PORT", "many")], "ROCI_PORT: invalid value `many` for --port <port>: invalid digit");
    }
}
