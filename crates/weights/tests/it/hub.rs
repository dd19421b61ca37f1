//! Model folders, split files and old versions, written by other people's programs (testdata/make_hub.py).

use std::path::Path;

use serde_json::{Value, json};
use weights::{Bytes, Checkpoint, Dtype, Error, FileFormat, HubFiles};

use crate::{scratch, testdata};

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
}

#[test]
fn a_folder_with_one_file() {
    for path in [testdata("hub_one"), testdata("hub_one/model.safetensors")] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!((checkpoint.format(), checkpoint.description()), (FileFormat::Safetensors, "safetensors"));
        let hub = checkpoint.hub().unwrap();
        assert_eq!(hub.config["hidden_size"], 5);
        assert_eq!(hub.generation_config, Some(json!({"eos_token_id": [1, 2]})));
        assert_eq!(hub.chat_template.as_deref(), Some("from the tokenizer"));
        assert_eq!(hub.tokenizer_json.as_deref(), Some(b"{}".as_slice()));
        assert_eq!(hub.special_tokens_map, None);
        let tensor = |name| checkpoint.tensor(name).unwrap();
        let embedding = tensor("model.embed_tokens.weight");
        assert_eq!((embedding.dtype, embedding.shape.as_slice()), (Dtype::F32, [7, 5].as_slice()));
        assert_eq!(
            (tensor("half.bf16").dtype, &*tensor("half.bf16").bytes),
            (Dtype::BF16, &[128, 63, 0, 192, 0, 63][..])
        );
        assert_eq!((tensor("model.norm.weight").dtype, tensor("positions").dtype), (Dtype::F16, Dtype::I64));
        assert_eq!((tensor("scalar").shape.len(), f32s(&tensor("scalar").bytes)), (0, vec![2.5]));
        assert_eq!(tensor("empty").bytes.len(), 0);
        let refused = checkpoint.tensor("mask").unwrap_err();
        assert!(refused.to_string().ends_with("tensor `mask` has type U8, which is not supported yet"), "{refused}");
    }
}

#[test]
fn a_folder_with_shards() {
    let checkpoint = Checkpoint::open(&testdata("hub_many")).unwrap();
    assert_eq!(checkpoint.description(), "safetensors, 2 files");
    for name in ["a", "b", "c"] {
        assert_eq!(f32s(&checkpoint.tensor(name).unwrap().bytes), [f32::from(name.as_bytes()[0]); 4]);
    }
    let hub = checkpoint.hub().unwrap();
    assert_eq!((&hub.config["model_type"], hub.chat_template.as_deref()), (&json!("llama"), Some("from the file\n")));
}

fn copy_but(from: &Path, to: &Path, without: &str) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != without && entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn missing_files_are_named() {
    let folder = scratch("missing_files");
    let open = |path: &Path| Checkpoint::open(path).unwrap_err().to_string();
    assert!(open(&folder).contains("neither .safetensors nor .gguf"), "{}", open(&folder));
    copy_but(&testdata("hub_many"), &folder, "model-00002-of-00002.safetensors");
    assert!(open(&folder).contains("model-00002-of-00002.safetensors` of this model is missing"), "{}", open(&folder));
    let folder = scratch("missing_config");
    copy_but(&testdata("hub_one"), &folder, "config.json");
    assert!(Checkpoint::open(&folder).unwrap().hub().is_none());
    std::fs::write(folder.join("config.json"), "{").unwrap();
    assert!(open(&folder).contains("config.json: JSON: EOF"), "{}", open(&folder));
    let folder = scratch("missing_part");
    for part in ["parts-00001-of-00003.gguf", "parts-00003-of-00003.gguf"] {
        std::fs::copy(testdata(part), folder.join(part)).unwrap();
    }
    let first = folder.join("parts-00001-of-00003.gguf");
    assert!(open(&first).contains("parts-00002-of-00003.gguf` of this model is missing"), "{}", open(&first));
    std::fs::copy(testdata("parts-00001-of-00003.gguf"), folder.join("parts-00002-of-00003.gguf")).unwrap();
    assert!(open(&first).contains("says it is part 0 of 3, but stands at part 1"), "{}", open(&first));
    std::fs::rename(&first, folder.join("renamed.gguf")).unwrap();
    let renamed = open(&folder.join("renamed.gguf"));
    assert!(renamed.contains("its name does not end in -00001-of-00003.gguf"), "{renamed}");
}

