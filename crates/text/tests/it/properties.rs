//! Properties that hold for every text, token stream and cut.

use proptest::prelude::*;
use text::{Specials, StopMatcher};

use crate::golden::detokenize;
use crate::small_vocab::tokenizer;

/// Text of any characters, and text of the few that decide where words end.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[ \\n\\r\\ta1'sé語\u{3000}\u{301}.<|>_]{0,40}", "\\PC{0,30}( |\\n){0,5}\\PC{0,9}"]
}

#[test]
fn decoding_what_was_encoded_gives_it_back() {
    let tokenizers = ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "falcon", "default"].map(tokenizer);
    proptest!(|(text in any_text())| {
        for tokenizer in &tokenizers {
            prop_assert_eq!(detokenize(tokenizer, &tokenizer.encode(&text, Specials::Plain)), &*text);
        }
    });
}

#[test]
fn detokenizing_by_token_is_decoding_the_whole() {
    let tokenizer = tokenizer("smollm");
    let n_vocab = u32::try_from(tokenizer.n_vocab()).unwrap();
    // Any stream of tokens, most of them no valid text; some ids the vocabulary does not have.
    let streams = prop::collection::vec(prop_oneof![0..n_vocab + 3, 0..256u32], 0..60);
    proptest!(|(ids in streams)| {
        let bytes: Vec<u8> = ids
            .iter()
            .filter(|&&id| !tokenizer.is_special(id))
            .flat_map(|&id| tokenizer.token_bytes(id).unwrap_or_default())
            .copied()
            .collect();
        prop_assert_eq!(detokenize(&tokenizer, &ids), String::from_utf8_lossy(&bytes));
    });
}

/// Where an answer ends, read off the definition: the shortest beginning of the text that ends in a stop
/// string, less the longest stop string it ends in.
fn naive(text: &str, stops: &[String]) -> (String, bool) {
    for end in 0..=text.len() {
        let seen = &text.as_bytes()[..end];
        let complete = stops.iter().filter(|stop| !stop.is_empty() && seen.ends_with(stop.as_bytes()));
        if let Some(longest) = complete.map(String::len).max() {
            return (text[..end - longest].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

#[test]
fn stopping_is_a_search_in_the_whole_text() {
    let pieces = prop::collection::vec("[abé ]{0,5}", 0..12);
    let stops = prop::collection::vec("[abé ]{0,4}", 0..4);
    proptest!(|(pieces in pieces, stops in stops)| {
        let (expected, ends_early) = naive(&pieces.concat(), &stops);
        let mut matcher = StopMatcher::new(stops.clone());
        let mut shown = String::new();
        let mut is_stopped = false;
        for piece in &pieces {
            let step = matcher.push(piece);
            shown.push_str(&step.text);
            is_stopped = step.is_stopped;
            prop_assert!(expected.starts_with(&shown), "{:?} was shown of {:?}", shown, expected);
        }
        shown.push_str(&matcher.finish());
        prop_assert_eq!((shown, is_stopped), (expected, ends_early));
    });
}
