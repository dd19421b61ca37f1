//! A `tokenizer.json` as plain vocabulary data, for a file that keeps tokenizers that way.
//!
//! Of BPE over bytes the name of the pre-tokenizer is found by comparing how texts are cut; of BPE over characters the
//! scores follow from the order of the merges. WordPiece and Unigram are spelt another way. What was made is then tried
//! against the original on texts of many kinds: a tokenizer that would come out otherwise is an error, not a model that
//! reads a little differently.

use serde_json::Value;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

use crate::families::{FAMILIES, PreTokenizerFamily, Spelling};
use crate::pre_tokenizer::PreTokenizer;
use crate::sentence_piece::SPACE;
use crate::tokenizer::{Ends, Specials, Tokenizer};
use crate::tokenizer_json::{JsonConfig, JsonSpelling, JsonTokenizer};
use crate::vocab::TokenKind;
use crate::{Error, Result, Vocab};

/// Texts on which ways of cutting differ.
const PROBES: &[&str] = &[
    "Hello, World! It's 3.14159 o'clock; they're HERE, and we'll see. I'D'VE DON'T",
    "  leading and   many    spaces\t\ttabs \n\n\n lines \r\n\r\n end  ",
    "1234567890 12 345 4567 1,000,000.50 a1b22c333 ²³ ½ ٣٤٥",
    "camelCaseWORD ABCdef aB3cD snake_case kebab-case über Straße çñé",
    "日本語のテキスト、中文字符。한국어 텍스트! Привет, мир? مرحبا ไทย हिन्दी",
    "🚀🎉👩‍👩‍👧 … “quotes” ‘single’ —dash– ·",
    "def f(x):\n    return x**2  # comment\n\n\tif (a && !b) { c[0] += 1; }\n",
    "https://example.org/a?b=c&d=%20 user@example.org ~/.config <tag attr=\"v\"/> $100 50% #1",
    "...!!! --- ___ === ((())) //// \\n a\u{a0}b\u{3000}c\u{200b}d",
    " one",
    "one ",
    "\n",
    " ",
    "x",
];

