//! `roci inspect`: what a model file says about itself. Reads the header only, so it is instant for any
//! size, and shows tensors of types that roci cannot run yet.

use crate::options::{LoadArgs, ReportFormat, print_json};
use crate::report::{HintExt, counted, human_bytes};
use crate::{model_file, store};
use anyhow::{Result, anyhow};
use rocinante::{ModelFiles, Workload};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::io::Write;
use weights::{Array, Checkpoint, Value};

const EXAMPLES: &str = "\
Examples:
  roci inspect smollm2
  roci inspect model.gguf --tensors          every tensor
  roci inspect model.gguf --output json      everything, for scripts
  roci inspect model.gguf --key tokenizer.chat_template
  roci inspect model.gguf --plan --device rocm:0 --context 32768    would it fit?";

/// Elements of a long array that are shown.
const N_SHOWN: usize = 4;
const MAX_SHOWN_CHARS: usize = 72;

/// Show the contents of a model file
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name, a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    model: String,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print one metadata value in full
    #[arg(long, value_name = "KEY", conflicts_with = "tensors")]
    key: Option<String>,
    /// Show how much device memory loading would take, without loading
    #[arg(long, conflicts_with_all = ["key", "tensors"])]
    plan: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: ReportFormat,
    #[command(flatten)]
    load: LoadArgs,
}

/// One line of the tensor table, whether roci can run its type or not.
struct TensorRow<'a> {
    name: &'a str,
    type_name: &'a str,
    shape: &'a [usize],
    n_bytes: Option<u64>,
    is_supported: bool,
}

pub fn main(args: &Args) -> Result<()> {
    let path = store::resolve(&args.model)?;
    let files = model_file::open(&path)?;
    let checkpoint = files.checkpoint();
    if let Some(key) = &args.key {
        return print_key(checkpoint, key, args.output);
    }
    if args.plan {
        return print_plan(&files, args);
    }
    let rows = rows(checkpoint);
    if args.output == ReportFormat::Json {
        return print_as_json(checkpoint, &rows, missing(&files));
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    writeln!(out, "file      {}", path.display())?;
    writeln!(out, "format    {}, {}", checkpoint.description(), human_bytes(checkpoint.file_bytes()))?;
    writeln!(out, "weights   {}", types_line(&rows))?;
    if let Some(missing) = missing(&files) {
        writeln!(out, "runs      no: {missing}")?;
    }
    writeln!(out, "\nmetadata")?;
    let width = checkpoint.metadata().iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    for (key, value) in checkpoint.metadata().iter() {
        writeln!(out, "  {key:width$}  {}", short(value))?;
    }
    if args.tensors {
        write_tensors(&mut out, &rows)?;
    } else {
        writeln!(out, "\n{} (--tensors lists them)", counted(rows.len(), "tensor"))?;
    }
    out.flush()?;
    Ok(())
}

/// Why a model of this family does not run, and what it would need where that is known.
fn missing(files: &ModelFiles) -> Option<String> {
    match files.config() {
        Err(rocinante::Error::Model(model::Error::Architecture { name, missing, .. })) => {
            Some(format!("architecture `{name}` is not supported{missing}"))
        }
        _ => None,
    }
}

fn rows(checkpoint: &Checkpoint) -> Vec<TensorRow<'_>> {
    let supported = checkpoint.tensors().iter().map(|tensor| TensorRow {
        name: &tensor.name,
        type_name: tensor.dtype.name(),
        shape: &tensor.shape,
        n_bytes: Some(tensor.bytes.len() as u64),
        is_supported: true,
    });
    let others = checkpoint.unsupported().iter().map(|tensor| TensorRow {
        name: &tensor.name,
        type_name: tensor.layout.map_or(tensor.type_name.as_str(), |layout| layout.name),
        shape: &tensor.shape,
        n_bytes: tensor.n_bytes,
        is_supported: false,
    });
    supported.chain(others).collect()
}

/// type -> (tensors, parameters, bytes, runnable)
fn types<'a>(rows: &[TensorRow<'a>]) -> BTreeMap<&'a str, (usize, u64, u64, bool)> {
    let mut types = BTreeMap::new();
    for row in rows {
        let entry = types.entry(row.type_name).or_insert((0, 0, 0, row.is_supported));
        entry.0 += 1;
        entry.1 += row.shape.iter().map(|&n| n as u64).product::<u64>();
        entry.2 += row.n_bytes.unwrap_or(0);
    }
    types
}

