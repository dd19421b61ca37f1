//! A session file: the conversation, for its reader, and its blocks, for the engine. It is written as a whole and
//! read in parts.
//!
//! Little-endian: magic and version (8 bytes), length of the file (8), identity (32), length of the text (8), the text,
//! CRC-32 of all that (4); then blocks as in `record.rs`.

use std::{
    collections::HashMap,
    fs, io,
    io::{BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    Entry, Error, Identity, KeptKind, Name, PrefixKey, Result,
    record::{self, HEADER_BYTES},
};

const MAGIC: [u8; 8] = *b"ROCISES\x01";
const FIXED_BYTES: usize = 8 + 8 + 32 + 8;
/// A conversation that is longer is no conversation.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// Where a request's context is written when it ends.
#[derive(Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub struct SessionFile {
    pub path: PathBuf,
    /// For the file's reader.
    pub text: Vec<u8>,
}

/// An open session file.
#[derive(Debug)]
pub struct Session {
    path: PathBuf,
    file: fs::File,
    identity: Identity,
    text: Vec<u8>,
    blocks: HashMap<Name, (u64, u64)>,
}

impl Session {
    pub fn open(path: &Path) -> Result<Self> {
        let unreadable = |source| Error::Read { path: path.to_owned(), source };
        let mut file = fs::File::open(path).map_err(unreadable)?;
        let n_bytes = file.metadata().map_err(unreadable)?.len();
        let damaged = |why: String| Error::Damaged { path: path.to_owned(), why };
        let mut fixed = [0; FIXED_BYTES];
        if n_bytes < 8 || file.read_exact(&mut fixed[..8]).is_err() || fixed[..7] != MAGIC[..7] {
            return Err(Error::NoSession { path: path.to_owned(), why: "it does not begin like one".into() });
        }
        if fixed[7] != MAGIC[7] {
            let why = format!("its layout has number {}, and this program writes {}", fixed[7], MAGIC[7]);
            return Err(Error::NoSession { path: path.to_owned(), why });
        }
        file.read_exact(&mut fixed[8..]).map_err(|_| damaged(format!("it ends after {n_bytes} bytes")))?;
        let word = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
        let (n_whole, n_text) = (word(8), word(48));
        if n_whole != n_bytes {
            return Err(damaged(format!("it was written with {n_whole} bytes and has {n_bytes}")));
        }
        if n_text > MAX_TEXT_BYTES.min(n_bytes) {
            return Err(damaged(format!("a text of {n_text} bytes in a file of {n_bytes}")));
        }
        let mut text = vec![0; n_text as usize + 4];
        file.read_exact(&mut text).map_err(unreadable)?;
        let sum = text.split_off(n_text as usize);
        if checksum(&fixed, &text).to_le_bytes() != *sum {
            return Err(damaged("its text does not match its checksum".into()));
        }
        let identity = Identity(fixed[16..48].try_into().expect("32 bytes"));
        let blocks = find_blocks(&mut file, n_bytes).map_err(unreadable)?;
        Ok(Self { path: path.to_owned(), file, identity, text, blocks })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn text(&self) -> &[u8] {
        &self.text
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    pub fn names(&self) -> impl Iterator<Item = Name> {
        self.blocks.keys().copied()
    }

    pub fn n_bytes(&self) -> u64 {
        self.blocks.values().map(|(_, n_bytes)| n_bytes).sum()
    }

    pub fn contains(&self, name: &Name) -> bool {
        self.blocks.contains_key(name)
    }

    pub fn remove(&mut self, name: &Name) {
        self.blocks.remove(name);
    }

    /// `None` where it is not here or not whole; then it is here no more.
    pub fn read(&mut self, entry: &Entry) -> Option<Vec<u8>> {
        let &(at, n_bytes) = self.blocks.get(&entry.name)?;
        let found = self.read_at(at, n_bytes).ok();
        let whole = found.filter(|(header, bytes)| record::is_whole(&self.identity, entry, header, bytes));
        if whole.is_none() {
            self.blocks.remove(&entry.name);
        }
        whole.map(|(_, bytes)| bytes)
    }

    fn read_at(&mut self, at: u64, n_bytes: u64) -> io::Result<(Vec<u8>, Vec<u8>)> {
        self.file.seek(SeekFrom::Start(at))?;
        let mut header = vec![0; HEADER_BYTES];
        self.file.read_exact(&mut header)?;
        // The bytes were found to lie in the file.
        let mut bytes = vec![0; n_bytes as usize];
        self.file.read_exact(&mut bytes)?;
        Ok((header, bytes))
    }
}

/// Where the blocks lie, from header to header. What is wrong with one shows when it is read; a header that leads nowhere
/// ends the search.
fn find_blocks(file: &mut fs::File, n_file: u64) -> io::Result<HashMap<Name, (u64, u64)>> {
    let mut blocks = HashMap::new();
    let mut at = file.stream_position()?;
    let mut header = [0; HEADER_BYTES];
    while at + HEADER_BYTES as u64 <= n_file {
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut header)?;
        let key = PrefixKey(header[40..56].try_into().expect("16 bytes"));
        let kind = match header[HEADER_BYTES - 16] {
            0 => KeptKind::Block,
            2 => KeptKind::Window,
            _ => KeptKind::State,
        };
        let n_bytes = u64::from_le_bytes(header[HEADER_BYTES - 12..HEADER_BYTES - 4].try_into().expect("8 bytes"));
        if header[..8] != record::MAGIC || n_bytes > n_file - at - HEADER_BYTES as u64 {
            break;
        }
        blocks.insert(Name { key, kind }, (at, n_bytes));
        at += HEADER_BYTES as u64 + n_bytes;
    }
    Ok(blocks)
}

fn checksum(fixed: &[u8], text: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(fixed);
    sum.update(text);
    sum.finalize()
}

/// Writes a session file. Until [`finish`](Self::finish), what was there before stays.
pub struct SessionWriter {
    path: PathBuf,
    file: BufWriter<tempfile::NamedTempFile>,
    identity: Identity,
    text: Vec<u8>,
    n_bytes: u64,
}

impl SessionWriter {
    pub fn create(session: &SessionFile, identity: Identity) -> Result<Self> {
        let SessionFile { path, text } = session.clone();
        let failed = |source| Error::Write { path: path.clone(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        let mut writer = Self { file: BufWriter::new(file), identity, text, n_bytes: 0, path };
        // The length is known at the end.
        let head = writer.head();
        writer.write(&head)?;
        Ok(writer)
    }

    pub fn put(&mut self, entry: &Entry, bytes: &[u8]) -> Result<()> {
        let header = record::header(&self.identity, entry, bytes);
        self.write(&header)?;
        self.write(bytes)
    }

    pub fn finish(self) -> Result<()> {
        let head = self.head();
        let Self { path, mut file, .. } = self;
        let failed = |source| Error::Write { path: path.clone(), source };
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        file.write_all(&head).map_err(failed)?;
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    fn head(&self) -> Vec<u8> {
        let mut head = MAGIC.to_vec();
        head.extend(self.n_bytes.to_le_bytes());
        head.extend(self.identity.0);
        head.extend((self.text.len() as u64).to_le_bytes());
        let sum = checksum(&head, &self.text);
        head.extend(&self.text);
        head.extend(sum.to_le_bytes());
        head
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.n_bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|source| Error::Write { path: self.path.clone(), source })
    }
}