#[test]
fn a_split_model_opens_by_any_part() {
    for part in ["parts-00001-of-00003.gguf", "parts-00003-of-00003.gguf"] {
        let checkpoint = Checkpoint::open(&testdata(part)).unwrap();
        assert_eq!((checkpoint.description(), checkpoint.tensors().len()), ("GGUF v3, 3 files", 5));
        assert_eq!(checkpoint.metadata().u32("llama.block_count").unwrap(), Some(1));
        for i in 0..5 {
            assert_eq!(f32s(&checkpoint.tensor(&format!("tensor.{i}")).unwrap().bytes), [i as f32; 6]);
        }
    }
}

#[test]
fn a_sharded_model_opens_by_any_shard() {
    let whole = Checkpoint::open(&testdata("hub_many")).unwrap();
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        let checkpoint = Checkpoint::open(&testdata("hub_many").join(shard)).unwrap();
        assert_eq!(checkpoint.tensors().len(), whole.tensors().len(), "{shard}");
        assert_eq!(checkpoint.hub().unwrap().config, whole.hub().unwrap().config);
    }
    // One that the index does not name is a file by itself.
    let folder = scratch("loose_shard");
    copy_but(&testdata("hub_many"), &folder, "");
    std::fs::copy(folder.join("model-00001-of-00002.safetensors"), folder.join("loose.safetensors")).unwrap();
    assert!(Checkpoint::open(&folder.join("loose.safetensors")).unwrap().tensors().len() < whole.tensors().len());
}

#[test]
fn version_1_reads() {
    let checkpoint = Checkpoint::open(&testdata("old_v1.gguf")).unwrap();
    assert_eq!(checkpoint.description(), "GGUF v1");
    let metadata = checkpoint.metadata();
    assert_eq!(metadata.string("general.name").unwrap(), Some("old"));
    assert_eq!(metadata.u32("llama.block_count").unwrap(), Some(3));
    assert_eq!((metadata.f32("a.float").unwrap(), metadata.bool("a.bool").unwrap()), (Some(0.5), Some(true)));
    assert_eq!(metadata.strings("a.strings").unwrap().unwrap(), ["one", "", "three"]);
    assert_eq!(metadata.i32s("a.numbers").unwrap().unwrap().as_ref(), [1, -2, 3]);
    let matrix = checkpoint.tensor("matrix").unwrap();
    assert_eq!(
        (matrix.shape.as_slice(), f32s(&matrix.bytes)),
        ([3, 4].as_slice(), (0..12).map(|i| i as f32).collect())
    );
    assert_eq!(checkpoint.tensor("halves").unwrap().dtype, Dtype::F16);
}

/// A safetensors file with a header of one's own.
fn safetensors(header: &Value, n_data: usize) -> Bytes {
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 0);
    Bytes::from_vec(bytes)
}

#[test]
fn lying_safetensors_are_refused() {
    let info =
        |dtype: &str, shape: Value, offsets: [u64; 2]| json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
    let cases = [
        ("cut", json!({"a": info("F32", json!([4]), [0, 16])}), 12),
        ("longer than said", json!({"a": info("F32", json!([4]), [0, 16])}), 20),
        ("wrong size", json!({"a": info("F32", json!([4]), [0, 12])}), 12),
        ("overflow", json!({"a": info("F32", json!([1_u64 << 33, 1_u64 << 33]), [0, 16])}), 16),
        ("backwards", json!({"a": info("F32", json!([4]), [16, 0])}), 16),
        ("hole", json!({"a": info("F32", json!([1]), [0, 4]), "b": info("F32", json!([1]), [8, 12])}), 12),
        ("overlap", json!({"a": info("F32", json!([2]), [0, 8]), "b": info("F32", json!([2]), [4, 12])}), 12),
        ("huge offsets", json!({"a": info("U8", json!([1]), [u64::MAX - 1, u64::MAX])}), 1),
        ("no type of the format", json!({"a": info("F5", json!([4]), [0, 16])}), 16),
    ];
    for (what, header, n_data) in cases {
        let error = Checkpoint::from_bytes(safetensors(&header, n_data)).expect_err(what);
        assert!(matches!(error, Error::Invalid { .. }), "{what}: {error}");
    }
    let honest = json!({"a": info("F32", json!([4]), [0, 16])});
    let hub = HubFiles::of_config(json!({"model_type": "llama"}));
    assert_eq!(
        Checkpoint::from_hub(safetensors(&honest, 16), hub).unwrap().hub().unwrap().config["model_type"],
        "llama"
    );
}
