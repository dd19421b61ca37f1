//! The chat at a terminal: a conversation with history, line editing and commands that start with `/`.
//! A mistake costs a line of explanation, never the conversation.

use crate::cmd::run::{self, Args};
use crate::interrupt;
use crate::model_file;
use crate::report::{self, HintExt};
use crate::sampling_args::SamplingArgs;
use anyhow::{Context, Result, anyhow, bail};
use hub::Folders;
use rocinante::{Finish, Message, Model, WholeAnswer};
use rustyline::error::ReadlineError;
use rustyline::{DefaultEditor, history::DefaultHistory};
use std::io::Write;

const HELP: &str = "\
/help               this list
/system [TEXT]      show or set the system prompt (starts over)
/clear              forget the conversation
/regen              regenerate the last answer with another seed
/undo               forget the last question and answer
/set                show the settings
/set NAME VALUE     change one: temperature, top-k, top-p, min-p, repeat-penalty,
                    presence-penalty, frequency-penalty, max-tokens, seed (a number or `random`)
/save FILE          write the conversation to a JSON file
/load FILE          continue a saved conversation
/stats              statistics of the last answer
/exit               leave (also Ctrl-D)
A line that ends with \\ continues on the next. Ctrl-C stops an answer.";

/// A conversation under way.
pub struct Chat<'a> {
    model: &'a Model,
    args: &'a Args,
    sampling: SamplingArgs,
    system: Option<String>,
    /// Questions and answers, without the system message.
    messages: Vec<Message>,
    last_answer: Option<WholeAnswer>,
}

/// What a line asks for.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Say(&'a str),
    /// The word after `/` and the rest.
    Command(&'a str, &'a str),
}

impl<'a> Line<'a> {
    fn of(text: &'a str) -> Self {
        let text = text.trim();
        match text.strip_prefix('/') {
            // A path or a comment is something to say.
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) && !first_word(rest).contains('/') => {
                let word = first_word(rest);
                Line::Command(word, rest[word.len()..].trim())
            }
            _ => Line::Say(text),
        }
    }
}

fn first_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or("")
}

/// Whether the conversation goes on after a line.
#[derive(Debug, PartialEq)]
enum Next {
    Continue,
    Leave,
}

impl<'a> Chat<'a> {
    pub fn new(model: &'a Model, args: &'a Args) -> Self {
        let (sampling, system) = (args.load.seeded(&args.sampling), args.system.clone());
        Self { model, args, sampling, system, messages: Vec::new(), last_answer: None }
    }

