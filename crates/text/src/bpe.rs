//! BPE by a list of merges, over the bytes of a text (`gpt2`) or over its characters (`gemma4`).
//!
//! The merging is Hugging Face's `tokenizers`; the words come from [`PreTokenizer`]. Byte-level vocabularies spell
//! every byte as a printable character; the others write a space as `▁` and a character they lack as byte tokens.

use ahash::AHashMap;
use tokenizers::Model as _;
use tokenizers::models::bpe::BPE;

use crate::byte_level;
use crate::families::Spelling;
use crate::pre_tokenizer::PreTokenizer;
use crate::sentence_piece::SPACE;
use crate::tokenizer::EncodeText;
use crate::{Error, Result, Vocab};

pub(crate) struct Bpe {
    model: BPE,
    pre: PreTokenizer,
    spelling: Spelling,
}

impl Bpe {
    pub(crate) fn new(vocab: &Vocab, ids: AHashMap<String, u32>) -> Result<Self> {
        let pre = PreTokenizer::new(&vocab.pre)?;
        let spelling = pre.family().spelling;
        let merges = merges(&vocab.merges, &ids)?;
        let model = BPE::builder()
            .vocab_and_merges(ids, merges)
            .ignore_merges(pre.family().ignores_merges)
            .byte_fallback(spelling == Spelling::Metaspace)
            .build()
            .map_err(|error| Error::Build(error.to_string()))?;
        Ok(Self { model, pre, spelling })
    }

    pub(crate) fn spelling(&self) -> Spelling {
        self.spelling
    }
}

impl EncodeText for Bpe {
    fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let escaped = match self.spelling {
            Spelling::ByteLevel => None,
            Spelling::Metaspace => Some(text.replace(' ', SPACE)),
        };
        let mut spelt = String::new();
        for word in self.pre.split(escaped.as_deref().unwrap_or(text)) {
            let word = match self.spelling {
                Spelling::ByteLevel => {
                    spelt.clear();
                    byte_level::encode_into(word, &mut spelt);
                    &spelt
                }
                Spelling::Metaspace => word,
            };
            // Gemma's merges do not make its tokens for runs of line breaks.
            if self.spelling == Spelling::Metaspace
                && word.starts_with('\n')
                && let Some(id) = self.model.token_to_id(word)
            {
                out.push(id);
                continue;
            }
            // The model fails only for a missing unknown token or for dropout, and it has neither.
            let tokens = self.model.tokenize(word).expect("BPE without an unknown token cannot fail");
            out.extend(tokens.iter().map(|token| token.id));
        }
    }

    fn token_id(&self, text: &str) -> Option<u32> {
        self.model.token_to_id(text)
    }
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
