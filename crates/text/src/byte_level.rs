//! The byte-level alphabet of GPT-2: each of the 256 bytes is written as one printable character.
//!
//! Printable Latin-1 bytes stand for themselves; the other 68 (controls, space, 0x7F to 0xA0, 0xAD) take the
//! code points from U+0100 on, in order. Vocabularies and merges are spelt in this alphabet.

/// The first code point given to a byte that is not printable by itself.
const SHIFT: u32 = 0x100;

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character that stands for each byte.
const ENCODE: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut next = SHIFT;
    let mut byte = 0usize;
    while byte < 256 {
        if is_printable(byte as u8) {
            table[byte] = byte as u8 as char;
        } else {
            table[byte] = match char::from_u32(next) {
                Some(c) => c,
                None => unreachable!(),
            };
            next += 1;
        }
        byte += 1;
    }
    table
};

/// The bytes behind the code points U+0100.. in order.
const SHIFTED: [u8; 68] = {
    let mut table = [0u8; 68];
    let mut next = 0;
    let mut byte = 0usize;
    while byte < 256 {
        if !is_printable(byte as u8) {
            table[next] = byte as u8;
            next += 1;
        }
        byte += 1;
    }
    table
};

/// Appends `text`, spelt in the byte-level alphabet, to `out`.
pub(crate) fn encode_into(text: &str, out: &mut String) {
    out.extend(text.bytes().map(|byte| ENCODE[byte as usize]));
}

/// The byte a character stands for, or `None` if it is not of the alphabet.
pub(crate) fn decode_char(c: char) -> Option<u8> {
    let code = c as u32;
    if let Ok(byte) = u8::try_from(code) {
        return is_printable(byte).then_some(byte);
    }
    SHIFTED.get(code.checked_sub(SHIFT)? as usize).copied()
}

/// Appends the bytes a token's text stands for. A character outside the alphabet stands for its own UTF-8:
/// some files keep added tokens as plain text and yet call them normal.
pub(crate) fn decode_into(text: &str, out: &mut Vec<u8>) {
    for c in text.chars() {
        match decode_char(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_letters_of_the_alphabet() {
        // As printed in every GPT-2 style vocabulary: space is Ġ, newline Ċ, tab ĉ, NUL Ā, 0xAD Ń.
        for (byte, c) in [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'\t', 'ĉ'), (0, 'Ā'), (0xAD, 'Ń'), (0x7F, 'ġ'), (b'a', 'a')]
        {
            assert_eq!(ENCODE[byte as usize], c);
            assert_eq!(decode_char(c), Some(byte));
        }
    }

    #[test]
    fn every_byte_returns_and_nothing_else_decodes() {
        for byte in 0..=255u8 {
            assert_eq!(decode_char(ENCODE[byte as usize]), Some(byte));
        }
        let n_letters = (0..0x3000).filter_map(char::from_u32).filter(|&c| decode_char(c).is_some()).count();
        assert_eq!(n_letters, 256);
    }
}
