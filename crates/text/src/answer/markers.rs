//! The first of several marks in a text that is still growing.

/// Where a mark is.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Found<'a> {
    /// This one, here.
    Mark { start: usize, mark: &'a str },
    /// What begins here may become one.
    Partial { start: usize },
    /// None; everything up to `start`, the end, is text.
    Nothing { start: usize },
}

impl Found<'_> {
    /// Everything before it is text.
    pub(crate) fn start(self) -> usize {
        match self {
            Self::Mark { start, .. } | Self::Partial { start } | Self::Nothing { start } => start,
        }
    }
}

/// The mark that begins first, of those the longest. Nothing is decided while a longer one is still possible, unless
/// this is the last of the text.
pub(crate) fn find<'a>(text: &str, marks: &[&'a str], is_last: bool) -> Found<'a> {
    for (start, _) in text.char_indices() {
        let rest = &text[start..];
        let whole = marks.iter().copied().filter(|mark| rest.starts_with(mark)).max_by_key(|mark| mark.len());
        let may_grow = marks.iter().any(|mark| mark.len() > rest.len() && mark.starts_with(rest));
        match whole {
            _ if may_grow && !is_last => return Found::Partial { start },
            Some(mark) => return Found::Mark { start, mark },
            None => {}
        }
    }
    Found::Nothing { start: text.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_only_for_what_may_become_a_mark() {
        let marks = ["<tool>", "<tools>", "[X]"];
        assert_eq!(find("abc", &marks, false), Found::Nothing { start: 3 });
        assert_eq!(find("ab<to", &marks, false), Found::Partial { start: 2 });
        assert_eq!(find("ab<to", &marks, true), Found::Nothing { start: 5 });
        assert_eq!(find("ab<tool>", &marks, false), Found::Mark { start: 2, mark: "<tool>" });
        assert_eq!(find("é[X]<tool>", &marks, false), Found::Mark { start: 2, mark: "[X]" });
        assert_eq!(find("<toolx<tools>", &marks, false), Found::Mark { start: 6, mark: "<tools>" });
    }
}
