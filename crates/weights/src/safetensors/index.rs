//! `model.safetensors.index.json`: which file of a sharded model holds which tensor.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{Error, Result};

pub(crate) const FILE: &str = "model.safetensors.index.json";

/// The files an index names, sorted.
pub(crate) fn shards(path: &Path) -> Result<Vec<String>> {
    let text = fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), action: "read", source })?;
    named(&text).map_err(|error| Error::InFile { path: path.to_owned(), source: Box::new(error) })
}

fn named(text: &[u8]) -> Result<Vec<String>> {
    let index: Value = serde_json::from_slice(text).map_err(|error| Error::invalid("JSON", error.to_string()))?;
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(Error::invalid("weight_map", "missing, or no object"));
    };
    let mut files = BTreeSet::new();
    for (tensor, file) in map {
        let field = || format!("weight_map of tensor `{tensor}`");
        let file = file.as_str().ok_or_else(|| Error::invalid(field(), "no file name"))?;
        // A name that leads out of the folder is no shard.
        let is_plain = !file.is_empty() && !file.contains(['/', '\\', '\0']) && file != "." && file != "..";
        if !is_plain {
            return Err(Error::invalid(field(), format!("`{file}` is not a plain file name")));
        }
        files.insert(file.to_owned());
    }
    if files.is_empty() {
        return Err(Error::invalid("weight_map", "names no file"));
    }
    Ok(files.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn an_index_names_each_file_once_and_stays_in_its_folder() {
        let files = named(br#"{"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}"#);
        assert_eq!(files.unwrap(), ["1.safetensors", "2.safetensors"]);
        for bad in
            ["{", "{}", r#"{"weight_map": {}}"#, r#"{"weight_map": {"a": 1}}"#, r#"{"weight_map": {"a": "../x"}}"#]
        {
            assert!(named(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
