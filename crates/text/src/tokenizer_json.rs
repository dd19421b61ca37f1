//! A `tokenizer.json` as Hugging Face publishes it, run by their `tokenizers`: its normaliser, words, model and the
//! tokens it puts around a text are its own. Only turning ids into text is ours, so that it can be done one token at
//! a time; what a token's text stands for follows from the kind of decoder the file names.

use std::sync::OnceLock;

use serde_json::Value;

use crate::tokenizer::{Ends, Specials};
use crate::vocab::TokenKind;
use crate::{Error, Result, byte_level};

/// What stands beside a `tokenizer.json`, in tokenizer_config.json and generation_config.json.
#[derive(Clone, Debug, Default)]
pub struct JsonConfig {
    /// Text of the token that begins a text.
    pub bos: Option<String>,
    /// Text of the token that ends a text.
    pub eos: Option<String>,
    /// `eos_token_id` of generation_config.json, one or several.
    pub end_ids: Vec<u32>,
}

impl JsonConfig {
    /// From the contents of tokenizer_config.json and generation_config.json; either may be null.
    pub fn from_values(tokenizer_config: &Value, generation_config: &Value) -> Self {
        // A token is written as its text, or as an object that holds it.
        let text = |name: &str| {
            let token = &tokenizer_config[name];
            token.as_str().or(token["content"].as_str()).map(str::to_owned)
        };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ends = &generation_config["eos_token_id"];
        let end_ids = match ends.as_array() {
            Some(list) => list.iter().filter_map(id).collect(),
            None => id(ends).into_iter().collect(),
        };
        Self { bos: text("bos_token"), eos: text("eos_token"), end_ids }
    }

    pub(crate) fn id(&self, text: Option<&str>, tokenizer: &JsonTokenizer) -> Result<Option<u32>> {
        let Some(text) = text else { return Ok(None) };
        let role = if self.bos.as_deref() == Some(text) { "bos" } else { "eos" };
        let id = tokenizer.token_id(text);
        id.map(Some).ok_or_else(|| Error::NoSuchToken { role, text: text.to_owned() })
    }
}

pub(crate) struct JsonTokenizer {
    parse: tokenizers::Tokenizer,
    /// The same, reading special tokens as letters: made when first asked for, as few callers do.
    plain: OnceLock<tokenizers::Tokenizer>,
    adds_space: bool,
}

/// How the texts of a `tokenizer.json`'s tokens stand for bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JsonSpelling {
    ByteLevel,
    /// With this for a space.
    Metaspace(String),
    /// A continuation begins with this; everything else begins a word.
    WordPiece(String),
    Plain,
}

impl JsonSpelling {
    fn of(decoder: &Value) -> Self {
        let parts = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().cloned().unwrap_or_default(),
            _ => vec![decoder.clone()],
        };
        let found = parts.iter().find_map(|part| match part["type"].as_str()? {
            "ByteLevel" => Some(Self::ByteLevel),
            "WordPiece" => Some(Self::WordPiece(part["prefix"].as_str().unwrap_or("##").to_owned())),
            "Metaspace" => Some(Self::Metaspace(part["replacement"].as_str().unwrap_or("▁").to_owned())),
            "Replace" if part["content"] == " " => {
                Some(Self::Metaspace(part["pattern"]["String"].as_str()?.to_owned()))
            }
            _ => None,
        });
        found.unwrap_or(Self::Plain)
    }

    pub(crate) fn decode_into(&self, text: &str, _kind: TokenKind, out: &mut Vec<u8>) {
        match self {
            Self::ByteLevel => byte_level::decode_into(text, out),
            Self::Metaspace(space) => out.extend_from_slice(text.replace(space, " ").as_bytes()),
            Self::WordPiece(prefix) => match text.strip_prefix(prefix) {
                Some(rest) => out.extend_from_slice(rest.as_bytes()),
                None => {
                    out.push(b' ');
                    out.extend_from_slice(text.as_bytes());
                }
            },
            Self::Plain => out.extend_from_slice(text.as_bytes()),
        }
    }
}

