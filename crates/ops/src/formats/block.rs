//! What every packed format has: blocks of so many weights in so many bytes, and their exact decoding.

/// A packed format.
pub(crate) trait BlockFormat {
    /// Weights of a block.
    const LEN: usize;
    const BYTES: usize;

    /// Exact: the numbers other programs agree on.
    fn decode(block: &[u8], out: &mut [f32]);

    /// Scales for random blocks whose weights deviate by `std` and have no common sign.
    fn put_scales(block: &mut [u8], std: f32);
}

/// The f16 at `offset` of a block.
pub(crate) fn f16_at(block: &[u8], offset: usize) -> f32 {
    half::f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32_const()
}

pub(crate) fn put_f16(block: &mut [u8], offset: usize, value: f32) {
    block[offset..offset + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

pub(crate) fn u16_at(block: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([block[offset], block[offset + 1]])
}

pub(crate) fn u32_at(block: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([block[offset], block[offset + 1], block[offset + 2], block[offset + 3]])
}
