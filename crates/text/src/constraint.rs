//! Constrained output: which tokens may come next so that an answer follows a JSON schema, a regular expression or a
//! grammar. The work is done by llguidance over a trie of the vocabulary.
//!
//! A [`Constraint`] is what a caller asks for; as a string ([`Constraint::to_spec`]) it travels through the engine's
//! protocol. A [`Compiler`] belongs to one tokenizer and keeps what it compiled; a [`Matcher`] follows one answer.
//! This module knows no engine: the caller that starts one wraps the compiler in a thin `MaskFactory`.

mod gbnf;
mod limits;
mod unique_keys;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{CancellationHandle, Matcher as Parser, ParserFactory};
use serde_json::{Value, json};

use self::unique_keys::{QuoteTokens, UniqueKeys};
use crate::tokenizer::Specials;
use crate::{Error, Result, Tokenizer};

/// Compiled constraints that are kept, and what they may take; the one used longest ago goes first.
const N_KEPT: usize = 64;
const MAX_KEPT_BYTES: usize = 256 << 20;
/// The memory of a compiled constraint, estimated from its source: a schema of 100 kB takes about 20 MB.
const KEPT_BASE_BYTES: usize = 64 << 10;
const KEPT_BYTES_PER_BYTE: usize = 200;
/// White space between two parts of JSON: a space or two, or a line's end with the next one's indentation. Enough for
/// any layout that people use; a small model that is undecided emits blanks for as long as it may.
const JSON_SPACE: &str = r"[\x20\x09]{1,2}|\x0D?\x0A[\x20\x09]{0,40}";

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    Json,
    /// JSON of this schema.
    JsonSchema(Value),
    /// A text that this expression matches from its first to its last character.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark; its first rule is `start`.
    Lark(String),
    /// A grammar as llama.cpp writes it; its first rule is `root`.
    Gbnf(String),
}

impl Constraint {
    /// As a string for `Submit::constraint`.
    pub fn to_spec(&self) -> String {
        match self {
            Self::Json => json!({"json": true}),
            Self::JsonSchema(schema) => json!({"json_schema": schema}),
            Self::Regex(regex) => json!({"regex": regex}),
            Self::Lark(grammar) => json!({"lark": grammar}),
            Self::Gbnf(grammar) => json!({"gbnf": grammar}),
        }
        .to_string()
    }

    /// Reads what [`Constraint::to_spec`] wrote.
    pub fn from_spec(spec: &str) -> Result<Self> {
        let bad =
            || Error::Constraint("expected a JSON object with one of: json, json_schema, regex, lark, gbnf".to_owned());
        let value: Value = serde_json::from_str(spec).map_err(|_| bad())?;
        let (kind, value) = value.as_object().and_then(|object| object.iter().next()).ok_or_else(bad)?;
        let text = || value.as_str().map(str::to_owned).ok_or_else(bad);
        Ok(match kind.as_str() {
            "json" => Self::Json,
            "json_schema" => Self::JsonSchema(value.clone()),
            "regex" => Self::Regex(text()?),
            "lark" => Self::Lark(text()?),
            "gbnf" => Self::Gbnf(text()?),
            _ => return Err(bad()),
        })
    }

    /// A grammar in the dialect of Lark or of llama.cpp, told apart by how a rule is written.
    pub fn grammar(source: &str) -> Self {
        if source.contains("::=") { Self::Gbnf(source.to_owned()) } else { Self::Lark(source.to_owned()) }
    }

    fn to_grammar(&self) -> Result<TopLevelGrammar> {
        Ok(match self {
            Self::Json => TopLevelGrammar::from_json_schema(spaced(json!({"type": "object"}))),
            Self::JsonSchema(schema) => {
                if !schema.is_object() && !schema.is_boolean() {
                    return Err(Error::Constraint("a JSON schema is an object, true or false".to_owned()));
                }
                TopLevelGrammar::from_json_schema(spaced(schema.clone()))
            }
            Self::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Self::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            Self::Gbnf(grammar) => TopLevelGrammar::from_lark(gbnf::to_lark(grammar)?),
        })
    }
}

/// The schema with a bound on white space, unless it brings a rule of its own.
pub(crate) fn spaced(schema: Value) -> Value {
    let mut object = match schema {
        Value::Object(object) => object,
        Value::Bool(false) => return Value::Bool(false),
        _ => serde_json::Map::new(),
    };
    object.entry("x-guidance").or_insert_with(|| json!({"whitespace_pattern": JSON_SPACE}));
    object.into()
}

