use std::{io, path::PathBuf};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with a folder or a session file. A single broken block is no error: it is not there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot keep contexts in {}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    /// Two processes would delete each other's files.
    #[error("another process keeps contexts of this model in {}", path.display())]
    Locked { path: PathBuf },
    #[error("cannot read the session {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write the session {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} is not a session file: {why}", path.display())]
    NoSession { path: PathBuf, why: String },
    /// It ends too early, or something in it was changed.
    #[error("the session {} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
}
