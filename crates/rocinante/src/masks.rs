//! The engine's masks, made of the text crate's constraints: what wires two crates that do not know each other.

use engine::{Mask, MaskFactory, TokenSet};
use model::TokenId;
use std::sync::{Arc, OnceLock};
use text::Tokenizer;
use text::constraint::{Compiler, Constraint, Matcher};

/// Masks for the vocabulary of this tokenizer. The trie behind them is built with the first constraint.
pub fn factory(tokenizer: Arc<Tokenizer>) -> Box<dyn MaskFactory> {
    Box::new(Masks::new(tokenizer))
}

/// A factory that others than the engine can ask too: what one has compiled, its clones know.
#[derive(Clone)]
pub struct Masks {
    tokenizer: Arc<Tokenizer>,
    compiler: Arc<OnceLock<Result<Compiler, String>>>,
}

impl Masks {
    /// Compiles nothing yet.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, compiler: Arc::default() }
    }

    /// Compiles a constraint, or finds it compiled.
    pub fn compile(&self, constraint: &Constraint, n_vocab: usize) -> Result<Matcher, String> {
        let make = || Compiler::new(&self.tokenizer, n_vocab).map_err(|error| error.to_string());
        let compiler = self.compiler.get_or_init(make).as_ref().map_err(Clone::clone)?;
        compiler.build(constraint).map_err(|error| error.to_string())
    }
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masks").field("is_built", &self.compiler.get().is_some()).finish_non_exhaustive()
    }
}

impl MaskFactory for Masks {
    fn build(&mut self, constraint: &str, n_vocab: usize) -> Result<Box<dyn Mask>, String> {
        let constraint = Constraint::from_spec(constraint).map_err(|error| error.to_string())?;
        Ok(Box::new(TextMask(self.compile(&constraint, n_vocab)?)))
    }
}

struct TextMask(Matcher);

impl Mask for TextMask {
    fn allowed(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        self.0.allowed(|words| allowed.set_words(words)).map_err(|error| error.to_string())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        self.0.accept(token.0).map_err(|error| error.to_string())
    }
}
