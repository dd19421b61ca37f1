//! The file format of a block: a header that identifies it, then its bytes. When it is read back, lengths, tokens and
//! the checksum are compared; a record that does not match counts as missing.
//!
//! Little-endian: magic and version (8 bytes), identity (32), key (16), parent (16), tokens (16 x 4), depth (4), kind
//! (4), length (8), CRC-32 of the header up to here and of the bytes (4).

use batch::{BLOCK_TOKENS, TokenId};

use crate::{Identity, KeptKind, Name, PrefixKey};

/// Of every file of this crate; the last byte counts layouts.
pub const MAGIC: [u8; 8] = *b"ROCIKV\0\x01";
pub const HEADER_BYTES: usize = 8 + 32 + 16 + 16 + 4 * BLOCK_TOKENS + 4 + 4 + 8 + 4;

/// What is kept: a block and where it stands.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Entry {
    pub name: Name,
    /// The key before the block.
    pub parent: PrefixKey,
    /// The block's own.
    pub tokens: [TokenId; BLOCK_TOKENS],
    /// Blocks up to its end.
    pub depth: u32,
}

impl Entry {
    /// The block with these tokens after `parent`.
    pub fn after(parent: PrefixKey, tokens: [TokenId; BLOCK_TOKENS], kind: KeptKind, depth: usize) -> Self {
        Self { name: Name { key: parent.then(&tokens), kind }, parent, tokens, depth: depth as u32 }
    }
}

/// The header of a file with these bytes.
pub fn header(identity: &Identity, entry: &Entry, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend(MAGIC);
    header.extend(identity.0);
    header.extend(entry.name.key.0);
    header.extend(entry.parent.0);
    entry.tokens.iter().for_each(|token| header.extend(token.0.to_le_bytes()));
    header.extend(entry.depth.to_le_bytes());
    header.extend((entry.name.kind as u32).to_le_bytes());
    header.extend((bytes.len() as u64).to_le_bytes());
    let sum = checksum(&header, bytes);
    header.extend(sum.to_le_bytes());
    header.try_into().expect("the fields above are the header")
}

/// Whether `header` and `bytes` are what was stored as `entry`, whole.
pub fn is_whole(identity: &Identity, entry: &Entry, stored: &[u8], bytes: &[u8]) -> bool {
    stored.len() == HEADER_BYTES && stored == header(identity, entry, bytes)
}

fn checksum(header: &[u8], bytes: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(header);
    sum.update(bytes);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_be_changed_unnoticed() {
        let identity = Identity::of([b"model".as_slice()]);
        let entry = Entry::after(PrefixKey::ROOT, [TokenId(5); BLOCK_TOKENS], KeptKind::Block, 1);
        let bytes: Vec<u8> = (0..100).collect();
        let stored = header(&identity, &entry, &bytes);
        assert!(is_whole(&identity, &entry, &stored, &bytes));
        assert!(!is_whole(&identity, &entry, &stored, &bytes[..99]));
        assert!(!is_whole(&Identity::of([b"other".as_slice()]), &entry, &stored, &bytes));
        assert!(!is_whole(&identity, &Entry { tokens: [TokenId(6); BLOCK_TOKENS], ..entry }, &stored, &bytes));
        for at in 0..HEADER_BYTES {
            let mut other = stored;
            other[at] ^= 1;
            assert!(!is_whole(&identity, &entry, &other, &bytes), "byte {at} of the header");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x80;
            assert!(!is_whole(&identity, &entry, &stored, &other), "byte {at}");
        }
    }
}
