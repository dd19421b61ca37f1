//! What a user reads when something fails: `error:` with what happened and where, then `hint:` with
//! what to do next. The hint rides along inside the anyhow chain, so that any layer of this crate can
//! attach one where it knows the remedy. Only this file prints errors.

use std::fmt;
use std::io;

pub use rocinante::human_bytes;

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
    // The display is the inner error's own, so the chain goes on below it.
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

/// Names the file that an error is about, where the error does not do so itself.
pub fn about(path: &std::path::Path) -> impl Fn(anyhow::Error) -> anyhow::Error {
    move |error| match one_line(&error).contains(&*path.to_string_lossy()) {
        true => error,
        false => error.context(format!("`{}`", path.display())),
    }
}

/// The error with its causes on one line, for messages that are themselves one line.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Many libraries repeat their source in their own display.
        if line.ends_with(&cause) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&cause);
    }
    line.replace('\n', " ")
}

/// The text for stderr: `error: ...` and, where one was attached, `hint: ...`.
pub fn render(error: &anyhow::Error) -> String {
    let mut text = format!("error: {}", one_line(error));
    if let Some(hinted) = error.chain().find_map(|e| e.downcast_ref::<Hinted>()) {
        text.push_str(&format!("\nhint: {}", hinted.hint));
    }
    text
}

/// Whether the reader of our output went away (`roci ... | head`): no failure of ours.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|e| {
        e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
            || e.downcast_ref::<serde_json::Error>()
                .is_some_and(|e| e.io_error_kind() == Some(io::ErrorKind::BrokenPipe))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn renders_chain_and_hint_once() {
        let inner: anyhow::Result<()> = Err(anyhow!("permission denied"));
        let error = inner.context("cannot open `a.gguf`").hint("try sudo").context("cannot run").hint("pray");
        let error = error.unwrap_err();
        assert_eq!(render(&error), "error: cannot run: cannot open `a.gguf`: permission denied\nhint: try sudo");
    }
}
