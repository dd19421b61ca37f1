//! A model's files, opened: a GGUF file (or several), or a folder of safetensors with the small files beside them.
//! Answers every question that does not need the weights in memory, alike for both formats, and loads them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ::model::{Config, Model as LoadedModel};
use text::Tokenizer;
use weights::Checkpoint;

use crate::device::{ChosenDevice, Device};
use crate::load_plan::{self, LoadPlan};
use crate::options::Options;
use crate::quantize::convert;
use crate::template::Template;
use crate::{Error, Result, files, human_bytes};

/// A model that is open and not yet in memory.
#[derive(Debug)]
pub struct ModelFiles {
    path: PathBuf,
    checkpoint: Checkpoint,
    notes: Vec<String>,
}

/// What a model is, for people and for clients that list models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// The family, as GGUF names it: `llama`, `qwen3`.
    pub architecture: String,
    /// The type that most of the weights have.
    pub quantization: String,
    /// Numbers in all tensors.
    pub n_params: u64,
    /// Bytes of all files together.
    pub file_bytes: u64,
}

impl ModelFiles {
    /// Maps the files and reads their headers.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Ok(Self::of(Checkpoint::open(path)?, path.to_owned()))
    }

    /// As [`open`](Self::open), with the weights made smaller where the options ask for it.
    pub fn open_with(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let mut files = Self::open(path)?;
        if let Some(mix) = options.quantize {
            let start = Instant::now();
            let smaller =
                convert::checkpoint(&files.checkpoint, &mix.plan(&files.checkpoint, false), options.threads())?;
            let (from, to) = (human_bytes(files.checkpoint.file_bytes()), human_bytes(smaller.file_bytes()));
            let seconds = start.elapsed().as_secs_f64();
            files.notes.push(format!("weights as {}: {from} -> {to} in {seconds:.1} s", mix.name));
            files.checkpoint = smaller;
        }
        Ok(files)
    }

    /// From a checkpoint that is already open, or was made in memory.
    pub fn of(checkpoint: Checkpoint, path: PathBuf) -> Self {
        let notes = checkpoint.notes().to_vec();
        Self { path, checkpoint, notes }
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Metadata and tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Gives the checkpoint away.
    pub fn into_checkpoint(self) -> Checkpoint {
        self.checkpoint
    }

    /// What was converted on the way, for people.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Sizes and family, checked.
    pub fn config(&self) -> Result<Config> {
        Ok(Config::from_checkpoint(&self.checkpoint)?)
    }

    /// The tokenizer that the files describe.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        files::tokenizer(&self.checkpoint)
    }

    /// The chat template that the files hold, or what stands in for it.
    pub fn template(&self, tokenizer: &Tokenizer) -> Result<Template> {
        Template::new(files::template_source(&self.checkpoint)?, tokenizer)
    }

    /// What a client that lists models is told.
    pub fn info(&self) -> Result<ModelInfo> {
        let tensors = self.checkpoint.tensors();
        let mut sizes = BTreeMap::<&str, usize>::new();
        for tensor in tensors {
            *sizes.entry(tensor.dtype.name()).or_default() += tensor.bytes.len();
        }
        let commonest = sizes.into_iter().max_by_key(|&(_, size)| size);
        Ok(ModelInfo {
            architecture: self.config()?.family.name.to_owned(),
            quantization: commonest.map_or_else(String::new, |(name, _)| name.to_owned()),
            n_params: tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum(),
            file_bytes: self.checkpoint.file_bytes(),
        })
    }

    /// Decides the device, the context, the steps and the memory; touches no weights.
    pub fn plan(&self, options: &Options) -> Result<LoadPlan> {
        self.plan_on(options, self.choose_device(options.device)?)
    }

    /// As [`Device::choose`], for this model: `auto` takes the CPU for one that GPUs cannot compute yet.
    pub fn choose_device(&self, device: Device) -> Result<ChosenDevice> {
        let chosen = device.choose();
        if device != Device::Auto || chosen.device() == Device::Cpu {
            return Ok(chosen);
        }
        let missing = ::model::missing_on_device(&self.checkpoint, &self.config()?)?;
        Ok(match missing {
            Some(what) => chosen.on_the_cpu(what),
            None => chosen,
        })
    }

    /// As [`plan`](Self::plan), for a device that was chosen before.
    pub fn plan_on(&self, options: &Options, device: ChosenDevice) -> Result<LoadPlan> {
        self.plan_beside(options, device, 0)
    }

    /// As [`plan_on`](Self::plan_on), beside something that will take so many bytes of what is still free.
    pub(crate) fn plan_beside(&self, options: &Options, device: ChosenDevice, n_bytes: u64) -> Result<LoadPlan> {
        load_plan::plan(&self.checkpoint, options, device, n_bytes)
    }

    /// Loads the weights as planned.
    pub fn load(&self, plan: &LoadPlan) -> Result<LoadedModel> {
        Ok(LoadedModel::load(&self.checkpoint, plan.options)?)
    }

    /// Loads the weights and, meanwhile, builds the tokenizer: the vocabulary takes about as long to read as a small
    /// model's weights.
    pub fn load_with_tokenizer(&self, plan: &LoadPlan) -> Result<(LoadedModel, Tokenizer)> {
        std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| self.tokenizer());
            let model = self.load(plan);
            let broken = |_| Err(Error::NoVocabulary("reading it failed"));
            let tokenizer = tokenizer.join().unwrap_or_else(broken)?;
            Ok((model?, tokenizer))
        })
    }
}

