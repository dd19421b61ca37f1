//! Tools and constrained answers: which texts are possible, how the answer is taken apart, and, for models whose
//! template knows no tools, how they are told about them in words.

use super::ask::{Ask, Shape, ToolChoice};
use super::error::{ApiError, Result};
use super::loaded::Loaded;
use super::pieces::Splitter;
use serde_json::Value;
use std::sync::Arc;
use text::Message;

pub fn constraint(_model: &Loaded, ask: &Ask, _prompt: &str) -> Result<Option<String>> {
    match (&ask.shape, &ask.choice) {
        (Shape::Text, ToolChoice::Auto | ToolChoice::None) => Ok(None),
        _ => Err(ApiError::bad("constrained answers are not supported yet")),
    }
}

pub fn splitter(model: &Loaded, ask: &Ask, _prompt: &str) -> Splitter {
    Splitter::new(Arc::clone(&model.tokenizer), ask.stop.clone(), ask.logprobs.is_some())
}

pub fn spell_out(messages: &[Message], _tools: &[Value]) -> Vec<Message> {
    messages.to_vec()
}

/// The constraint of a shape alone.
pub fn shape_constraint(_model: &Loaded, shape: &Shape) -> Result<Option<String>> {
    match shape {
        Shape::Text => Ok(None),
        _ => Err(ApiError::bad("constrained answers are not supported yet")),
    }
}
