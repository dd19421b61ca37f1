//! The one interface to a model's weights: metadata, and tensors by name. Where they came from (GGUF in one file or
//! several, safetensors, tensors made in memory) makes no difference to the reader, except that names and conventions
//! are those of the format.
//!
//! Opening reads and checks the header only; tensor data is paged in as it is touched. A tensor of a type this engine
//! does not compute with is kept in a list of its own, and becomes an error only when it is asked for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::{BlockLayout, Bytes, Error, HubFiles, Metadata, Result, Tensor, gguf, safetensors, source, tensor};

/// A model's metadata and tensors.
#[derive(Debug)]
pub struct Checkpoint {
    path: Option<PathBuf>,
    format: FileFormat,
    description: String,
    file_bytes: u64,
    metadata: Metadata,
    hub: Option<HubFiles>,
    notes: Vec<String>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    unsupported: Vec<Unsupported>,
}

/// Whose names and conventions the tensors follow.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FileFormat {
    /// Also of checkpoints made in memory.
    Gguf,
    /// As Hugging Face's models are stored: what the metadata says in GGUF is in `hub`.
    Safetensors,
}

/// What a reader found, before it becomes a checkpoint.
#[derive(Debug)]
pub(crate) struct ReadFiles {
    pub format: FileFormat,
    pub description: String,
    pub file_bytes: u64,
    pub metadata: Metadata,
    pub hub: Option<HubFiles>,
    pub notes: Vec<String>,
    pub tensors: Vec<Tensor>,
    pub unsupported: Vec<Unsupported>,
}

/// A tensor that is in the file, of a type this engine does not compute with.
#[derive(Clone, Debug)]
pub struct Unsupported {
    /// The tensor's name.
    pub name: String,
    /// ggml's number of the type; `None` in safetensors.
    pub ggml_id: Option<u32>,
    /// As its format calls the type.
    pub type_name: String,
    /// ggml's layout of that type; `None` for a type ggml did not have when this was written.
    pub layout: Option<BlockLayout>,
    /// Outermost first.
    pub shape: Vec<usize>,
    /// What the tensor takes in the file, where the layout is known.
    pub n_bytes: Option<u64>,
}

impl Checkpoint {
    /// Opens a GGUF file (any part of a split one), a safetensors file, or a folder that holds a model.
    pub fn open(path: &Path) -> Result<Self> {
        let mut checkpoint = Self::assemble(source::find(path)?).map_err(|error| in_file(path, error))?;
        checkpoint.path = Some(path.to_owned());
        Ok(checkpoint)
    }

    /// A whole GGUF or safetensors file that is in memory already. Of safetensors it knows no configuration.
    pub fn from_bytes(bytes: Bytes) -> Result<Self> {
        Self::assemble(match safetensors::is_safetensors(&bytes) {
            true => safetensors::read(&[bytes], None)?,
            false => gguf::read(&[bytes])?,
        })
    }

    /// A safetensors file in memory with the files that lie beside it.
    pub fn from_hub(bytes: Bytes, hub: HubFiles) -> Result<Self> {
        Self::assemble(safetensors::read(&[bytes], Some(hub))?)
    }

    fn assemble(found: ReadFiles) -> Result<Self> {
        let ReadFiles { format, description, file_bytes, metadata, hub, notes, tensors, unsupported } = found;
        let by_name = index(&tensors)?;
        Ok(Self { path: None, format, description, file_bytes, metadata, hub, notes, tensors, by_name, unsupported })
    }

    /// A checkpoint made in memory. Refuses two tensors of one name, and bytes that do not match type and shape.
    pub fn from_parts(metadata: Metadata, tensors: Vec<Tensor>) -> Result<Self> {
        let mut file_bytes = 0u64;
        for tensor in &tensors {
            let needs = tensor::packed_bytes(&tensor.name, tensor.dtype, &tensor.shape)?;
            if needs != tensor.bytes.len() {
                let (needs, has) = (needs as u64, tensor.bytes.len() as u64);
                return Err(Error::TensorBytes { tensor: tensor.name.clone(), needs, has });
            }
            file_bytes += needs as u64;
        }
        Self::assemble(ReadFiles {
            format: FileFormat::Gguf,
            description: "in memory".to_owned(),
            file_bytes,
            metadata,
            hub: None,
            notes: Vec::new(),
            tensors,
            unsupported: Vec::new(),
        })
    }

    /// The same checkpoint with other tensors, as after quantising them.
    pub fn with_tensors(&self, tensors: Vec<Tensor>) -> Result<Self> {
        let made = Self::from_parts(self.metadata.clone(), tensors)?;
        let (path, description) = (self.path.clone(), format!("{}, quantised", self.description));
        let (format, hub, notes) = (self.format, self.hub.clone(), self.notes.clone());
        Ok(Self { path, format, description, hub, notes, ..made })
    }

    /// The keys of a GGUF file; empty for safetensors.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensor of that name; an error that names it where it is missing or of a type this engine does not know.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        if let Some(tensor) = self.find(name) {
            return Ok(tensor);
        }
        let error = match self.unsupported.iter().find(|tensor| tensor.name == name) {
            Some(tensor) => tensor.error(),
            None => Error::MissingTensor { tensor: name.to_owned() },
        };
        Err(match &self.path {
            Some(path) => in_file(path, error),
            None => error,
        })
    }

    /// `None` also for a tensor of an unsupported type: ask with `tensor` where the difference matters.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|&idx| &self.tensors[idx])
    }

    /// In file order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// As [`tensors`](Self::tensors), for whoever lets go of each when it has served.
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.tensors
    }

    /// The tensors that are in the file but of a type this engine does not compute with, in file order.
    pub fn unsupported(&self) -> &[Unsupported] {
        &self.unsupported
    }

    /// `None` for a checkpoint made in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whose names and conventions the tensors follow.
    pub fn format(&self) -> FileFormat {
        self.format
    }

    /// What the checkpoint is stored as, for people: `GGUF v3`.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The files that lie beside safetensors: configuration and tokenizer. `None` for GGUF, and where there is no
    /// `config.json`.
    pub fn hub(&self) -> Option<&HubFiles> {
        self.hub.as_ref()
    }

    /// What was turned into another type on the way, for people.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The size of the file or files; of all tensors together for a checkpoint made in memory.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }
}

impl Unsupported {
    pub(crate) fn error(&self) -> Error {
        Error::UnsupportedType { tensor: self.name.clone(), name: self.type_name.clone() }
    }
}

fn in_file(path: &Path, error: Error) -> Error {
    Error::InFile { path: path.to_owned(), source: Box::new(error) }
}

fn index(tensors: &[Tensor]) -> Result<HashMap<String, usize>> {
    let mut by_name = HashMap::with_capacity(tensors.len());
    for (idx, tensor) in tensors.iter().enumerate() {
        if let Some(first) = by_name.insert(tensor.name.clone(), idx) {
            let reason = format!("the name stands twice, at tensors {first} and {idx}");
            return Err(Error::invalid(format_args!("tensor `{}`", tensor.name), reason));
        }
    }
    Ok(by_name)
}
