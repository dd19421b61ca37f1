//! A constraint under which an answer is a call of a tool, written as the family writes it and with arguments that
//! follow the tool's schema. Reasoning may come first where the family reasons.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::braced_call::QUOTE;
use super::channels::ChannelKind;
use super::syntax::{AnswerFormat, Body, NAME, Syntax};
use crate::constraint::{Constraint, spaced};
use crate::tokenizer::Specials;
use crate::{Error, Result, Tokenizer};

/// Which tool an answer must call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ForcedTool {
    /// Any one of them.
    Required,
    /// Any, one or several.
    RequiredMany,
    /// This one.
    Named(String),
}

/// Grammar under construction.
struct GrammarWriter<'a> {
    tokenizer: &'a Tokenizer,
    rules: String,
    n_rules: usize,
}

struct ToolSchema<'a> {
    name: &'a str,
    parameters: Value,
}

impl ToolSchema<'_> {
    /// The schema of one property by itself: references point at the root of the tool's own schema.
    fn property(&self, schema: &Value) -> Value {
        let mut schema = schema.clone();
        for defs in ["$defs", "definitions"] {
            if let (Some(object), Some(found)) = (schema.as_object_mut(), self.parameters.get(defs)) {
                object.entry(defs).or_insert_with(|| found.clone());
            }
        }
        schema
    }
}

/// A call as Python, with values as JSON, which the reader takes too: first what is required, then the rest.
fn python(tool: &ToolSchema) -> String {
    let required = tool.parameters["required"].as_array().cloned().unwrap_or_default();
    let none = serde_json::Map::new();
    let properties = tool.parameters["properties"].as_object().unwrap_or(&none);
    let (first, rest): (Vec<_>, Vec<_>) = properties.iter().partition(|(key, _)| required.iter().any(|r| r == *key));
    let write = |(key, schema): &(&String, &Value)| {
        format!("{} {}", literal(&format!("{key}=")), json_rule(&tool.property(schema)))
    };
    let optional = |list: &[(&String, &Value)]| -> String {
        list.iter().map(|property| format!(" (\", \" {})?", write(property))).collect()
    };
    let parameters = if first.is_empty() {
        let from = |i: usize| format!("{}{}", write(&rest[i]), optional(&rest[i + 1..]));
        let options: Vec<String> = (0..rest.len()).map(from).collect();
        if options.is_empty() { String::new() } else { format!("({})?", options.join(" | ")) }
    } else {
        first.iter().map(write).collect::<Vec<_>>().join(" \", \" ") + &optional(&rest)
    };
    format!("{} {parameters} \")\"", literal(&format!("{}(", tool.name)))
}

impl AnswerFormat {
    /// The constraint for `tool_choice`; read the answer with [`AnswerFormat::forced`]. `tools` is the list as OpenAI's
    /// API writes it; `prompt` is what was rendered.
    pub fn constraint(
        &self,
        tools: &Value,
        choice: &ForcedTool,
        prompt: &str,
        tokenizer: &Tokenizer,
    ) -> Result<Constraint> {
        let tools = chosen(tools, choice)?;
        let mut writer = GrammarWriter { tokenizer, rules: String::new(), n_rules: 0 };
        let is_many = *choice == ForcedTool::RequiredMany;
        let body = match (self.channels, self.tools) {
            (Some(ChannelKind::Harmony), _) => writer.harmony(&tools)?,
            (Some(ChannelKind::Functionary), _) => {
                let options: Vec<String> = tools
                    .iter()
                    .map(|tool| format!("{} {}", literal(&format!("{}\n", tool.name)), json_rule(&tool.parameters)))
                    .collect();
                options.join(" | ")
            }
            (None, Some(syntax)) => writer.calls(syntax, &tools, is_many),
            // No way of its own: JSON, in the words most models were trained on.
            (None, None) => {
                writer.options(&tools, |writer, tool| writer.object("{\"name\": ", ", \"arguments\": ", tool))
            }
        };
        let before = writer.reasoning(self, prompt);
        Ok(Constraint::Lark(format!("start: {before}({body})\n{}", writer.rules)))
    }
}

fn chosen<'a>(tools: &'a Value, choice: &ForcedTool) -> Result<Vec<ToolSchema<'a>>> {
    let list = tools.as_array().map(Vec::as_slice).unwrap_or_default();
    let found: Vec<ToolSchema> = list
        .iter()
        .map(|tool| if tool["function"].is_object() { &tool["function"] } else { tool })
        .filter_map(|function| {
            let name = function["name"].as_str()?;
            let is_chosen = !matches!(choice, ForcedTool::Named(wanted) if wanted != name);
            let parameters = match &function["parameters"] {
                Value::Object(_) => function["parameters"].clone(),
                _ => json!({"type": "object"}),
            };
            is_chosen.then_some(ToolSchema { name, parameters: closed(parameters) })
        })
        .collect();
    match (found.is_empty(), choice) {
        (false, _) => Ok(found),
        (true, ForcedTool::Named(name)) => Err(Error::Constraint(format!("no tool is named `{name}`"))),
        (true, _) => Err(Error::Constraint("a call is required, but there are no tools".to_owned())),
    }
}

