//! The writer: byte for byte what PyPI's `gguf` writes, read back by that package, and never half a file.

use std::path::Path;
use std::process::Command;

use serde_json::Value as Json;
use weights::gguf::{self, TensorInfo};
use weights::{Array, Bytes, Checkpoint, Dtype, GgufWriter, Metadata, Value};

use crate::described::describe;
use crate::{scratch, testdata};

fn names_in(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn copies_of_golden_files_are_the_same_bytes() {
    let folder = scratch("copies_of_golden_files_are_the_same_bytes");
    for name in ["metadata_v3.gguf", "tensors_v3.gguf"] {
        let copy = folder.join(name);
        GgufWriter::copy(&copy, &Checkpoint::open(&testdata(name)).unwrap()).unwrap();
        assert!(std::fs::read(copy).unwrap() == std::fs::read(testdata(name)).unwrap(), "{name} differs");
    }
}

/// One tensor of each type in two rows, with bytes that tell them apart, and some shapes that are easy to get wrong.
fn samples() -> Vec<(String, Dtype, Vec<usize>, Bytes)> {
    let mut samples = Vec::new();
    for dtype in Dtype::ALL {
        let (n_cols, n_bytes) = (3 * dtype.block_len(), 2 * 3 * dtype.block_bytes());
        let bytes = (0..n_bytes).map(|i| (i * 7 + dtype.ggml_id() as usize) as u8).collect();
        samples.push((format!("blk.0.{dtype}"), dtype, vec![2, n_cols], Bytes::from_vec(bytes)));
    }
    samples.push(("four".to_owned(), Dtype::F16, vec![2, 1, 3, 5], Bytes::from_vec(vec![1; 60])));
    samples.push(("n".repeat(63), Dtype::F32, vec![1], Bytes::from_vec(vec![2; 4])));
    samples
}

fn rich_metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("general.alignment", 128u32);
    for (key, value) in Checkpoint::open(&testdata("metadata_v3.gguf")).unwrap().metadata().iter() {
        metadata.set(key, value.clone());
    }
    metadata.set("empty", Vec::<String>::new());
    metadata
}

#[test]
fn pypi_gguf_reads_what_we_write() {
    let Some(python) = test_support::fetched::python(&["gguf"]) else { return };
    let path = scratch("pypi_gguf_reads_what_we_write").join("ours.gguf");
    let (metadata, mut tensors) = (rich_metadata(), samples());
    // The newest type, which that package does not know yet.
    tensors.retain(|(_, dtype, ..)| *dtype != Dtype::Q2_0);
    gguf::write(&path, &metadata, tensors.clone()).unwrap();

    let output = Command::new(python).arg(testdata("make.py")).arg("--read").arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: Json = serde_json::from_slice(&output.stdout).unwrap();
    let ours = describe(&gguf::parse(&Bytes::from_vec(std::fs::read(&path).unwrap())).unwrap());
    assert_eq!(ours, theirs);
    // Both readers could agree on a file that is not what we meant to write.
    assert_eq!(theirs["alignment"], 128);
    assert_eq!(theirs["tensors"].as_array().unwrap().len(), tensors.len());
    for ((name, dtype, shape, bytes), row) in tensors.iter().zip(theirs["tensors"].as_array().unwrap()) {
        let meant = (name.as_str(), dtype.name(), serde_json::json!(shape), bytes.len() as u64);
        let read = (row["name"].as_str().unwrap(), row["type"].as_str().unwrap(), row["shape"].clone());
        assert_eq!(meant, (read.0, read.1, read.2, row["n_bytes"].as_u64().unwrap()));
    }
}

#[test]
fn what_is_written_reads_back() {
    let path = scratch("what_is_written_reads_back").join("ours.gguf");
    let (metadata, tensors) = (rich_metadata(), samples());
    gguf::write(&path, &metadata, tensors.clone()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let pairs = |metadata: &Metadata| metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect::<Vec<_>>();
    assert_eq!(pairs(checkpoint.metadata()), pairs(&metadata));
    let read: Vec<_> = checkpoint.tensors().iter().map(|t| (&t.name, t.dtype, &t.shape, &*t.bytes)).collect();
    let written: Vec<_> = tensors.iter().map(|(name, dtype, shape, bytes)| (name, *dtype, shape, &**bytes)).collect();
    assert_eq!(read, written);
    assert_eq!(checkpoint.file_bytes() % 128, 0, "llama.cpp wants padding after the last tensor");
    assert_eq!(names_in(path.parent().unwrap()), ["ours.gguf"]);
}

fn info(name: &str, n_values: usize) -> TensorInfo {
    TensorInfo { name: name.to_owned(), dtype: Dtype::F32, shape: vec![n_values] }
}

#[test]
fn chunks_make_the_same_file() {
    let folder = scratch("chunks_make_the_same_file");
    let (whole, parts) = (folder.join("whole.gguf"), folder.join("parts.gguf"));
    let infos = [info("a", 3), info("none", 0), info("b", 5), info("none too", 0)];
    let mut writer = GgufWriter::create(&whole, &Metadata::new(), &infos).unwrap();
    writer.tensor(&[1; 12]).unwrap();
    writer.tensor(&[2; 20]).unwrap();
    writer.finish().unwrap();
    let mut writer = GgufWriter::create(&parts, &Metadata::new(), &infos).unwrap();
    for chunk in [&[1; 5][..], &[], &[1; 7], &[2; 19], &[2; 1]] {
        writer.chunk(chunk).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&parts).unwrap());
    assert_eq!(Checkpoint::open(&parts).unwrap().tensor("b").unwrap().bytes[..], [2; 20]);
}