impl Vocab {
    /// From a `tokenizer.json` for a model with `n_rows` embeddings: ids without a token become unused ones, tokens
    /// beyond the last row are left out.
    pub fn from_json(json: &[u8], config: &JsonConfig, n_rows: usize) -> Result<Self> {
        let file: Value = serde_json::from_slice(json).map_err(|error| Error::Json(error.to_string()))?;
        let (tokenizer, mut tokens, mut kinds, spelling) = JsonTokenizer::new(json)?;
        let model = &file["model"];
        let kind = match model["type"].as_str() {
            None if model["merges"].is_array() => "BPE",
            kind => kind.unwrap_or("unnamed"),
        };
        if !["BPE", "WordPiece", "Unigram"].contains(&kind) {
            return Err(Error::NotPlain(format!("its model is {kind}, which has no plain form")));
        }
        tokens.truncate(n_rows);
        kinds.truncate(n_rows);
        for (id, text) in tokens.iter_mut().enumerate().filter(|(_, text)| text.is_empty()) {
            *text = format!("[PAD{id}]");
        }
        for id in tokens.len()..n_rows {
            tokens.push(format!("[PAD{id}]"));
            kinds.push(TokenKind::Unused);
        }
        let id =
            |text: Option<&str>| text.and_then(|text| tokenizer.token_id(text)).filter(|id| (*id as usize) < n_rows);
        let unk = id(model["unk_token"].as_str());
        let unk = unk.or_else(|| model["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok()));
        let around = tokenizer.encode("x", Specials::Parse, Ends::Add);
        // Encoders often name no tokens for the ends, but put them there.
        let is_control = |id: &&u32| kinds.get(**id as usize) == Some(&TokenKind::Control);
        let end = |named: Option<&str>, seen: Option<&u32>| {
            id(named).or_else(|| seen.filter(is_control).copied().filter(|_| kind != "BPE"))
        };
        let bos = end(config.bos.as_deref(), around.first());
        let eos = end(config.eos.as_deref(), around.last().filter(|_| around.len() > 1));
        let mut vocab = Self {
            types: kinds.iter().enumerate().map(|(id, kind)| number(*kind, unk == Some(id as u32))).collect(),
            bos,
            eos,
            // A second token that ends answers: the first is the end of a text.
            eot: config.end_ids.iter().copied().find(|id| Some(*id) != eos && (*id as usize) < n_rows),
            unk,
            add_bos: Some(bos.is_some() && around.first().copied() == bos),
            add_eos: Some(eos.is_some() && around.last().copied() == eos),
            ..Self::default()
        };
        if kind == "WordPiece" {
            vocab.word_piece(&file, &mut tokens, &kinds);
        } else if kind == "Unigram" {
            vocab.unigram(&file, &tokenizer, tokens.len())?;
        } else if spelling == JsonSpelling::ByteLevel {
            let merges = merges(model)?;
            vocab.model = "gpt2".into();
            vocab.pre = pre_of(&tokenizer, model["ignore_merges"] == true, vocab.add_bos == Some(true))?.to_owned();
            vocab.merges = merges.into_iter().map(|(left, right)| format!("{left} {right}")).collect();
        } else {
            let merges = merges(model)?;
            vocab.model = "llama".into();
            vocab.scores = scores(&tokens, &kinds, &merges);
            vocab.add_space_prefix = Some(tokenizer.adds_space());
            let defined = tokens.iter_mut().zip(&kinds).filter(|(_, kind)| **kind == TokenKind::UserDefined);
            defined.for_each(|(text, _)| *text = text.replace(SPACE, " "));
        }
        vocab.tokens = tokens;
        vocab.expect_same(&tokenizer)?;
        Ok(vocab)
    }

    /// As in BERT's vocabularies: the start of a word gets the mark, a continuation loses its own.
    fn word_piece(&mut self, file: &Value, tokens: &mut [String], kinds: &[TokenKind]) {
        let prefix = file["model"]["continuing_subword_prefix"].as_str().unwrap_or("##");
        for (text, _) in tokens.iter_mut().zip(kinds).filter(|(_, kind)| **kind == TokenKind::Normal) {
            *text = match text.strip_prefix(prefix) {
                Some(rest) => rest.to_owned(),
                None => format!("{SPACE}{text}"),
            };
        }
        self.model = "bert".into();
        self.lowercase = Some(file["normalizer"]["lowercase"].as_bool().unwrap_or(false));
        self.sep = self.eos;
    }

    /// As in T5's and XLM-RoBERTa's vocabularies.
    fn unigram(&mut self, file: &Value, tokenizer: &JsonTokenizer, n_tokens: usize) -> Result<()> {
        /// Of an id that the file gives none: nothing is cut that way.
        const UNSCORED: f32 = -10_000.0;
        let list = file["model"]["vocab"].as_array().map(Vec::as_slice).unwrap_or_default();
        let score = |id: usize| list.get(id).and_then(|row| row[1].as_f64()).map_or(UNSCORED, |score| score as f32);
        self.model = "t5".into();
        self.scores = (0..n_tokens).map(score).collect();
        self.add_space_prefix = Some(tokenizer.adds_space());
        let ids = |text: &str| tokenizer.encode(text, Specials::Parse, Ends::None);
        self.remove_extra_whitespaces = ids("a  b") == ids("a b");
        let normalizer = &file["normalizer"];
        let mut parts = normalizer["normalizers"].as_array().map(Vec::as_slice).unwrap_or_default().iter();
        let mut parts = std::iter::once(normalizer).chain(&mut parts);
        if let Some(table) = parts.find_map(|part| part["precompiled_charsmap"].as_str()) {
            self.precompiled_charsmap =
                base64(table).ok_or_else(|| Error::BadCharsMap("its base64 is broken".to_owned()))?;
        }
        Ok(())
    }

    fn expect_same(&self, original: &JsonTokenizer) -> Result<()> {
        let made = Tokenizer::new(self.clone())?;
        for probe in PROBES {
            // Before a text that begins with a space some put no other one; plain data cannot say so.
            let probe = if self.add_space_prefix == Some(true) { probe.trim_start_matches(' ') } else { probe };
            // Where runs of spaces count as one, those at the ends count as none.
            let probe = if self.remove_extra_whitespaces { probe.trim() } else { probe };
            let expected = original.encode(probe, Specials::Parse, Ends::Add);
            let found = made.encode_with(probe, Specials::Parse, Ends::Add);
            if found != expected {
                return Err(Error::NotPlain(format!(
                    "as plain data ({}{}{}) it reads {probe:?} otherwise",
                    self.model,
                    if self.pre.is_empty() { "" } else { ", " },
                    self.pre
                )));
            }
        }
        Ok(())
    }
}

/// As `tokenizer.ggml.token_type` counts.
fn number(kind: TokenKind, is_unknown: bool) -> i32 {
    match kind {
        _ if is_unknown => 2,
        TokenKind::Normal => 1,
        TokenKind::Control => 3,
        TokenKind::UserDefined => 4,
        TokenKind::Unused => 5,
        TokenKind::Byte => 6,
    }
}

/// Bytes from the usual alphabet of 64 letters; `None` for any other one.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut n_bits) = (0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            out.push((bits >> n_bits) as u8);
        }
    }
    Some(out)
}

