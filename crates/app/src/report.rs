//! What a user reads on standard error: `error:` with what happened and where, then `hint:` with what to do next; notes
//! and warnings in the same style. In colour at a terminal, unless `NO_COLOR` is set; nothing but errors with `--quiet`.
//! The hint rides along inside the anyhow chain, so that any layer can attach one where it knows the remedy.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

pub use hub::hint::{HintExt, hint_of, one_line, with_lines};
pub use rocinante::{counted, human_bytes};

static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// From now on nothing but errors.
pub fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Whether what goes to this stream may be coloured (<https://no-color.org>).
pub fn has_colour(stream: &impl IsTerminal) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR")
        && (set("CLICOLOR_FORCE") || stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb"))
}

const RED: &str = "1;31";
const YELLOW: &str = "1;33";
const CYAN: &str = "1;36";
const DIM: &str = "2";

fn painted(word: &str, colour: &str, is_coloured: bool) -> String {
    if is_coloured { format!("\x1b[{colour}m{word}\x1b[0m") } else { word.to_owned() }
}

/// `note: ...` on standard error.
pub fn note(text: &str) {
    if !is_quiet() {
        eprintln!("{} {text}", painted("note:", CYAN, has_colour(&io::stderr())));
    }
}

/// `warning: ...` on standard error.
pub fn warning(text: &str) {
    if !is_quiet() {
        eprintln!("{} {text}", painted("warning:", YELLOW, has_colour(&io::stderr())));
    }
}

/// A line on standard error about what is going on.
pub fn note_line(text: &str) {
    if !is_quiet() {
        eprintln!("{text}");
    }
}

/// A line on standard error that is easily passed over.
pub fn dim_line(text: &str) {
    note_line(&painted(text, DIM, has_colour(&io::stderr())));
}

/// Names the file that an error is about, where the error does not do so itself.
pub fn about(path: &std::path::Path) -> impl Fn(anyhow::Error) -> anyhow::Error {
    move |error| match one_line(&error).contains(&*path.to_string_lossy()) {
        true => error,
        false => error.context(format!("`{}`", path.display())),
    }
}

/// For what a writer of a file returns: a full disk is named as such, with what was needed. All our writers write beside
/// the file and remove what they began.
pub fn writing<E: Into<anyhow::Error>>(path: &std::path::Path, n_needed: Option<u64>) -> impl Fn(E) -> anyhow::Error {
    move |error| {
        let error: anyhow::Error = error.into();
        let mut kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>().map(io::Error::kind));
        match kinds.next_back() {
            Some(kind @ (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) => {
                hub::disk::explain(kind.into(), path, n_needed, hub::disk::Leftover::Removed)
            }
            _ => error,
        }
    }
}

/// Tells an error on standard error.
pub fn error(error: &anyhow::Error) {
    eprintln!("{}", render(error, has_colour(&io::stderr())));
}

/// `error: ...` and, where one was attached, `hint: ...`.
fn render(error: &anyhow::Error, is_coloured: bool) -> String {
    let mut text = format!("{} {}", painted("error:", RED, is_coloured), with_lines(error));
    if let Some(hint) = hint_of(error) {
        text.push_str(&format!("\n{} {hint}", painted("hint:", CYAN, is_coloured)));
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
        let plain = "error: cannot run: cannot open `a.gguf`: permission denied\nhint: try sudo";
        assert_eq!(render(&error, false), plain);
        let parsing = "a = 1\nb = [".parse::<toml::Table>().context("not valid TOML").unwrap_err();
        let shown = render(&parsing, false);
        assert!(shown.contains("line 2, column 6") && shown.contains("\n2 | b = [\n  |      ^\n"), "{shown}");
        let coloured = render(&error, true);
        assert!(coloured.starts_with("\x1b[1;31merror:\x1b[0m cannot run") && coloured.contains("\x1b[1;36mhint:"));
    }
}
