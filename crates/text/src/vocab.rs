//! The vocabulary as plain data, and what a token's number in `tokenizer.ggml.token_type` means.
//!
//! Nothing here reads a file: the caller copies the fields out of a checkpoint's metadata. `validate` makes
//! every promise the tokenizer relies on, so that a lying file ends as an error and not as a panic.

use crate::{Error, Result};

/// A tokenizer's data, field by field as GGUF's `tokenizer.ggml.*` keys hold it.
#[derive(Clone, Debug, Default)]
pub struct Vocab {
    /// `tokenizer.ggml.model`; only `gpt2` (byte-level BPE) is supported.
    pub model: String,
    /// `tokenizer.ggml.pre`; empty counts as `default`.
    pub pre: String,
    /// Texts of the tokens in order of their ids, in the byte-level alphabet.
    pub tokens: Vec<String>,
    /// Token types, one for each token, or empty: then every token is a normal one.
    pub types: Vec<i32>,
    /// Merges in order of rank, each `left right`.
    pub merges: Vec<String>,
    /// Scores, one for each token, or empty; byte-level BPE does not use them.
    pub scores: Vec<f32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    /// Whether a text begins with `bos`; where the file is silent, see [`crate::adds_bos_by_default`].
    pub add_bos: bool,
    /// Whether a text ends with `eos`.
    pub add_eos: bool,
}

/// What a token is for; decides how it is read from text and how it is shown.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Text in the byte-level alphabet.
    Normal,
    /// Read from text only when special tokens are asked for; never shown.
    Control,
    /// Read from text always, before anything else; shown as it is written.
    UserDefined,
    /// Neither read nor shown.
    Unused,
}

impl Kind {
    pub(crate) fn from_ggml(id: i32) -> Self {
        match id {
            1 => Self::Normal,
            // The unknown token (2) is read and shown exactly as a control token.
            2 | 3 => Self::Control,
            4 => Self::UserDefined,
            _ => Self::Unused,
        }
    }
}

impl Vocab {
    /// Checks the lengths and ids; the tokens' texts and the merges are checked where they are indexed.
    pub(crate) fn validate(&self) -> Result<()> {
        let n_tokens = self.tokens.len();
        if self.model != "gpt2" {
            return Err(Error::UnknownModel { model: self.model.clone() });
        }
        if n_tokens == 0 {
            return Err(Error::EmptyVocab);
        }
        if u32::try_from(n_tokens).is_err() {
            return Err(Error::TooManyTokens { n_tokens, limit: u32::MAX });
        }
        for (what, n_other) in [("token types", self.types.len()), ("scores", self.scores.len())] {
            if n_other != 0 && n_other != n_tokens {
                return Err(Error::LengthMismatch { what, n_tokens, n_other });
            }
        }
        for (role, id) in [("bos", self.bos), ("eos", self.eos), ("eot", self.eot)] {
            if let Some(id) = id.filter(|&id| id as usize >= n_tokens) {
                return Err(Error::TokenOutOfRange { role, id, n_tokens });
            }
        }
        if self.add_bos && self.bos.is_none() {
            return Err(Error::MissingEndToken { role: "bos", place: "beginning" });
        }
        if self.add_eos && self.eos.is_none() {
            return Err(Error::MissingEndToken { role: "eos", place: "end" });
        }
        Ok(())
    }
}
