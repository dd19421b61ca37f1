//! `response_format`, and `text.format` of the responses API: the shape an answer must have.

use crate::chat_input::AnswerShape;
use crate::error::{ApiError, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What chat and completions take as the shape of an answer: OpenAI's name for it, vLLM's and llama.cpp's.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OutputFormat {
    pub response_format: Option<ResponseFormat>,
    #[serde(alias = "regex")]
    pub guided_regex: Option<String>,
    #[serde(alias = "guided_grammar")]
    pub grammar: Option<String>,
    #[serde(alias = "guided_json")]
    pub json_schema: Option<Value>,
    /// One of these texts.
    pub guided_choice: Option<Vec<String>>,
}

impl OutputFormat {
    pub fn shape(&self) -> Result<AnswerShape> {
        if let Some(regex) = &self.guided_regex {
            return Ok(AnswerShape::Regex(regex.clone()));
        }
        if let Some(grammar) = &self.grammar {
            return Ok(AnswerShape::Grammar(grammar.clone()));
        }
        if let Some(choices) = &self.guided_choice {
            let one = |text: &String| Value::from(text.as_str()).to_string();
            let choices: Vec<String> = choices.iter().filter(|text| !text.is_empty()).map(one).collect();
            if choices.is_empty() {
                return Err(ApiError::bad("there is nothing to choose from").param("guided_choice"));
            }
            return Ok(AnswerShape::Grammar(format!("start: {}", choices.join(" | "))));
        }
        match (&self.json_schema, &self.response_format) {
            // vLLM takes a schema as text too.
            (Some(Value::String(text)), _) => serde_json::from_str(text)
                .map(AnswerShape::Schema)
                .map_err(|error| ApiError::bad(format!("the schema is not valid JSON: {error}")).param("guided_json")),
            (Some(schema), _) => Ok(AnswerShape::Schema(schema.clone())),
            (None, Some(format)) => format.shape("response_format"),
            (None, None) => Ok(AnswerShape::Text),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResponseFormat {
    #[serde(rename = "type")]
    pub kind: String,
    /// Where chat completions put it; older clients of other servers leave out the wrapping.
    #[serde(default)]
    pub json_schema: Option<Value>,
    /// Where responses put it.
    #[serde(default)]
    pub schema: Option<Value>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub strict: Option<bool>,
    #[serde(default)]
    pub grammar: Option<String>,
}

impl ResponseFormat {
    pub fn shape(&self, param: &str) -> Result<AnswerShape> {
        match self.kind.as_str() {
            "text" => Ok(AnswerShape::Text),
            "json_object" => Ok(self.schema.clone().map_or(AnswerShape::Json, AnswerShape::Schema)),
            "json_schema" => {
                let wrapped = self.json_schema.as_ref().and_then(|outer| outer.get("schema"));
                let schema = wrapped.or(self.schema.as_ref()).or(self.json_schema.as_ref());
                match schema {
                    Some(schema) if schema.is_object() || schema.is_boolean() => {
                        Ok(AnswerShape::Schema(schema.clone()))
                    }
                    _ => Err(ApiError::bad("`json_schema` needs a `schema`, an object").param(param)),
                }
            }
            "grammar" => match &self.grammar {
                Some(grammar) => Ok(AnswerShape::Grammar(grammar.clone())),
                None => Err(ApiError::bad("`grammar` needs a `grammar`").param(param)),
            },
            kind => {
                let text = format!("unknown format `{kind}`: expected text, json_object, json_schema, grammar");
                Err(ApiError::bad(text).param(param))
            }
        }
    }
}
