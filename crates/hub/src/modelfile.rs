//! Modelfiles, Ollama's format for custom models: `FROM`, `PARAMETER`, `SYSTEM`, `TEMPLATE`, `MESSAGE`, `LICENSE`.
//! Reads and writes them; what `FROM` names is resolved by the caller.
//!
//! Two instructions cannot be honoured and say so: `ADAPTER` (adapters are given with `--lora` or merged into the
//! weights), and a `TEMPLATE` in Go's language. Chat templates here are Jinja, as in the model files themselves.

use crate::hint::{self, HintExt};
use crate::named::{ExampleMessage, Named, Parameters};
use crate::suggest;
use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use std::fmt;

const INSTRUCTIONS: [&str; 7] = ["FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE"];
/// The parameters that mean something here.
pub const PARAMETERS: [&str; 17] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "seed",
    "num_predict",
    "num_ctx",
    "num_thread",
    "stop",
];
/// Parameters of Ollama's that tune its own engine: accepted, without effect.
const ENGINE_PARAMETERS: [&str; 9] =
    ["num_gpu", "num_batch", "num_keep", "main_gpu", "low_vram", "use_mmap", "use_mlock", "numa", "tfs_z"];

/// A recipe.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Modelfile {
    /// A name, a path or `hf:OWNER/REPO`.
    pub from: String,
    pub parameters: Parameters,
    pub template: Option<String>,
    pub system: Option<String>,
    pub license: Option<String>,
    pub messages: Vec<ExampleMessage>,
    /// What will have no effect, a sentence each.
    pub notes: Vec<String>,
}

impl Modelfile {
    pub fn parse(text: &str) -> Result<Self> {
        let mut file = Self::default();
        for instruction in instructions(text)? {
            let line = instruction.line;
            file.add(instruction).map_err(|error| at_line(text, line, &error))?;
        }
        if file.from.is_empty() {
            return Err(anyhow!("the Modelfile has no FROM"))
                .hint("start it with `FROM NAME`, or a path or hf:OWNER/REPO");
        }
        Ok(file)
    }

    fn add(&mut self, instruction: Instruction) -> Result<()> {
        let value = instruction.value;
        match instruction.word.to_uppercase().as_str() {
            "FROM" => self.from = value,
            "SYSTEM" => self.system = Some(value),
            "LICENSE" => self.license = Some(value),
            "TEMPLATE" if is_go_template(&value) => {
                self.notes.push("TEMPLATE is a Go template and has no effect: the model's own is used".to_owned());
            }
            "TEMPLATE" => self.template = Some(value),
            "MESSAGE" => {
                let (role, content) =
                    value.split_once(char::is_whitespace).context("MESSAGE needs a role and a text")?;
                if !["system", "user", "assistant"].contains(&role) {
                    return Err(anyhow!("MESSAGE has no role `{role}`")).hint("roles: system, user, assistant");
                }
                self.messages
                    .push(ExampleMessage { role: role.to_owned(), content: unquoted(content.trim()).to_owned() });
            }
            "PARAMETER" => {
                let (name, value) =
                    value.split_once(char::is_whitespace).context("PARAMETER needs a name and a value")?;
                self.set(name, unquoted(value.trim()))?;
            }
            "ADAPTER" => {
                return Err(anyhow!("ADAPTER is not supported")).hint("merge the adapter into the weights first");
            }
            other => {
                let error = Err(anyhow!("there is no instruction `{}`", instruction.word));
                return match suggest::closest(other, INSTRUCTIONS) {
                    Some(meant) => error.hint(format!("did you mean {meant}?")),
                    None => error.hint(format!("instructions: {}", INSTRUCTIONS.join(", "))),
                };
            }
        }
        Ok(())
    }

