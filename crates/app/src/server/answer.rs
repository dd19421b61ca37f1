//! An answer as a whole, for clients that do not stream.

use super::error::Result;
use super::generation::{Answers, Finish, Update, Usage};
use super::pieces::{Piece, TokenLogprob};

#[derive(Clone, Debug)]
pub struct Whole {
    pub text: String,
    pub reasoning: String,
    pub tool_calls: Vec<ToolCall>,
    pub logprobs: Vec<TokenLogprob>,
    /// Of the prompt's tokens from the second on.
    pub prompt: Vec<TokenLogprob>,
    pub finish: Finish,
    pub stop: Option<String>,
    pub usage: Usage,
}

#[derive(Clone, Debug, Default)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON, as the model wrote it.
    pub arguments: String,
}

impl Default for Whole {
    fn default() -> Self {
        Self {
            text: String::new(),
            reasoning: String::new(),
            tool_calls: Vec::new(),
            logprobs: Vec::new(),
            prompt: Vec::new(),
            finish: Finish::Length,
            stop: None,
            usage: Usage::default(),
        }
    }
}

impl Whole {
    pub fn add(&mut self, update: Update) {
        match update {
            Update::Piece(Piece::Text { text, logprobs }) => {
                self.text.push_str(&text);
                self.logprobs.extend(logprobs);
            }
            Update::Piece(Piece::Reasoning(text)) => self.reasoning.push_str(&text),
            Update::Piece(Piece::ToolCall { id, name, .. }) => {
                self.tool_calls.push(ToolCall { id, name, arguments: String::new() });
            }
            Update::Piece(Piece::ToolArguments { text, .. }) => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
            Update::Prompt(tokens) => self.prompt = tokens,
            Update::Finished { finish, stop, usage } => {
                (self.finish, self.stop, self.usage) = (finish, stop, usage);
            }
        }
    }
}

/// Waits for all answers.
pub async fn collect(mut answers: Answers, n: usize) -> Result<Vec<Whole>> {
    let mut whole = vec![Whole::default(); n];
    while let Some((choice, update)) = answers.next().await? {
        whole[choice].add(update);
    }
    Ok(whole)
}