/// Bytes that a model takes on disk: of the file, of all parts of a split one, or of the weights in a folder. Opens
/// nothing; 0 where there is nothing.
pub fn stored_bytes(path: &Path) -> u64 {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let is_weights = |path: &Path| path.extension().is_some_and(|ext| ext == "safetensors" || ext == "gguf");
    let list = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.collect::<Vec<PathBuf>>()
    };
    if path.is_dir() {
        return list(path).iter().filter(|path| is_weights(path)).map(|path| size(path)).sum();
    }
    // `NAME-00001-of-00003.gguf`
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let split =
        stem.rsplit_once("-of-").and_then(|(front, n)| Some((front.rsplit_once('-')?.0.to_owned(), n.to_owned())));
    let Some((name, n)) = split else { return size(path) };
    let is_part = |other: &Path| {
        let other = other.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        other
            .strip_prefix(name.as_str())
            .is_some_and(|rest| rest.starts_with('-') && rest.ends_with(&format!("-of-{n}")))
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    list(folder).iter().filter(|path| is_weights(path) && is_part(path)).map(|path| size(path)).sum()
}

/// How copying the weights to a GPU went, against what its bus does; `None` on a CPU. Takes a measurement.
pub fn describe_loading(model: &LoadedModel) -> Result<Option<String>> {
    let (Some(loaded), Some(bus)) = (model.loaded(), model.measure_bus()?) else { return Ok(None) };
    let rate = loaded.n_bytes as f64 / loaded.time.as_secs_f64().max(1e-9);
    Ok(Some(format!(
        "weights of {} loaded in {:.2} s: {}/s, {:.0} % of the {}/s that the bus takes from pinned memory",
        human_bytes(loaded.n_bytes as u64),
        loaded.time.as_secs_f64(),
        human_bytes(rate as u64),
        100.0 * rate / bus,
        human_bytes(bus as u64),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_as_large_as_its_weights_and_a_split_file_as_its_parts() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, n: usize| std::fs::write(at(name), vec![0; n]).unwrap();
        write("config.json", 100);
        write("model-00001-of-00002.safetensors", 30);
        write("model-00002-of-00002.safetensors", 12);
        assert_eq!(stored_bytes(folder.path()), 42);
        write("big-00001-of-00002.gguf", 5);
        write("big-00002-of-00002.gguf", 6);
        write("big-00001-of-00003.gguf", 7);
        write("whole.gguf", 9);
        assert_eq!(stored_bytes(&at("big-00001-of-00002.gguf")), 11);
        assert_eq!((stored_bytes(&at("whole.gguf")), stored_bytes(&at("none.gguf"))), (9, 0));
    }
}
