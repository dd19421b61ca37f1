//! `response_format`, and `text.format` of the responses API: the shape an answer must have.

use crate::ask::Shape;
use crate::error::{ApiError, Result};
use serde::Deserialize;
use serde_json::Value;

#[derive(Clone, Debug, Deserialize)]
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
    pub fn shape(&self, param: &str) -> Result<Shape> {
        match self.kind.as_str() {
            "text" => Ok(Shape::Text),
            "json_object" => Ok(self.schema.clone().map_or(Shape::Json, Shape::Schema)),
            "json_schema" => {
                let wrapped = self.json_schema.as_ref().and_then(|outer| outer.get("schema"));
                let schema = wrapped.or(self.schema.as_ref()).or(self.json_schema.as_ref());
                match schema {
                    Some(schema) if schema.is_object() || schema.is_boolean() => Ok(Shape::Schema(schema.clone())),
                    _ => Err(ApiError::bad("`json_schema` needs a `schema`, an object").param(param)),
                }
            }
            "grammar" => match &self.grammar {
                Some(grammar) => Ok(Shape::Grammar(grammar.clone())),
                None => Err(ApiError::bad("`grammar` needs a `grammar`").param(param)),
            },
            kind => {
                let text = format!("`{kind}` is no format: text, json_object, json_schema, grammar");
                Err(ApiError::bad(text).param(param))
            }
        }
    }
}
