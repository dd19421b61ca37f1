//! Says on standard error that GPU kernels are being compiled, and how far that is: the first load on a machine takes
//! seconds, and later ones find them in the cache.

use std::io::IsTerminal;
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressStyle};
use rocinante::CompileProgress;

/// A bar on a terminal, one line in a file or a log.
pub fn show(progress: CompileProgress) {
    static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);
    let CompileProgress { n_done, n_programs } = progress;
    if !std::io::stderr().is_terminal() {
        if n_done == 0 {
            eprintln!("compiling {n_programs} GPU kernels; they are kept for the next time");
        }
        return;
    }
    let mut bar = BAR.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let shown = bar.get_or_insert_with(|| {
        let style = ProgressStyle::with_template("compiling GPU kernels [{bar:24}] {pos}/{len}");
        ProgressBar::new(n_programs as u64).with_style(style.expect("a constant template").progress_chars("=> "))
    });
    shown.set_position(n_done as u64);
    if n_done == n_programs {
        shown.finish_and_clear();
        *bar = None;
    }
}
