//! Flags that people know from llama.cpp's programs and from ollama. A flag with a counterpart is translated to it, one
//! for something that is always on is ignored with a note, and one that is not supported says what to do instead. All
//! of this happens before the command line is parsed, which knows none of them.

use std::ffi::OsString;

/// What a flag of others means here.
#[derive(Clone, Copy)]
enum FlagMeaning {
    /// Another name for it; a value stays as it is.
    Is(&'static str),
    /// Another name, and what is put before the value.
    Prefixed(&'static str, &'static str),
    /// Another name; a negative number means the same as leaving it out.
    Limit(&'static str),
    /// Where to compute, under llama.cpp's names.
    Device,
    /// `json` or a schema, as ollama has it.
    Format,
    /// The value is the command's first argument, or its last.
    First,
    Last,
    /// It is so anyway.
    Anyway,
    /// So is whatever its value says.
    AnywayValue,
    /// The same with a value that may be left out.
    AnywayChoice,
    /// It is not available, for this reason.
    Never(&'static str),
}

use FlagMeaning::{Anyway, AnywayChoice, AnywayValue, Device, First, Format, Is, Last, Limit, Never, Prefixed};

/// What follows a flag with a value that may be left out.
const CHOICES: [&str; 5] = ["on", "off", "auto", "0", "1"];

const ONE_GPU: &str = "a model is on one GPU: choose it with --device, such as rocm:1 (`roci devices` lists them)";
const OFFLINE: &str =
    "files and models that were pulled need no network; `roci serve --no-pull` fetches nothing on demand";
const KEYS: &str = "a command line can be read by others: `roci key new --name NAME --file keys` creates a key, --api-key-file keys \
     requires it";

/// The commands, the spellings, and the meaning. The first that fits counts.
const HABITS: &[(&[&str], &[&str], FlagMeaning)] = &[
    (&["tokenize", "perplexity", "embed"], &["-m", "--model"], First),
    (&["tokenize", "embed"], &["-p", "--prompt"], Last),
    (&["perplexity"], &["-f", "--file"], Last),
    (&[], &["-ngl"], Is("--gpu-layers")),
    (&["run"], &["-sys", "--system-prompt"], Is("--system")),
    (&["run", "serve"], &["-ctk", "-ctv", "--cache-type-k", "--cache-type-v"], Is("--kv-type")),
    (&["run", "serve", "bench"], &["-dev", "--device"], Device),
    (&["run", "serve"], &["-hf", "-hfr", "--hf-repo"], Prefixed("--model", "hf:")),
    (&["run", "serve"], &["-md", "--model-draft"], Prefixed("--speculate", "draft=")),
    (&["run", "serve", "bench"], &["-fa", "--flash-attn"], AnywayChoice),
    (&["run", "serve", "bench"], &["--mlock", "--no-mmap", "--mmap", "--no-warmup", "--warmup"], Anyway),
    (&["run", "serve"], &["--jinja", "--no-jinja", "--log-disable", "-cb", "--cont-batching"], Anyway),
    (&["run", "serve"], &["-tb", "--threads-batch", "-ub", "--ubatch-size"], AnywayValue),
    (&["run"], &["-b", "--batch-size", "-np", "--parallel", "--keepalive"], AnywayValue),
    (&["run"], &["-cnv", "--conversation", "-st", "--single-turn", "-i", "--interactive"], Anyway),
    (&["run"], &["-e", "--escape"], Never("a prompt is sent as it is typed: in most shells $'a\\nb' has a line break")),
    (&["run", "serve"], &["--offline"], Never(OFFLINE)),
    (&["run"], &["-co", "--color", "--no-display-prompt", "--nowordwrap"], Anyway),
    (&["run"], &["-no-cnv", "--no-conversation"], Is("--raw")),
    (&["run"], &["--repeat-last-n"], Is("--penalty-window")),
    (&["run"], &["--format"], Format),
    (&["serve"], &["-np", "--parallel"], Is("--max-running")),
    (&["serve"], &["-a", "--alias"], Is("--served-model-name")),
    (&["serve"], &["-b", "--batch-size"], Is("--max-batch-tokens")),
    (&["serve"], &["--no-webui", "--no-ui"], Is("--no-web")),
    (&["serve"], &["--embedding", "--embeddings", "--reranking", "--rerank", "--metrics", "--slots"], Anyway),
    (&["serve"], &["--seed"], Limit("--default-seed")),
    (&["serve"], &["-n", "--n-predict", "--predict"], Limit("--default-max-tokens")),
    (&["serve"], &["--temp"], Is("--default-temperature")),
    (&["serve"], &["--top-k"], Is("--default-top-k")),
    (&["serve"], &["--top-p"], Is("--default-top-p")),
    (&["serve"], &["--min-p"], Is("--default-min-p")),
    (&["serve"], &["--api-key"], Never(KEYS)),
    (&["run", "serve"], &["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"], Never(ONE_GPU)),
    (&["run", "serve"], &["-mm", "--mmproj", "--image"], Never("models here read text only")),
    (&["run", "serve"], &["--chat-template"], Never("--chat-template-file takes a file with a Jinja template")),
    (&["run", "serve", "bench"], &["--list-devices"], Never("`roci devices` lists them")),
    (&["pull"], &["--insecure"], Never("HF_ENDPOINT may name a hub at an address with http://")),
];

/// The command line in roci's own flags.
#[derive(Debug, Default)]
pub struct TranslatedArgs {
    pub arguments: Vec<OsString>,
    /// Flags that were left out.
    pub ignored: Vec<String>,
    /// A flag that is not available, and what to do instead.
    pub refused: Option<(String, &'static str)>,
}

fn meaning(command: &str, flag: &str) -> Option<FlagMeaning> {
    // An alias.
    let command = if command == "chat" { "run" } else { command };
    let fits = |commands: &[&str]| commands.is_empty() || commands.contains(&command);
    HABITS.iter().find(|(commands, names, _)| fits(commands) && names.contains(&flag)).map(|&(.., meaning)| meaning)
}

pub fn translate(typed: Vec<OsString>) -> TranslatedArgs {
    let mut rest = typed.into_iter();
    let mut translator = ArgTranslator::default();
    translator.args.arguments.extend(rest.next());
    let mut command = String::new();
    while let Some(typed) = rest.next() {
        let text = typed.to_string_lossy().into_owned();
        if command.is_empty() {
            translator.args.arguments.push(typed);
            if !text.starts_with('-') {
                (command, translator.place) = (text, translator.args.arguments.len());
            }
            continue;
        }
        let (flag, joined) = match text.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => (flag, Some(OsString::from(value))),
            _ => (text.as_str(), None),
        };
        match meaning(&command, flag) {
            Some(meaning) => translator.take(meaning, flag, joined, &mut rest),
            None => translator.args.arguments.push(typed),
        }
        if text == "--" {
            break;
        }
    }
    let ArgTranslator { mut args, place, last } = translator;
    args.arguments.extend(last);
    args.arguments.extend(rest);
    third_of_quantize(&command, place, &mut args.arguments);
    args
}

/// State of the translation.
#[derive(Default)]
struct ArgTranslator {
    args: TranslatedArgs,
    /// Where the command's own arguments begin.
    place: usize,
    /// What is put at the end.
    last: Vec<OsString>,
}

impl ArgTranslator {
    /// A flag of others; its value is what was joined to it by `=`, or the next that was typed.
    fn take(
        &mut self,
        meaning: FlagMeaning,
        flag: &str,
        joined: Option<OsString>,
        rest: &mut std::vec::IntoIter<OsString>,
    ) {
        let is_joined = joined.is_some();
        let next = rest.as_slice().first().cloned();
        let mut value = || joined.clone().or_else(|| rest.next()).unwrap_or_default();
        let arguments = &mut self.args.arguments;
        match meaning {
            Is(name) => {
                arguments.push(name.into());
                arguments.extend(joined);
            }
            Prefixed(name, before) => {
                let mut whole = OsString::from(before);
                whole.push(value());
                arguments.extend([name.into(), whole]);
            }
            Limit(name) => {
                let value = value();
                if !value.to_string_lossy().starts_with('-') {
                    arguments.extend([name.into(), value]);
                }
            }
            Device => arguments.extend(["--device".into(), device(value())]),
            Format => match value() {
                value if value == "json" => arguments.push("--json".into()),
                schema => arguments.extend(["--json-schema".into(), schema]),
            },
            First => arguments.insert(self.place, value()),
            Last => self.last.push(value()),
            Anyway => self.args.ignored.push(flag.to_owned()),
            AnywayValue => {
                value();
                self.args.ignored.push(flag.to_owned());
            }
            AnywayChoice => {
                if !is_joined && next.is_some_and(|next| CHOICES.iter().any(|choice| next == *choice)) {
                    value();
                }
                self.args.ignored.push(flag.to_owned());
            }
            Never(why) => self.args.refused = self.args.refused.take().or(Some((flag.to_owned(), why))),
        }
    }
}

/// llama.cpp's names for devices.
fn device(typed: OsString) -> OsString {
    let text = typed.to_string_lossy().to_ascii_lowercase();
    let numbered = |vendor: &str| {
        let number = text.strip_prefix(vendor)?;
        number.parse::<u32>().is_ok().then(|| format!("{vendor}:{number}").into())
    };
    match text.as_str() {
        "none" => "cpu".into(),
        _ => numbered("rocm").or_else(|| numbered("cuda")).unwrap_or(typed),
    }
}

/// `quantize MODEL OUT TYPE`, as llama.cpp has it.
fn third_of_quantize(command: &str, place: usize, arguments: &mut Vec<OsString>) {
    let is_word = |argument: &OsString| !argument.to_string_lossy().starts_with('-');
    if command == "quantize" && arguments.len() == place + 3 && arguments[place..].iter().all(is_word) {
        arguments.insert(place + 2, "--type".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    fn of(line: &str) -> TranslatedArgs {
        translate(line.split_whitespace().map(OsString::from).collect())
    }

    #[track_caller]
    fn check(line: &str, expected: &str, ignored: &[&str]) {
        let args = of(line);
        let shown: Vec<_> = args.arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
        assert_eq!(
            (shown.join(" ").as_str(), args.ignored),
            (expected, ignored.iter().map(|s| s.to_string()).collect())
        );
        if let Err(error) = Cli::command().try_get_matches_from(&args.arguments) {
            panic!("{line}: {error}");
        }
    }

    #[test]
    fn flags_of_llama_cpp_and_ollama() {
        check("roci run -m a -p hi -ngl 99 -fa on -n 4", "roci run -m a -p hi --gpu-layers 99 -n 4", &["-fa"]);
        check("roci run -m a -fa -p hi", "roci run -m a -p hi", &["-fa"]);
        check("roci run a hi --mlock -b 512 -ub 512", "roci run a hi", &["--mlock", "-b", "-ub"]);
        check("roci run a hi -no-cnv --repeat-last-n 32", "roci run a hi --raw --penalty-window 32", &[]);
        check("roci run a hi -dev ROCm1", "roci run a hi --device rocm:1", &[]);
        check("roci run a hi --device none", "roci run a hi --device cpu", &[]);
        check("roci run a hi -ctk f32", "roci run a hi --kv-type f32", &[]);
        check("roci run -hf o/r -p hi", "roci run --model hf:o/r -p hi", &[]);
        check("roci run a hi --format json --keepalive 5m", "roci run a hi --json", &["--keepalive"]);
        check(
            "roci serve -m a -np 4 --jinja -a name",
            "roci serve -m a --max-running 4 --served-model-name name",
            &["--jinja"],
        );
        check("roci serve -m a --seed=3 --flash-attn=on", "roci serve -m a --default-seed 3", &["--flash-attn"]);
        check("roci serve a -n -1 --top-k 9", "roci serve a --default-top-k 9", &[]);
        check("roci serve a -n 64", "roci serve a --default-max-tokens 64", &[]);
        check("roci serve a -md b", "roci serve a --speculate draft=b", &[]);
        check("roci tokenize -p hello -m a", "roci tokenize a hello", &[]);
        check("roci perplexity -f text -m a", "roci perplexity a text", &[]);
        check("roci quantize a b Q8_0", "roci quantize a b --type Q8_0", &[]);
    }

    #[test]
    fn what_is_ours_stays() {
        for line in [
            "roci -q run a --device rocm:0 -f b -n 3 hi",
            "roci run a -- -fa --mlock",
            "roci bench -m a -p 16 -n 4",
            "roci quantize a b --type Q8_0",
            "roci list --all",
        ] {
            check(line, line, &[]);
        }
    }

    #[test]
    fn what_cannot_be_had_says_what_to_do() {
        for (line, flag, part) in [
            ("roci serve a --api-key secret", "--api-key", "roci key new"),
            ("roci run a hi -sm none -mg 1", "-sm", "--device"),
            ("roci run a hi --mmproj b", "--mmproj", "text only"),
        ] {
            let (refused, why) = of(line).refused.unwrap();
            assert!(refused == flag && why.contains(part), "{refused}: {why}");
        }
    }
}
