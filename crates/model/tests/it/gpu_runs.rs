//! Which families ran on which GPU: one record per architecture in `testdata/gpu-runs`. Only a test that ran them on that
//! GPU writes it (`card::families_equal_transformers_on_a_device` with `ROCI_WRITE_DOCS=1`, which adds the families it ran
//! to those of earlier runs); later runs on the same architecture must agree with it. The page of models takes its GPU
//! columns from here.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One GPU and what it did: `yes`, or `no: ` and the op that is missing.
#[derive(Debug, PartialEq)]
pub struct Record {
    /// As `gfx1100`, without the features that may follow it.
    pub arch: String,
    /// What the GPU is, for people.
    pub device: String,
    pub families: BTreeMap<String, String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/gpu-runs")
}

/// All records, by architecture.
pub fn read_all() -> Vec<Record> {
    let Ok(entries) = std::fs::read_dir(folder()) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Record {
    let text = std::fs::read_to_string(path).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let string = |value: &Value| value.as_str().unwrap().to_owned();
    let families = value["families"].as_object().unwrap();
    Record {
        arch: path.file_stem().unwrap().to_str().unwrap().to_owned(),
        device: string(&value["device"]),
        families: families.iter().map(|(name, cell)| (name.clone(), string(cell))).collect(),
    }
}

impl Record {
    /// A record of a run on a device.
    pub fn of(device: &gpu::Device, families: BTreeMap<String, String>) -> Self {
        let properties = device.properties();
        let is_software = std::env::var_os("HSA_MODEL_LIB").is_some();
        let arch = properties.arch.split(':').next().unwrap().to_owned();
        let device = match is_software {
            true => format!("software {arch} under AMD's HIP"),
            false => properties.name.clone(),
        };
        Self { arch, device, families }
    }

    /// Adds it to the record of its architecture with `ROCI_WRITE_DOCS=1`, and fails where an older run of the same families
    /// says something else. A family that no record has is not an error: the page says `not run`.
    pub fn settle(&self) {
        let path = folder().join(format!("{}.json", self.arch));
        let mut known = if path.exists() { read(&path).families } else { BTreeMap::new() };
        if test_support::is_required("ROCI_WRITE_DOCS") {
            std::fs::create_dir_all(folder()).unwrap();
            known.extend(self.families.clone());
            let value = json!({"device": self.device, "families": known});
            std::fs::write(&path, format!("{}\n", serde_json::to_string_pretty(&value).unwrap())).unwrap();
        }
        for (name, cell) in &self.families {
            let before = known.get(name).unwrap_or(cell);
            assert_eq!(before, cell, "{name} in {}; ROCI_WRITE_DOCS=1 writes it", path.display());
        }
    }
}
