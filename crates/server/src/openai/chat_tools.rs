//! The tools of a chat request, and which of them an answer may or must call: OpenAI's wire format in, what templates and
//! the other API families use out.

use crate::chat_input::ToolChoice;
use crate::error::{ApiError, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Debug, Deserialize)]
pub struct ChatTool {
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    #[serde(default)]
    pub function: Option<Value>,
}

impl ChatTool {
    /// The tool as templates read it.
    pub fn checked(&self, i: usize) -> Result<Value> {
        let bad = |text: String| ApiError::bad(text).param(format!("tools[{i}]"));
        match (self.kind.as_deref().unwrap_or("function"), &self.function) {
            ("function", Some(function)) => function_tool(function).map_err(bad),
            ("function", None) => Err(bad("a tool of type `function` needs a `function`".into())),
            (kind, _) => Err(bad(format!("tools of type `{kind}` are not supported: only function"))),
        }
    }
}

/// A function as `{"type": "function", "function": ...}`, with what templates expect to be there.
pub fn function_tool(function: &Value) -> std::result::Result<Value, String> {
    let name = function["name"].as_str().filter(|name| !name.is_empty()).ok_or("a function needs a `name`")?;
    let parameters = match &function["parameters"] {
        Value::Null => json!({"type": "object", "properties": {}}),
        parameters @ Value::Object(_) => parameters.clone(),
        _ => return Err("`parameters` is a JSON schema, an object".to_owned()),
    };
    let description = function["description"].as_str().unwrap_or_default();
    let inner = json!({"name": name, "description": description, "parameters": parameters});
    Ok(json!({"type": "function", "function": inner}))
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OpenAiToolChoice {
    Word(String),
    Object(Value),
}

impl OpenAiToolChoice {
    pub fn read(&self) -> Result<ToolChoice> {
        let bad = || {
            let text = "expected auto, none, required or {\"type\": \"function\", \"function\": {\"name\": ...}}";
            ApiError::bad(text).param("tool_choice")
        };
        match self {
            Self::Word(word) => match word.as_str() {
                "auto" => Ok(ToolChoice::Auto),
                "none" => Ok(ToolChoice::None),
                "required" | "any" => Ok(ToolChoice::Required),
                _ => Err(bad()),
            },
            Self::Object(value) => {
                let name = value["function"]["name"].as_str().or_else(|| value["name"].as_str());
                match (value["type"].as_str(), name) {
                    (Some("function"), Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
                    (Some("allowed_tools"), _) => {
                        let mode = value["allowed_tools"]["mode"].as_str().or_else(|| value["mode"].as_str());
                        Ok(if mode == Some("required") { ToolChoice::Required } else { ToolChoice::Auto })
                    }
                    _ => Err(bad()),
                }
            }
        }
    }

    /// The tools the model may call now: with `allowed_tools` those that it names.
    pub fn allowed(choice: Option<&Self>, mut tools: Vec<Value>) -> Result<Vec<Value>> {
        let Some(Self::Object(value)) = choice.filter(|choice| choice.is_list()) else { return Ok(tools) };
        let bad = |text: String| ApiError::bad(text).param("tool_choice");
        let listed = value["allowed_tools"]["tools"].as_array().or_else(|| value["tools"].as_array());
        let listed = listed.ok_or_else(|| bad("`allowed_tools` needs a list of `tools`".into()))?;
        let name = |tool: &Value| tool["function"]["name"].as_str().or(tool["name"].as_str()).map(str::to_owned);
        let names: Vec<String> = listed.iter().filter_map(name).collect();
        if let Some(missing) =
            names.iter().find(|allowed| !tools.iter().any(|tool| name(tool).as_ref() == Some(allowed)))
        {
            return Err(bad(format!("there is no tool `{missing}` to allow")));
        }
        tools.retain(|tool| name(tool).is_some_and(|name| names.contains(&name)));
        Ok(tools)
    }

    fn is_list(&self) -> bool {
        matches!(self, Self::Object(value) if value["type"] == "allowed_tools")
    }
}
