//! `roci quantize` from a folder of safetensors: what it writes says what the folder says.

use crate::folder;
use crate::roci::Roci;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A random llama in two shards, as transformers leaves them.
fn write_folder(home: &Path, change: impl Fn(&mut Value)) -> PathBuf {
    folder::write(home, Some("{{ messages[0].content }}"), change)
}

#[test]
fn a_folder_of_shards_becomes_one_gguf_that_says_the_same() {
    let roci = Roci::new();
    let folder = write_folder(roci.home.path(), |_| ());
    let folder = folder.to_str().unwrap();
    for mix in ["F32", "Q8_0"] {
        let out = format!("little-{mix}.gguf");
        let made = roci.run(&["quantize", folder, &out, "--type", mix]);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        assert!(made.stdout.contains(&format!("as {mix} in")), "{}", made.stdout);
        let greedy =
            ["The 12 words", "--temperature", "0", "--max-tokens", "12", "--device", "cpu", "--kv-type", "f32"];
        let of_gguf = roci.run(&[&["run", &out], &greedy[..]].concat());
        let of_folder = roci.run(&[&["run", folder, "--quantize", mix], &greedy[..]].concat());
        assert_eq!(of_gguf.code, Some(0), "{}", of_gguf.stderr);
        assert_eq!(of_gguf.stdout, of_folder.stdout, "{mix}: {}", of_folder.stderr);
        assert!(!of_gguf.stdout.trim().is_empty(), "{mix}");
    }
    let text = "It's 1234 <tool>über  <|im_end|>";
    let ids = |model: &str| roci.run(&["tokenize", model, text, "--output", "json"]).json();
    assert_eq!(ids("little-Q8_0.gguf"), ids(folder));
    let inspected = roci.run(&["inspect", "little-Q8_0.gguf", "--output", "json"]).json().to_string();
    assert!(inspected.contains("little-llama") && inspected.contains("smollm"), "{inspected}");
}

#[test]
fn importance_of_a_folder_fits_the_file_made_from_it() {
    let roci = Roci::new();
    let folder = write_folder(roci.home.path(), |_| ());
    let folder = folder.to_str().unwrap();
    fs::write(roci.home.path().join("text.txt"), "the words and the numbers 1 2 3 ".repeat(20)).unwrap();
    let made = roci.run(&["imatrix", folder, "text.txt", "imatrix.gguf", "--chunk", "32", "--chunks", "2"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let with =
        |imatrix: &str| roci.run(&["quantize", folder, "out.gguf", "--type", "Q4_0", "--force", "--imatrix", imatrix]);
    assert_eq!(with("imatrix.gguf").code, Some(0), "{}", with("imatrix.gguf").stderr);
    // One that knows none of the tensors would change nothing in silence.
    let other = weights::Metadata::from_iter([("general.type".to_owned(), weights::Value::from("imatrix"))]);
    weights::gguf::write(&roci.home.path().join("other.gguf"), &other, []).unwrap();
    let refused = with("other.gguf");
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("contains none of this model's tensors\nhint: "), "{}", refused.stderr);
}

#[test]
fn a_form_that_cannot_be_followed_is_an_error_with_a_hint() {
    let roci = Roci::new();
    let folder = write_folder(roci.home.path(), |_| ());
    let model = folder.join("model-00002-of-00002.safetensors");
    let run = |flag: &str, form: &str| {
        roci.run(&["run", model.to_str().unwrap(), "a", flag, form, "--device", "cpu", "--max-tokens", "4"])
    };
    for (flag, form) in
        [("--regex", "["), ("--json-schema", r#"{"type": "nonsense"}"#), ("--grammar", "root ::= other")]
    {
        let outcome = run(flag, form);
        assert_eq!(outcome.code, Some(1), "{flag}: {}", outcome.stdout);
        let text = &outcome.stderr;
        assert!(text.contains("the constraint cannot be used") && text.contains("\nhint: "), "{flag}: {text}");
    }
    let outcome = run("--regex", "(yes|no)");
    assert!(["yes\n", "no\n"].contains(&outcome.stdout.as_str()), "{}{}", outcome.stdout, outcome.stderr);
}

#[test]
fn what_gguf_cannot_say_is_an_error_with_a_way_out() {
    let check = |change: &dyn Fn(&mut Value), wanted: &str| {
        let roci = Roci::new();
        let folder = write_folder(roci.home.path(), change);
        let outcome = roci.run(&["quantize", folder.to_str().unwrap(), "out.gguf", "--type", "Q8_0"]);
        assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
        assert!(outcome.stderr.contains(wanted) && outcome.stderr.contains("\nhint: "), "{}", outcome.stderr);
        assert!(!roci.home.path().join("out.gguf").exists());
    };
    let dynamic = json!({"rope_type": "dynamic", "factor": 2.0});
    check(&|config| config["rope_scaling"] = dynamic.clone(), "no word for dynamic rope scaling");
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "truncate": false});
    check(&|config| config["rope_scaling"] = yarn.clone(), "no word for YaRN's `truncate`");
    check(&|config| config["num_hidden_layers"] = 1.into(), "has no name in GGUF");
    check(&|config| config["num_hidden_layers"] = 3.into(), "blk.2.");
}

#[test]
fn nothing_is_overwritten_or_rounded_twice_by_mistake() {
    let roci = Roci::new();
    let folder = write_folder(roci.home.path(), |_| ());
    let run = |from: &str, out: &str, mix: &str, more: &[&str]| {
        roci.run(&[&["quantize", from, out, "--type", mix], more].concat())
    };
    let folder = folder.to_str().unwrap();
    assert_eq!(run(folder, "a.gguf", "Q4_0", &[]).code, Some(0));
    let before = fs::read(roci.home.path().join("a.gguf")).unwrap();
    let refused = run(folder, "a.gguf", "Q8_0", &[]);
    assert!(refused.stderr.starts_with("error: `a.gguf` exists\nhint: --force"), "{}", refused.stderr);
    assert_eq!(fs::read(roci.home.path().join("a.gguf")).unwrap(), before);
    let refused = run("a.gguf", "b.gguf", "Q8_0", &[]);
    assert!(refused.stderr.contains("is already quantized") && refused.code == Some(1), "{}", refused.stderr);
    assert!(!roci.home.path().join("b.gguf").exists());
    let made = run("a.gguf", "b.gguf", "Q8_0", &["--allow-requantize"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(made.stderr.contains("larger than its source"), "{}", made.stderr);
    assert_eq!(run(folder, "a.gguf", "F16", &["--force"]).code, Some(0));
}
