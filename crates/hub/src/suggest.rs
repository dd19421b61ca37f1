//! "Did you mean": the known word that is closest to one that is not.

/// The candidate that a typing mistake away may have been meant.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    // One mistake in three letters: more, and anything would be close.
    let limit = (word.chars().count() / 3).max(1);
    let scored = candidates.into_iter().map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate));
    scored.filter(|(distance, _)| *distance <= limit).min_by_key(|(distance, _)| *distance).map(|(_, found)| found)
}

/// Letters to change, add, leave out or swap with their neighbour (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let names = ["qwen3", "gemma3", "llama3.2", "smollm2", "temperature", "top-k"];
        let check = |word, expected| assert_eq!(closest(word, names), expected, "{word}");
        check("qwne3", Some("qwen3"));
        check("smolm2", Some("smollm2"));
        check("Lama3.2", Some("llama3.2"));
        check("temprature", Some("temperature"));
        check("mistral", None);
        check("", None);
    }
}
