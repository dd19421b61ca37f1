//! PLaMo 2's tokenizer: of all ways to cut a text into tokens the one with the highest sum of scores, looked for from the
//! end, in whole ten-thousandths as its authors count. A character without a token costs a thousand and becomes bytes.

use ahash::AHashMap;

use crate::Vocab;
use crate::prefixes::Prefixes;
use crate::tokenizer::EncodeText;
use crate::vocab::TokenKind;

/// Units of a score.
const UNITS: f64 = 1e4;
/// What a character costs that becomes bytes.
const UNKNOWN_COST: i64 = 10_000_000;
/// Tokens that cost more are never chosen.
const MAX_COST: i64 = 20_000_000;

pub(crate) struct Plamo {
    ids: AHashMap<String, u32>,
    prefixes: Prefixes,
    costs: Vec<i64>,
    /// The token of each byte.
    bytes: [Option<u32>; 256],
}

/// The best way to cut the text from some byte on.
#[derive(Copy, Clone)]
struct BestRest {
    cost: i64,
    end: usize,
    token: Option<u32>,
}

impl Plamo {
    pub(crate) fn new(vocab: &Vocab, ids: AHashMap<String, u32>, kinds: &[TokenKind]) -> Self {
        let cost = |id: usize| {
            let score = f64::from(vocab.scores.get(id).copied().unwrap_or(0.0));
            if score.is_finite() { (-(score * UNITS).round()) as i64 } else { i64::MAX }
        };
        let costs: Vec<i64> = (0..kinds.len()).map(cost).collect();
        // Control tokens are not read from text.
        let is_text =
            |id: usize| matches!(kinds[id], TokenKind::Normal | TokenKind::UserDefined) && costs[id] < MAX_COST;
        let texts = vocab.tokens.iter().enumerate().filter(|&(id, _)| is_text(id));
        let prefixes = Prefixes::new(texts.map(|(id, text)| (text.clone().into_bytes(), id as u32)));
        let byte = |byte: usize| ids.get(&format!("<0x{byte:02X}>")).copied();
        let bytes = std::array::from_fn(byte);
        Self { ids, prefixes, costs, bytes }
    }
}

impl EncodeText for Plamo {
    fn encode(&self, text: &str, out: &mut Vec<u32>) {
        // A byte order mark is no text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut best = vec![BestRest { cost: 0, end: 0, token: None }; text.len() + 1];
        let mut found: Vec<(usize, u32)> = Vec::new();
        for (start, c) in text.char_indices().rev() {
            let after = start + c.len_utf8();
            let mut here = BestRest { cost: best[after].cost.saturating_add(UNKNOWN_COST), end: after, token: None };
            found.clear();
            found.extend(self.prefixes.of(&text.as_bytes()[start..]));
            // Of equal ones the longest.
            for (i, &(n_bytes, id)) in found.iter().rev().enumerate() {
                let end = start + n_bytes;
                let cost = best[end].cost.saturating_add(self.costs[id as usize]);
                if cost < here.cost || i == 0 && cost == here.cost {
                    here = BestRest { cost, end, token: Some(id) };
                }
            }
            best[start] = here;
        }
        let mut at = 0;
        while at < text.len() {
            let BestRest { end, token, .. } = best[at];
            match token {
                Some(id) => out.push(id),
                None => out.extend(text.as_bytes()[at..end].iter().filter_map(|byte| self.bytes[usize::from(*byte)])),
            }
            at = end;
        }
    }

    fn token_id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}
