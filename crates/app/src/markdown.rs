//! Markdown at a terminal, as it arrives: wrapped at words, emphasis and headings in bold, code in colour. A word is
//! shown when it is whole, a line of code when it ends.
//!
//! What it is not: a Markdown parser. Tables, links and HTML are shown as they were written.

use crate::table::terminal_width;
use std::fmt::Write as _;

const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const ITALIC: &str = "\x1b[3m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const MAGENTA: &str = "\x1b[35m";
const CYAN: &str = "\x1b[36m";

/// Words that mean something in most programming languages.
const KEYWORDS: &[&str] = &[
    "as",
    "async",
    "await",
    "bool",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "continue",
    "def",
    "do",
    "elif",
    "else",
    "enum",
    "except",
    "export",
    "false",
    "False",
    "fn",
    "for",
    "from",
    "func",
    "function",
    "if",
    "impl",
    "import",
    "in",
    "int",
    "interface",
    "lambda",
    "let",
    "loop",
    "match",
    "mod",
    "mut",
    "new",
    "None",
    "not",
    "null",
    "or",
    "pass",
    "pub",
    "raise",
    "return",
    "self",
    "static",
    "struct",
    "switch",
    "then",
    "this",
    "throw",
    "trait",
    "true",
    "True",
    "try",
    "type",
    "use",
    "var",
    "void",
    "where",
    "while",
    "with",
    "yield",
];

/// Whether styles are written, or only lines wrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Coloured,
    Plain,
}

/// What has been shown of a text, and what waits for its end.
pub struct Markdown {
    style: Style,
    width: usize,
    column: usize,
    /// Spaces that following lines of a list item begin with.
    indent: usize,
    /// Of the line so far, before its first word.
    is_line_start: bool,
    /// Characters of the word that has not ended.
    word: String,
    has_space: bool,
    is_bold: bool,
    is_italic: bool,
    is_code: bool,
    is_heading: bool,
    /// The line of code that has not ended, inside a fence.
    fence: Option<String>,
}

impl Markdown {
    pub fn new(style: Style) -> Self {
        Self {
            style,
            width: terminal_width().max(20),
            column: 0,
            indent: 0,
            is_line_start: true,
            word: String::new(),
            has_space: false,
            is_bold: false,
            is_italic: false,
            is_code: false,
            is_heading: false,
            fence: None,
        }
    }

    /// More of the text; what can be shown of it now.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            match (&mut self.fence, c) {
                (Some(_), '\n') => self.end_code_line(&mut out),
                (Some(line), c) => line.push(c),
                (None, '\n') => self.end_line(&mut out),
                (None, ' ' | '\t') => self.space(&mut out),
                (None, c) => {
                    self.word.push(c);
                    // A word without an end is shown in pieces, and so are scripts without spaces.
                    if self.word.chars().count() >= self.width
                        || console::measure_text_width(&self.word) > self.word.chars().count()
                    {
                        self.end_word(&mut out);
                    }
                }
            }
        }
        out
    }

    /// What was still waiting.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        match self.fence.take() {
            Some(line) if !line.is_empty() => out.push_str(&self.code_line(&line)),
            Some(_) => {}
            None => self.end_word(&mut out),
        }
        if self.style == Style::Coloured && (self.is_bold || self.is_italic || self.is_code || self.is_heading) {
            out.push_str(RESET);
        }
        out
    }

    fn space(&mut self, out: &mut String) {
        if self.is_line_start && self.word.is_empty() {
            // Indentation of lists and quoted code counts.
            out.push(' ');
            self.column += 1;
            self.indent = self.column;
            return;
        }
        self.end_word(out);
        self.has_space = true;
    }

    fn end_line(&mut self, out: &mut String) {
        if self.is_line_start && self.word.starts_with("```") {
            let language = self.word[3..].to_owned();
            self.word.clear();
            self.fence = Some(String::new());
            self.dim_line(out, &format!("```{language}"));
            return;
        }
        self.end_word(out);
        if self.is_heading && self.style == Style::Coloured {
            out.push_str(RESET);
        }
        let is_blank = self.is_line_start;
        (self.is_heading, self.has_space, self.is_line_start) = (false, false, true);
        (self.column, self.indent) = (0, 0);
        out.push('\n');
        if is_blank && (self.is_bold || self.is_italic || self.is_code) {
            // Emphasis does not outlive its paragraph.
            (self.is_bold, self.is_italic, self.is_code) = (false, false, false);
            out.push_str(RESET);
        }
    }

    fn end_word(&mut self, out: &mut String) {
        let word = std::mem::take(&mut self.word);
        if word.is_empty() {
            return;
        }
        if self.is_line_start {
            self.begin_line(&word, out);
        }
        let (styled, n_columns) = self.styled(&word);
        if self.has_space && self.column + 1 + n_columns > self.width {
            let _ = write!(out, "\n{:1$}", "", self.indent);
            self.column = self.indent;
        } else if self.has_space {
            out.push(' ');
            self.column += 1;
        }
        out.push_str(&styled);
        self.column += n_columns;
        (self.has_space, self.is_line_start) = (false, false);
    }

    /// Headings and lists are told by the first word of a line.
    fn begin_line(&mut self, word: &str, out: &mut String) {
        if word.chars().all(|c| c == '#') && word.len() <= 6 && self.style == Style::Coloured {
            self.is_heading = true;
            out.push_str(BOLD);
        }
        let is_number = word.strip_suffix('.').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        if ["-", "*", "+", ">"].contains(&word) || is_number {
            self.indent = self.column + word.len() + 1;
        }
    }

    /// The word with its marks turned into styles, and the columns it takes.
    fn styled(&mut self, word: &str) -> (String, usize) {
        if self.style == Style::Plain || (self.is_line_start && word == "*") {
            return (word.to_owned(), console::measure_text_width(word));
        }
        let mut out = String::new();
        let mut n_columns = 0;
        let mut rest = word;
        while let Some(c) = rest.chars().next() {
            let is_edge = rest.len() == word.len() || rest[c.len_utf8()..].chars().all(|c| !c.is_alphanumeric());
            if c == '`' {
                self.is_code ^= true;
                rest = &rest[1..];
            } else if !self.is_code && rest.starts_with("**") && word != "**" {
                self.is_bold ^= true;
                rest = &rest[2..];
            } else if !self.is_code && (c == '*' || c == '_') && is_edge && word.len() > 1 && word != "__" {
                self.is_italic ^= true;
                rest = &rest[1..];
            } else {
                out.push(c);
                n_columns += console::measure_text_width(c.encode_utf8(&mut [0; 4]));
                rest = &rest[c.len_utf8()..];
                continue;
            }
            out.push_str(&self.current_style());
        }
        (out, n_columns)
    }

    fn current_style(&self) -> String {
        let mut style = RESET.to_owned();
        for (is_on, code) in [(self.is_bold || self.is_heading, BOLD), (self.is_italic, ITALIC), (self.is_code, CYAN)] {
            if is_on {
                style.push_str(code);
            }
        }
        style
    }

    fn end_code_line(&mut self, out: &mut String) {
        let line = self.fence.replace(String::new()).unwrap_or_default();
        if line.trim_start().starts_with("```") {
            self.fence = None;
            self.dim_line(out, &line);
            (self.is_line_start, self.column) = (true, 0);
            return;
        }
        let shown = self.code_line(&line);
        let _ = writeln!(out, "{shown}");
    }

    fn dim_line(&self, out: &mut String, line: &str) {
        let _ = match self.style {
            Style::Coloured => writeln!(out, "{DIM}{line}{RESET}"),
            Style::Plain => writeln!(out, "{line}"),
        };
    }

    fn code_line(&self, line: &str) -> String {
        if self.style == Style::Plain { line.to_owned() } else { coloured_code(line) }
    }
}

