//! The classic mistakes with streams do not compile. Each file in `tests/mistakes` is one of them, and
//! beside it is what the compiler says; `tests/mistakes/right.rs` is the same work done right.

#[test]
fn classic_mistakes_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/mistakes/right.rs");
    cases.compile_fail("tests/mistakes/wrong_*.rs");
}
