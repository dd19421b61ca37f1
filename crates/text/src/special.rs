//! Finds special tokens written out in a text.
//!
//! Longer texts are looked for first, each in whatever text the longer ones left: llama.cpp's order, which
//! decides ties where special tokens overlap.

use memchr::memmem::Finder;

use crate::vocab::TokenKind;

/// A stretch of the input: text still to be tokenized, or a token found written out.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum InputPiece<'a> {
    Text(&'a str),
    Token(u32),
}

#[derive(Debug)]
struct Special {
    id: u32,
    finder: Finder<'static>,
    is_control: bool,
    /// White space after it belongs to it.
    strips_after: bool,
}

/// The special tokens of a vocabulary, longest text first.
#[derive(Debug)]
pub(crate) struct SpecialTokens {
    tokens: Vec<Special>,
}

impl SpecialTokens {
    /// `strips_after`: control tokens swallow the white space after them.
    pub(crate) fn new(tokens: &[String], kinds: &[TokenKind], strips_after: bool) -> Self {
        let mut specials: Vec<Special> = (0u32..)
            .zip(tokens.iter().zip(kinds))
            .filter(|(_, (text, kind))| !text.is_empty() && matches!(kind, TokenKind::Control | TokenKind::UserDefined))
            .map(|(id, (text, kind))| Special {
                id,
                finder: Finder::new(text.as_bytes()).into_owned(),
                is_control: *kind == TokenKind::Control,
                // The marks of texts and unknown words are older than this habit and do not have it.
                strips_after: strips_after && !matches!(text.as_str(), "<unk>" | "<s>" | "<|endoftext|>"),
            })
            .collect();
        specials.sort_by_key(|special| std::cmp::Reverse(special.finder.needle().len()));
        Self { tokens: specials }
    }

    /// Cuts `text` at the special tokens in it; `with_control` says whether control tokens count.
    pub(crate) fn split<'a>(&self, text: &'a str, with_control: bool) -> Vec<InputPiece<'a>> {
        let mut pieces = vec![InputPiece::Text(text)];
        for special in self.tokens.iter().filter(|special| with_control || !special.is_control) {
            // Most special tokens are not in most texts: look before rebuilding the list.
            let is_absent = pieces.iter().all(|piece| match piece {
                InputPiece::Text(text) => special.finder.find(text.as_bytes()).is_none(),
                InputPiece::Token(_) => true,
            });
            if is_absent {
                continue;
            }
            let mut finer = Vec::with_capacity(pieces.len() + 2);
            for piece in pieces {
                match piece {
                    InputPiece::Text(text) => special.cut(text, &mut finer),
                    InputPiece::Token(_) => finer.push(piece),
                }
            }
            pieces = finer;
        }
        pieces
    }
}

impl Special {
    fn cut<'a>(&self, text: &'a str, out: &mut Vec<InputPiece<'a>>) {
        let mut done = 0;
        for start in self.finder.find_iter(text.as_bytes()) {
            if start > done {
                out.push(InputPiece::Text(&text[done..start]));
            }
            out.push(InputPiece::Token(self.id));
            done = start + self.finder.needle().len();
            if self.strips_after {
                done = text.len() - text[done..].trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']).len();
            }
        }
        if done < text.len() {
            out.push(InputPiece::Text(&text[done..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_tokens_win_and_control_is_optional() {
        let tokens = ["<a", "<a>", "<b>", ""].map(String::from);
        let specials = SpecialTokens::new(
            &tokens,
            &[TokenKind::UserDefined, TokenKind::Control, TokenKind::Control, TokenKind::Control],
            false,
        );
        use InputPiece::{Text, Token};
        assert_eq!(specials.split("x<a><b><a", true), [Text("x"), Token(1), Token(2), Token(0)]);
        assert_eq!(specials.split("x<a><b>", false), [Text("x"), Token(0), Text("><b>")]);
        assert_eq!(specials.split("é", true), [Text("é")]);
    }
}
