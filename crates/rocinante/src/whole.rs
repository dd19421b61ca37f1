//! A complete answer, assembled from its events.

use crate::answer::{AnswerEvent, AnswerUsage, Finish, Finished};
use crate::splitter::{Piece, TokenLogprob};

/// Everything an answer was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WholeAnswer {
    /// The text, without reasoning and tool calls.
    pub text: String,
    /// What the model thought before it answered.
    pub reasoning: String,
    /// The tools it calls.
    pub tool_calls: Vec<ToolCall>,
    /// Every token, the one that ended it included.
    pub tokens: Vec<TokenLogprob>,
    /// The tokens of the text, where log-probabilities were asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// The prompt's tokens from the second on, where they were asked for.
    pub prompt: Vec<TokenLogprob>,
    /// Why it ended.
    pub finish: Finish,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// What it cost.
    pub usage: AnswerUsage,
}

/// A tool that the model calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// The model's own id, or a random one.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// JSON, as the model wrote it.
    pub arguments: String,
}

impl WholeAnswer {
    /// Adds what happened.
    pub fn add(&mut self, event: AnswerEvent) {
        match event {
            AnswerEvent::Progress { .. } => {}
            AnswerEvent::Prompt(tokens) => self.prompt = tokens,
            AnswerEvent::Token(token) => self.tokens.push(token),
            AnswerEvent::Piece(piece) => self.add_piece(piece),
            AnswerEvent::Finished(Finished { finish, stop, usage }) => {
                (self.finish, self.stop, self.usage) = (finish, stop, usage);
            }
        }
    }

    fn add_piece(&mut self, piece: Piece) {
        match piece {
            Piece::Text { text, logprobs } => {
                self.text.push_str(&text);
                self.logprobs.extend(logprobs);
            }
            Piece::Reasoning(text) => self.reasoning.push_str(&text),
            Piece::ToolCall { id, name, .. } => self.tool_calls.push(ToolCall { id, name, arguments: String::new() }),
            Piece::ToolArguments { text, .. } => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
        }
    }
}
