//! What a caller asks of an answer.

use engine::Sampling;
use text::constraint::Constraint;

use crate::Adapter;

/// What is wanted of an answer. The default is greedy, plain, and at most 512 tokens long.
#[derive(Clone, Debug)]
pub struct Request {
    /// Greedy unless it says otherwise.
    pub sampling: Sampling,
    /// `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// The answer ends before one of these.
    pub stop: Vec<String>,
    /// The form it must have.
    ///
    /// ```no_run
    /// # use rocinante::{Constraint, Model, Request};
    /// # fn main() -> rocinante::Result<()> {
    /// let model = Model::open("model.gguf")?;
    /// let form = Constraint::Regex("(yes|no)".to_owned());
    /// let request = Request { constraint: Some(form), ..Request::default() };
    /// let answer = model.complete("Is water wet? Answer: ", request)?.text()?;
    /// assert!(answer == "yes" || answer == "no");
    /// # Ok(())
    /// # }
    /// ```
    pub constraint: Option<Constraint>,
    /// `Some(n)`: with the log-probability of each token, and of the n best at its place.
    pub logprobs: Option<usize>,
    /// The same for the tokens of the prompt.
    pub prompt_logprobs: bool,
    /// Report how much of a long prompt is read.
    pub progress: bool,
    /// What changes the model for this answer. The model needs [room](crate::Options::adapters) for it.
    pub adapter: Option<Adapter>,
    /// Tokens that may be guessed ahead for one step, where the model [speculates](crate::Speculate); `None` leaves it to
    /// the engine, 0 is never.
    pub max_draft: Option<usize>,
    /// A text that the answer is expected to be like, such as the file that it is a new version of: where it goes on like
    /// that, several tokens are computed at once.
    pub prediction: Option<String>,
    /// Higher goes first.
    pub priority: i32,
    /// Requests of one group take turns with those of other groups.
    pub group: u64,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            sampling: Sampling::default(),
            max_tokens: Some(512),
            stop: Vec::new(),
            constraint: None,
            logprobs: None,
            prompt_logprobs: false,
            progress: false,
            adapter: None,
            max_draft: None,
            prediction: None,
            priority: 0,
            group: 0,
        }
    }
}
