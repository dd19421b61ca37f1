//! The readers of KV events: each connection has a task that writes, and one that reads what it subscribes to or asks
//! for again. A reader that does not take what is written to it is disconnected.

use super::zmtp::{self, Incoming};
use super::{EventBatch, Publisher};
use metrics::counter;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::timeout;

const TIME_TO_GREET: Duration = Duration::from_secs(10);
const TIME_TO_WRITE: Duration = Duration::from_secs(30);
/// After an accept that failed, for want of file descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);
const MAX_SUBSCRIPTIONS: usize = 64;
/// What a reader has said and its task has not heard yet.
const MAX_WAITING: usize = 16;
/// The number of the batch after the last.
const END: [u8; 8] = (-1_i64).to_be_bytes();

/// What a socket does for those who connect to it.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum SocketRole {
    Publish,
    Replay,
}

/// Takes readers for ever. Those beyond the limit are closed at once.
pub async fn accept(listener: TcpListener, publisher: Arc<Publisher>, role: SocketRole) {
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&publisher.peers).try_acquire_owned() else {
            tracing::warn!(%address, "too many readers of KV events");
            continue;
        };
        let publisher = Arc::clone(&publisher);
        tokio::spawn(async move {
            let served = serve(stream, &publisher, role).await;
            if let Err(error) = served.as_ref().map_err(ToString::to_string) {
                tracing::debug!(%address, error, "a reader of KV events left");
            }
            drop(place);
        });
    }
}

async fn serve(mut stream: TcpStream, publisher: &Publisher, role: SocketRole) -> io::Result<()> {
    let (own_type, peer_types): (_, &[&str]) = match role {
        SocketRole::Publish => ("PUB", &["SUB", "XSUB"]),
        SocketRole::Replay => ("ROUTER", &["REQ", "DEALER", "ROUTER"]),
    };
    stream.set_nodelay(true)?;
    timeout(TIME_TO_GREET, zmtp::shake_hands(&mut stream, own_type, peer_types)).await??;
    let (reader, writer) = stream.into_split();
    let (sender, incoming) = mpsc::channel(MAX_WAITING);
    let reading = tokio::spawn(read(reader, sender));
    let outcome = match role {
        SocketRole::Publish => publish(writer, publisher, incoming).await,
        SocketRole::Replay => replay(writer, publisher, incoming).await,
    };
    reading.abort();
    outcome
}

/// Passes on what a reader says; ends with the connection.
async fn read(mut reader: OwnedReadHalf, sender: mpsc::Sender<Incoming>) {
    while let Ok(incoming) = zmtp::read(&mut reader).await {
        if sender.send(incoming).await.is_err() {
            return;
        }
    }
}

async fn write(writer: &mut OwnedWriteHalf, bytes: &[u8]) -> io::Result<()> {
    timeout(TIME_TO_WRITE, writer.write_all(bytes)).await?
}

async fn publish(
    mut writer: OwnedWriteHalf,
    publisher: &Publisher,
    mut incoming: mpsc::Receiver<Incoming>,
) -> io::Result<()> {
    let mut batches = publisher.sender.subscribe();
    let mut topics: Vec<Vec<u8>> = Vec::new();
    loop {
        tokio::select! {
            said = incoming.recv() => match said {
                None => return Ok(()),
                Some(said) => {
                    if let Some(reply) = hear(said, &mut topics) {
                        write(&mut writer, &reply).await?;
                    }
                }
            },
            batch = batches.recv() => match batch {
                Ok(batch) if topics.iter().any(|topic| batch.topic.as_bytes().starts_with(topic)) => {
                    let parts: [&[u8]; 3] = [batch.topic.as_bytes(), &batch.number.to_be_bytes(), &batch.payload];
                    write(&mut writer, &zmtp::message(&parts)).await?;
                }
                Ok(_) => {}
                // It sees by their numbers that some are missing, and may ask for them.
                Err(RecvError::Lagged(n)) => counter!("roci_kv_events_skipped_total").increment(n),
                Err(RecvError::Closed) => return Ok(()),
            },
        }
    }
}

/// Takes a subscription, or its end; some words have an answer.
fn hear(said: Incoming, topics: &mut Vec<Vec<u8>>) -> Option<Vec<u8>> {
    let (is_wanted, topic) = match said {
        Incoming::Message(parts) => match parts.first().and_then(|part| part.split_first()) {
            Some((1, topic)) => (true, topic.to_vec()),
            Some((0, topic)) => (false, topic.to_vec()),
            _ => return None,
        },
        Incoming::Command(name, topic) if name == b"SUBSCRIBE" => (true, topic),
        Incoming::Command(name, topic) if name == b"CANCEL" => (false, topic),
        // After the time that it gives us, its context comes back.
        Incoming::Command(name, body) if name == b"PING" => {
            return Some(zmtp::command("PONG", body.get(2..).unwrap_or_default()));
        }
        Incoming::Command(..) => return None,
    };
    match is_wanted {
        true if topics.len() < MAX_SUBSCRIPTIONS => topics.push(topic),
        true => {}
        false => {
            let found = topics.iter().position(|known| *known == topic);
            found.into_iter().for_each(|at| drop(topics.swap_remove(at)));
        }
    }
    None
}

async fn replay(
    mut writer: OwnedWriteHalf,
    publisher: &Publisher,
    mut incoming: mpsc::Receiver<Incoming>,
) -> io::Result<()> {
    while let Some(said) = incoming.recv().await {
        let Incoming::Message(parts) = said else {
            if let Some(reply) = hear(said, &mut Vec::new()) {
                write(&mut writer, &reply).await?;
            }
            continue;
        };
        // An empty part stands before the number, as REQ sockets send it.
        let Some(first) = parts.last().and_then(|part| <[u8; 8]>::try_from(part.as_slice()).ok()) else { continue };
        let batches: Vec<Arc<EventBatch>> = publisher.kept_from(u64::from_be_bytes(first));
        for batch in batches {
            let parts: [&[u8]; 4] = [b"", batch.topic.as_bytes(), &batch.number.to_be_bytes(), &batch.payload];
            write(&mut writer, &zmtp::message(&parts)).await?;
        }
        write(&mut writer, &zmtp::message(&[b"", b"", &END, b""])).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_come_as_messages_or_commands_and_end() {
        let mut topics = Vec::new();
        assert_eq!(hear(Incoming::Message(vec![b"\x01kv@".to_vec()]), &mut topics), None);
        assert_eq!(hear(Incoming::Command(b"SUBSCRIBE".to_vec(), b"b".to_vec()), &mut topics), None);
        assert_eq!(topics, [b"kv@".to_vec(), b"b".to_vec()]);
        hear(Incoming::Message(vec![b"\x00kv@".to_vec()]), &mut topics);
        assert_eq!(topics, [b"b".to_vec()]);
        let pong = hear(Incoming::Command(b"PING".to_vec(), b"\x00\x05abc".to_vec()), &mut topics);
        assert_eq!(pong, Some(zmtp::command("PONG", b"abc")));
        (0..1000).for_each(|_| drop(hear(Incoming::Message(vec![b"\x01x".to_vec()]), &mut topics)));
        assert_eq!(topics.len(), MAX_SUBSCRIPTIONS);
    }
}
