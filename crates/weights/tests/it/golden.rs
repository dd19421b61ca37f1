//! Files made by PyPI's `gguf`, against what that package reads out of them.

use serde_json::Value as Json;
use weights::{Bytes, Checkpoint, Dtype, Error, ggml_layout, gguf};

use crate::described::describe;
use crate::testdata;

fn golden(name: &str) -> Json {
    let text = std::fs::read_to_string(testdata(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn check(stem: &str) {
    let bytes = Bytes::from_vec(std::fs::read(testdata(&format!("{stem}.gguf"))).unwrap());
    let header = gguf::parse(&bytes).unwrap();
    assert_eq!(describe(&header), golden(&format!("{stem}.json")), "{stem}");
}

#[test]
fn all_metadata_types_of_both_versions() {
    check("metadata_v3");
    check("metadata_v2");
}

#[test]
fn arrays_of_arrays() {
    check("nested_v3");
}

#[test]
fn all_dtypes_of_both_versions() {
    check("tensors_v3");
    check("tensors_v2");
}

#[test]
fn a_mapped_file_reads_as_the_bytes_in_memory() {
    let path = testdata("tensors_v3.gguf");
    let file = std::fs::read(&path).unwrap();
    let (mapped, held) = (Checkpoint::open(&path).unwrap(), Checkpoint::from_bytes(Bytes::from_vec(file)).unwrap());
    assert_eq!(mapped.tensors().len(), 3 + 32);
    for (a, b) in mapped.tensors().iter().zip(held.tensors()) {
        assert!(a.bytes.is_mapped() && !b.bytes.is_mapped());
        assert_eq!((&a.name, &a.shape, &*a.bytes), (&b.name, &b.shape, &*b.bytes));
        a.bytes.release_pages();
        assert_eq!(*a.bytes, *b.bytes, "`{}` after its pages were released", a.name);
    }
    assert_eq!(mapped.path(), Some(path.as_path()));
    assert_eq!(mapped.file_bytes(), std::fs::metadata(&path).unwrap().len());
    assert_eq!((mapped.description(), held.path()), ("GGUF v3", None));
    let tensor = mapped.tensor("cube").unwrap();
    assert_eq!((tensor.n_rows(), tensor.n_cols(), tensor.n_elements()), (6, 5, 30));
    let missing = mapped.tensor("no.such").unwrap_err().to_string();
    assert_eq!(missing, format!("{}: tensor `no.such` is not in the file", path.display()));
}

#[test]
fn tensors_of_other_types_are_listed_and_refused_by_name() {
    let checkpoint = Checkpoint::open(&testdata("unsupported_v3.gguf")).unwrap();
    let rows = golden("unsupported_v3.json")["tensors"].as_array().unwrap().clone();
    let mut n_unsupported = 0;
    for row in &rows {
        let (name, kind) = (row["name"].as_str().unwrap(), row["type"].as_str().unwrap());
        if Dtype::from_name(kind).is_some() {
            assert_eq!(checkpoint.tensor(name).unwrap().dtype.name(), kind);
            continue;
        }
        let listed = &checkpoint.unsupported()[n_unsupported];
        n_unsupported += 1;
        assert_eq!((listed.name.as_str(), listed.layout.unwrap().name), (name, kind));
        assert_eq!(serde_json::json!(listed.shape), row["shape"]);
        assert_eq!(listed.n_bytes, row["n_bytes"].as_u64());
        assert!(checkpoint.find(name).is_none());
        let error = checkpoint.tensor(name).unwrap_err();
        assert!(matches!(error.cause(), Error::UnsupportedType { .. }));
        let text = error.to_string();
        assert!(
            text.ends_with(&format!(
                "unsupported_v3.gguf: tensor `{name}` has type {kind} (ggml type {}), which is not supported yet",
                row["ggml_id"]
            )),
            "{text}"
        );
    }
    assert_eq!((n_unsupported, checkpoint.unsupported().len(), checkpoint.tensors().len()), (1, 1, 2));
}

#[test]
fn block_layouts_are_ggmls() {
    let rows = golden("ggml_types.json");
    for row in rows.as_array().unwrap() {
        let ggml_id = row["ggml_id"].as_u64().unwrap() as u32;
        // The package says 40 bytes here; the struct in ggml-common.h has two f16 and 32 bytes.
        let block_bytes = if row["name"] == "Q8_1" { 36 } else { row["block_bytes"].as_u64().unwrap() };
        let layout = ggml_layout(ggml_id).unwrap();
        assert_eq!(layout.name, row["name"]);
        assert_eq!(
            (layout.block_len as u64, layout.block_bytes as u64),
            (row["block_len"].as_u64().unwrap(), block_bytes)
        );
    }
    for dtype in Dtype::ALL {
        let layout = ggml_layout(dtype.ggml_id()).unwrap();
        let ours = (dtype.name(), dtype.block_len(), dtype.block_bytes());
        assert_eq!(ours, (layout.name, layout.block_len, layout.block_bytes));
        assert_eq!(Dtype::from_ggml(dtype.ggml_id()), Some(dtype));
        assert_eq!(Dtype::from_name(&dtype.to_string().to_lowercase()), Some(dtype));
        assert_eq!(dtype.row_bytes(3 * dtype.block_len()), Some(3 * dtype.block_bytes()));
        assert_eq!(dtype.row_bytes(3 * dtype.block_len() + 1).is_some(), dtype.block_len() == 1);
    }
    assert_eq!((ggml_layout(4), ggml_layout(u32::MAX), Dtype::from_name("Q4_K_M")), (None, None, None));
}
