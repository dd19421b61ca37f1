//! What survives a restart: stored responses, chat completions and what keys have used, in one redb file. Writes go to
//! a thread that puts as many as are waiting into one transaction, so that no request waits for the disk; a crash loses
//! at most the last moments. With a key file, values are encrypted (XChaCha20-Poly1305); ids are not.
//!
//! How much is kept is decided by those who write: what they drop from memory they remove here.

use crate::hint::HintExt;
use anyhow::{Context, Result, anyhow};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use rocinante::ids;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Writes that may be queued; a further one blocks its sender.
const MAX_WAITING: usize = 1024;
const NONCE_BYTES: usize = 24;
/// Encrypted under the id below: tells a wrong key from a broken file.
const PROBE: &[u8] = b"roci";
const PROBE_ID: &str = "probe";

/// What is kept apart.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DiskTable {
    Responses,
    Chats,
    Usage,
    /// About the file itself.
    Info,
}

impl DiskTable {
    fn name(self) -> &'static str {
        match self {
            Self::Responses => "responses",
            Self::Chats => "chats",
            Self::Usage => "usage",
            Self::Info => "info",
        }
    }

    fn definition(self) -> TableDefinition<'static, &'static str, &'static [u8]> {
        TableDefinition::new(self.name())
    }
}

enum Write {
    Put(DiskTable, String, Vec<u8>),
    Remove(DiskTable, String),
    /// Answered when everything before it is on disk.
    Flush(SyncSender<()>),
}

pub struct Disk {
    /// There until the end.
    database: Option<Arc<Database>>,
    cipher: Option<XChaCha20Poly1305>,
    writes: Mutex<Option<SyncSender<Write>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Disk {
    /// Opens or makes the file. `key_file` holds 64 hexadecimal digits.
    pub fn open(path: &Path, key_file: Option<&Path>) -> Result<Arc<Self>> {
        let cipher = key_file.map(read_key).transpose()?;
        let database = open_private(path).with_context(|| format!("cannot open the store `{}`", path.display())).hint(
            "--store names a file in a folder that may be written to; two servers cannot share one; a file that is \
                 damaged has to be moved away",
        )?;
        let database = Arc::new(database);
        let (sender, writes) = sync_channel(MAX_WAITING);
        let own = Arc::clone(&database);
        let writer = std::thread::Builder::new().name("store".into()).spawn(move || write_all(&own, &writes))?;
        let disk = Self {
            database: Some(database),
            cipher,
            writes: Mutex::new(Some(sender)),
            writer: Mutex::new(Some(writer)),
        };
        disk.check_key().with_context(|| format!("the store `{}`", path.display()))?;
        Ok(Arc::new(disk))
    }

    /// A store is opened with the key that it was made with, or with none.
    fn check_key(&self) -> Result<()> {
        let known = self.raw(DiskTable::Info)?.into_iter().find(|(id, _)| id == PROBE_ID);
        match known {
            None => {
                self.put(DiskTable::Info, PROBE_ID, PROBE);
                self.flush();
                Ok(())
            }
            Some((id, bytes)) => match self.decode(DiskTable::Info, &id, &bytes) {
                Some(probe) if probe == PROBE => Ok(()),
                _ => Err(anyhow!("it was made with another key, or with none"))
                    .hint("give --store-key-file as it was when the store was made"),
            },
        }
    }

    fn raw(&self, table: DiskTable) -> Result<Vec<(String, Vec<u8>)>> {
        guarded(|| self.rows(table))
    }

    fn rows(&self, table: DiskTable) -> Result<Vec<(String, Vec<u8>)>> {
        let read = self.database.as_ref().expect("it is there until the end").begin_read()?;
        let table = match read.open_table(table.definition()) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut all = Vec::new();
        for row in table.iter()? {
            let (id, bytes) = row?;
            all.push((id.value().to_owned(), bytes.value().to_vec()));
        }
        Ok(all)
    }

    /// Everything in a table, by id. What cannot be read is left out, with a line in the log.
    pub fn all(&self, table: DiskTable) -> Result<Vec<(String, Vec<u8>)>> {
        let decoded = self.raw(table)?.into_iter().filter_map(|(id, bytes)| {
            let value = self.decode(table, &id, &bytes);
            if value.is_none() {
                tracing::error!(table = table.name(), id, "a stored value cannot be read");
            }
            Some((id, value?))
        });
        Ok(decoded.collect())
    }

    pub fn put(&self, table: DiskTable, id: &str, value: &[u8]) {
        let Some(bytes) = self.encode(table, id, value) else { return };
        self.send(Write::Put(table, id.to_owned(), bytes));
    }

    pub fn remove(&self, table: DiskTable, id: &str) {
        self.send(Write::Remove(table, id.to_owned()));
    }

    /// Waits until everything is on disk.
    pub fn flush(&self) {
        let (done, waiting) = sync_channel(1);
        self.send(Write::Flush(done));
        // It fails only when the writer is gone, and then there is nothing to wait for.
        let _ = waiting.recv();
    }

    fn send(&self, write: Write) {
        let sender = self.writes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if sender.is_none_or(|sender| sender.send(write).is_err()) {
            tracing::error!("the store's writer is gone");
        }
    }

    fn encode(&self, table: DiskTable, id: &str, value: &[u8]) -> Option<Vec<u8>> {
        let Some(cipher) = &self.cipher else { return Some(value.to_vec()) };
        let mut nonce = [0; NONCE_BYTES];
        ids::fill(&mut nonce);
        let place = place(table, id);
        let sealed = cipher.encrypt(&XNonce::from(nonce), Payload { msg: value, aad: place.as_bytes() }).ok()?;
        Some([&nonce[..], &sealed].concat())
    }

    fn decode(&self, table: DiskTable, id: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        let Some(cipher) = &self.cipher else { return Some(bytes.to_vec()) };
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: place(table, id).as_bytes() }).ok()
    }
}

