//! A test that cannot run says why. A variable such as `ROCI_REQUIRE_MODEL=1` turns that skip into a failure: `./check`
//! sets it for everything it has fetched, so that a run on a complete machine skips nothing by accident.

/// Whether the variable requires what a test would otherwise be skipped for.
pub fn is_required(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "1")
}

/// Says why a test did nothing, or fails if `required_by` is set to 1.
#[track_caller]
pub fn skip(reason: &str, required_by: &str) {
    if let Err(failure) = outcome(reason, required_by, is_required(required_by)) {
        panic!("{failure}");
    }
    eprintln!("skipped: {reason}");
}

fn outcome(reason: &str, required_by: &str, is_required: bool) -> Result<(), String> {
    if is_required { Err(format!("{required_by}=1, but this test cannot run: {reason}")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_skip_is_a_failure_with_the_reason() {
        assert_eq!(outcome("no model", "ROCI_REQUIRE_MODEL", false), Ok(()));
        let failure = outcome("no model", "ROCI_REQUIRE_MODEL", true).unwrap_err();
        assert!(failure.contains("ROCI_REQUIRE_MODEL=1") && failure.contains("no model"), "{failure}");
    }
}
