//! A part of a long table of cases, for runs on a slow device.

/// The cases of this run: all of them, or with `ROCI_TEST_SHARE=K/N` every Nth one, from the Kth on. `./check` gives each
/// chip of the software GPU its own share of the weight types, so that together they see all.
///
/// # Panics
/// If the variable is set to anything else than `K/N` with 1 <= K <= N.
pub fn share<T>(cases: impl IntoIterator<Item = T>) -> Vec<T> {
    let Ok(text) = std::env::var("ROCI_TEST_SHARE") else { return cases.into_iter().collect() };
    let (first, step) = parse(&text).unwrap_or_else(|| panic!("ROCI_TEST_SHARE is {text}: say for example 1/2"));
    cases.into_iter().skip(first).step_by(step).collect()
}

fn parse(text: &str) -> Option<(usize, usize)> {
    let (k, n) = text.split_once('/')?;
    let (k, n): (usize, usize) = (k.parse().ok()?, n.parse().ok()?);
    (1..=n).contains(&k).then(|| (k - 1, n))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn shares_are_checked() {
        assert_eq!(parse("2/3"), Some((1, 3)));
        for wrong in ["", "0/2", "3/2", "1", "a/b", "1/0"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