    /// Sets a parameter from its text. Numbers must be numbers; `stop` may be given several times.
    pub fn set(&mut self, name: &str, text: &str) -> Result<()> {
        if ENGINE_PARAMETERS.contains(&name) {
            self.notes.push(format!("PARAMETER {name} has no effect here"));
            return Ok(());
        }
        if !PARAMETERS.contains(&name) {
            let error = Err(anyhow!("there is no parameter `{name}`"));
            return match suggest::closest(name, PARAMETERS) {
                Some(meant) => error.hint(format!("did you mean {meant}?")),
                None => error.hint(format!("parameters: {}", PARAMETERS.join(", "))),
            };
        }
        if name == "stop" {
            let stops = self.parameters.entry(name.to_owned()).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(stops) = stops {
                stops.push(text.into());
            }
            return Ok(());
        }
        let whole = text.parse::<i64>().map(Value::from);
        let number = whole.or_else(|_| text.parse::<f64>().map(Value::from)).ok().filter(|value| !value.is_null());
        let number = number.with_context(|| format!("PARAMETER {name} is not a number: `{text}`"))?;
        self.parameters.insert(name.to_owned(), number);
        Ok(())
    }

    /// This recipe on top of what its base has.
    pub fn over(&self, base: &Named) -> Named {
        let mut parameters = base.parameters.clone();
        parameters.extend(self.parameters.clone());
        Named {
            file: base.file.clone(),
            from: self.from.clone(),
            system: self.system.clone().or_else(|| base.system.clone()),
            template: self.template.clone().or_else(|| base.template.clone()),
            license: self.license.clone().or_else(|| base.license.clone()),
            parameters,
            messages: if self.messages.is_empty() { base.messages.clone() } else { self.messages.clone() },
        }
    }

    /// The recipe that would make this name.
    pub fn of(named: &Named) -> Self {
        Self {
            from: if named.from.is_empty() { named.file.display().to_string() } else { named.from.clone() },
            parameters: named.parameters.clone(),
            template: named.template.clone(),
            system: named.system.clone(),
            license: named.license.clone(),
            messages: named.messages.clone(),
            notes: Vec::new(),
        }
    }
}

impl fmt::Display for Modelfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "FROM {}", self.from)?;
        for (name, value) in &self.parameters {
            let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            for value in values {
                writeln!(f, "PARAMETER {name} {value}")?;
            }
        }
        for (word, text) in [("TEMPLATE", &self.template), ("SYSTEM", &self.system), ("LICENSE", &self.license)] {
            if let Some(text) = text {
                writeln!(f, "{word} \"\"\"{text}\"\"\"")?;
            }
        }
        for turn in &self.messages {
            writeln!(f, "MESSAGE {} \"\"\"{}\"\"\"", turn.role, turn.content)?;
        }
        Ok(())
    }
}

/// The error with the line it is about.
fn at_line(text: &str, line: usize, error: &anyhow::Error) -> anyhow::Error {
    let column = text.lines().nth(line - 1).map_or(1, |line| line.len() - line.trim_start().len() + 1);
    let shown = anyhow!("line {line}: {}\n{}", hint::one_line(error), hint::excerpt(text, line, column));
    match hint::hint_of(error) {
        Some(hint) => Err::<(), _>(shown).hint(hint).expect_err("an error stays one"),
        None => shown,
    }
}

struct Instruction {
    line: usize,
    word: String,
    value: String,
}

/// Instructions with their values. A value in `"""` may span lines.
fn instructions(text: &str) -> Result<Vec<Instruction>> {
    const FENCE: &str = "\"\"\"";
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((idx, line)) = lines.next() {
        let line_n = idx + 1;
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let (word, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
        let rest = rest.trim();
        let Some((before, opened)) = rest.split_once(FENCE) else {
            let value = if word.eq_ignore_ascii_case("PARAMETER") || word.eq_ignore_ascii_case("MESSAGE") {
                rest
            } else {
                unquoted(rest)
            };
            if value.is_empty() {
                return Err(at_line(text, line_n, &anyhow!("{word} needs a value")));
            }
            found.push(Instruction { line: line_n, word: word.to_owned(), value: value.to_owned() });
            continue;
        };
        let mut value = opened.to_owned();
        while !value.contains(FENCE) {
            let Some((_, line)) = lines.next() else {
                return Err(at_line(text, line_n, &anyhow!("{FENCE} is never closed")));
            };
            value.push('\n');
            value.push_str(line);
        }
        let value = value.split(FENCE).next().unwrap_or_default();
        // A text that begins on its own line does not begin with a line break.
        let value = value.strip_prefix('\n').unwrap_or(value);
        found.push(Instruction { line: line_n, word: word.to_owned(), value: format!("{before}{value}") });
    }
    Ok(found)
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text)
}

