//! A model's chat template, rendered as Hugging Face's transformers would render it.
//!
//! The engine is minijinja; this file sets it up as transformers sets up Jinja (block trimming, `tojson`,
//! `raise_exception`, `strftime_now`, the `generation` tag) and passes the same variables. A template comes
//! out of a file somebody published, so its work is bounded ([`meter`]) and every failure is an error with its line.

pub(crate) mod meter;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::time::SystemTime;

use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, Value, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use regex::Regex;

use crate::python::{self, JsonStyle};
use crate::{Error, Result};

/// ChatML, for a model whose file has no template.
pub const DEFAULT_TEMPLATE: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Instructions one rendering may take: a few hundred messages take thousands, a loop without end all.
const FUEL: u64 = 2_000_000;
const NAME: &str = "chat_template";

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
    /// Further fields (`name`, `tool_calls`, `tool_call_id`, ...). One named `role` or `content` stands
    /// instead of the field above: for content that is null or a list of parts.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl Message {
    /// A message of text alone.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: serde_json::Map::new() }
    }
}

/// What a template is told besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderOptions {
    /// End with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Descriptions of the tools the model may call: a list.
    pub tools: Option<serde_json::Value>,
    /// Further variables (`date_string`, `enable_thinking`, ...).
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl RenderOptions {
    /// Tells templates that can say so whether the model should think first. Variables that are set already stay.
    pub fn set_thinking(&mut self, thinks: bool) {
        // The names that templates use for it.
        for name in ["enable_thinking", "thinking"] {
            self.extra.entry(name).or_insert(thinks.into());
        }
    }
}

/// A chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    bos: String,
    eos: String,
}

/// What `raise_exception` was called with, kept apart from failures nobody meant.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Reads a template. `bos` and `eos` are the texts of those tokens, empty where the model has none.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        let mut env = environment().map_err(|error| Error::TemplateSyntax(describe(&error)))?;
        let unreadable = |error| Error::TemplateSyntax(describe(&error));
        let source = syntax().and_then(|syntax| meter::rewrite(&adapted(source), syntax)).map_err(unreadable)?;
        env.add_template_owned(NAME, source).map_err(unreadable)?;
        Ok(Self { env, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// Lets `strftime_now` see this moment, in UTC, instead of the clock's in local time.
    pub fn with_time(mut self, now: SystemTime) -> Result<Self> {
        let now = Timestamp::try_from(now).map_err(|error| Error::TemplateRender(error.to_string()))?;
        let now = now.to_zoned(TimeZone::UTC);
        self.env.add_function("strftime_now", move |format: &str| strftime(format, &now));
        Ok(self)
    }

    /// The prompt for these messages.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let mut variables = serde_json::Map::new();
        for (name, text) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            if !text.is_empty() {
                variables.insert(name.to_owned(), text.as_str().into());
            }
        }
        // Present though null: templates tell "is defined" from "is none".
        variables.insert("documents".to_owned(), serde_json::Value::Null);
        variables.extend(options.extra.clone());
        variables.insert("messages".to_owned(), messages.iter().map(message_value).collect());
        variables.insert("tools".to_owned(), options.tools.clone().unwrap_or_default());
        variables.insert("add_generation_prompt".to_owned(), options.add_generation_prompt.into());
        // minijinja 3.0.5 panics where it should not (a reversed slice of an empty list); a template must not
        // end the program. Nothing of the engine's state outlives a rendering, so unwinding leaves it whole.
        let render = || self.env.get_template(NAME)?.render(Serde(&variables));
        let n_bytes = n_bytes(&variables);
        match meter::metered(n_bytes, || catch_unwind(AssertUnwindSafe(render))) {
            Ok(rendered) => rendered.map_err(render_error),
            Err(_) => Err(Error::TemplateRender("the template engine broke on it".to_owned())),
        }
    }
}

fn message_value(message: &Message) -> serde_json::Value {
    let mut fields = serde_json::Map::new();
    fields.insert("role".to_owned(), message.role.as_str().into());
    fields.insert("content".to_owned(), message.content.as_str().into());
    fields.extend(message.extra.clone());
    fields.into()
}

/// What a template is given to read, about.
fn n_bytes(variables: &serde_json::Map<String, serde_json::Value>) -> usize {
    use serde_json::Value as V;
    let mut n = 0;
    let mut todo: Vec<&V> = variables.values().collect();
    while let Some(value) = todo.pop() {
        n += match value {
            V::String(text) => text.len(),
            _ => 8,
        };
        match value {
            V::Array(items) => todo.extend(items),
            V::Object(fields) => todo.extend(fields.values()),
            _ => {}
        }
    }
    n
}

/// As transformers sets up Jinja.
fn syntax() -> std::result::Result<SyntaxConfig, minijinja::Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn environment() -> std::result::Result<Environment<'static>, minijinja::Error> {
    let mut env = Environment::new();
    env.set_syntax(syntax()?);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    meter::install(&mut env);
    env.set_formatter(|out, _state, value| {
        let mut text = String::new();
        python::write_str(value, &mut text)?;
        meter::charge(text.len())?;
        out.write_str(&text).map_err(minijinja::Error::from)
    });
    env.add_filter("string", |value: &Value| {
        let mut text = String::new();
        python::write_str(value, &mut text)?;
        meter::charge(text.len()).map(|()| text)
    });
    env.add_filter("tojson", |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
        let text = JsonStyle::from_kwargs(&args, &kwargs)?.dumps(value)?;
        meter::charge(text.len()).map(|()| text)
    });
    // Python iterates over nothing undefined but not over None; minijinja iterates over both.
    env.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
        )
    });
    env.add_function("raise_exception", |message: &Value| -> std::result::Result<Value, minijinja::Error> {
        let text = message.to_string();
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
    });
    env.add_function("strftime_now", |format: &str| strftime(format, &Zoned::now()));
    Ok(env)
}

fn strftime(format: &str, now: &Zoned) -> std::result::Result<String, minijinja::Error> {
    strtime::format(format, now).map_err(|error| {
        minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}"))
    })
}

/// The source in words minijinja knows. `{% generation %}` marks the answers for training and prints its body;
/// here it is only a scope. `x[::-1]` at the end of a tag, which would panic for an empty `x`, becomes a filter.
fn adapted(source: &str) -> String {
    static GENERATION: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("the expression is fixed"));
    static REVERSED: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"([\w\])])\[::-1\](\s*[-+]?%\})").expect("the expression is fixed"));
    let source = GENERATION.replace_all(source, "{%${1} ${2}with ${3}%}");
    REVERSED.replace_all(&source, "${1}|reverse${2}").into_owned()
}

fn render_error(error: minijinja::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return Error::TemplateRefused(message.clone());
        }
        source = cause.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::TemplateRender(format!("it took more than {FUEL} steps"));
    }
    Error::TemplateRender(describe(&error))
}

/// What happened and on which line, without the engine's own name for the template.
fn describe(error: &minijinja::Error) -> String {
    let what = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}
