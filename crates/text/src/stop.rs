//! Stop strings: text that ends an answer and is not part of it.
//!
//! Text arrives in pieces of any size, so an end that may be the beginning of a stop string is held back. The
//! answer stops where a stop string is first complete; of those complete there, the longest counts. That
//! depends on the text alone, not on how it was cut into pieces.

/// Watches one answer for stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    is_stopped: bool,
}

/// What a piece of text led to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StopStep {
    /// Text that is safe to show.
    pub text: String,
    /// Whether a stop string was found; nothing more is shown after that.
    pub is_stopped: bool,
}

impl StopMatcher {
    /// Empty stop strings are ignored.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new(), is_stopped: false }
    }

    /// Takes more text and returns what is safe to show.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.is_stopped {
            return StopStep { text: String::new(), is_stopped: true };
        }
        self.held.push_str(text);
        if let Some(start) = self.first_match() {
            self.held.truncate(start);
            self.is_stopped = true;
            return StopStep { text: std::mem::take(&mut self.held), is_stopped: true };
        }
        let keep = self.held.split_off(self.held.len() - self.n_held_back());
        StopStep { text: std::mem::replace(&mut self.held, keep), is_stopped: false }
    }

    /// Ends the answer: what was held back turned out to be text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the stop string that is complete first begins.
    fn first_match(&self) -> Option<usize> {
        self.stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|start| (start + stop.len(), start)))
            .min()
            .map(|(_, start)| start)
    }

    /// Length of the longest end of the held text with which a stop string begins.
    fn n_held_back(&self) -> usize {
        let bytes = self.held.as_bytes();
        self.stops
            .iter()
            .map(|stop| {
                let stop = stop.as_bytes();
                // A common end of two valid texts that begins a text begins at a character.
                (1..stop.len().min(bytes.len() + 1)).rev().find(|&n| bytes.ends_with(&stop[..n])).unwrap_or(0)
            })
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stops: &[&str], pieces: &[(&str, &str)], is_stopped: bool, rest: &str) {
        let mut matcher = StopMatcher::new(stops.iter().map(ToString::to_string).collect());
        let mut last = false;
        for (piece, shown) in pieces {
            let step = matcher.push(piece);
            assert_eq!(step.text, *shown, "after {piece:?}");
            last = step.is_stopped;
        }
        assert_eq!(last, is_stopped);
        assert_eq!(matcher.finish(), rest);
    }

    #[test]
    fn holds_back_what_may_become_a_stop() {
        check(&["STOP"], &[("aS", "a"), ("T", ""), ("x", "STx"), ("STO", "")], false, "STO");
        check(&["STOP"], &[("a ST", "a "), ("OP b", ""), ("c", "")], true, "");
        check(&["é!"], &[("é", ""), ("é", "é"), ("!", "")], true, "");
    }

    #[test]
    fn the_stop_complete_first_wins_then_the_longest() {
        check(&["abcd", "bc"], &[("xabcd", "xa")], true, "");
        check(&["bc", "abc"], &[("xabc", "x")], true, "");
        check(&["aab"], &[("a", ""), ("a", ""), ("a", "a"), ("b", "")], true, "");
    }

    #[test]
    fn no_stops_hold_nothing() {
        check(&["", ""], &[("anything", "anything")], false, "");
    }
}