/// Ollama's templates are Go's: `{{ .Prompt }}`, `{{ if .System }}`; Jinja has no dot in front of a name.
fn is_go_template(text: &str) -> bool {
    text.contains("{{")
        && ["{{ .", "{{.", "{{- .", "{{ if ", "{{- if ", "{{ range", "{{- range"].iter().any(|go| text.contains(go))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::{hint_of, one_line};

    const RECIPE: &str = r#"# a pirate
FROM smollm2:135m
parameter temperature 0.8
PARAMETER num_ctx 4096
PARAMETER stop "<|end|>"
PARAMETER stop "a b"
PARAMETER num_gpu 99
TEMPLATE """{{ if .System }}{{ .System }}{{ end }}"""
SYSTEM """
You are a pirate.
Answer briefly.
"""
MESSAGE user hello
MESSAGE assistant """Ahoy!
What now?"""
LICENSE MIT
"#;

    #[test]
    fn reads_a_recipe() {
        let file = Modelfile::parse(RECIPE).unwrap();
        assert_eq!(file.from, "smollm2:135m");
        assert_eq!(file.parameters["temperature"], 0.8);
        assert_eq!(file.parameters["num_ctx"], 4096);
        assert_eq!(file.parameters["stop"], serde_json::json!(["<|end|>", "a b"]));
        assert_eq!(file.system.as_deref(), Some("You are a pirate.\nAnswer briefly.\n"));
        assert_eq!(file.messages[1], ExampleMessage { role: "assistant".into(), content: "Ahoy!\nWhat now?".into() });
        assert_eq!((file.template, file.license.as_deref()), (None, Some("MIT")));
        assert!(file.notes.len() == 2 && file.notes[1].contains("Go template"), "{:?}", file.notes);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let file = Modelfile { notes: Vec::new(), ..Modelfile::parse(RECIPE).unwrap() };
        assert_eq!(Modelfile::parse(&file.to_string()).unwrap(), file);
    }

    #[test]
    fn lies_on_top_of_its_base() {
        let base = Named {
            file: "m.gguf".into(),
            system: Some("old".into()),
            parameters: [("seed".to_owned(), 1.into()), ("temperature".to_owned(), 1.into())].into(),
            ..Named::default()
        };
        let named = Modelfile::parse("FROM x\nPARAMETER temperature 0\n").unwrap().over(&base);
        assert_eq!((named.parameters["seed"].clone(), named.parameters["temperature"].clone()), (1.into(), 0.into()));
        assert_eq!((named.system.as_deref(), named.from.as_str()), (Some("old"), "x"));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let check = |text: &str, expected: &str, hint: &str| {
            let error = Modelfile::parse(text).unwrap_err();
            assert!(one_line(&error).contains(expected), "{}", one_line(&error));
            assert!(hint_of(&error).unwrap_or_default().contains(hint), "{:?}", hint_of(&error));
        };
        check("SYSTEM x", "has no FROM", "FROM NAME");
        check("FROM x\nSYSTM y", "line 2: there is no instruction `SYSTM`", "did you mean SYSTEM?");
        check("FROM x\nPARAMETER temprature 1", "line 2: there is no parameter `temprature`", "temperature");
        check("FROM x\nPARAMETER seed one", "line 2: PARAMETER seed is not a number", "");
        check("FROM x\n\nSYSTEM \"\"\"abc", "line 3: \"\"\" is never closed", "");
        check("FROM x\nMESSAGE pirate hi", "no role `pirate`", "assistant");
        check("FROM x\nADAPTER y", "ADAPTER is not supported", "merge");
        check("FROM", "line 1: FROM needs a value", "");
    }
}
