//! Tools and constrained answers: which texts are possible, how the answer is taken apart, and, for models whose
//! template knows no tools, how they are told about them in words.

use super::chat_input::{AnswerShape, ChatInput, ToolChoice};
use super::error::{ApiError, Result};
use super::loaded::Loaded;
use rocinante::Splitter;
use serde_json::{Value, json};
use text::Message;
use text::answer::{self, AnswerFormat};
use text::constraint::Constraint;

/// The way of calling that models without one of their own are taught: the one most others were trained on.
const TAUGHT: &str = "<tool_call>";

/// How this answer will be written.
fn format(model: &Loaded, input: &ChatInput) -> AnswerFormat {
    let is_told = !input.tools.is_empty() && input.choice != ToolChoice::None;
    let format = match is_told && !model.knows_tools() {
        true => AnswerFormat::detect(TAUGHT),
        false => model.format().clone(),
    };
    match (is_told, is_forced(input)) {
        (false, _) => format.without_tools(),
        (true, true) => format.forced(),
        (true, false) => format,
    }
}

fn is_forced(input: &ChatInput) -> bool {
    matches!(input.choice, ToolChoice::Required | ToolChoice::Named(_))
}

/// What the answer is held to, as the engine's masks read it. A constraint that cannot be met is an error here.
pub fn constraint(model: &Loaded, input: &ChatInput, prompt: &str) -> Result<Option<Constraint>> {
    if !is_forced(input) {
        return shape_constraint(model, &input.shape);
    }
    let choice = match &input.choice {
        ToolChoice::Named(name) => answer::ForcedTool::Named(name.clone()),
        _ if input.is_parallel => answer::ForcedTool::RequiredMany,
        _ => answer::ForcedTool::Required,
    };
    let bad = |text: String| ApiError::bad(text).param("tool_choice");
    let tools = Value::Array(input.tools.clone());
    let constraint = format(model, input)
        .constraint(&tools, &choice, prompt, &model.tokenizer)
        .map_err(|error| bad(error.to_string()))?;
    model.check(&constraint).map_err(|error| match error {
        rocinante::Error::Constraint(text) => bad(format!("the tools cannot be called: {text}")),
        error => error.into(),
    })?;
    Ok(Some(constraint))
}

/// The constraint of a shape alone.
pub fn shape_constraint(model: &Loaded, shape: &AnswerShape) -> Result<Option<Constraint>> {
    let constraint = match shape {
        AnswerShape::Text => return Ok(None),
        AnswerShape::Json => Constraint::Json,
        AnswerShape::Schema(schema) => Constraint::JsonSchema(schema.clone()),
        AnswerShape::Regex(regex) => Constraint::Regex(regex.clone()),
        AnswerShape::Grammar(grammar) => Constraint::grammar(grammar),
    };
    model.check(&constraint).map_err(|error| match error {
        rocinante::Error::Constraint(text) => match shape {
            AnswerShape::Json | AnswerShape::Schema(_) => ApiError::bad(text).param("response_format"),
            _ => ApiError::bad(text),
        },
        error => error.into(),
    })?;
    Ok(Some(constraint))
}

/// The reader of the answer.
pub fn splitter(model: &Loaded, input: &ChatInput, prompt: &str) -> Splitter {
    let format = format(model, input);
    Splitter::new(&model.tokenizer, input.stop.clone(), input.logprobs.is_some(), format, prompt, &input.tools)
}

/// The conversation with the tools described in words, calls and results spelt out.
pub fn spell_out(messages: &[Message], tools: &[Value]) -> Vec<Message> {
    let described: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
    let told = format!(
        "You can call these tools:\n{}\nTo call one, answer with \
         <tool_call>{{\"name\": NAME, \"arguments\": {{...}}}}</tool_call> and nothing else.",
        described.join("\n")
    );
    let mut spelt: Vec<Message> = messages.iter().map(spell_message).collect();
    match spelt.first_mut() {
        Some(first) if first.role == "system" => first.content = format!("{}\n\n{told}", first.content),
        _ => spelt.insert(0, Message::new("system", told)),
    }
    spelt
}

fn spell_message(message: &Message) -> Message {
    match (message.role.as_str(), message.extra.get("tool_calls")) {
        ("tool", _) => Message::new("user", format!("<tool_response>\n{}\n</tool_response>", message.content)),
        ("assistant", Some(Value::Array(calls))) => {
            let mut content = message.content.clone();
            for call in calls {
                let function = &call["function"];
                let call = json!({"name": function["name"], "arguments": function["arguments"]});
                content.push_str(&format!("<tool_call>{call}</tool_call>"));
            }
            Message::new("assistant", content)
        }
        _ => message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_told_in_words() {
        let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})];
        let mut call = Message::new("assistant", "");
        call.extra.insert("tool_calls".into(), json!([{"function": {"name": "f", "arguments": {"a": 1}}}]));
        let messages = [Message::new("user", "hi"), call, Message::new("tool", "42")];
        let spelt = spell_out(&messages, &tools);
        assert_eq!(
            spelt.iter().map(|message| message.role.as_str()).collect::<Vec<_>>(),
            ["system", "user", "assistant", "user"]
        );
        assert!(spelt[0].content.contains("\"name\":\"f\""), "{}", spelt[0].content);
        let call =
            spelt[2].content.strip_prefix("<tool_call>").and_then(|text| text.strip_suffix("</tool_call>")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(call).unwrap(), json!({"name": "f", "arguments": {"a": 1}}));
        assert_eq!(spelt[3].content, "<tool_response>\n42\n</tool_response>");
    }
}
