//! A file as json, in the words of `testdata/make.py`, so that what we read can be compared with what others read.

use std::fmt::Write;

use serde_json::{Value as Json, json};
use weights::gguf::Header;
use weights::{Array, Metadata, Value};

/// Everything but the bytes of tensors we do not support, which we do not hand out.
pub fn describe(header: &Header) -> Json {
    json!({
        "version": header.version,
        "alignment": header.alignment,
        "data_offset": header.data_offset,
        "metadata": metadata(&header.metadata),
        "tensors": header.tensors.iter().map(|t| json!({
            "name": t.name, "type": t.dtype.name(), "ggml_id": t.dtype.ggml_id(), "shape": t.shape,
            "n_bytes": t.bytes.len(), "hex": hex(&t.bytes),
        })).collect::<Vec<_>>(),
    })
}

fn metadata(metadata: &Metadata) -> Json {
    metadata
        .iter()
        .map(|(key, value)| {
            let mut row = value_row(value);
            row["key"] = key.into();
            row
        })
        .collect()
}

fn value_row(value: &Value) -> Json {
    let plain = match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => json!(v.to_bits()),
        Value::F64(v) => json!(v.to_bits()),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(v) => return array_row(v),
    };
    json!({ "type": value.type_name(), "value": plain })
}

fn array_row(array: &Array) -> Json {
    let values = match array {
        Array::U8(v) => json!(v),
        Array::I8(v) => json!(v),
        Array::U16(v) => json!(v),
        Array::I16(v) => json!(v),
        Array::U32(v) => json!(v),
        Array::I32(v) => json!(v),
        Array::U64(v) => json!(v),
        Array::I64(v) => json!(v),
        Array::F32(v) => v.iter().map(|v| v.to_bits()).collect(),
        Array::F64(v) => v.iter().map(|v| v.to_bits()).collect(),
        Array::Bool(v) => json!(v),
        Array::String(v) => json!(v),
        Array::Array(v) => v.iter().map(array_row).collect(),
    };
    json!({ "type": "array", "element": array.element_name(), "value": values })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}
