//! A conversation that is longer than the context: the oldest questions and answers are left out, with a note, and an
//! answer that reaches the end of the context continues without them.

use crate::cmd::run;
use crate::interrupt;
use crate::model_file;
use crate::options::Think;
use crate::report::{self, HintExt, counted};
use anyhow::{Result, anyhow};
use rocinante::{Finish, Message, Model, Request, TokenId, WholeAnswer};

/// What the model is shown.
pub struct Conversation<'a> {
    pub model: &'a Model,
    /// Always shown: the system prompt, and what the model's name brings.
    pub beginning: Vec<Message>,
    /// Questions and answers, the oldest first; the last is the question to answer.
    pub messages: &'a mut Vec<Message>,
    pub is_raw: bool,
    pub think: Option<Think>,
}

impl Conversation<'_> {
    /// Generates an answer; `show` gets its text as it grows.
    pub fn answer(
        &mut self,
        request: &Request,
        guard: &interrupt::InterruptGuard,
        show: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<WholeAnswer> {
        let n_ctx = self.model.context();
        let max_tokens = request.max_tokens.unwrap_or(usize::MAX);
        // Room for an answer: a quarter of the context, or all that was asked for.
        let mut prompt = self.prompt(n_ctx - max_tokens.min(n_ctx / 4))?;
        let mut answer = run::generate(self.model, prompt.clone(), request, guard, show)?;
        while answer.finish == Finish::Context && answer.tokens.len() < max_tokens && !self.is_raw {
            // Half of the context is freed, then the answer continues.
            let said: Vec<TokenId> = answer.tokens.iter().map(|token| token.token).collect();
            prompt = self.prompt((n_ctx / 2).saturating_sub(said.len()).max(n_ctx / 4))?;
            let n_kept = said.len().min((n_ctx / 2).saturating_sub(prompt.len()).max(1));
            prompt.extend(&said[said.len() - n_kept..]);
            let left = Request { max_tokens: request.max_tokens.map(|n| n - answer.tokens.len()), ..request.clone() };
            let more = run::generate(self.model, prompt, &left, guard, show)?;
            if more.tokens.is_empty() {
                break;
            }
            append(&mut answer, more);
        }
        Ok(answer)
    }

    /// The conversation in at most so many tokens, without its oldest messages where it has more.
    fn prompt(&mut self, n_most: usize) -> Result<Vec<TokenId>> {
        let n_ctx = self.model.context();
        let mut n_dropped = 0;
        loop {
            let prompt = self.render()?;
            let next_question = self.messages.iter().skip(1).position(|message| message.role == "user");
            if prompt.len() <= n_most || (next_question.is_none() && prompt.len() < n_ctx) {
                if n_dropped > 0 {
                    let what = counted(n_dropped, "message");
                    report::note_line(&format!("(left out the oldest {what}: the context holds {n_ctx} tokens)"));
                }
                return Ok(prompt);
            }
            let Some(next_question) = next_question else {
                let n_tokens = prompt.len();
                return Err(anyhow!("the question has {n_tokens} tokens, the context holds {n_ctx}"))
                    .hint("shorten it; --context at the start makes more room");
            };
            self.messages.drain(..=next_question);
            n_dropped += next_question + 1;
        }
    }

    fn render(&self) -> Result<Vec<TokenId>> {
        if self.is_raw {
            let last = self.messages.last().map(|message| message.content.as_str());
            return Ok(self.model.encode_raw(last.unwrap_or_default()));
        }
        let messages: Vec<Message> = self.beginning.iter().chain(self.messages.iter()).cloned().collect();
        let prompt = self.model.prompt(&messages, &Think::render_options(self.think));
        Ok(prompt.map_err(|error| model_file::hinted(self.model.path(), error))?.tokens)
    }
}

/// One answer out of two that followed each other.
fn append(answer: &mut WholeAnswer, more: WholeAnswer) {
    answer.text.push_str(&more.text);
    answer.tokens.extend(more.tokens);
    answer.usage.n_generated += more.usage.n_generated;
    answer.usage.timings.decode += more.usage.timings.decode;
    (answer.finish, answer.stop) = (more.finish, more.stop);
}
