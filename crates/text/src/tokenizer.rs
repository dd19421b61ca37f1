//! A vocabulary at work: text to token ids, ids to bytes.
//!
//! What surrounds the algorithm is the same for all kinds: special tokens are found first, the text between them
//! goes to one [`Encode`], and BOS and EOS go around the whole. A `tokenizer.json` brings its own rules for all of
//! that ([`JsonTokenizer`]). [`crate::Detokenizer`] turns a stream of ids into text.

mod shield;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;

use ahash::AHashMap;

use crate::bpe::Bpe;
use crate::byte_level;
use crate::families::Spelling;
use crate::longest_match::{LongestMatch, unescape};
use crate::plamo::Plamo;
use crate::sentence_piece::{SPACE, SentencePiece, parse_byte};
use crate::special::{InputPiece, SpecialTokens};
use crate::tokenizer_json::{JsonConfig, JsonTokenizer};
use crate::unigram::Unigram;
use crate::vocab::{AddedTokens, TokenKind};
use crate::word_piece::WordPiece;
use crate::{Error, Result, Vocab};

pub use shield::unshield;

/// One way of cutting text without special tokens.
pub(crate) trait EncodeText: Send + Sync {
    fn encode(&self, text: &str, out: &mut Vec<u32>);

    /// The token with exactly this text, as the vocabulary spells it.
    fn token_id(&self, text: &str) -> Option<u32>;
}

/// Tokens that end an answer whatever the file says, by their text: the turn and text ends of the families
/// in use, and the fill-in-the-middle separators, which always end an answer.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Whether control tokens written out in a text are read as those tokens.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Specials {
    /// They are: for text a chat template made.
    Parse,
    /// They are ordinary text: for text a user typed. User-defined tokens are still read whole.
    Plain,
}

/// Whether BOS and EOS are added as the vocabulary says.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Ends {
    /// As the vocabulary says.
    Add,
    /// Neither.
    None,
}

/// A tokenizer for one vocabulary. Cheap to share behind an `Arc`; encoding takes `&self`.
pub struct Tokenizer {
    encoder: EncoderKind,
    pub(crate) pieces: TokenPieces,
    end_ids: Vec<u32>,
    around: AddedTokens,
    /// Control tokens, to be found in texts.
    controls: OnceLock<Vec<(u32, memchr::memmem::Finder<'static>)>>,
}

enum EncoderKind {
    Vocab { algorithm: Box<dyn EncodeText>, specials: SpecialTokens },
    Json(Box<JsonTokenizer>),
}

/// What each token is and stands for.
pub(crate) struct TokenPieces {
    kinds: Vec<TokenKind>,
    /// The bytes of all tokens end to end; token `id` is `bytes[starts[id]..starts[id + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl TokenPieces {
    /// `spell` appends the bytes that a token of this text and kind stands for.
    pub(crate) fn new(tokens: &[String], kinds: Vec<TokenKind>, spell: impl Fn(&str, TokenKind, &mut Vec<u8>)) -> Self {
        let mut bytes = Vec::with_capacity(tokens.iter().map(String::len).sum());
        let mut starts = Vec::with_capacity(tokens.len() + 1);
        for (text, &kind) in tokens.iter().zip(&kinds) {
            starts.push(bytes.len());
            match kind {
                TokenKind::Control | TokenKind::UserDefined | TokenKind::Unused => {
                    bytes.extend_from_slice(text.as_bytes())
                }
                TokenKind::Byte => match parse_byte(text) {
                    Some(byte) => bytes.push(byte),
                    None => bytes.extend_from_slice(text.as_bytes()),
                },
                TokenKind::Normal => spell(text, kind, &mut bytes),
            }
        }
        starts.push(bytes.len());
        Self { kinds, bytes, starts }
    }

