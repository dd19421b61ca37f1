//! CDNA3 (gfx940 to gfx942) bit layouts.

use super::{DecodeError, Decoded};

pub fn decode(words: &[u32]) -> Result<Decoded, DecodeError> {
    Err(DecodeError::Encoding { word: words.first().copied().unwrap_or(0) })
}
