//! The one face of a weights file: metadata, and tensors by name. Where they came from (a mapped GGUF file, or tensors
//! made in memory) makes no difference to who reads them.
//!
//! Opening reads and checks the header only; tensor data is paged in as it is touched. A tensor of a type this engine
//! does not compute with is kept in a list of its own, and becomes an error only when it is asked for.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::{BlockLayout, Bytes, Error, Metadata, Result, Tensor, gguf, tensor};

#[derive(Debug)]
pub struct Checkpoint {
    path: Option<PathBuf>,
    format: String,
    file_bytes: u64,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    unsupported: Vec<Unsupported>,
}

/// A tensor that is in the file, of a type this engine does not compute with.
#[derive(Clone, Debug)]
pub struct Unsupported {
    pub name: String,
    pub ggml_id: u32,
    /// ggml's layout of that type; `None` for a type ggml did not have when this was written.
    pub layout: Option<BlockLayout>,
    /// Outermost first.
    pub shape: Vec<usize>,
    /// What the tensor takes in the file, where the layout is known.
    pub n_bytes: Option<u64>,
}

impl Unsupported {
    pub fn type_name(&self) -> &'static str {
        self.layout.map_or("unknown", |layout| layout.name)
    }
}

impl Checkpoint {
    pub fn open(path: &Path) -> Result<Self> {
        let io = |action| move |source| Error::Io { path: path.to_owned(), action, source };
        let file = File::open(path).map_err(io("open"))?;
        let kind = file.metadata().map_err(io("read the size of"))?.file_type();
        if !kind.is_file() {
            let reason =
                if kind.is_dir() { "a folder, not a file" } else { "not a regular file, so it cannot be mapped" };
            return Err(in_file(path, Error::invalid("path", reason)));
        }
        let bytes = Bytes::map(&file).map_err(io("map"))?;
        let mut checkpoint = Self::from_bytes(bytes).map_err(|error| in_file(path, error))?;
        checkpoint.path = Some(path.to_owned());
        Ok(checkpoint)
    }

    /// A whole GGUF file that is in memory already.
    pub fn from_bytes(bytes: Bytes) -> Result<Self> {
        let file_bytes = bytes.len() as u64;
        let file = gguf::parse(&bytes)?;
        let by_name = index(&file.tensors)?;
        Ok(Self {
            path: None,
            format: format!("GGUF v{}", file.version),
            file_bytes,
            metadata: file.metadata,
            tensors: file.tensors,
            by_name,
            unsupported: file.unsupported,
        })
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
        let by_name = index(&tensors)?;
        let format = "in memory".to_owned();
        Ok(Self { path: None, format, file_bytes, metadata, tensors, by_name, unsupported: Vec::new() })
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensor of that name; an error that names it where it is missing or of a type this engine does not know.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        if let Some(tensor) = self.find(name) {
            return Ok(tensor);
        }
        let error = match self.unsupported.iter().find(|tensor| tensor.name == name) {
            Some(tensor) => {
                Error::UnsupportedType { tensor: name.to_owned(), ggml_id: tensor.ggml_id, name: tensor.type_name() }
            }
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

    /// The tensors that are in the file but of a type this engine does not compute with, in file order.
    pub fn unsupported(&self) -> &[Unsupported] {
        &self.unsupported
    }

    /// `None` for a checkpoint made in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What the checkpoint is stored as, for people: `GGUF v3`.
    pub fn format(&self) -> &str {
        &self.format
    }

    /// The size of the file; of all tensors together for a checkpoint made in memory.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
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
