//! The chat at a terminal: a conversation with history, line editing and commands that start with `/`.
//! A mistake costs a line of explanation, never the conversation.

mod editor;
mod settings;
mod sliding;

use crate::cmd::run::{self, Args};
use crate::interrupt;
use crate::markdown::{Markdown, Style};
use crate::model_file;
use crate::options::Think;
use crate::report::{self, HintExt, counted};
use crate::sampling_args::SamplingArgs;
use crate::session::OpenSession;
use crate::store;
use anyhow::{Context, Result, anyhow, bail};
use editor::TypedLine;
use hub::{Folders, Named, Resolved};
use rocinante::{Adapter, Finish, Message, Model, Options, Request, WholeAnswer};
use rustyline::error::ReadlineError;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

const HELP: &str = "\
/help               this list
/system             show the system prompt
/system TEXT        set another one, and start over
/clear              forget the conversation
/regen              regenerate the last answer with another seed
/undo               forget the last question and answer
/set                show the settings
/show [WHAT]        show the model and the settings; `template`, `system`: one of them
/set NAME VALUE     change one: temperature, top-k, top-p, min-p, repeat-penalty,
                    presence-penalty, frequency-penalty, max-tokens, seed (a number or `random`)
/set think          let the model think first, where it can; `nothink`: do not
/save FILE          write the conversation to a JSON file
/load FILE          continue a saved conversation
/model [NAME]       show or change the model; the conversation goes on
/stats              statistics of the last answer
/exit               leave (also Ctrl-D)
A line that ends with \\ continues on the next; \"\"\" begins and ends a text of several lines. Tab completes
commands, names and files. Ctrl-C stops an answer.";

/// A conversation under way.
pub struct Chat<'a> {
    /// `None` only while another is loaded.
    model: Option<Model>,
    options: Options,
    /// How the model's name says that it is used.
    named: Named,
    args: &'a Args,
    sampling: SamplingArgs,
    think: Option<Think>,
    system: Option<String>,
    /// Questions and answers, without the system message.
    messages: Vec<Message>,
    last_answer: Option<WholeAnswer>,
    /// What changes the model that the chat began with.
    adapter: Option<Adapter>,
    /// Where the conversation comes from and goes to.
    session: Option<OpenSession>,
}

/// What a line asks for.
#[derive(Debug, PartialEq)]
enum ChatLine<'a> {
    Say(&'a str),
    /// The word after `/` and the rest.
    Command(&'a str, &'a str),
}

impl<'a> ChatLine<'a> {
    fn of(text: &'a str) -> Self {
        let text = text.trim();
        match text.strip_prefix('/') {
            // As ollama has it.
            Some("?") => ChatLine::Command("help", ""),
            // A path or a comment is something to say.
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) && !first_word(rest).contains('/') => {
                let word = first_word(rest);
                ChatLine::Command(word, rest[word.len()..].trim())
            }
            _ => ChatLine::Say(text),
        }
    }
}

fn first_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or("")
}

/// Whether the conversation continues after a line.
#[derive(Debug, PartialEq)]
enum AfterLine {
    Continue,
    Leave,
}

impl<'a> Chat<'a> {
    pub fn new(model: Model, args: &'a Args, options: Options, named: Named) -> Self {
        let (sampling, system) = (args.load.seeded(&args.sampling), args.system.clone());
        let (messages, last_answer, adapter) = (Vec::new(), None, None);
        let think = args.think;
        let session = None;
        let model = Some(model);
        Self { model, options, named, args, sampling, think, system, messages, last_answer, adapter, session }
    }

    pub fn with_adapter(self, adapter: Option<Adapter>) -> Self {
        Self { adapter, ..self }
    }

    /// With what was said in an earlier chat.
    pub fn with_session(mut self, session: Option<OpenSession>) -> Self {
        if let Some(session) = &session {
            self.messages = session.messages();
            self.system = self.system.or_else(|| session.conversation.system.clone());
        }
        Self { session, ..self }
    }