fn types_line(rows: &[TensorRow<'_>]) -> String {
    let types = types(rows);
    let n_params: u64 = types.values().map(|entry| entry.1).sum();
    let kinds = types.iter().map(|(name, (n, _, n_bytes, is_supported))| {
        let note = if *is_supported { "" } else { ", roci cannot run this type yet" };
        format!("{name} ({}, {}{note})", counted(*n, "tensor"), human_bytes(*n_bytes))
    });
    format!("{:.1} M parameters: {}", n_params as f64 / 1e6, kinds.collect::<Vec<_>>().join(", "))
}

fn write_tensors(out: &mut impl Write, rows: &[TensorRow<'_>]) -> Result<()> {
    let shape = |row: &TensorRow<'_>| row.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ");
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(6);
    let shape_width = rows.iter().map(|row| shape(row).len()).max().unwrap_or(0).max(5);
    writeln!(out, "\n{:width$}  {:7}  {:shape_width$}  {:>8}", "TENSOR", "TYPE", "SHAPE", "SIZE")?;
    for row in rows {
        let size = row.n_bytes.map_or_else(|| "?".to_owned(), human_bytes);
        writeln!(out, "{:width$}  {:7}  {:shape_width$}  {size:>8}", row.name, row.type_name, shape(row))?;
    }
    Ok(())
}

/// The plan that `roci run` would make, and the same errors.
fn print_plan(files: &ModelFiles, args: &Args) -> Result<()> {
    let plan = files.plan(&args.load.options(Workload::Conversation));
    let plan = plan.map_err(|error| model_file::hinted(files.path(), error))?;
    plan.device.notes().iter().for_each(|why| crate::report::note(why));
    match args.output {
        ReportFormat::Text => Ok(writeln!(std::io::stdout(), "{}", plan.lines())?),
        ReportFormat::Json => print_json(&plan.json()),
    }
}

fn print_key(checkpoint: &Checkpoint, key: &str, format: ReportFormat) -> Result<()> {
    let Some(value) = checkpoint.metadata().get(key) else {
        return Err(anyhow!("no metadata key `{key}` in the file")).hint("`roci inspect MODEL` shows the keys");
    };
    match (format, value) {
        (ReportFormat::Text, Value::String(text)) => Ok(writeln!(std::io::stdout(), "{text}")?),
        _ => print_json(&value_json(value)),
    }
}

fn print_as_json(checkpoint: &Checkpoint, rows: &[TensorRow<'_>], missing: Option<String>) -> Result<()> {
    let metadata: serde_json::Map<String, Json> =
        checkpoint.metadata().iter().map(|(key, value)| (key.to_owned(), value_json(value))).collect();
    let tensors = rows.iter().map(|row| {
        json!({"name": row.name, "type": row.type_name, "shape": row.shape, "bytes": row.n_bytes,
               "supported": row.is_supported})
    });
    let types = types(rows).into_iter().map(|(name, (n_tensors, n_params, n_bytes, is_supported))| {
        let summary =
            json!({"tensors": n_tensors, "parameters": n_params, "bytes": n_bytes, "supported": is_supported});
        (name.to_owned(), summary)
    });
    print_json(&json!({
        "path": checkpoint.path(),
        "format": checkpoint.description(),
        "file_bytes": checkpoint.file_bytes(),
        "types": types.collect::<serde_json::Map<_, _>>(),
        "missing": missing,
        "metadata": metadata,
        "tensors": tensors.collect::<Vec<_>>(),
    }))
}

fn value_json(value: &Value) -> Json {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(v) => array_json(v),
    }
}

fn array_json(array: &Array) -> Json {
    match array {
        Array::U8(v) => json!(v),
        Array::I8(v) => json!(v),
        Array::U16(v) => json!(v),
        Array::I16(v) => json!(v),
        Array::U32(v) => json!(v),
        Array::I32(v) => json!(v),
        Array::U64(v) => json!(v),
        Array::I64(v) => json!(v),
        Array::F32(v) => json!(v),
        Array::F64(v) => json!(v),
        Array::Bool(v) => json!(v),
        Array::String(v) => json!(v),
        Array::Array(v) => Json::Array(v.iter().map(array_json).collect()),
    }
}

/// A value on one line: long texts and arrays are cut, with their length.
fn short(value: &Value) -> String {
    match value {
        Value::Array(array) => {
            let items = match array_json(array) {
                Json::Array(items) => items,
                other => vec![other],
            };
            let shown: Vec<String> = items.iter().take(N_SHOWN).map(ToString::to_string).collect();
            let more = if items.len() > N_SHOWN { ", ..." } else { "" };
            cut(&format!("[{}{more}]", shown.join(", ")), &format!(" ({} x {})", items.len(), array.element_name()))
        }
        Value::String(text) => cut(&format!("{text:?}"), ""),
        other => other.to_string(),
    }
}

fn cut(text: &str, note: &str) -> String {
    let n_chars = text.chars().count();
    if n_chars <= MAX_SHOWN_CHARS {
        return format!("{text}{note}");
    }
    let shown: String = text.chars().take(MAX_SHOWN_CHARS - 3).collect();
    if note.is_empty() { format!("{shown}... ({n_chars} characters)") } else { format!("{shown}...{note}") }
}