#[test]
fn an_unfinished_file_never_appears() {
    let folder = scratch("an_unfinished_file_never_appears");
    let path = folder.join("model.gguf");
    std::fs::write(&path, "the old one").unwrap();
    let create = || GgufWriter::create(&path, &Metadata::new(), &[info("a", 2), info("b", 1)]).unwrap();

    let mut writer = create();
    writer.tensor(&[0; 8]).unwrap();
    assert_eq!(names_in(&folder).len(), 2, "the file grows beside its target");
    let error = writer.finish().unwrap_err().to_string();
    assert_eq!(error, "tensor `b`: needs 4 bytes, but has 0");
    drop(create());
    assert_eq!(names_in(&folder), ["model.gguf"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "the old one");

    let mut writer = create();
    writer.tensor(&[0; 8]).unwrap();
    writer.tensor(&[0; 4]).unwrap();
    writer.finish().unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().tensors().len(), 2);
    assert_eq!(names_in(&folder), ["model.gguf"]);
}

#[test]
fn data_that_does_not_fit_is_refused() {
    let path = scratch("data_that_does_not_fit_is_refused").join("model.gguf");
    let mut writer = GgufWriter::create(&path, &Metadata::new(), &[info("a", 2)]).unwrap();
    let text = |error: weights::Error| error.to_string();
    assert_eq!(text(writer.tensor(&[0; 7]).unwrap_err()), "tensor `a`: needs 8 bytes, but has 7");
    assert_eq!(text(writer.chunk(&[0; 9]).unwrap_err()), "tensor `a`: needs 8 bytes, but has 9");
    writer.tensor(&[0; 8]).unwrap();
    let error = text(writer.tensor(&[0; 1]).unwrap_err());
    assert_eq!(error, format!("writing {}: 1 bytes come after the last of 1 tensors", path.display()));
    writer.finish().unwrap();
}

#[test]
fn what_llama_cpp_would_not_read_is_not_written() {
    let folder = scratch("what_llama_cpp_would_not_read_is_not_written");
    let path = folder.join("model.gguf");
    let check = |metadata: &Metadata, tensors: &[TensorInfo], expected: &str| {
        let error = GgufWriter::create(&path, metadata, tensors).unwrap_err().to_string();
        assert_eq!(error.strip_prefix(&format!("writing {}: ", path.display())).unwrap_or(&error), expected);
    };
    let with = |key: &str, value: Value| [(key, value)].into_iter().collect::<Metadata>();
    check(&with("", Value::U8(1)), &[], "a metadata key is empty");
    check(&with("k", Value::Array(Array::Array(vec![]))), &[], "metadata key `k`: llama.cpp reads no arrays of arrays");
    let alignment = "general.alignment";
    check(&with(alignment, Value::U32(24)), &[], "metadata key `general.alignment`: 24 is not a power of two");
    let none = Metadata::new();
    check(&none, &[info("a", 1), info("a", 1)], "tensor `a`: the name stands twice");
    let long = "x".repeat(64);
    let expected = format!("tensor `{long}`: the name has 64 bytes, at most 63 are possible");
    check(&none, &[info(&long, 1)], &expected);
    let shaped = |dtype, shape: &[usize]| TensorInfo { name: "t".to_owned(), dtype, shape: shape.to_vec() };
    check(&none, &[shaped(Dtype::F32, &[1; 5])], "tensor `t`: 5 dimensions, at most 4 are possible");
    check(
        &none,
        &[shaped(Dtype::Q6K, &[2, 128])],
        "tensor `t`: rows of 128 are not a whole number of Q6_K blocks of 256",
    );
    let huge = usize::MAX / 8 * 2 + 1;
    check(&none, &[shaped(Dtype::F32, &[2, huge])], &format!("tensor `t`: shape [2, {huge}] overflows"));
    assert!(names_in(&folder).is_empty());

    let unsupported = Checkpoint::open(&testdata("unsupported_v3.gguf")).unwrap();
    assert!(GgufWriter::copy(&path, &unsupported).unwrap_err().to_string().contains("Q8_K (ggml type 15)"));
}

#[test]
fn a_target_that_cannot_be_written_is_an_error_with_its_path() {
    let folder = scratch("a_target_that_cannot_be_written_is_an_error_with_its_path");
    let path = folder.join("no such folder").join("model.gguf");
    let error = GgufWriter::create(&path, &Metadata::new(), &[]).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: cannot be written: ", path.display())), "{error}");
    assert!(GgufWriter::create(Path::new("/"), &Metadata::new(), &[]).is_err());
}