/// Looks at a constraint before it is compiled; an error is why it is refused.
pub type Guard = dyn Fn(&Constraint) -> std::result::Result<(), Refusal> + Send + Sync;

/// Why a [`Guard`] refuses a constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It cannot be used.
    Wrong(String),
    /// Nothing is known against it: there was no time to look at it.
    Busy(String),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Wrong(text) => Self::Constraint(text),
            Refusal::Busy(text) => Self::ConstraintBusy(text),
        }
    }
}

/// Compiles constraints for one tokenizer. Cheap to clone; clones share what they compiled.
#[derive(Clone)]
pub struct Compiler {
    factory: Arc<ParserFactory>,
    kept: Arc<Mutex<VecDeque<(String, Parser)>>>,
    guard: Option<Arc<Guard>>,
    tokenizer: Arc<Tokenizer>,
    /// Made with the first schema that needs them.
    quote_tokens: Arc<OnceLock<Arc<QuoteTokens>>>,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

impl Compiler {
    /// `n_vocab` counts the model's logits, which may be more than the vocabulary has tokens.
    pub fn new(tokenizer: &Arc<Tokenizer>, n_vocab: usize) -> Result<Self> {
        let bad = |error: &dyn std::fmt::Display| Error::Constraint(error.to_string());
        let n_vocab = n_vocab.max(tokenizer.n_vocab());
        let Some(&end) = tokenizer.end_ids().first() else {
            return Err(Error::Constraint("the vocabulary has no token that ends an answer".to_owned()));
        };
        let n_ids = u32::try_from(n_vocab).map_err(|error| bad(&error))?;
        let words: Vec<Vec<u8>> = (0..n_ids).map(|id| trie_bytes(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(n_ids, end), &words).with_eos_tokens(tokenizer.end_ids());
        let env: TokEnv = Arc::new(Environment { tokenizer: tokenizer.clone(), trie });
        Ok(Self {
            factory: Arc::new(factory(&env)?),
            kept: Arc::default(),
            guard: None,
            tokenizer: Arc::clone(tokenizer),
            quote_tokens: Arc::default(),
        })
    }

    /// Asks `guard` about every constraint before it is compiled.
    pub fn guarded(self, guard: Arc<Guard>) -> Self {
        Self { guard: Some(guard), ..self }
    }

    /// A matcher that has seen nothing yet.
    pub fn build(&self, constraint: &Constraint) -> Result<Matcher> {
        let counts = matches!(constraint, Constraint::JsonSchema(schema) if unique_keys::counts_properties(schema));
        let keys = counts.then(|| {
            let make = || Arc::new(unique_keys::quote_tokens(&self.tokenizer));
            UniqueKeys::new(Arc::clone(self.quote_tokens.get_or_init(make)))
        });
        Ok(Matcher { parser: self.parser(constraint)?, tokenizer: Arc::clone(&self.tokenizer), keys })
    }

    fn parser(&self, constraint: &Constraint) -> Result<Parser> {
        let spec = constraint.to_spec();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(key, _)| *key == spec)
            && let Some(entry) = kept.remove(at)
        {
            let parser = entry.1.clone();
            kept.push_back(entry);
            return Ok(parser);
        }
        drop(kept);
        let parser = self.compile(constraint)?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((spec, parser.clone()));
        // The newest stays, whatever it takes: its mask is about to be made.
        while kept.len() > 1
            && (kept.len() > N_KEPT || kept.iter().map(|(spec, _)| reckon(spec)).sum::<usize>() > MAX_KEPT_BYTES)
        {
            kept.pop_front();
        }
        Ok(parser)
    }

    /// The estimated memory of the compiled constraints that are kept.
    pub fn kept_bytes(&self) -> usize {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(|(spec, _)| reckon(spec)).sum()
    }

