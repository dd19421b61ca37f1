//! Frames: a length, a checksum and a value in postcard's encoding. A frame that is too long, truncated or changed is
//! an error, and ends the connection.

use std::io::{self, Read, Write};

use serde::{Serialize, de::DeserializeOwned};

/// Largest payload: a prompt of a million tokens with a constraint of several MB fits.
pub const MAX_BYTES: usize = 64 << 20;
/// Length and CRC-32 of the payload, each four bytes, little-endian.
const HEADER_BYTES: usize = 8;
/// Buffers that grew larger for one frame are given back.
const KEPT_BYTES: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other end is gone, after a whole frame.
    #[error("the connection was closed")]
    Closed,
    #[error("no message within the time limit")]
    TimedOut,
    #[error("a frame of {n_bytes} bytes is over the limit of {MAX_BYTES}")]
    TooLong { n_bytes: usize },
    #[error("a frame was damaged: its checksum is {found:08x}, expected {expected:08x}")]
    Damaged { found: u32, expected: u32 },
    #[error("a frame cannot be read or written: {0}")]
    Codec(#[from] postcard::Error),
    #[error("the connection failed: {0}")]
    Io(io::Error),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// A value as the bytes of one frame.
pub fn encode(value: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    encode_within(value, MAX_BYTES)
}

fn encode_within(value: &impl Serialize, max_bytes: usize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = postcard::to_extend(value, vec![0; HEADER_BYTES])?;
    let n_bytes = bytes.len() - HEADER_BYTES;
    if n_bytes > max_bytes {
        return Err(FrameError::TooLong { n_bytes });
    }
    let checksum = crc32fast::hash(&bytes[HEADER_BYTES..]);
    bytes[..4].copy_from_slice(&(n_bytes as u32).to_le_bytes());
    bytes[4..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

/// Writes a value as one frame.
pub fn write(out: &mut impl Write, value: &impl Serialize) -> Result<(), FrameError> {
    Ok(out.write_all(&encode(value)?)?)
}

/// Reads frames; its buffer is used again.
#[derive(Debug)]
pub struct FrameReader<R> {
    input: R,
    buffer: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    pub fn new(input: R) -> Self {
        Self { input, buffer: Vec::new() }
    }

    pub fn get_ref(&self) -> &R {
        &self.input
    }

    /// Waits for the next frame.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<T, FrameError> {
        let mut header = [0; HEADER_BYTES];
        match self.input.read(&mut header)? {
            0 => return Err(FrameError::Closed),
            n => self.read_rest(&mut header[n..])?,
        }
        let [a, b, c, d, checksum @ ..] = header;
        let (n_bytes, expected) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(checksum));
        if n_bytes > MAX_BYTES {
            return Err(FrameError::TooLong { n_bytes });
        }
        if self.buffer.capacity() > KEPT_BYTES {
            self.buffer = Vec::new();
        }
        self.buffer.clear();
        // Grows with what arrives, not with what was announced.
        let n_read = (&mut self.input).take(n_bytes as u64).read_to_end(&mut self.buffer)?;
        if n_read < n_bytes {
            return Err(FrameError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let found = crc32fast::hash(&self.buffer);
        if found != expected {
            return Err(FrameError::Damaged { found, expected });
        }
        let (value, rest) = postcard::take_from_bytes(&self.buffer)?;
        match rest.is_empty() {
            true => Ok(value),
            false => Err(FrameError::Codec(postcard::Error::DeserializeBadEncoding)),
        }
    }

    fn read_rest(&mut self, rest: &mut [u8]) -> Result<(), FrameError> {
        self.input.read_exact(rest).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => FrameError::Io(error),
            _ => error.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<(u32, String), FrameError> {
        FrameReader::new(bytes).read()
    }

    #[test]
    fn what_is_written_is_read() {
        let value = (7_u32, "a text".to_owned());
        let mut bytes = encode(&value).unwrap();
        bytes.extend(encode(&value).unwrap());
        let mut reader = FrameReader::new(bytes.as_slice());
        assert_eq!(reader.read::<(u32, String)>().unwrap(), value);
        assert_eq!(reader.read::<(u32, String)>().unwrap(), value);
        assert!(matches!(reader.read::<(u32, String)>(), Err(FrameError::Closed)));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_found() {
        let bytes = encode(&(7_u32, "a text".to_owned())).unwrap();
        for end in 1..bytes.len() {
            assert!(matches!(read(&bytes[..end]), Err(FrameError::Io(_))), "cut at {end}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn an_announced_length_is_not_believed() {
        let mut bytes = encode(&1_u32).unwrap();
        bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(read(&bytes), Err(FrameError::TooLong { .. })));
        bytes[..4].copy_from_slice(&(MAX_BYTES as u32).to_le_bytes());
        assert!(matches!(read(&bytes), Err(FrameError::Io(_))));
        assert!(matches!(encode_within(&[0_u8; 31], 30), Err(FrameError::TooLong { n_bytes: 31 })));
        assert!(encode_within(&[0_u8; 30], 30).is_ok());
    }

    #[test]
    fn a_frame_holds_one_value() {
        let bytes = encode(&(7_u32, "a text".to_owned(), 1_u8)).unwrap();
        assert!(matches!(read(&bytes), Err(FrameError::Codec(_))));
    }
}
