//! Errors that a caller of the handle can get before a request costs anything. Later failures of a request are reported
//! as [`Event::Failed`](crate::Event::Failed).

use crate::protocol::RequestId;

#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Error {
    #[error("the queue is full, with {max_queue} waiting")]
    QueueFull { max_queue: usize },
    #[error("request {}: the prompt is empty", .id.0)]
    EmptyPrompt { id: RequestId },
    #[error("request {}: {what} contains token {token}, but the vocabulary has only {n_vocab}", .id.0)]
    TokenOutOfRange { id: RequestId, what: &'static str, token: u32, n_vocab: usize },
    #[error("request {}: {n_tokens} prompt tokens and one to generate do not fit the context of {n_ctx}", .id.0)]
    ContextTooSmall { id: RequestId, n_tokens: usize, n_ctx: usize },
    #[error(
        "request {}: {n_tokens} tokens need {n_needed} KV blocks, the pool has {n_blocks} in all; \
         give the model more KV memory or shorten the prompt",
        .id.0
    )]
    PoolTooSmall { id: RequestId, n_tokens: usize, n_needed: usize, n_blocks: usize },
    #[error("request {}: {n_rows} rows in one step, the model was loaded for {max_rows}", .id.0)]
    StepTooSmall { id: RequestId, n_rows: usize, max_rows: usize },
    #[error("request {}: {field} is {value}, expected {expected}", .id.0)]
    Sampling { id: RequestId, field: &'static str, value: String, expected: &'static str },
    #[error("request {}: this engine was started without support for constraints", .id.0)]
    NoConstraints { id: RequestId },
    #[error("this command answers with events: use submit, embed, stats or send_to")]
    NoReceiver,
    #[error("no vector: {reason}")]
    NoVector { reason: String },
    #[error("the engine has stopped: {reason}")]
    Stopped { reason: String },
}

pub type Result<T> = std::result::Result<T, Error>;
