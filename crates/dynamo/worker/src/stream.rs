//! An answer as Dynamo's stream: a chunk for each token, then one with the reason for the end and what it cost. Dropping
//! the stream drops the answer, which stops the model.

use dynamo_backend_common::{
    DynamoError, FinishReason, GenerateContext, LLMEngineOutput, LLMEngineOutputExt, PromptTokensDetails, StopReason,
    TopLogprob, chunk, usage,
};
use futures::stream::BoxStream;
use rocinante::{Answer, AnswerEvent, Finish, Finished, TokenId, TokenLogprob};
use std::collections::HashSet;

use crate::failure::{incomplete, shut_down, told};

/// What the stream adds to an answer.
pub struct Ending {
    pub stop_tokens: HashSet<TokenId>,
    pub min_tokens: usize,
    pub has_logprobs: bool,
    pub n_prompt: usize,
}

pub fn stream(
    mut answer: Answer,
    ending: Ending,
    ctx: GenerateContext,
) -> BoxStream<'static, Result<LLMEngineOutput, DynamoError>> {
    Box::pin(async_stream::stream! {
        let mut n_generated = 0;
        let terminal = |end: LLMEngineOutput, n_generated| end.with_usage(usage(count(ending.n_prompt), n_generated));
        loop {
            // First of all: who cancels before the first token gets none.
            let event = tokio::select! {
                biased;
                () = ctx.stopped() => None,
                event = answer.next_event() => Some(event),
            };
            let Some(event) = event else {
                yield Ok(terminal(LLMEngineOutput::cancelled(), n_generated));
                return;
            };
            match event {
                Some(Ok(AnswerEvent::Token(token))) => {
                    n_generated += 1;
                    let is_end = ending.stop_tokens.contains(&token.token) && n_generated as usize > ending.min_tokens;
                    let id = token.token.0;
                    let output = told_token(token, ending.has_logprobs);
                    if is_end {
                        let end = LLMEngineOutput {
                            finish_reason: Some(FinishReason::Stop),
                            stop_reason: Some(StopReason::Int(i64::from(id))),
                            ..output
                        };
                        yield Ok(terminal(end, n_generated));
                        return;
                    }
                    yield Ok(output);
                }
                Some(Ok(AnswerEvent::Finished(finished))) => {
                    yield told_end(finished, ending.n_prompt, n_generated);
                    return;
                }
                // Text is the frontend's business.
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    yield Err(told(&error));
                    return;
                }
                None => {
                    yield Err(incomplete());
                    return;
                }
            }
        }
    })
}

fn told_end(finished: Finished, n_prompt: usize, n_generated: u32) -> Result<LLMEngineOutput, DynamoError> {
    let reason = match finished.finish {
        Finish::End | Finish::StopString | Finish::ToolCalls => FinishReason::Stop,
        Finish::Length | Finish::Context => FinishReason::Length,
        // Nobody here cancelled it: the engine goes down, and another worker may go on.
        Finish::Cancelled => return Err(shut_down("the worker goes down")),
    };
    let cached_tokens = Some(count(finished.usage.n_cached));
    let mut usage = usage(count(n_prompt), n_generated);
    usage.prompt_tokens_details = Some(PromptTokensDetails { cached_tokens, ..PromptTokensDetails::default() });
    let end = LLMEngineOutput {
        finish_reason: Some(reason),
        stop_reason: finished.stop.map(StopReason::String),
        ..LLMEngineOutput::default()
    };
    Ok(end.with_usage(usage))
}

fn told_token(token: TokenLogprob, has_logprobs: bool) -> LLMEngineOutput {
    let output = chunk::token(token.token.0);
    if !has_logprobs {
        return output;
    }
    let top = token.top.iter().zip(1..).map(|(&(TokenId(token_id), logprob), rank)| TopLogprob {
        rank,
        token_id,
        token: None,
        logprob: f64::from(logprob),
        bytes: None,
    });
    LLMEngineOutput {
        log_probs: Some(vec![f64::from(token.logprob)]),
        top_logprobs: Some(vec![top.collect()]),
        ..output
    }
}

pub fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
