//! All tokens that a text begins with, shortest first: a sorted list, narrowed byte by byte.

/// The texts of tokens in byte order, with their ids.
pub(crate) struct Prefixes {
    sorted: Vec<(Box<[u8]>, u32)>,
}

impl Prefixes {
    pub(crate) fn new(tokens: impl Iterator<Item = (Vec<u8>, u32)>) -> Self {
        let mut sorted: Vec<(Box<[u8]>, u32)> =
            tokens.filter(|(text, _)| !text.is_empty()).map(|(text, id)| (text.into_boxed_slice(), id)).collect();
        sorted.sort();
        Self { sorted }
    }

    /// Lengths and ids of the tokens that `text` begins with, the shortest first.
    pub(crate) fn of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, u32)> + 'a {
        let (mut low, mut high) = (0, self.sorted.len());
        text.iter()
            .enumerate()
            .map_while(move |(at, &byte)| {
                // Those in low..high share the first `at` bytes with the text; one of exactly `at` bytes stands first.
                let key = |entry: &(Box<[u8]>, u32)| entry.0.get(at).copied();
                low += self.sorted[low..high].partition_point(|entry| key(entry) < Some(byte));
                high = low + self.sorted[low..high].partition_point(|entry| key(entry) == Some(byte));
                let found = self.sorted[low..high].first()?;
                Some((found.0.len() == at + 1).then_some((at + 1, found.1)))
            })
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_token_a_text_begins_with() {
        let tokens = ["a", "ab", "abcd", "b", "abx", ""];
        let prefixes = Prefixes::new((0..).zip(tokens).map(|(id, text)| (text.as_bytes().to_vec(), id)));
        let of = |text: &str| prefixes.of(text.as_bytes()).collect::<Vec<_>>();
        assert_eq!(of("abcde"), [(1, 0), (2, 1), (4, 2)]);
        assert_eq!(of("abx"), [(1, 0), (2, 1), (3, 4)]);
        assert_eq!(of("abc"), [(1, 0), (2, 1)]);
        assert_eq!(of("c"), []);
        assert_eq!(of(""), []);
    }
}
