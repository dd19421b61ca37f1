//! Answers in channels: a header says where a message goes, then comes the message. gpt-oss (harmony) marks both with
//! special tokens; Functionary writes `>>>` and the name of the tool, or `all` for text.

use super::Delta;
use super::markers::{Found, find};

/// The two families that write channels.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum ChannelKind {
    Harmony,
    Functionary,
}

const HARMONY_ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", "<|start|>"];
const FUNCTIONARY_ENDS: &[&str] = &[">>>"];

/// What a harmony header begins with, the roles and channels that a prompt may have left out included.
const HEADERS: &[&str] = &["<|", "assistant", "analysis", "commentary", "final", "to="];
/// Longer than any header.
const MAX_HEADER: usize = 256;

fn may_be_header(text: &str) -> bool {
    HEADERS.iter().any(|header| text.starts_with(header) || header.starts_with(text))
}

#[derive(Debug)]
pub(crate) struct Channels {
    kind: ChannelKind,
    place: ChannelPlace,
    /// The current message's call was given its number.
    index: Option<usize>,
    is_fresh: bool,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum ChannelPlace {
    Header,
    Reasoning,
    Text,
    Arguments,
}

impl Channels {
    pub(crate) fn new(kind: Option<ChannelKind>) -> Self {
        Self { kind: kind.unwrap_or(ChannelKind::Harmony), place: ChannelPlace::Header, index: None, is_fresh: true }
    }

    pub(crate) fn read(&mut self, held: &mut String, is_last: bool, n_calls: &mut usize, out: &mut Vec<Delta>) {
        while !held.is_empty() {
            let goes_on = match self.place {
                ChannelPlace::Header => self.read_header(held, is_last, n_calls, out),
                _ => self.read_message(held, is_last, out),
            };
            if !goes_on {
                break;
            }
        }
        if is_last && let (ChannelPlace::Arguments, Some(index), true) = (self.place, self.index, self.is_fresh) {
            out.push(Delta::Arguments { index, text: "{}".to_owned() });
        }
    }

    fn read_header(&mut self, held: &mut String, is_last: bool, n_calls: &mut usize, out: &mut Vec<Delta>) -> bool {
        let (marks, is_harmony): (&[&str], _) = match self.kind {
            ChannelKind::Harmony => (&["<|message|>"], true),
            ChannelKind::Functionary => (&["\n"], false),
        };
        let found = find(held, marks, is_last);
        let is_header = found.start() <= MAX_HEADER && (!is_harmony || may_be_header(held.trim_start()));
        let (start, mark) = match found {
            Found::Mark { start, mark } if is_header => (start, mark),
            _ if is_header && !is_last => return false,
            // A model that forgets its channels still says something.
            _ => {
                self.begin(ChannelPlace::Text, None);
                return true;
            }
        };
        let header: String = held.drain(..start + mark.len()).collect();
        let header = &header[..start];
        let (place, name) = match self.kind {
            ChannelKind::Harmony => harmony_place(header),
            ChannelKind::Functionary => match header.trim().trim_start_matches(">>>") {
                "all" | "" => (ChannelPlace::Text, None),
                name => (ChannelPlace::Arguments, Some(name.to_owned())),
            },
        };
        let index = name.map(|name| {
            let index = *n_calls;
            *n_calls += 1;
            out.push(Delta::Call { index, name, id: None });
            index
        });
        self.begin(place, index);
        true
    }

    fn begin(&mut self, place: ChannelPlace, index: Option<usize>) {
        self.place = place;
        self.index = index;
        self.is_fresh = true;
    }

    fn read_message(&mut self, held: &mut String, is_last: bool, out: &mut Vec<Delta>) -> bool {
        let ends = match self.kind {
            ChannelKind::Harmony => HARMONY_ENDS,
            ChannelKind::Functionary => FUNCTIONARY_ENDS,
        };
        let found = find(held, ends, is_last);
        let before: String = held.drain(..found.start()).collect();
        self.emit(before, out);
        let Found::Mark { mark, .. } = found else { return false };
        held.drain(..mark.len());
        if let (ChannelPlace::Arguments, Some(index), true) = (self.place, self.index, self.is_fresh) {
            out.push(Delta::Arguments { index, text: "{}".to_owned() });
        }
        self.begin(ChannelPlace::Header, None);
        true
    }

    fn emit(&mut self, text: String, out: &mut Vec<Delta>) {
        if text.is_empty() {
            return;
        }
        self.is_fresh = false;
        out.push(match (self.place, self.index) {
            (ChannelPlace::Reasoning, _) => Delta::Reasoning(text),
            (ChannelPlace::Arguments, Some(index)) => Delta::Arguments { index, text },
            _ => Delta::Text(text),
        });
    }
}

/// `<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json`, in any of the orders seen.
fn harmony_place(header: &str) -> (ChannelPlace, Option<String>) {
    let words: Vec<&str> = header.split(['<', '>', '|', ' ', '\n']).filter(|word| !word.is_empty()).collect();
    if let Some(to) = words.iter().find_map(|word| word.strip_prefix("to=")) {
        let name = to.strip_prefix("functions.").unwrap_or(to);
        return (ChannelPlace::Arguments, Some(name.to_owned()));
    }
    if words.contains(&"analysis") { (ChannelPlace::Reasoning, None) } else { (ChannelPlace::Text, None) }
}
