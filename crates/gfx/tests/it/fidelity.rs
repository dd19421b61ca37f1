//! The page about each instruction's fidelity says what the tables say.

use std::path::PathBuf;

use gfx_model::fidelity::{self, Fidelity};
use gfx_model::isa::{self, Family};

#[test]
fn the_fidelity_page_is_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/developer/gfx-fidelity.md");
    let want = fidelity::report();
    if std::env::var_os("ROCI_WRITE_DOCS").is_some() {
        std::fs::write(&path, &want).expect("the page can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == want,
        "{} is not what the tables say: ROCI_WRITE_DOCS=1 cargo nextest run -p roci-gfx -E 'test(fidelity)'",
        path.display()
    );
}

/// What is called missing has no handler for any operands, and what has one is not called missing.
#[test]
fn the_fidelity_of_an_instruction_is_what_a_kernel_would_find() {
    let mut differing = Vec::new();
    for family in Family::ALL {
        for (encoding, number, name) in isa::opcodes(family) {
            let is_here = fidelity::of(family, encoding, name) != Fidelity::Missing;
            if !is_here && crate::coverage::has_meaning(family, encoding, number, name) {
                differing.push((family, name));
            }
        }
    }
    assert!(differing.is_empty(), "called missing, but kernels run them: {differing:?}");
}