/// A value is worth nothing in another place.
fn place(table: DiskTable, id: &str) -> String {
    format!("{}/{id}", table.name())
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.writes.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = writer.join();
        }
        // redb writes once more when it is closed.
        let database = self.database.take();
        let _ = guarded(|| {
            drop(database);
            Ok(())
        });
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("is_encrypted", &self.cipher.is_some()).finish_non_exhaustive()
    }
}

/// The file is for its owner alone.
fn open_private(path: &Path) -> Result<Database> {
    let mut options = std::fs::File::options();
    options.create(true).truncate(false).read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    drop(file);
    guarded(|| {
        let mut database = Database::create(path)?;
        // What was removed before the last end is given back to the disk.
        let _ = database.compact();
        Ok(database)
    })
}

/// redb takes its own file at its word and panics where a cut or changed one contradicts itself. That is an error like
/// others here: of the file, not of the program.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    // The panic itself is on standard error.
    outcome.unwrap_or_else(|_| Err(anyhow!("the file was cut or is damaged")))
}

fn read_key(path: &Path) -> Result<XChaCha20Poly1305> {
    let hint = "`openssl rand -hex 32 > FILE` makes one; keep it apart from the store";
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the store's key `{}`", path.display()))
        .hint(hint)?;
    let text = text.trim();
    let bytes: Option<Vec<u8>> = match text.len() == 64 && text.is_ascii() {
        true => (0..64).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok()).collect(),
        false => None,
    };
    let bytes = bytes.ok_or_else(|| anyhow!("`{}` does not hold 64 hexadecimal digits", path.display())).hint(hint)?;
    XChaCha20Poly1305::new_from_slice(&bytes).map_err(|error| anyhow!("`{}`: {error}", path.display()))
}

fn write_all(database: &Database, writes: &Receiver<Write>) {
    while let Ok(first) = writes.recv() {
        let batch: Vec<Write> = std::iter::once(first).chain(writes.try_iter().take(MAX_WAITING)).collect();
        if let Err(error) = guarded(|| commit(database, &batch)) {
            tracing::error!(%error, "the store cannot be written");
        }
        for write in batch {
            if let Write::Flush(done) = write {
                let _ = done.send(());
            }
        }
    }
}

