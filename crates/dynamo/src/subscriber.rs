//! A SUB socket: as much of ZeroMQ's wire protocol (ZMTP 3.0 without encryption) as it takes to hear a PUB socket.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// A batch of events is far below.
const MAX_FRAME_BYTES: u64 = 1 << 24;

/// What was published.
#[derive(Debug)]
pub struct Message {
    pub topic: String,
    pub sequence: u64,
    pub payload: Vec<u8>,
}

/// A connection that hears all topics.
pub struct Subscriber(TcpStream);

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Subscriber {
    /// `address` as in `127.0.0.1:5557`.
    pub fn connect(address: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        let mut greeting = [0; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting)?;
        stream.read_exact(&mut greeting)?;
        if greeting[10] < 3 {
            return Err(bad("the publisher does not speak ZMTP 3"));
        }
        let ready = [&b"\x05READY"[..], b"\x0bSocket-Type", &3_u32.to_be_bytes(), b"SUB"].concat();
        stream.write_all(&[&[COMMAND, ready.len() as u8][..], &ready].concat())?;
        let mut subscriber = Self(stream);
        let (flags, _) = subscriber.frame()?;
        if flags & COMMAND == 0 {
            return Err(bad("a message came before the handshake"));
        }
        // Everything: a subscription to the empty topic.
        subscriber.0.write_all(&[0, 1, 1])?;
        Ok(subscriber)
    }

    /// `None`: nothing arrived within this time.
    pub fn next(&mut self, limit: Duration) -> io::Result<Option<Message>> {
        self.0.set_read_timeout(Some(limit))?;
        match self.0.peek(&mut [0]) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(None);
            }
            found => found?,
        };
        // What has begun is read to its end.
        self.0.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut parts = Vec::new();
        loop {
            let (flags, part) = self.frame()?;
            parts.push(part);
            if flags & MORE == 0 {
                break;
            }
        }
        let [topic, sequence, payload] = parts.try_into().map_err(|_| bad("a message has not three parts"))?;
        let sequence = sequence.try_into().map_err(|_| bad("a sequence number has not eight bytes"))?;
        let topic = String::from_utf8(topic).map_err(|_| bad("a topic is not text"))?;
        Ok(Some(Message { topic, sequence: u64::from_be_bytes(sequence), payload }))
    }

    fn frame(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut flags = [0];
        self.0.read_exact(&mut flags)?;
        let n_bytes = if flags[0] & LONG == 0 {
            let mut n_bytes = [0];
            self.0.read_exact(&mut n_bytes)?;
            u64::from(n_bytes[0])
        } else {
            let mut n_bytes = [0; 8];
            self.0.read_exact(&mut n_bytes)?;
            u64::from_be_bytes(n_bytes)
        };
        if n_bytes > MAX_FRAME_BYTES {
            return Err(bad("a frame is too large"));
        }
        let mut bytes = vec![0; n_bytes as usize];
        self.0.read_exact(&mut bytes)?;
        Ok((flags[0], bytes))
    }
}
