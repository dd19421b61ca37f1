//! Adapters (LoRA) as requests name them. They are opened and checked here, and read again by the engine that computes
//! with them, which may be in another process.

use std::path::Path;
use std::sync::Arc;

use batch::AdapterSource;

use crate::{AdapterLimits, ModelFiles, Result};

/// An adapter that was opened. Requests name it, and each of a batch may have its own.
///
/// ```no_run
/// use rocinante::{Adapter, Model, Options, Request};
/// # fn main() -> rocinante::Result<()> {
/// let sql = Adapter::open("sql-lora")?; // a folder as PEFT writes it, or a GGUF file
/// let model = Model::open_with("model.gguf", &Options { adapters: sql.room(), ..Options::default() })?;
/// let request = Request { adapter: Some(sql), ..Request::default() };
/// println!("{}", model.complete("SELECT", request)?.text()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Adapter {
    source: AdapterSource,
    opened: Arc<::model::AdapterFile>,
}

impl Adapter {
    /// Opens a folder as PEFT writes it, or a GGUF file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let opened = Arc::new(::model::AdapterFile::open(path.as_ref())?);
        // The process that computes with it may have another working folder.
        let path = std::path::absolute(path.as_ref()).unwrap_or_else(|_| path.as_ref().to_owned());
        Ok(Self { source: AdapterSource { id: opened.id, path }, opened })
    }

    /// Whether it changes this model.
    pub fn check(&self, files: &ModelFiles) -> Result<()> {
        let wrong = |error| ::model::Error::InAdapter { path: self.path().to_owned(), source: Box::new(error) };
        Ok(self.opened.check(files.checkpoint()).map_err(wrong)?)
    }

    /// The largest rank of its matrices, which a model must have room for.
    pub fn rank(&self) -> usize {
        self.opened.rank
    }

    /// The room that it alone needs.
    pub fn room(&self) -> AdapterLimits {
        AdapterLimits { max_loaded: 1, max_rank: self.rank(), has_experts: self.has_experts() }
    }

    /// Whether it changes experts of a mixture, which a model must have room for.
    pub fn has_experts(&self) -> bool {
        self.opened.has_experts()
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// A hash of what is in it.
    pub fn id(&self) -> u64 {
        self.source.id.0
    }

    pub(crate) fn source(&self) -> &AdapterSource {
        &self.source
    }

    /// As the files have it, to be merged into weights.
    pub fn opened(&self) -> &::model::AdapterFile {
        &self.opened
    }
}