    pub fn run(&mut self) -> Result<()> {
        let mut editor = DefaultEditor::new().context("cannot read from the terminal")?;
        let history = Folders::from_env().ok().map(|folders| folders.history());
        if let Some(history) = &history {
            // There is none before the first chat.
            let _ = editor.load_history(history);
        }
        let name = self.model.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
        eprintln!("{name}: say something, or /help");
        loop {
            let text = match read_entry(&mut editor) {
                Ok(text) => text,
                Err(ReadlineError::Interrupted) => {
                    eprintln!("(/exit or Ctrl-D to leave)");
                    continue;
                }
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(error).context("cannot read from the terminal"),
            };
            if text.trim().is_empty() {
                continue;
            }
            // A full history is no reason to stop talking.
            let _ = editor.add_history_entry(text.as_str());
            match self.handle(&text) {
                Ok(Next::Continue) => {}
                Ok(Next::Leave) => break,
                Err(error) if report::is_broken_pipe(&error) => return Err(error),
                Err(error) => report::error(&error),
            }
        }
        if let Some(history) = &history
            && history.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok())
        {
            let _ = editor.save_history(history);
        }
        Ok(())
    }

    fn handle(&mut self, text: &str) -> Result<Next> {
        let (command, rest) = match Line::of(text) {
            Line::Say(text) => {
                self.ask(text)?;
                return Ok(Next::Continue);
            }
            Line::Command(command, rest) => (command, rest),
        };
        match command {
            "help" => eprintln!("{HELP}"),
            "exit" | "quit" | "bye" => return Ok(Next::Leave),
            "clear" => self.messages.clear(),
            "system" if rest.is_empty() => eprintln!("{}", self.system.as_deref().unwrap_or("(the model's own)")),
            "system" => {
                self.system = Some(rest.to_owned());
                self.messages.clear();
            }
            "regen" => self.regenerate()?,
            "undo" => drop(self.pop_question()?),
            "set" if rest.is_empty() => eprintln!("{}", self.describe_settings()),
            "set" => set(&mut self.sampling, rest)?,
            "stats" => match &self.last_answer {
                Some(answer) => eprintln!("{}", run::summary(self.model, answer)),
                None => eprintln!("nothing was said yet"),
            },
            "save" => self.save(rest)?,
            "load" => self.load(rest)?,
            other => return Err(anyhow!("there is no command /{other}")).hint("/help lists them"),
        }
        Ok(Next::Continue)
    }

    fn ask(&mut self, text: &str) -> Result<()> {
        self.messages.push(Message::new("user", text));
        let seed = self.sampling.pick_seed();
        // A question without an answer would confuse the next one.
        self.answer(seed).inspect_err(|_| drop(self.messages.pop()))
    }

    fn regenerate(&mut self) -> Result<()> {
        let question = self.pop_question()?;
        self.messages.push(question);
        let seed = self.last_answer.as_ref().map_or(0, |answer| answer.usage.n_generated as u64);
        self.answer(SamplingArgs { seed: None, ..self.sampling.clone() }.pick_seed() ^ seed)
    }

    /// Takes the last question and what followed it out of the conversation.
    fn pop_question(&mut self) -> Result<Message> {
        match self.messages.iter().rposition(|message| message.role == "user") {
            Some(idx) => Ok(self.messages.drain(idx..).next().expect("the range starts at a message")),
            None => bail!("nothing was asked yet"),
        }
    }

    fn answer(&mut self, seed: u64) -> Result<()> {
        let system = self.system.iter().map(|system| Message::new("system", system.as_str()));
        let messages: Vec<Message> = system.chain(self.messages.iter().cloned()).collect();
        let prompt = match self.args.raw {
            true => self.model.encode_raw(&self.messages.last().map(|m| m.content.clone()).unwrap_or_default()),
            false => {
                let prompt = self.model.chat_prompt(&messages);
                prompt.map_err(|error| model_file::hinted(self.model.path(), error))?.tokens
            }
        };
        let n_ctx = self.model.context();
        if prompt.len() >= n_ctx {
            let n_tokens = prompt.len();
            return Err(anyhow!("the conversation has {n_tokens} tokens, the context holds {n_ctx}"))
                .hint("/clear or /undo forgets some of it; --context at the start makes more room");
        }
        let request = run::request(self.model, &self.sampling, None, seed)?;
        let guard = interrupt::arm()?;
        let mut out = std::io::stdout().lock();
        let answer = run::generate(self.model, prompt, &request, &guard, &mut |text| {
            out.write_all(text.as_bytes())?;
            Ok(out.flush()?)
        })?;
        if !answer.text.ends_with('\n') {
            writeln!(out)?;
        }
        match answer.finish {
            Finish::End | Finish::StopString | Finish::ToolCalls => {}
            Finish::Cancelled => eprintln!("(stopped)"),
            Finish::Length => eprintln!("(ended by max-tokens {}: /set changes it)", self.sampling.max_tokens),
            Finish::Context => {
                eprintln!("(the context of {n_ctx} tokens is full: /clear forgets the conversation)");
            }
        }
        self.messages.push(Message::new("assistant", answer.text.as_str()));
        if self.args.verbose {
            eprintln!("{}", run::summary(self.model, &answer));
        }
        self.last_answer = Some(answer);
        Ok(())
    }

    fn describe_settings(&self) -> String {
        let s = &self.sampling;
        let seed = s.seed.map_or_else(|| "random".to_owned(), |seed| seed.to_string());
        format!(
            "temperature {}, top-k {}, top-p {}, min-p {}, repeat-penalty {}, presence-penalty {}, \
             frequency-penalty {}, max-tokens {}, seed {seed}",
            s.temperature,
            s.top_k,
            s.top_p,
            s.min_p,
            s.repeat_penalty,
            s.presence_penalty,
            s.frequency_penalty,
            s.max_tokens,
        )
    }

    fn save(&self, file: &str) -> Result<()> {
        if file.is_empty() {
            return Err(anyhow!("/save needs a file name")).hint("/save talk.json");
        }
        let messages = self.messages.iter().map(|m| serde_json::json!({"role": m.role, "content": m.content}));
        let saved = serde_json::json!({"system": self.system, "messages": messages.collect::<Vec<_>>()});
        let text = serde_json::to_string_pretty(&saved)? + "\n";
        std::fs::write(file, text).with_context(|| format!("cannot write `{file}`"))?;
        eprintln!("saved {} messages to {file}", self.messages.len());
        Ok(())
    }

    fn load(&mut self, file: &str) -> Result<()> {
        if file.is_empty() {
            return Err(anyhow!("/load needs a file name")).hint("/load talk.json");
        }
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read `{file}`"))?;
        let saved: Saved = serde_json::from_str(&text)
            .with_context(|| format!("`{file}` is not a saved conversation"))
            .hint("/save writes one")?;
        self.system = saved.system;
        self.messages = saved.messages.into_iter().map(|m| Message::new(m.role, m.content)).collect();
        eprintln!("loaded {} messages", self.messages.len());
        Ok(())
    }
}