    fn get(&self, id: u32) -> Option<&[u8]> {
        let start = *self.starts.get(id as usize)?;
        let end = *self.starts.get(id as usize + 1)?;
        Some(&self.bytes[start..end])
    }
}

impl Tokenizer {
    /// From the vocabulary of a GGUF file.
    pub fn new(mut vocab: Vocab) -> Result<Self> {
        let around = vocab.resolve()?;
        let ids = index(&vocab.tokens)?;
        let end_ids = end_ids(|text| ids.get(text).copied(), &vocab);
        let kinds = kinds(&vocab, &end_ids);
        let specials = SpecialTokens::new(&vocab.tokens, &kinds, vocab.strips_after_specials);
        let spaced = |text: &str, _, out: &mut Vec<u8>| out.extend_from_slice(text.replace(SPACE, " ").as_bytes());
        let (algorithm, pieces): (Box<dyn EncodeText>, TokenPieces) = match vocab.model.as_str() {
            "llama" => {
                let scores = std::mem::take(&mut vocab.scores);
                let algorithm = SentencePiece::new(ids, scores, &kinds, vocab.unk);
                (Box::new(algorithm), TokenPieces::new(&vocab.tokens, kinds, spaced))
            }
            "t5" => {
                let algorithm = Unigram::new(&vocab, ids, &kinds, around.add_space_prefix)?;
                (Box::new(algorithm), TokenPieces::new(&vocab.tokens, kinds, spaced))
            }
            "bert" => {
                let algorithm = WordPiece::new(ids, vocab.lowercase.unwrap_or(true), vocab.unk);
                (Box::new(algorithm), TokenPieces::new(&vocab.tokens, kinds, spaced))
            }
            "plamo2" => {
                let algorithm = Plamo::new(&vocab, ids, &kinds);
                let spell = |text: &str, _, out: &mut Vec<u8>| out.extend_from_slice(text.as_bytes());
                (Box::new(algorithm), TokenPieces::new(&vocab.tokens, kinds, spell))
            }
            "rwkv" => {
                let algorithm = LongestMatch::new(&vocab.tokens, ids, vocab.unk);
                let spell = |text: &str, _, out: &mut Vec<u8>| out.extend(unescape(text));
                (Box::new(algorithm), TokenPieces::new(&vocab.tokens, kinds, spell))
            }
            _ => {
                let algorithm = Bpe::new(&vocab, ids)?;
                let pieces = match algorithm.spelling() {
                    Spelling::Metaspace => TokenPieces::new(&vocab.tokens, kinds, spaced),
                    Spelling::ByteLevel => {
                        TokenPieces::new(&vocab.tokens, kinds, |text, _, out| byte_level::decode_into(text, out))
                    }
                };
                (Box::new(algorithm), pieces)
            }
        };
        let controls = OnceLock::new();
        Ok(Self { encoder: EncoderKind::Vocab { algorithm, specials }, pieces, end_ids, around, controls })
    }

    /// From a `tokenizer.json`, by Hugging Face's `tokenizers`.
    pub fn from_json(json: &[u8], config: &JsonConfig) -> Result<Self> {
        let (tokenizer, tokens, kinds, spelling) = JsonTokenizer::new(json)?;
        let (bos, eos) = (config.id(config.bos.as_deref(), &tokenizer)?, config.id(config.eos.as_deref(), &tokenizer)?);
        // Named as the end, or known by its text; only special ones, so that no word ends an answer.
        let is_control = |id: &u32| kinds.get(*id as usize) == Some(&TokenKind::Control);
        let types = (0..).take(kinds.len()).map(|id| if is_control(&id) { 3 } else { 1 }).collect();
        let vocab = Vocab { eos, types, ..Vocab::default() };
        let mut ends = end_ids(|text| tokenizer.token_id(text).filter(is_control), &vocab);
        ends.extend(config.end_ids.iter().copied().filter(|&id| (id as usize) < tokens.len()));
        ends.sort_unstable();
        ends.dedup();
        let pieces = TokenPieces::new(&tokens, kinds, |text, kind, out| spelling.decode_into(text, kind, out));
        let around = AddedTokens { bos, eos, add_space_prefix: tokenizer.adds_space(), ..AddedTokens::default() };
        let controls = OnceLock::new();
        Ok(Self { encoder: EncoderKind::Json(Box::new(tokenizer)), pieces, end_ids: ends, around, controls })
    }

    /// The tokens of `text`, with no BOS or EOS added.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        self.encode_with(text, specials, Ends::None)
    }

    /// The tokens of `text`. What the vocabulary has no token for becomes its unknown token, or is left out.
    pub fn encode_with(&self, text: &str, specials: Specials, ends: Ends) -> Vec<u32> {
        let (algorithm, special_tokens) = match &self.encoder {
            EncoderKind::Json(tokenizer) => return tokenizer.encode(text, specials, ends),
            EncoderKind::Vocab { algorithm, specials } => (algorithm, specials),
        };
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if ends == Ends::Add && self.around.add_bos {
            out.extend(self.around.bos);
        }
        // SentencePiece sees a space before the first word, and before the first one after a special token.
        let mut needs_space = self.around.add_space_prefix;
        for piece in special_tokens.split(text, specials == Specials::Parse) {
            match piece {
                InputPiece::Token(id) => {
                    out.push(id);
                    needs_space = self.around.add_space_prefix;
                }
                InputPiece::Text("") => {}
                InputPiece::Text(text) if needs_space => {
                    algorithm.encode(&format!(" {text}"), &mut out);
                    needs_space = false;
                }
                InputPiece::Text(text) => algorithm.encode(text, &mut out),
            }
        }
        if ends == Ends::Add {
            out.extend(self.around.last);
        }
        out
    }

