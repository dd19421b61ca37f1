//! The vocabulary as plain data, and what a token's number in `tokenizer.ggml.token_type` means.
//!
//! Nothing here reads a file: the caller copies the fields out of a checkpoint's metadata, and leaves out what the
//! file does not say. `resolve` fills those gaps as llama.cpp does and makes every promise the tokenizer relies on,
//! so that a lying file ends as an error and not as a panic.

use crate::families::family;
use crate::{Error, Result};

/// The kinds of vocabulary, as `tokenizer.ggml.model` names them.
pub(crate) const MODELS: &[&str] = &["gpt2", "gemma4", "llama", "t5", "bert", "rwkv", "plamo2"];

/// A tokenizer's data, field by field as GGUF's `tokenizer.ggml.*` keys hold it.
#[derive(Clone, Debug, Default)]
pub struct Vocab {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE), `llama` (SentencePiece BPE by scores), `t5` (Unigram), `bert`
    /// (WordPiece), `gemma4` (BPE over plain text), `rwkv` (longest match).
    pub model: String,
    /// `tokenizer.ggml.pre`; empty counts as `default`. Only BPE uses it.
    pub pre: String,
    /// Texts of the tokens in order of their ids.
    pub tokens: Vec<String>,
    /// Token types, one for each token, or empty: then every token is a normal one.
    pub types: Vec<i32>,
    /// Merges in order of rank, each `left right`; BPE only.
    pub merges: Vec<String>,
    /// Scores, one for each token, or empty; SentencePiece and Unigram only.
    pub scores: Vec<f32>,
    /// `bos_token_id`: begins a text.
    pub bos: Option<u32>,
    /// `eos_token_id`: ends a text.
    pub eos: Option<u32>,
    /// `eot_token_id`: ends a turn of a chat.
    pub eot: Option<u32>,
    /// `unknown_token_id`: stands for what no token covers.
    pub unk: Option<u32>,
    /// `seperator_token_id` (so spelt there): ends a text for encoders.
    pub sep: Option<u32>,
    /// Whether a text begins with `bos` (`add_bos_token`).
    pub add_bos: Option<bool>,
    /// Whether a text ends with `eos` (`add_eos_token`).
    pub add_eos: Option<bool>,
    /// Whether a text gets a space before its first word (`add_space_prefix`).
    pub add_space_prefix: Option<bool>,
    /// Whether runs of spaces count as one (`remove_extra_whitespaces`); Unigram only.
    pub remove_extra_whitespaces: bool,
    /// SentencePiece's table of normalisations (`precompiled_charsmap`); Unigram only.
    pub precompiled_charsmap: Vec<u8>,
    /// Whether words are read in lower case and without accents (`normalizer.lowercase`); WordPiece only.
    pub lowercase: Option<bool>,
    /// Whether a control token written out swallows the white space after it, as in Phi-3's vocabulary.
    pub strips_after_specials: bool,
}

/// What a token is for; decides how it is read from text and how it is shown.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum TokenKind {
    /// Text, spelt as the vocabulary spells it.
    Normal,
    /// Read from text only when special tokens are asked for; never shown.
    Control,
    /// Read from text always, before anything else; shown as it is written.
    UserDefined,
    /// One byte, written `<0xF0>`.
    Byte,
    /// Neither read nor shown.
    Unused,
}

impl TokenKind {
    pub(crate) fn from_ggml(id: i32) -> Self {
        match id {
            1 => Self::Normal,
            // The unknown token (2) is read and shown exactly as a control token.
            2 | 3 => Self::Control,
            4 => Self::UserDefined,
            6 => Self::Byte,
            _ => Self::Unused,
        }
    }
}

/// The tokens added around a text, with all defaults filled in.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct AddedTokens {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub add_bos: bool,
    /// The token that ends a text, where one is added.
    pub last: Option<u32>,
    pub add_space_prefix: bool,
}

impl Vocab {
    /// Checks the lengths and ids and fills in what the file left out; the tokens' texts and the merges are checked
    /// where they are indexed.
    pub(crate) fn resolve(&mut self) -> Result<AddedTokens> {
        let n_tokens = self.tokens.len();
        if !MODELS.contains(&self.model.as_str()) {
            return Err(Error::UnknownModel { model: self.model.clone(), supported: MODELS.join(", ") });
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
        let ids = [("bos", self.bos), ("eos", self.eos), ("eot", self.eot), ("unk", self.unk), ("separator", self.sep)];
        for (role, id) in ids {
            if let Some(id) = id.filter(|&id| id as usize >= n_tokens) {
                return Err(Error::TokenOutOfRange { role, id, n_tokens });
            }
        }
        // Old files name no ids: these are where SentencePiece's and BERT's own vocabularies have them.
        let present = |id: u32| Some(id).filter(|&id| (id as usize) < n_tokens);
        let [bos, eos, unk, sep] = match self.model.as_str() {
            "llama" => [present(1), present(2), present(0), None],
            "bert" => [present(101), None, present(100), present(102)],
            "t5" => [None, present(1), present(2), None],
            "plamo2" => [present(1), present(2), present(0), None],
            _ => [None; 4],
        };
        self.bos = self.bos.or(bos);
        self.eos = self.eos.or(eos);
        self.unk = self.unk.or(unk);
        self.sep = self.sep.or(sep);
        if self.model == "gemma4" {
            self.pre = "gemma4".to_owned();
        }
        self.around()
    }

    fn around(&self) -> Result<AddedTokens> {
        let model = self.model.as_str();
        let is_bpe = matches!(model, "gpt2" | "gemma4");
        let adds_bos = match model {
            "llama" | "bert" => true,
            _ => is_bpe && family(&self.pre).is_some_and(|family| family.adds_bos),
        };
        let add_bos = self.add_bos.unwrap_or(adds_bos && self.bos.is_some());
        let add_eos = self.add_eos.unwrap_or(model == "t5" && self.eos.is_some());
        if add_bos && self.bos.is_none() {
            return Err(Error::MissingEndToken { role: "bos", place: "beginning" });
        }
        if add_eos && self.eos.is_none() {
            return Err(Error::MissingEndToken { role: "eos", place: "end" });
        }
        let last = if model == "bert" { self.sep } else { self.eos.filter(|_| add_eos) };
        let add_space_prefix = !is_bpe && model != "rwkv" && self.add_space_prefix.unwrap_or(model == "llama");
        Ok(AddedTokens { bos: self.bos, eos: self.eos, add_bos, last, add_space_prefix })
    }
}
