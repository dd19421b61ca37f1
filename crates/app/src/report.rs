//! What a user reads when something fails: `error:` with what happened and where, then `hint:` with
//! what to do next. The hint rides along inside the anyhow chain, so that any layer of this crate can
//! attach one where it knows the remedy. Only this file prints errors.

use std::io;

pub use rocinante::human_bytes;
pub use server::hint::{HintExt, hint_of, one_line};

/// Names the file that an error is about, where the error does not do so itself.
pub fn about(path: &std::path::Path) -> impl Fn(anyhow::Error) -> anyhow::Error {
    move |error| match one_line(&error).contains(&*path.to_string_lossy()) {
        true => error,
        false => error.context(format!("`{}`", path.display())),
    }
}

/// The text for stderr: `error: ...` and, where one was attached, `hint: ...`.
pub fn render(error: &anyhow::Error) -> String {
    let mut text = format!("error: {}", one_line(error));
    if let Some(hint) = hint_of(error) {
        text.push_str(&format!("\nhint: {hint}"));
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