#[derive(serde::Deserialize)]
struct Saved {
    system: Option<String>,
    messages: Vec<SavedMessage>,
}

#[derive(serde::Deserialize)]
struct SavedMessage {
    role: String,
    content: String,
}

/// One entry: several lines where each but the last ends with a backslash.
fn read_entry(editor: &mut rustyline::Editor<(), DefaultHistory>) -> rustyline::Result<String> {
    let mut text = editor.readline("> ")?;
    while text.ends_with('\\') {
        text.pop();
        text.push('\n');
        text.push_str(&editor.readline(". ")?);
    }
    Ok(text)
}

/// `/set temperature 0.2`: the same names, limits and messages as on the command line.
fn set(sampling: &mut SamplingArgs, rest: &str) -> Result<()> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true, disable_help_flag = true)]
    struct Parser {
        #[command(flatten)]
        sampling: SamplingArgs,
    }
    const NAMES: [&str; 9] = [
        "temperature",
        "top-k",
        "top-p",
        "min-p",
        "repeat-penalty",
        "presence-penalty",
        "frequency-penalty",
        "max-tokens",
        "seed",
    ];
    let (name, value) = rest.split_once(char::is_whitespace).map_or((rest, ""), |(name, value)| (name, value.trim()));
    if !NAMES.contains(&name) || value.is_empty() {
        return Err(anyhow!("/set takes a name and a value")).with_hint(|| format!("names: {}", NAMES.join(", ")));
    }
    if (name, value) == ("seed", "random") {
        sampling.seed = None;
        return Ok(());
    }
    let parsed = <Parser as clap::Parser>::try_parse_from([format!("--{name}={value}")]);
    let new = match parsed {
        Ok(parsed) => parsed.sampling,
        Err(_) => return Err(anyhow!("invalid value `{value}` for {name}")).hint("`roci run --help` shows the limits"),
    };
    match name {
        "temperature" => sampling.temperature = new.temperature,
        "top-k" => sampling.top_k = new.top_k,
        "top-p" => sampling.top_p = new.top_p,
        "min-p" => sampling.min_p = new.min_p,
        "repeat-penalty" => sampling.repeat_penalty = new.repeat_penalty,
        "presence-penalty" => sampling.presence_penalty = new.presence_penalty,
        "frequency-penalty" => sampling.frequency_penalty = new.frequency_penalty,
        "max-tokens" => sampling.max_tokens = new.max_tokens,
        _ => sampling.seed = new.seed,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_commands_from_speech() {
        let check = |text, expected| assert_eq!(Line::of(text), expected);
        check(" /help ", Line::Command("help", ""));
        check("/set top-k 5", Line::Command("set", "top-k 5"));
        check("/etc/passwd is what?", Line::Say("/etc/passwd is what?"));
        check("// a comment", Line::Say("// a comment"));
        check("/", Line::Say("/"));
        check("hello /help", Line::Say("hello /help"));
    }

    #[test]
    fn settings_have_the_limits_of_the_command_line() {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            sampling: SamplingArgs,
        }
        let mut sampling = <Only as clap::Parser>::parse_from(["x"]).sampling;
        set(&mut sampling, "temperature 0.25").unwrap();
        set(&mut sampling, "presence-penalty -0.5").unwrap();
        set(&mut sampling, "seed 7").unwrap();
        assert_eq!((sampling.temperature, sampling.presence_penalty, sampling.seed), (0.25, -0.5, Some(7)));
        set(&mut sampling, "seed random").unwrap();
        assert_eq!(sampling.seed, None);
        for bad in ["", "temperature", "temperature hot", "temperature -1", "top-p 2", "stop x", "max-tokens -1"] {
            assert!(set(&mut sampling, bad).is_err(), "{bad}");
        }
        assert_eq!(sampling.temperature, 0.25);
    }
}
