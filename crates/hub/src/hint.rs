//! What to do next, carried inside an anyhow chain: any layer can attach a `hint:` where it knows the remedy, and
//! the innermost one is printed.

use std::fmt;

/// An error together with the next step for the user.
#[derive(Debug)]
struct Hinted {
    hint: String,
    error: anyhow::Error,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for Hinted {
    // The display is the inner error's own, so the chain continues below it.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.chain().nth(1)
    }
}

/// Attaches a `hint:` line to a failure.
pub trait HintExt<T> {
    fn hint(self, hint: impl Into<String>) -> anyhow::Result<T>;
    fn with_hint(self, hint: impl FnOnce() -> String) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> HintExt<T> for Result<T, E> {
    fn hint(self, hint: impl Into<String>) -> anyhow::Result<T> {
        self.with_hint(|| hint.into())
    }

    fn with_hint(self, hint: impl FnOnce() -> String) -> anyhow::Result<T> {
        self.map_err(|error| {
            let error: anyhow::Error = error.into();
            // The hint from deeper down knows more.
            match error.chain().any(|cause| cause.is::<Hinted>()) {
                true => error,
                false => anyhow::Error::new(Hinted { hint: hint(), error }),
            }
        })
    }
}

/// The error with its causes on one line, for messages that are themselves one line.
pub fn one_line(error: &anyhow::Error) -> String {
    with_lines(error).replace('\n', " ")
}

/// The error with its causes, and the lines that a parser put into its own: the text around the mistake and a caret.
pub fn with_lines(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let cause = cause.trim_end();
        // Many libraries repeat their source in their own display.
        if text.ends_with(cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(cause);
    }
    text
}

/// A line of a text with a caret below the column, as compilers show a mistake. Both count from 1.
pub fn excerpt(text: &str, line: usize, column: usize) -> String {
    let source = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    // Tabs would move the caret; a line without end would fill the screen.
    let source: String = source.chars().map(|c| if c == '\t' { ' ' } else { c }).take(160).collect();
    let (number, column) = (line.to_string(), column.clamp(1, source.chars().count() + 1));
    let margin = " ".repeat(number.len());
    format!("{margin} |\n{number} | {source}\n{margin} | {}^", " ".repeat(column - 1))
}

/// Whether an error is, or was caused by, one of type `T`: also below contexts and hints.
pub fn is_caused_by<T: std::error::Error + Send + Sync + 'static>(error: &anyhow::Error) -> bool {
    find_cause::<T>(error).is_some()
}

/// The cause of type `T`, if an error has one: also below contexts and hints.
pub fn find_cause<T: std::error::Error + Send + Sync + 'static>(error: &anyhow::Error) -> Option<&T> {
    error.downcast_ref::<T>().or_else(|| error.chain().find_map(|cause| cause.downcast_ref::<T>())).or_else(|| {
        error.chain().find_map(|cause| cause.downcast_ref::<Hinted>()).and_then(|hinted| find_cause(&hinted.error))
    })
}

/// The hint that an error carries.
pub fn hint_of(error: &anyhow::Error) -> Option<&str> {
    error.chain().find_map(|error| error.downcast_ref::<Hinted>()).map(|hinted| hinted.hint.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caret_points_at_the_mistake() {
        assert_eq!(excerpt("one\n\ttwo", 2, 3), "  |\n2 |  two\n  |   ^");
        assert_eq!(excerpt("", 1, 9), "  |\n1 | \n  | ^");
        assert!(excerpt(&"x".repeat(10_000), 1, 9_000).len() < 400);
    }

    #[test]
    fn parsers_keep_their_lines() {
        let error = anyhow::anyhow!("first\n  ^ here\n").context("reading");
        assert_eq!(with_lines(&error), "reading: first\n  ^ here");
        assert_eq!(one_line(&error), "reading: first   ^ here");
    }
}