    /// The text of a whole list of tokens: what [`encode`](Self::encode) was given, as far as the vocabulary keeps it.
    pub fn decode(self: &std::sync::Arc<Self>, ids: &[u32]) -> String {
        let mut detokenizer = crate::Detokenizer::from_start(self.clone());
        let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// The bytes a token stands for; those of a special token are its name. Half a character is possible.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    /// The token's bytes as text, for people: what is no whole character shows as U+FFFD.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id).unwrap_or_default()).into_owned()
    }

    /// The tokens whose text holds one of these, ascending.
    pub fn ids_holding(&self, texts: &[&str]) -> Vec<u32> {
        let holds = |bytes: &[u8]| texts.iter().any(|text| memchr::memmem::find(bytes, text.as_bytes()).is_some());
        let n_vocab = u32::try_from(self.n_vocab()).unwrap_or(u32::MAX);
        (0..n_vocab).filter(|&id| !self.is_special(id) && self.token_bytes(id).is_some_and(holds)).collect()
    }

    /// Whether the token ends an answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.end_ids.binary_search(&id).is_ok()
    }

    /// The tokens that end an answer, ascending.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// The number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.pieces.kinds.len()
    }

    /// Whether the token is a mark rather than text: it is never shown.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.pieces.kinds.get(id as usize), Some(TokenKind::Control | TokenKind::Unused))
    }

    /// The token that begins a text, where the vocabulary has one.
    pub fn bos(&self) -> Option<u32> {
        self.around.bos
    }

    /// The token that ends a text, where the vocabulary has one.
    pub fn eos(&self) -> Option<u32> {
        self.around.eos
    }

    /// Whether a whole text begins with a space that the vocabulary put there.
    pub(crate) fn adds_space(&self) -> bool {
        self.around.add_space_prefix
    }

    /// The token with exactly this text, as the vocabulary spells it.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        match &self.encoder {
            EncoderKind::Vocab { algorithm, .. } => algorithm.token_id(text),
            EncoderKind::Json(tokenizer) => tokenizer.token_id(text),
        }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("n_vocab", &self.n_vocab()).field("end_ids", &self.end_ids).finish()
    }
}

fn index(tokens: &[String]) -> Result<AHashMap<String, u32>> {
    let mut ids = AHashMap::with_capacity(tokens.len());
    // An empty text can be no word and no special token; several tokens may have none.
    for (id, text) in (0u32..).zip(tokens).filter(|(_, text)| !text.is_empty()) {
        if let Some(first) = ids.insert(text.clone(), id) {
            return Err(Error::DuplicateToken { first, second: id, text: text.clone() });
        }
    }
    Ok(ids)
}

fn end_ids(id: impl Fn(&str) -> Option<u32>, vocab: &Vocab) -> Vec<u32> {
    let mut found: BTreeSet<u32> = END_TEXTS.iter().filter_map(|&text| id(text)).collect();
    found.extend(vocab.eos);
    found.extend(vocab.eot);
    // Elsewhere `</s>` is a closing tag of HTML: it counts only where the file calls it a control token.
    let is_control = |id: &u32| vocab.types.get(*id as usize) == Some(&3);
    found.extend(id("</s>").filter(is_control));
    let has = |text: &str| id(text).is_some();
    // Where an answer has parts (`<|return|>` and `<|call|>`, or `<|flush|>`), `<|end|>` ends only a part.
    let end_is_inner = has("<|call|>") || has("<|calls|>");
    if end_is_inner && (has("<|return|>") || has("<|flush|>")) {
        found.retain(|&end| id("<|end|>") != Some(end));
    }
    found.into_iter().collect()
}

/// Kinds from the file; a token that ends answers is a control token even where the file forgets to say so.
fn kinds(vocab: &Vocab, end_ids: &[u32]) -> Vec<TokenKind> {
    let mut kinds: Vec<TokenKind> = if vocab.types.is_empty() {
        vec![TokenKind::Normal; vocab.tokens.len()]
    } else {
        vocab.types.iter().map(|&id| TokenKind::from_ggml(id)).collect()
    };
    for &id in end_ids {
        kinds[id as usize] = TokenKind::Control;
    }
    kinds
}