impl JsonTokenizer {
    /// The tokenizer, its tokens by id, their kinds, and how they are spelt.
    pub(crate) fn new(json: &[u8]) -> Result<(Self, Vec<String>, Vec<TokenKind>, JsonSpelling)> {
        let bad = |error: &dyn std::fmt::Display| Error::Json(error.to_string());
        let mut parse = tokenizers::Tokenizer::from_bytes(json).map_err(|error| bad(&error))?;
        // Files made for training cut and pad; a prompt must be whole.
        parse.with_padding(None);
        _ = parse.with_truncation(None);
        let value = |part: std::result::Result<Value, serde_json::Error>| part.map_err(|error| bad(&error));
        let decoder = value(serde_json::to_value(parse.get_decoder()))?;
        let spelling = JsonSpelling::of(&decoder);
        let vocab = parse.get_vocab(true);
        let n_vocab = vocab.values().max().map_or(0, |&id| id as usize + 1);
        if n_vocab == 0 {
            return Err(Error::EmptyVocab);
        }
        // Ids with holes between them would be a list of nothing.
        if n_vocab > 16 * vocab.len() + 65_536 {
            return Err(Error::Json(format!("its ids reach {n_vocab} for {} tokens", vocab.len())));
        }
        let mut tokens = vec![String::new(); n_vocab];
        let mut kinds = vec![TokenKind::Unused; n_vocab];
        let has_bytes = decoder.to_string().contains("ByteFallback");
        for (text, id) in vocab {
            let is_byte = has_bytes && crate::sentence_piece::parse_byte(&text).is_some();
            kinds[id as usize] = if is_byte { TokenKind::Byte } else { TokenKind::Normal };
            tokens[id as usize] = text;
        }
        for (&id, token) in parse.get_added_tokens_decoder().iter() {
            if let Some(kind) = kinds.get_mut(id as usize) {
                *kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
            }
        }
        let adds_space = Self::finds_prefix_space(&parse, &spelling);
        Ok((Self { parse, plain: OnceLock::new(), adds_space }, tokens, kinds, spelling))
    }

    /// Whether a text gets a space before its first word: asked of the tokenizer itself, because a normaliser, a
    /// pre-tokenizer or the decoder's habit of stripping may be behind it.
    fn finds_prefix_space(tokenizer: &tokenizers::Tokenizer, spelling: &JsonSpelling) -> bool {
        let begins_with = |space: &str| {
            let encoding = tokenizer.encode("a", false).ok()?;
            Some(encoding.get_tokens().first()?.starts_with(space))
        };
        match spelling {
            JsonSpelling::WordPiece(_) => true,
            JsonSpelling::Metaspace(space) => begins_with(space).unwrap_or(false),
            JsonSpelling::ByteLevel => begins_with("Ġ").unwrap_or(false),
            JsonSpelling::Plain => false,
        }
    }

    pub(crate) fn adds_space(&self) -> bool {
        self.adds_space
    }

    pub(crate) fn pre_tokenizer(&self) -> Option<&tokenizers::PreTokenizerWrapper> {
        self.parse.get_pre_tokenizer()
    }

    pub(crate) fn encode(&self, text: &str, specials: Specials, ends: Ends) -> Vec<u32> {
        let tokenizer = match specials {
            Specials::Parse => &self.parse,
            Specials::Plain => self.plain.get_or_init(|| {
                let mut plain = self.parse.clone();
                plain.set_encode_special_tokens(true);
                plain
            }),
        };
        // What fails here is a character outside a model without an unknown token: then nothing can stand for it.
        tokenizer.encode_fast(text, ends == Ends::Add).map(|encoding| encoding.get_ids().to_vec()).unwrap_or_default()
    }

    pub(crate) fn token_id(&self, text: &str) -> Option<u32> {
        self.parse.token_to_id(text)
    }
}
