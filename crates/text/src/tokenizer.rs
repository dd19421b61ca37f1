//! Byte-level BPE over a [`Vocab`]: text to token ids, ids to bytes.
//!
//! The merging is Hugging Face's `tokenizers`; what surrounds it (special tokens, words, the byte alphabet)
//! follows llama.cpp, whose files these are. [`crate::Detokenizer`] turns a stream of ids into text.

use std::collections::BTreeSet;
use std::fmt;

use ahash::AHashMap;
use tokenizers::Model as _;
use tokenizers::models::bpe::BPE;

use crate::byte_level;
use crate::pre_tokenizer::PreTokenizer;
use crate::special::{Piece, SpecialTokens};
use crate::vocab::Kind;
use crate::{Error, Result, Vocab};

/// Tokens that end an answer whatever the file says, by their text: the turn and text ends of the families
/// in use, and the fill-in-the-middle separators, after which no answer goes on.
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
    /// They are letters like others: for text a user typed. User-defined tokens are still read whole.
    Plain,
}

/// Whether BOS and EOS are added as the vocabulary says.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Ends {
    Add,
    None,
}

/// A tokenizer for one vocabulary. Cheap to share behind an `Arc`; encoding takes `&self`.
pub struct Tokenizer {
    bpe: BPE,
    pre: PreTokenizer,
    specials: SpecialTokens,
    kinds: Vec<Kind>,
    /// The bytes of all tokens end to end; token `id` is `bytes[starts[id]..starts[id + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<usize>,
    end_ids: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
}

impl Tokenizer {
    pub fn new(vocab: Vocab) -> Result<Self> {
        vocab.validate()?;
        let pre = PreTokenizer::new(&vocab.pre)?;
        let ids = index(&vocab.tokens)?;
        let end_ids = end_ids(&vocab, &ids);
        let kinds = kinds(&vocab, &end_ids);
        let specials = SpecialTokens::new(&vocab.tokens, &kinds);
        let (bytes, starts) = bytes(&vocab.tokens, &kinds);
        let merges = merges(&vocab.merges, &ids)?;
        let bpe = BPE::builder()
            .vocab_and_merges(ids, merges)
            .ignore_merges(pre.ignores_merges())
            .build()
            .map_err(|error| Error::Build(error.to_string()))?;
        let Vocab { bos, eos, add_bos, add_eos, .. } = vocab;
        Ok(Self { bpe, pre, specials, kinds, bytes, starts, end_ids, bos, eos, add_bos, add_eos })
    }

    /// The tokens of `text`, with no BOS or EOS added.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        self.encode_with(text, specials, Ends::None)
    }

    /// The tokens of `text`. A byte for which the vocabulary has no token is left out.
    pub fn encode_with(&self, text: &str, specials: Specials, ends: Ends) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if ends == Ends::Add && self.add_bos {
            out.extend(self.bos);
        }
        for piece in self.specials.split(text, specials == Specials::Parse) {
            match piece {
                Piece::Token(id) => out.push(id),
                Piece::Text(text) => self.encode_text(text, &mut out),
            }
        }
        if ends == Ends::Add && self.add_eos {
            out.extend(self.eos);
        }
        out
    }

    fn encode_text(&self, text: &str, out: &mut Vec<u32>) {
        let mut spelt = String::new();
        for word in self.pre.split(text) {
            spelt.clear();
            byte_level::encode_into(word, &mut spelt);
            // The model fails only for a missing unknown token or for dropout, and it has neither.
            let tokens = self.bpe.tokenize(&spelt).expect("byte-level BPE without an unknown token cannot fail");
            out.extend(tokens.iter().map(|token| token.id));
        }
    }

    /// The bytes a token stands for; those of a special token are its name. Half a character is possible.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let start = *self.starts.get(id as usize)?;
        let end = *self.starts.get(id as usize + 1)?;
        Some(&self.bytes[start..end])
    }

    /// The token's bytes as text, for people: what is no whole character shows as U+FFFD.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id).unwrap_or_default()).into_owned()
    }

    /// Whether the token ends an answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.end_ids.binary_search(&id).is_ok()
    }

    /// The tokens that end an answer, ascending.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    pub fn n_vocab(&self) -> usize {
        self.kinds.len()
    }

    /// Whether the token is a mark rather than text: it is never shown.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.kinds.get(id as usize), Some(Kind::Control | Kind::Unused))
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token with exactly this text, as the vocabulary spells it.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.bpe.token_to_id(text)
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

fn end_ids(vocab: &Vocab, ids: &AHashMap<String, u32>) -> Vec<u32> {
    let mut found: BTreeSet<u32> = END_TEXTS.iter().filter_map(|&text| ids.get(text)).copied().collect();
    found.extend(vocab.eos);
    found.extend(vocab.eot);
    // Elsewhere `</s>` is a closing tag of HTML: it counts only where the file calls it a control token.
    let is_control = |id: &&u32| vocab.types.get(**id as usize) == Some(&3);
    found.extend(ids.get("</s>").filter(is_control));
    let has = |text: &str| ids.contains_key(text);
    // Where an answer has parts (`<|return|>` and `<|call|>`, or `<|flush|>`), `<|end|>` ends only a part.
    let end_is_inner = has("<|call|>") || has("<|calls|>");
    if end_is_inner && (has("<|return|>") || has("<|flush|>")) {
        found.retain(|id| ids.get("<|end|>") != Some(id));
    }
    found.into_iter().collect()
}

/// Kinds from the file; a token that ends answers is a control token even where the file forgets to say so.
fn kinds(vocab: &Vocab, end_ids: &[u32]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = if vocab.types.is_empty() {
        vec![Kind::Normal; vocab.tokens.len()]
    } else {
        vocab.types.iter().map(|&id| Kind::from_ggml(id)).collect()
    };
    for &id in end_ids {
        kinds[id as usize] = Kind::Control;
    }
    kinds
}

fn bytes(tokens: &[String], kinds: &[Kind]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Vec::with_capacity(tokens.iter().map(String::len).sum());
    let mut starts = Vec::with_capacity(tokens.len() + 1);
    for (text, kind) in tokens.iter().zip(kinds) {
        starts.push(bytes.len());
        match kind {
            Kind::Normal => byte_level::decode_into(text, &mut bytes),
            Kind::Control | Kind::UserDefined | Kind::Unused => bytes.extend_from_slice(text.as_bytes()),
        }
    }
    starts.push(bytes.len());
    (bytes, starts)
}

/// Splits and checks the merges here: the model below copies into a buffer as long as the longest token, so a
/// merge that makes a longer one must not reach it.
fn merges(merges: &[String], ids: &AHashMap<String, u32>) -> Result<Vec<(String, String)>> {
    let mut product = String::new();
    let bad = |index: usize, merge: &str, problem: String| Error::BadMerge { index, merge: merge.to_owned(), problem };
    let mut pairs = Vec::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        let Some((left, right)) = merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty())
        else {
            return Err(bad(index, merge, "it is not two tokens with a space between".to_owned()));
        };
        product.clear();
        product.push_str(left);
        product.push_str(right);
        if let Some(part) = [left, right, &product].into_iter().find(|&part| !ids.contains_key(part)) {
            return Err(bad(index, merge, format!("{part:?} is not a token")));
        }
        pairs.push((left.to_owned(), right.to_owned()));
    }
    Ok(pairs)
}
