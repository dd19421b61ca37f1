//! Golden data: what other people's programs computed, kept in a crate's `testdata`.

use serde_json::Value;
use std::path::Path;

/// A JSON file of `testdata`. `folder` is the crate's own, `env!("CARGO_MANIFEST_DIR")`.
#[track_caller]
pub fn json(folder: &str, name: &str) -> Value {
    let path = Path::new(folder).join("testdata").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A JSON array of strings.
#[track_caller]
pub fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

/// A JSON array of token ids.
#[track_caller]
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|item| u32::try_from(item.as_u64().unwrap()).unwrap()).collect()
}

/// `|found - truth| / |truth|` over whole arrays. NaN stays NaN, so that no bound accepts it.
#[track_caller]
pub fn relative_error(found: impl IntoIterator<Item = f64>, truth: impl IntoIterator<Item = f64>) -> f64 {
    let (mut error, mut norm) = (0.0, 0.0);
    let (mut found, mut truth) = (found.into_iter(), truth.into_iter());
    loop {
        match (found.next(), truth.next()) {
            (Some(found), Some(truth)) => {
                error += (found - truth).powi(2);
                norm += truth.powi(2);
            }
            (None, None) => break,
            _ => panic!("the arrays differ in length"),
        }
    }
    if norm == 0.0 { error.sqrt() } else { (error / norm).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_and_nan_never_passes() {
        assert_eq!(relative_error([1.0, 2.0], [1.0, 2.0]), 0.0);
        assert_eq!(relative_error([3.0, 4.0], [0.0, 0.0]), 5.0);
        assert!((relative_error([3.3, 4.4], [3.0, 4.0]) - 0.1).abs() < 1e-12);
        assert!(relative_error([f64::NAN], [1.0]).is_nan());
    }

    #[test]
    #[should_panic(expected = "differ in length")]
    fn arrays_of_different_lengths_are_a_bug() {
        relative_error([1.0], [1.0, 2.0]);
    }
}
