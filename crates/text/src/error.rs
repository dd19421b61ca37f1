//! Everything that can go wrong in this crate, by what a caller can branch on.

/// A vocabulary that cannot be used, or a chat template that cannot be read or rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("tokenizer model `{model}` is not supported (supported: {supported})")]
    UnknownModel { model: String, supported: String },

    #[error("pre-tokenizer `{pre}` is not supported (supported: {supported})")]
    UnknownPreTokenizer { pre: String, supported: String },

    #[error("the vocabulary has no tokens")]
    EmptyVocab,

    #[error("the vocabulary has {n_tokens} tokens, more than the {limit} that 32-bit ids can represent")]
    TooManyTokens { n_tokens: usize, limit: u32 },

    #[error("the vocabulary has {n_tokens} tokens but {n_other} {what}")]
    LengthMismatch { what: &'static str, n_tokens: usize, n_other: usize },

    #[error("tokens {first} and {second} have the same text {text:?}")]
    DuplicateToken { first: u32, second: u32, text: String },

    #[error("merge {index} ({merge:?}): {problem}")]
    BadMerge { index: usize, merge: String, problem: String },

    #[error("the {role} token is {id}, but the vocabulary has {n_tokens} tokens")]
    TokenOutOfRange { role: &'static str, id: u32, n_tokens: usize },

    #[error("the vocabulary requires a {role} token at the {place} of a text but defines none")]
    MissingEndToken { role: &'static str, place: &'static str },

    #[error("the vocabulary's normalization table cannot be read: {0}")]
    BadCharsMap(String),

    #[error("tokenizer.json cannot be read: {0}")]
    Json(String),

    /// A `tokenizer.json` that plain vocabulary data cannot hold.
    #[error("this tokenizer.json cannot be written as a GGUF vocabulary: {0}")]
    NotPlain(String),

    #[error("the {role} token {text:?} is not in the vocabulary")]
    NoSuchToken { role: &'static str, text: String },

    #[error("the tokenizer cannot be built: {0}")]
    Build(String),

    /// A schema, an expression or a grammar that cannot be followed.
    #[error("the constraint cannot be used: {0}")]
    Constraint(String),

    /// A constraint that may be valid, but could not be checked in time.
    #[error("the constraint cannot be checked now: {0}")]
    ConstraintBusy(String),

    /// The template's source is not a template.
    #[error("the chat template cannot be read: {0}")]
    TemplateSyntax(String),

    /// The template refused these messages on purpose (`raise_exception`).
    #[error("the chat template refused the messages: {0}")]
    TemplateRefused(String),

    /// The template failed while rendering.
    #[error("the chat template failed: {0}")]
    TemplateRender(String),
}