    /// Writes the conversation and what the model has computed of it, if a session was asked for.
    fn save_session(&mut self) -> Result<()> {
        let (Some(mut session), Some(model)) = (self.session.take(), &self.model) else { return Ok(()) };
        session.set_messages(&self.messages);
        session.conversation.system = self.system.clone();
        let beginning = run::beginning(self.system.as_deref(), &self.named);
        let all: Vec<Message> = beginning.into_iter().chain(self.messages.iter().cloned()).collect();
        let tokens = match all.is_empty() {
            true => model.encode_raw(""),
            false => model.prompt(&all, &Think::render_options(self.think))?.tokens,
        };
        session.save(model, &tokens, self.adapter.as_ref())
    }

    pub fn model(&self) -> Option<&Model> {
        self.model.as_ref()
    }

    fn loaded(&self) -> Result<&Model> {
        self.model.as_ref().context("no model is loaded").hint("/model NAME loads one")
    }

    pub fn run(&mut self) -> Result<()> {
        let mut editor = editor::new().context("cannot read from the terminal")?;
        let history = Folders::from_env().ok().map(|folders| folders.history());
        if let Some(history) = &history {
            // There is none before the first chat.
            let _ = editor.load_history(history);
        }
        report::note_line(&format!("{}{}: say something, or /help", self.name(), self.place()));
        if !self.messages.is_empty() {
            report::note_line(&format!("(goes on after {})", counted(self.messages.len(), "message")));
        }
        loop {
            let text = match editor::read(&mut editor) {
                Ok(TypedLine::Line(text)) => text,
                Ok(TypedLine::Block(text)) => {
                    let _ = editor.add_history_entry(format!("\"\"\"{text}\"\"\""));
                    // A block is something to say, whatever it begins with.
                    if let Err(error) = self.ask(&text) {
                        report::error(&error);
                    }
                    continue;
                }
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
                Ok(AfterLine::Continue) => {}
                Ok(AfterLine::Leave) => break,
                Err(error) if report::is_broken_pipe(&error) => return Err(error),
                Err(error) => report::error(&error),
            }
        }
        if let Some(history) = &history
            && history.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok())
        {
            let _ = editor.save_history(history);
        }
        self.save_session()
    }

    fn handle(&mut self, text: &str) -> Result<AfterLine> {
        let (command, rest) = match ChatLine::of(text) {
            ChatLine::Say(text) => {
                self.ask(text)?;
                return Ok(AfterLine::Continue);
            }
            ChatLine::Command(command, rest) => (command, rest),
        };
        match command {
            "help" => eprintln!("{HELP}"),
            "exit" | "quit" | "bye" => return Ok(AfterLine::Leave),
            "clear" => self.messages.clear(),
            "system" => self.set_system(rest),
            "regen" => self.regenerate()?,
            "undo" => drop(self.pop_question()?),
            "set" => self.set(rest)?,
            "show" => self.show(rest)?,
            "stats" => match &self.last_answer {
                Some(answer) => {
                    eprintln!("{}", run::summary(self.loaded()?, answer));
                    run::guesses(answer).into_iter().for_each(|line| eprintln!("{line}"));
                }
                None => eprintln!("nothing was said yet"),
            },
            "model" if rest.is_empty() => eprintln!("{}", self.name()),
            "model" => self.change_model(rest)?,
            "save" => self.save(rest)?,
            // As ollama has it, a model's name.
            "load" if !Path::new(rest).exists() && store::find_named(rest).is_ok() => self.change_model(rest)?,
            "load" => self.load(rest)?,
            other => {
                let meant = hub::suggest::closest(other, editor::COMMANDS.iter().map(|command| &command[1..]));
                return Err(anyhow!("there is no command /{other}")).with_hint(|| match meant {
                    Some(meant) => format!("did you mean /{meant}? /help lists them"),
                    None => "/help lists them".to_owned(),
                });
            }
        }
        Ok(AfterLine::Continue)
    }

    /// `/set NAME VALUE`, and ollama's `/set parameter NAME VALUE` and `/set system TEXT`.
    fn set(&mut self, rest: &str) -> Result<()> {
        match (first_word(rest), rest[first_word(rest).len()..].trim()) {
            ("", _) => eprintln!("{}", settings::describe(&self.sampling)),
            ("system", text) => self.set_system(text),
            ("think", _) => self.think = Some(Think::True),
            ("nothink", _) => self.think = Some(Think::False),
            ("parameter", setting) => settings::set(&mut self.sampling, setting)?,
            _ => settings::set(&mut self.sampling, rest)?,
        }
        Ok(())
    }

    /// `/show`: the model, where it computes, and how it is used; `/show template` and the like, one of them.
    fn show(&self, what: &str) -> Result<()> {
        let model = self.loaded()?;
        let system = self.system.as_deref().unwrap_or("no system prompt but the model's own");
        match what {
            "" | "info" => {
                eprintln!("{}{}", self.name(), self.place());
                eprintln!("context {} tokens\nsystem: {system}", model.plan().n_ctx());
                eprintln!("{}", settings::describe(&self.sampling));
            }
            "system" => eprintln!("{system}"),
            "parameters" => eprintln!("{}", settings::describe(&self.sampling)),
            "template" => eprintln!("{}", model.template().source().unwrap_or("this model has no chat template")),
            other => {
                let text = format!("there is nothing to show of `{other}`");
                return Err(anyhow!(text)).hint("/show info, /show system, /show parameters or /show template");
            }
        }
        Ok(())
    }

    /// `/system TEXT` sets the prompt and starts over; without a text it only shows it.
    fn set_system(&mut self, text: &str) {
        if text.is_empty() {
            let system = self.system.as_deref().unwrap_or("no system prompt but the model's own");
            eprintln!("{system}\n(/system TEXT sets another one and starts the conversation over)");
            return;
        }
        self.system = Some(text.to_owned());
        let n_forgotten = self.messages.len();
        self.messages.clear();
        match n_forgotten {
            0 => eprintln!("(the system prompt is set)"),
            n => eprintln!("(the system prompt is set; {} forgotten)", counted(n, "message")),
        }
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
            None => bail!("there is no question yet"),
        }
    }

    fn answer(&mut self, seed: u64) -> Result<()> {
        let model = self.model.as_ref().context("no model is loaded").hint("/model NAME loads one")?;
        let mut conversation = sliding::Conversation {
            model,
            beginning: run::beginning(self.system.as_deref(), &self.named),
            messages: &mut self.messages,
            is_raw: self.args.raw,
            think: self.think,
        };
        let request = Request { adapter: self.adapter.clone(), ..run::request(model, &self.sampling, None, seed)? };
        let guard = interrupt::arm()?;
        let mut out = std::io::stdout().lock();
        let mut markdown = out
            .is_terminal()
            .then(|| Markdown::new(if report::has_colour(&out) { Style::Coloured } else { Style::Plain }));
        let answer = conversation.answer(&request, &guard, &mut |text| {
            let shown = markdown.as_mut().map_or_else(|| text.to_owned(), |markdown| markdown.push(text));
            out.write_all(shown.as_bytes())?;
            Ok(out.flush()?)
        });
        if let Some(markdown) = &mut markdown {
            out.write_all(markdown.finish().as_bytes())?;
        }
        let answer = answer?;
        if !answer.text.ends_with('\n') {
            writeln!(out)?;
        }
        match answer.finish {
            Finish::End | Finish::StopString | Finish::ToolCalls => {}
            Finish::Cancelled => eprintln!("(stopped)"),
            Finish::Length => eprintln!("(ended by max-tokens {}: /set changes it)", self.sampling.max_tokens),
            Finish::Context => eprintln!("(the context is full: /clear forgets the conversation)"),
        }
        match self.args.verbose {
            true => report::note_line(&run::summary(model, &answer)),
            false => report::dim_line(&speed(&answer)),
        }
        self.messages.push(Message::new("assistant", answer.text.as_str()));
        self.last_answer = Some(answer);
        Ok(())
    }

    fn name(&self) -> String {
        let path = self.model.as_ref().map(Model::path);
        path.and_then(|path| path.file_stem()).unwrap_or_default().to_string_lossy().into_owned()
    }

    /// ` on cpu (2 threads, avx2), no GPU was found`: where the model computes, and why it is not a GPU.
    fn place(&self) -> String {
        let Some(model) = &self.model else { return String::new() };
        let chosen = &model.plan().device;
        let why = match (chosen.choice, &chosen.refused[..], &chosen.absent[..]) {
            _ if chosen.unsuited.is_some() => ", which has what this model needs",
            (model::DeviceChoice::Gpu { .. }, ..) | (_, [], []) => "",
            (_, [], _) => ", no GPU was found",
            _ => ", the GPU was refused (`roci doctor` says more)",
        };
        format!(" on {}{why}", model.device())
    }

    /// Another model for the rest of the conversation. The one before makes room first, and comes back if the other
    /// cannot be loaded.
    fn change_model(&mut self, name: &str) -> Result<()> {
        let Resolved { path, named, .. } = store::resolve_named(name)?;
        let before = self.model.take().map(|model| model.path().to_owned());
        let named = named.unwrap_or_default();
        // An adapter belongs to the model that the chat began with.
        let options =
            Options { chat_template: named.template.clone(), adapters: Default::default(), ..self.options.clone() };
        match model_file::load(&path, &options) {
            Ok(model) => self.model = Some(model),
            Err(error) => {
                self.model = before.and_then(|path| model_file::load(&path, &self.options).ok());
                return Err(error);
            }
        }
        self.system = self.args.system.clone().or_else(|| named.system.clone());
        (self.options, self.named) = (options, named);
        self.adapter = None;
        report::note_line(&format!("{} answers from here on,{}", self.name(), self.place()));
        Ok(())
    }

    fn save(&self, file: &str) -> Result<()> {
        if file.is_empty() {
            return Err(anyhow!("/save needs a file name")).hint("/save talk.json");
        }
        let messages = self.messages.iter().map(|m| serde_json::json!({"role": m.role, "content": m.content}));
        let saved = serde_json::json!({"system": self.system, "messages": messages.collect::<Vec<_>>()});
        let text = serde_json::to_string_pretty(&saved)? + "\n";
        std::fs::write(file, text)
            .map_err(report::writing(&PathBuf::from(file), None))
            .with_context(|| format!("cannot write `{file}`"))?;
        eprintln!("saved {} to {file}", counted(self.messages.len(), "message"));
        Ok(())
    }

    fn load(&mut self, file: &str) -> Result<()> {
        if file.is_empty() {
            return Err(anyhow!("/load needs a file name")).hint("/load talk.json");
        }
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read `{file}`"))?;
        let saved: SavedChat = serde_json::from_str(&text)
            .with_context(|| format!("`{file}` is not a saved conversation"))
            .hint("/save writes one")?;
        self.system = saved.system;
        self.messages = saved.messages.into_iter().map(|m| Message::new(m.role, m.content)).collect();
        eprintln!("loaded {}", counted(self.messages.len(), "message"));
        Ok(())
    }
}

#[derive(serde::Deserialize)]
struct SavedChat {
    system: Option<String>,
    messages: Vec<SavedMessage>,
}

#[derive(serde::Deserialize)]
struct SavedMessage {
    role: String,
    content: String,
}

/// The figures after an answer.
fn speed(answer: &WholeAnswer) -> String {
    let per_second = answer.usage.decode_speed().map(|speed| format!(", {speed:.1} tokens/s")).unwrap_or_default();
    format!(
        "[{}{per_second}, first after {:.2} s]",
        counted(answer.usage.n_generated, "token"),
        answer.usage.timings.ttft.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_commands_from_speech() {
        let check = |text, expected| assert_eq!(ChatLine::of(text), expected);
        check(" /help ", ChatLine::Command("help", ""));
        check("/set top-k 5", ChatLine::Command("set", "top-k 5"));
        check("/etc/passwd is what?", ChatLine::Say("/etc/passwd is what?"));
        check("// a comment", ChatLine::Say("// a comment"));
        check("/", ChatLine::Say("/"));
        check("/?", ChatLine::Command("help", ""));
        check("hello /help", ChatLine::Say("hello /help"));
    }
}