/// An object that names its properties and says nothing of others gets no others: a forced call has to come to an end.
fn closed(mut schema: Value) -> Value {
    const SAYS_MORE: [&str; 6] = ["additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"];
    if let Some(object) = schema.as_object_mut()
        && object.contains_key("properties")
        && !SAYS_MORE.iter().any(|key| object.contains_key(*key))
    {
        object.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    schema
}

/// Text as a terminal of Lark.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

fn json_rule(schema: &Value) -> String {
    format!("%json {}", spaced(schema.clone()))
}

impl GrammarWriter<'_> {
    /// A mark: its special tokens by their ids, the rest as text.
    fn mark(&self, mark: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = mark;
        for id in self.tokenizer.encode(mark, Specials::Parse) {
            if !self.tokenizer.is_special(id) && !self.tokenizer.is_end(id) {
                continue;
            }
            let name = self.tokenizer.token_text(id);
            let Some(at) = rest.find(&name).filter(|_| !name.is_empty()) else { continue };
            if at > 0 {
                parts.push(literal(&rest[..at]));
            }
            parts.push(format!("<[{id}]>"));
            rest = &rest[at + name.len()..];
        }
        if !rest.is_empty() {
            parts.push(literal(rest));
        }
        parts.join(" ")
    }

    /// A rule of its own, and its name.
    fn rule(&mut self, attributes: &str, body: &str) -> String {
        let name = format!("part_{}", self.n_rules);
        self.n_rules += 1;
        _ = writeln!(self.rules, "{name}{attributes}: {body}");
        name
    }

    /// Any text up to and with this mark.
    fn text_until(&mut self, mark: &str) -> String {
        let spelt = self.mark(mark);
        if spelt.starts_with('"') {
            self.rule(&format!("[suffix={}]", literal(mark)), "/(?s:.*)/")
        } else {
            format!("/(?s:.*)/ {spelt}")
        }
    }

    fn reasoning(&mut self, format: &AnswerFormat, prompt: &str) -> String {
        let Some((open, close)) = format.reasoning else { return String::new() };
        let rest = format!("{} /\\s{{0,4}}/ ", self.text_until(close));
        if prompt.trim_end().ends_with(open) { rest } else { format!("({} {rest})? ", self.mark(open)) }
    }

    fn options(&mut self, tools: &[ToolSchema], write: impl Fn(&mut Self, &ToolSchema) -> String) -> String {
        let options: Vec<String> = tools.iter().map(|tool| write(self, tool)).collect();
        format!("({})", options.join(" | "))
    }

    fn object(&mut self, before: &str, between: &str, tool: &ToolSchema) -> String {
        let head = literal(&format!("{before}{}{between}", Value::from(tool.name)));
        format!("{head} {} \"}}\"", json_rule(&tool.parameters))
    }

    fn calls(&mut self, syntax: &'static Syntax, tools: &[ToolSchema], is_many: bool) -> String {
        let (open, close) = (self.mark(syntax.call.0), self.mark(syntax.call.1));
        let one = match &syntax.body {
            Body::Json(_) => self.options(tools, |writer, tool| writer.object(syntax.spelt.0, syntax.spelt.1, tool)),
            Body::Named(after) => self.options(tools, |writer, tool| {
                let name = match syntax.name {
                    "kimi-k2" => format!("{} /[0-9]/", literal(&format!("functions.{}:", tool.name))),
                    "solar-open" => format!("/[a-z0-9_]{{1,16}}/ {} {}", writer.mark(NAME), literal(tool.name)),
                    _ => literal(tool.name),
                };
                format!("{name} {} {}", writer.mark(after[0]), json_rule(&tool.parameters))
            }),
            Body::Python => self.options(tools, |_, tool| python(tool)),
            Body::Braced => self.options(tools, |writer, tool| writer.braced(tool)),
            Body::Tagged(_) => self.options(tools, |writer, tool| writer.tagged(syntax, tool)),
        };
        let call = if syntax.is_list {
            let more = if is_many { format!("(\", \" {one})*") } else { String::new() };
            format!("{open} \"[\" {one} {more} \"]\" {}", if syntax.name == "granite" { "" } else { &close })
        } else if syntax.is_bare && matches!(syntax.body, Body::Python) {
            let more = if is_many { format!("(\", \" {one})*") } else { String::new() };
            format!("\"[\" {one} {more} \"]\"")
        } else if syntax.is_bare {
            one
        } else {
            // Line breaks around the object are part of how most families write it.
            let close = if close.is_empty() { close } else { format!("\"\\n\"? {close}") };
            format!("{open} \"\\n\"? {one} {close}")
        };
        let call = self.rule("", &call);
        let calls = match is_many && !syntax.is_list && !syntax.is_bare {
            true => format!("{call} (\"\\n\"? {call})*"),
            false => call,
        };
        match syntax.section {
            Some((open, close)) => format!("{} \"\\n\"? {calls} \"\\n\"? {}", self.mark(open), self.mark(close)),
            None => calls,
        }
    }

    fn tagged(&mut self, syntax: &'static Syntax, tool: &ToolSchema) -> String {
        let Body::Tagged(tags) = &syntax.body else { return String::new() };
        let quoted = |text: &str| if syntax.name == "minimax" { format!("\"{text}\"") } else { text.to_owned() };
        let mut out = literal(&quoted(tool.name));
        if !tags.keeps_name_end(tags.name_ends[0]) {
            _ = write!(out, " {}", self.mark(tags.name_ends[0]));
        }
        let required = tool.parameters["required"].as_array().cloned().unwrap_or_default();
        let none = serde_json::Map::new();
        for (key, schema) in tool.parameters["properties"].as_object().unwrap_or(&none) {
            let value = match schema["type"].as_str() {
                Some("string") if schema["enum"].is_array() => {
                    let texts = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
                    format!("({}) {}", texts.map(literal).collect::<Vec<_>>().join(" | "), self.mark(tags.value.1))
                }
                Some("string") => self.text_until(tags.value.1),
                _ => format!("{} \"\\n\"? {}", json_rule(&tool.property(schema)), self.mark(tags.value.1)),
            };
            let open = [tags.key.0, &quoted(key), tags.key.1].map(|part| self.mark(part)).join(" ");
            let value_open =
                if tags.value.0.is_empty() { String::new() } else { format!("\"\\n\"? {}", self.mark(tags.value.0)) };
            let parameter = format!("\"\\n\"? {open} {value_open} \"\\n\"? {value}");
            let mark = if required.iter().any(|name| name == key) { "" } else { "?" };
            _ = write!(out, " ({parameter}){mark}");
        }
        // GLM's closing mark is the call's own, written by the caller.
        if tags.end == syntax.call.1 { out } else { format!("{out} \"\\n\"? {}", self.mark(tags.end)) }
    }

    /// A call in braces: first what is required, then the rest.
    fn braced(&mut self, tool: &ToolSchema) -> String {
        let required = tool.parameters["required"].as_array().cloned().unwrap_or_default();
        let none = serde_json::Map::new();
        let properties = tool.parameters["properties"].as_object().unwrap_or(&none);
        let (first, rest): (Vec<_>, Vec<_>) =
            properties.iter().partition(|(key, _)| required.iter().any(|r| r == *key));
        let mut write = |(key, schema): &(&String, &Value)| {
            let quote = self.mark(QUOTE);
            let value = match schema["type"].as_str() {
                Some("string") if schema["enum"].is_array() => {
                    let texts = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
                    format!("{quote} ({}) {quote}", texts.map(literal).collect::<Vec<_>>().join(" | "))
                }
                Some("string") => format!("{quote} {}", self.text_until(QUOTE)),
                _ => json_rule(&tool.property(schema)),
            };
            format!("{} {value}", literal(&format!("{key}:")))
        };
        let first: Vec<String> = first.iter().map(&mut write).collect();
        let rest: Vec<String> = rest.iter().map(&mut write).collect();
        let optional = |list: &[String]| list.iter().map(|one| format!(" (\",\" {one})?")).collect::<String>();
        let parameters = if first.is_empty() {
            let from = |i: usize| format!("{}{}", rest[i], optional(&rest[i + 1..]));
            let options: Vec<String> = (0..rest.len()).map(from).collect();
            if options.is_empty() { String::new() } else { format!("({})?", options.join(" | ")) }
        } else {
            first.join(" \",\" ") + &optional(&rest)
        };
        format!("{} {parameters} \"}}\"", literal(&format!("call:{}{{", tool.name)))
    }

    fn harmony(&mut self, tools: &[ToolSchema]) -> Result<String> {
        let thought = self.text_until("<|end|>");
        let before =
            format!("({} {thought} {})?", self.mark("<|channel|>analysis<|message|>"), self.mark("<|start|>assistant"));
        let call = self.options(tools, |writer, tool| {
            let head = format!("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", tool.name);
            format!("{} {}", writer.mark(&head), json_rule(&tool.parameters))
        });
        Ok(format!("{before} {call}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_call_has_the_properties_it_names() {
        let named = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        assert_eq!(closed(named.clone())["additionalProperties"], json!(false));
        for open in [json!({"type": "object"}), json!({"properties": {}, "additionalProperties": true})] {
            assert_eq!(closed(open.clone()), open);
        }
    }
}
