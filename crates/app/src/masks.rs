//! The engine's masks, made of the text crate's constraints: what wires two crates that do not know each other.

use engine::{Mask, MaskFactory, TokenSet};
use model::TokenId;
use std::sync::Arc;
use text::Tokenizer;
use text::constraint::{Compiler, Constraint, Matcher};

/// Masks for the vocabulary of this tokenizer. The trie behind them is built with the first constraint.
pub fn factory(tokenizer: Arc<Tokenizer>) -> Box<dyn MaskFactory> {
    Box::new(Factory { tokenizer, compiler: None })
}

struct Factory {
    tokenizer: Arc<Tokenizer>,
    compiler: Option<Compiler>,
}

impl MaskFactory for Factory {
    fn build(&mut self, constraint: &str, n_vocab: usize) -> Result<Box<dyn Mask>, String> {
        let constraint = Constraint::from_spec(constraint).map_err(|error| error.to_string())?;
        if self.compiler.is_none() {
            self.compiler = Some(Compiler::new(&self.tokenizer, n_vocab).map_err(|error| error.to_string())?);
        }
        let compiler = self.compiler.as_ref().expect("it was made above");
        let matcher = compiler.build(&constraint).map_err(|error| error.to_string())?;
        Ok(Box::new(TextMask(matcher)))
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