    fn compile(&self, constraint: &Constraint) -> Result<Parser> {
        limits::check(constraint)?;
        if let Some(guard) = &self.guard {
            guard(constraint)?;
        }
        compile(&self.factory, constraint)
    }
}

fn reckon(spec: &str) -> usize {
    KEPT_BASE_BYTES + spec.len().saturating_mul(KEPT_BYTES_PER_BYTE)
}

/// Compiles a constraint for an alphabet of single bytes and throws the result away. Takes the stack, and nearly the
/// memory and the time, that a [`Compiler`] would take: a process that has nothing to lose can find out.
pub fn try_out(constraint: &Constraint) -> Result<()> {
    limits::check(constraint)?;
    compile(&factory(&ApproximateTokEnv::single_byte_env())?, constraint).map(drop)
}

fn factory(env: &TokEnv) -> Result<ParserFactory> {
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(env, InferenceCapabilities::default(), &slices)
        .map_err(|error| Error::Constraint(plainly(&error.to_string())))?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// On a thread with a stack for all that [`limits::check`] lets pass. What breaks the compiler ends that thread.
fn compile(factory: &ParserFactory, constraint: &Constraint) -> Result<Parser> {
    let work = || -> Result<Parser> {
        let grammar = constraint.to_grammar()?;
        let parser =
            factory.create_parser(grammar).map_err(|error| Error::Constraint(plainly(&format!("{error:#}"))))?;
        Ok(Parser::new(Ok(parser)).into_cancellable())
    };
    let parser = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("constraint".into()).stack_size(limits::STACK_BYTES);
        let thread = thread
            .spawn_scoped(scope, work)
            .map_err(|error| Error::Constraint(format!("there is no thread to compile it on: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(Error::Constraint("the compiler broke on it".to_owned())))
    })?;
    match parser.get_error() {
        Some(error) => Err(Error::Constraint(plainly(&error))),
        None => Ok(parser),
    }
}

/// The state of one answer under a constraint.
pub struct Matcher {
    parser: Parser,
    tokenizer: Arc<Tokenizer>,
    /// Where a key that is written twice would count twice.
    keys: Option<UniqueKeys>,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("is_done", &self.parser.is_stopped()).finish()
    }
}

impl Matcher {
    /// Hands `take` the tokens that may come next: token `i` is bit `i % 32` of word `i / 32`. Once the answer is
    /// complete these are the tokens that end it.
    pub fn allowed(&mut self, take: impl FnOnce(&[u32])) -> Result<()> {
        let mask = self.parser.compute_mask_or_eos().map_err(|error| Error::Constraint(plainly(&error.to_string())))?;
        match &self.keys {
            Some(keys) => {
                let mut words = mask.as_slice().to_vec();
                keys.forbid(&mut words);
                take(&words);
            }
            None => take(mask.as_slice()),
        }
        Ok(())
    }

    /// `token` was generated.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        if self.is_done() {
            return Ok(());
        }
        if let (Some(keys), Some(bytes)) = (&mut self.keys, self.tokenizer.token_bytes(token)) {
            keys.push(bytes);
        }
        self.parser.consume_token(token).map_err(|error| Error::Constraint(plainly(&error.to_string())))
    }

    /// Stops whatever the matcher is computing, from another thread; the matcher cannot be used afterwards.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.parser.cancellation_handle())
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        self.is_done() || self.parser.is_accepting().unwrap_or(false)
    }

    /// Whether nothing more may follow.
    pub fn is_done(&self) -> bool {
        self.parser.is_stopped() && !self.parser.is_error()
    }
}

/// See [`Matcher::canceller`].
#[derive(Clone, Debug, Default)]
pub struct Canceller(Option<CancellationHandle>);

impl Canceller {
    /// Returns at once; the matcher stops soon after.
    pub fn cancel(&self) {
        if let Some(handle) = &self.0 {
            handle.cancel();
        }
    }
}

/// A token as the trie holds it: its bytes, or a mark no text contains and the name of a special token.
fn trie_bytes(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    if !tokenizer.is_special(id) && !tokenizer.is_end(id) {
        return bytes.to_vec();
    }
    let mut marked = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    marked.extend_from_slice(bytes);
    marked
}

struct Environment {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| self.tokenizer.encode(text, Specials::Plain))
    }

    /// Text in the middle of an answer is not cut as it would be at the beginning of one.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// llguidance's words without what only its developers can use.
fn plainly(text: &str) -> String {
    let text = text.replace("<non-verbose/>", "");
    // A rule that needs itself never begins.
    text.trim().replace("NoExtensionBias", "no text fits it: a rule or a reference leads to nothing but itself")
}
