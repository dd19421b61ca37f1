//! Control tokens that a user wrote into a message are text. A chat template joins its own control tokens with what
//! users wrote, so theirs are marked before it renders ([`Tokenizer::shield`]) and the marks are taken out when the
//! result is tokenized ([`Tokenizer::encode_shielded`]).

use std::borrow::Cow;

use memchr::memmem::Finder;

use super::{EncoderKind, Ends, Specials, Tokenizer};
use crate::special::InputPiece;
use crate::vocab::TokenKind;

/// The mark: a code point that Unicode keeps free for such uses and that no text contains.
const MARK: char = '\u{fdd0}';

/// A text without the marks of [`Tokenizer::shield`].
pub fn unshield(text: &str) -> Cow<'_, str> {
    if text.contains(MARK) { Cow::Owned(text.replace(MARK, "")) } else { Cow::Borrowed(text) }
}

impl Tokenizer {
    /// The text with a mark in each control token that is written out in it.
    pub fn shield<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text = unshield(text);
        let mut cuts: Vec<usize> = Vec::new();
        for (_, finder) in self.controls() {
            let first = std::str::from_utf8(finder.needle()).ok().and_then(|text| text.chars().next());
            let Some(n_first) = first.map(char::len_utf8).filter(|&n| n < finder.needle().len()) else { continue };
            cuts.extend(finder.find_iter(text.as_bytes()).map(|at| at + n_first));
        }
        if cuts.is_empty() {
            return text;
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut out = String::with_capacity(text.len() + 3 * cuts.len());
        let mut done = 0;
        for cut in cuts {
            out.push_str(&text[done..cut]);
            out.push(MARK);
            done = cut;
        }
        out.push_str(&text[done..]);
        Cow::Owned(out)
    }

    /// The tokens of a text that a template made: control tokens are read, but for those with a mark in them.
    pub fn encode_shielded(&self, text: &str) -> Vec<u32> {
        if !text.contains(MARK) {
            return self.encode_with(text, Specials::Parse, Ends::None);
        }
        match &self.encoder {
            EncoderKind::Vocab { algorithm, specials } => {
                let mut out = Vec::with_capacity(text.len() / 3 + 2);
                let mut needs_space = self.around.add_space_prefix;
                for piece in specials.split(text, true) {
                    match piece {
                        InputPiece::Token(id) => {
                            out.push(id);
                            needs_space = self.around.add_space_prefix;
                        }
                        InputPiece::Text("") => {}
                        InputPiece::Text(text) => {
                            let space = if std::mem::take(&mut needs_space) { " " } else { "" };
                            algorithm.encode(&format!("{space}{}", unshield(text)), &mut out);
                        }
                    }
                }
                out
            }
            EncoderKind::Json(tokenizer) => {
                let mut out = Vec::new();
                for (part, specials) in self.parts(text) {
                    out.extend(tokenizer.encode(&unshield(part), specials, Ends::None));
                }
                out
            }
        }
    }

    /// Stretches between control tokens that hold marks, and everything between those.
    fn parts<'a>(&self, text: &'a str) -> Vec<(&'a str, Specials)> {
        let mut tokens: Vec<(usize, usize)> = Vec::new();
        for (_, finder) in self.controls() {
            tokens.extend(finder.find_iter(text.as_bytes()).map(|at| (at, at + finder.needle().len())));
        }
        tokens.sort_unstable();
        let mut parts = Vec::new();
        let mut done = 0;
        while let Some(mark) = text[done..].find(MARK).map(|at| done + at) {
            let before = tokens.iter().map(|&(_, end)| end).filter(|&end| end <= mark).max().unwrap_or(0).max(done);
            let after = tokens.iter().map(|&(start, _)| start).find(|&start| start > mark).unwrap_or(text.len());
            parts.push((&text[done..before], Specials::Parse));
            parts.push((&text[before..after], Specials::Plain));
            done = after;
        }
        parts.push((&text[done..], Specials::Parse));
        parts.retain(|(part, _)| !part.is_empty());
        parts
    }

    /// The control tokens, the longest first.
    fn controls(&self) -> &[(u32, Finder<'static>)] {
        self.controls.get_or_init(|| {
            let ids = (0u32..).zip(&self.pieces.kinds).filter(|&(_, &kind)| kind == TokenKind::Control);
            let mut all: Vec<(u32, Finder<'static>)> = ids
                .filter_map(|(id, _)| Some((id, self.pieces.get(id)?)))
                .filter(|(_, bytes)| !bytes.is_empty())
                .map(|(id, bytes)| (id, Finder::new(bytes).into_owned()))
                .collect();
            all.sort_by_key(|(_, finder)| std::cmp::Reverse(finder.needle().len()));
            all
        })
    }
}
