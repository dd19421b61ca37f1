//! As much of ZeroMQ's wire protocol (ZMTP 3.0, no encryption) as a PUB and a ROUTER socket need: the greeting, frames,
//! and the handshake. What peers send is small and bounded; anything else ends the connection.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const GREETING_BYTES: usize = 64;
const MECHANISM: &[u8] = b"NULL";
/// Subscriptions, requests for batches and handshakes are all far below.
const MAX_FRAME_BYTES: u64 = 4096;
const MAX_PARTS: usize = 8;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a peer sent.
#[derive(Debug, PartialEq)]
pub enum Incoming {
    Message(Vec<Vec<u8>>),
    /// With its name, such as `SUBSCRIBE`.
    Command(Vec<u8>, Vec<u8>),
}

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

/// Greets the peer, which must be a socket of one of these types.
pub async fn shake_hands(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    own_type: &str,
    peer_types: &[&str],
) -> io::Result<()> {
    stream.write_all(&greeting()).await?;
    let mut theirs = [0; GREETING_BYTES];
    stream.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3 {
        return Err(bad("the peer does not speak ZMTP 3"));
    }
    if theirs[12..32].split(|&byte| byte == 0).next() != Some(MECHANISM) {
        return Err(bad("the peer wants a security mechanism"));
    }
    let ready = [&property("Socket-Type", own_type.as_bytes())[..], &property("Identity", b"")].concat();
    stream.write_all(&command("READY", &ready)).await?;
    let Incoming::Command(name, properties) = read(stream).await? else { return Err(bad("a message came first")) };
    let peer_type = find_property(&properties, "Socket-Type").unwrap_or_default();
    match name == b"READY" && peer_types.iter().any(|known| known.as_bytes() == peer_type) {
        true => Ok(()),
        false => Err(bad("the peer is not a socket that fits")),
    }
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    // Version 3.0: subscriptions come as messages.
    greeting[10] = 3;
    greeting[12..12 + MECHANISM.len()].copy_from_slice(MECHANISM);
    greeting
}

fn property(name: &str, value: &[u8]) -> Vec<u8> {
    [&[name.len() as u8], name.as_bytes(), &(value.len() as u32).to_be_bytes(), value].concat()
}

fn find_property<'a>(mut properties: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    loop {
        let (n_name, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*n_name))?;
        let (n_value, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*n_value) as usize)?;
        if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            return Some(value);
        }
        properties = rest;
    }
}

/// A command as a frame.
pub fn command(name: &str, body: &[u8]) -> Vec<u8> {
    let body = [&[name.len() as u8], name.as_bytes(), body].concat();
    let mut bytes = Vec::new();
    push_frame(&mut bytes, COMMAND, &body);
    bytes
}

/// The frames of one message.
pub fn message(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 9).sum());
    for (i, part) in parts.iter().enumerate() {
        push_frame(&mut bytes, if i + 1 < parts.len() { MORE } else { 0 }, part);
    }
    bytes
}

fn push_frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(n_bytes) => bytes.extend([flags, n_bytes]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend(body);
}

/// The next message or command.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Incoming> {
    let mut parts = Vec::new();
    loop {
        let flags = stream.read_u8().await?;
        let n_bytes = match flags & LONG {
            0 => u64::from(stream.read_u8().await?),
            _ => stream.read_u64().await?,
        };
        if n_bytes > MAX_FRAME_BYTES || parts.len() == MAX_PARTS {
            return Err(bad("the peer sends too much"));
        }
        let mut body = vec![0; n_bytes as usize];
        stream.read_exact(&mut body).await?;
        if flags & COMMAND != 0 {
            let (n_name, rest) = body.split_first().ok_or_else(|| bad("a command without a name"))?;
            let split = rest.split_at_checked(usize::from(*n_name));
            let (name, rest) = split.ok_or_else(|| bad("a command without a name"))?;
            return Ok(Incoming::Command(name.to_vec(), rest.to_vec()));
        }
        parts.push(body);
        if flags & MORE == 0 {
            return Ok(Incoming::Message(parts));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let long = vec![7; 300];
        let bytes = [message(&[b"", b"topic", &long]), command("PING", b"\0\x01x")].concat();
        block_on(async {
            let mut input = bytes.as_slice();
            let message = Incoming::Message(vec![vec![], b"topic".to_vec(), long.clone()]);
            assert_eq!(read(&mut input).await.unwrap(), message);
            assert_eq!(read(&mut input).await.unwrap(), Incoming::Command(b"PING".to_vec(), b"\0\x01x".to_vec()));
            assert!(read(&mut input).await.is_err());
        });
    }

    #[test]
    fn what_is_too_large_is_not_read() {
        block_on(async {
            let huge = [&[LONG][..], &u64::MAX.to_be_bytes()].concat();
            assert!(read(&mut huge.as_slice()).await.unwrap_err().to_string().contains("too much"));
            let many = message(&[b"x" as &[u8]; MAX_PARTS + 1]);
            assert!(read(&mut many.as_slice()).await.is_err());
        });
    }

    #[test]
    fn only_sockets_that_fit_are_taken() {
        let meet = |peer_type: &'static str| {
            block_on(async move {
                let (mut ours, mut theirs) = tokio::io::duplex(1024);
                let peer = async { shake_hands(&mut theirs, peer_type, &["PUB"]).await };
                tokio::join!(shake_hands(&mut ours, "PUB", &["SUB", "XSUB"]), peer).0
            })
        };
        assert!(meet("SUB").is_ok());
        assert!(meet("REQ").is_err());
    }

    #[test]
    fn others_are_turned_away() {
        block_on(async {
            let (mut ours, mut theirs) = tokio::io::duplex(1024);
            let http = async { theirs.write_all(&[b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[b' '; 64]].concat()).await };
            let (outcome, _) = tokio::join!(shake_hands(&mut ours, "PUB", &["SUB"]), http);
            assert!(outcome.unwrap_err().to_string().contains("ZMTP"));
        });
    }
}