/// Pairs, from either way of writing them.
fn merges(model: &Value) -> Result<Vec<(String, String)>> {
    let bad = |index: usize| Error::Json(format!("merge {index} is not a pair of tokens"));
    let list = model["merges"].as_array().ok_or_else(|| Error::Json("its BPE has no merges".into()))?;
    let pair = |(index, merge): (usize, &Value)| {
        let (left, right) = match merge {
            Value::String(text) => text.split_once(' ').ok_or_else(|| bad(index))?,
            _ => merge[0].as_str().zip(merge[1].as_str()).ok_or_else(|| bad(index))?,
        };
        Ok((left.to_owned(), right.to_owned()))
    };
    list.iter().enumerate().map(pair).collect()
}

/// The earlier a token is merged, the better its score. Tokens that no merge makes are never joined to.
fn scores(tokens: &[String], kinds: &[TokenKind], merges: &[(String, String)]) -> Vec<f32> {
    let mut ranks = ahash::AHashMap::with_capacity(merges.len());
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let score = |(text, kind): (&String, &TokenKind)| match ranks.get(text) {
        Some(rank) => -(*rank as f32),
        None if *kind == TokenKind::Normal => -(merges.len() as f32) - 1.0,
        None => 0.0,
    };
    tokens.iter().zip(kinds).map(score).collect()
}

/// The name of the pre-tokenizer that cuts texts as this one does.
fn pre_of(tokenizer: &JsonTokenizer, ignores_merges: bool, adds_bos: bool) -> Result<&'static str> {
    let cuts = |text: &&str| -> Option<Vec<usize>> {
        let mut cut = PreTokenizedString::from(*text);
        tokenizer.pre_tokenizer()?.pre_tokenize(&mut cut).ok()?;
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        Some(splits.iter().map(|(_, (_, end), _)| *end).collect())
    };
    let wanted: Vec<Option<Vec<usize>>> = PROBES.iter().map(cuts).collect();
    let is_same = |family: &&PreTokenizerFamily| {
        let Ok(pre) = PreTokenizer::new(family.names[0]) else { return false };
        let ends = |text: &str| -> Vec<usize> {
            let words = pre.split(text).into_iter().scan(0, |end, word| {
                *end += word.len();
                Some(*end)
            });
            words.collect()
        };
        PROBES.iter().zip(&wanted).all(|(text, wanted)| wanted.as_ref() == Some(&ends(text)))
    };
    let rows = || FAMILIES.iter().filter(|family| family.spelling == Spelling::ByteLevel);
    let same: Vec<&PreTokenizerFamily> =
        rows().filter(|family| family.ignores_merges == ignores_merges).filter(is_same).collect();
    let best = same.iter().find(|family| family.adds_bos == adds_bos).or(same.first());
    best.map(|family| family.names[0])
        .ok_or_else(|| Error::NotPlain("it cuts words as no pre-tokenizer that has a name".into()))
}