fn commit(database: &Database, batch: &[Write]) -> Result<()> {
    let transaction = database.begin_write()?;
    for write in batch {
        match write {
            Write::Put(table, id, bytes) => {
                transaction.open_table(table.definition())?.insert(id.as_str(), bytes.as_slice())?;
            }
            Write::Remove(table, id) => {
                transaction.open_table(table.definition())?.remove(id.as_str())?;
            }
            Write::Flush(_) => {}
        }
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let disk = Disk::open(&path, None).unwrap();
        disk.put(DiskTable::Chats, "a", b"one");
        disk.put(DiskTable::Chats, "b", b"two");
        disk.put(DiskTable::Responses, "a", b"three");
        disk.put(DiskTable::Chats, "b", b"four");
        disk.remove(DiskTable::Chats, "a");
        drop(disk);
        let disk = Disk::open(&path, None).unwrap();
        assert_eq!(disk.all(DiskTable::Chats).unwrap(), [("b".to_owned(), b"four".to_vec())]);
        assert_eq!(disk.all(DiskTable::Responses).unwrap(), [("a".to_owned(), b"three".to_vec())]);
        assert_eq!(disk.all(DiskTable::Usage).unwrap(), []);
        assert!(Disk::open(&path, None).is_err(), "two servers cannot share one");
    }

    /// A file that was cut, or that a disk has changed, is an error or has less in it; it never ends the program.
    #[test]
    fn damaged_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let disk = Disk::open(&path, None).unwrap();
        for i in 0..40 {
            disk.put(DiskTable::Chats, &format!("chat {i}"), &vec![i; 3000]);
        }
        drop(disk);
        let whole = std::fs::read(&path).unwrap();
        let look = |bytes: &[u8]| -> Result<usize> {
            std::fs::write(&path, bytes).unwrap();
            let disk = Disk::open(&path, None)?;
            disk.put(DiskTable::Chats, "one more", b"text");
            disk.flush();
            Ok(disk.all(DiskTable::Chats)?.len())
        };
        assert_eq!(look(&whole).unwrap(), 41);
        let mut n_errors = 0;
        for n in [1, 9, 64, 320, 4095, 4096, 8192, whole.len() / 2, whole.len() - 4096, whole.len() - 1] {
            match look(&whole[..n]) {
                Ok(n_found) => assert!(n_found <= 41, "{n} bytes"),
                Err(error) => {
                    n_errors += 1;
                    assert!(format!("{error:#}").contains("store"), "{n} bytes: {error:#}");
                }
            }
        }
        assert!(n_errors >= 5, "{n_errors} of the cuts were found");
        assert!(look(b"this was never a store").is_err());
        // A bit here and there: redb checks sums where it has to repair, and not otherwise.
        let mut state = 12345_u32;
        for _ in 0..60 {
            let mut bytes = whole.clone();
            for _ in 0..4 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = state as usize % bytes.len().min(24 << 10);
                bytes[at] ^= 1 << (state >> 29);
            }
            let _ = look(&bytes);
        }
    }

    #[test]
    fn nothing_is_readable_without_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let (path, key, other) = (folder.path().join("store"), folder.path().join("key"), folder.path().join("other"));
        std::fs::write(&key, format!("{}\n", "0f".repeat(32))).unwrap();
        std::fs::write(&other, "f0".repeat(32)).unwrap();
        let secret = b"the conversation that nobody else may read";
        let disk = Disk::open(&path, Some(&key)).unwrap();
        disk.put(DiskTable::Chats, "a", secret);
        drop(disk);
        let file = std::fs::read(&path).unwrap();
        assert!(!file.windows(secret.len()).any(|window| window == secret));
        for wrong in [None, Some(other.as_path())] {
            let error = format!("{:#}", Disk::open(&path, wrong).unwrap_err());
            assert!(error.contains("another key"), "{error}");
        }
        let disk = Disk::open(&path, Some(&key)).unwrap();
        assert_eq!(disk.all(DiskTable::Chats).unwrap(), [("a".to_owned(), secret.to_vec())]);
        // A value that was moved elsewhere does not count.
        let moved = disk.encode(DiskTable::Chats, "a", secret).unwrap();
        assert!(disk.decode(DiskTable::Chats, "b", &moved).is_none());
        std::fs::write(&key, "short").unwrap();
        assert!(format!("{:#}", Disk::open(&path, Some(&key)).unwrap_err()).contains("64 hexadecimal digits"));
    }
}