/// A line of code in whatever language: comments, texts, numbers and the usual keywords.
fn coloured_code(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let before = out.chars().next_back();
        let is_comment = rest.starts_with("//") || rest.starts_with("# ") || rest == "#" || rest.starts_with("-- ");
        if is_comment && before.is_none_or(char::is_whitespace) {
            let _ = write!(out, "{DIM}{rest}{RESET}");
            return out;
        }
        let n_bytes = match c {
            '"' | '\'' => end_of_text(rest, c),
            _ if is_word(c) => rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()),
            _ => c.len_utf8(),
        };
        let piece = &rest[..n_bytes];
        let colour = match c {
            '"' | '\'' if n_bytes > 1 => GREEN,
            '0'..='9' => YELLOW,
            _ if KEYWORDS.contains(&piece) => MAGENTA,
            _ => "",
        };
        let _ = if colour.is_empty() { write!(out, "{piece}") } else { write!(out, "{colour}{piece}{RESET}") };
        rest = &rest[n_bytes..];
    }
    out
}

/// Bytes up to the quote that closes a text; 1 where none does (an apostrophe, a lifetime).
fn end_of_text(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == quote => return i + 1,
            _ => {}
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shown in pieces of every size: what is seen must not depend on how the text arrives.
    fn show(style: Style, width: usize, text: &str) -> String {
        let shown = |n: usize| {
            let mut markdown = Markdown { width, ..Markdown::new(style) };
            let chars: Vec<char> = text.chars().collect();
            let pieces = chars.chunks(n).map(|piece| markdown.push(&piece.iter().collect::<String>()));
            let mut out: String = pieces.collect();
            out.push_str(&markdown.finish());
            out
        };
        let whole = shown(text.chars().count().max(1));
        assert_eq!(shown(1), whole);
        assert_eq!(shown(3), whole);
        whole
    }

    #[test]
    fn wraps_at_words_and_keeps_the_indent_of_lists() {
        let check = |text: &str, expected: &str| assert_eq!(show(Style::Plain, 20, text), expected);
        check("one two three four five six", "one two three four\nfive six");
        check("- one two three four five\n- six", "- one two three four\n  five\n- six");
        check("12. one two three four", "12. one two three\n    four");
        check("short\n\nlines\n", "short\n\nlines\n");
        check("```rust\nlet a_long_line_of_code = 1;\n```\nok", "```rust\nlet a_long_line_of_code = 1;\n```\nok");
        check("incomprehensibilities", "incomprehensibilities");
    }

    #[test]
    fn marks_become_styles() {
        let check = |text: &str, expected: &str| assert_eq!(show(Style::Coloured, 80, text), expected);
        check("a **b c** d", "a \x1b[0m\x1b[1mb c\x1b[0m d");
        check("2 * 3 and snake_case_name", "2 * 3 and snake_case_name");
        check("see `a_b*c` *now*", "see \x1b[0m\x1b[36ma_b*c\x1b[0m \x1b[0m\x1b[3mnow\x1b[0m");
        check("# Title\ntext", "\x1b[1m# Title\x1b[0m\ntext");
        check("* item", "* item");
    }

    #[test]
    fn code_is_coloured() {
        assert_eq!(
            coloured_code("let x = 12; // why"),
            "\x1b[35mlet\x1b[0m x = \x1b[33m12\x1b[0m; \x1b[2m// why\x1b[0m"
        );
        assert_eq!(coloured_code("print(\"a # b\")"), "print(\x1b[32m\"a # b\"\x1b[0m)");
        assert_eq!(coloured_code("it's"), "it's");
        assert_eq!(coloured_code("url = http://x"), "url = http://x");
    }
}
