//! Help and error output as snapshots, and the commands that need no model.

use crate::roci::Roci;
use crate::tiny;

macro_rules! snapshot {
    ($name:literal, $args:expr) => {
        snapshot!($name, Roci::new(), $args)
    };
    ($name:literal, $roci:expr, $args:expr) => {
        insta::assert_snapshot!($name, $roci.run(&$args).show())
    };
}

#[test]
fn help_of_every_command() {
    snapshot!("help", ["--help"]);
    snapshot!("help_run", ["run", "--help"]);
    snapshot!("help_pull", ["pull", "--help"]);
    snapshot!("help_list", ["list", "--help"]);
    snapshot!("help_rm", ["rm", "--help"]);
    snapshot!("help_inspect", ["inspect", "--help"]);
    snapshot!("help_tokenize", ["tokenize", "--help"]);
    snapshot!("help_bench", ["bench", "--help"]);
    snapshot!("help_perplexity", ["perplexity", "--help"]);
    snapshot!("help_devices", ["devices", "--help"]);
}

#[test]
fn errors_say_what_happened_and_what_to_do() {
    snapshot!("error_unknown_model", ["run", "no-such-model", "hi"]);
    snapshot!("error_no_file", ["inspect", "missing/model.gguf"]);
    snapshot!("error_folder", ["inspect", "."]);
    snapshot!("error_hub_name", ["pull", "hf:nobody"]);
    snapshot!("error_temperature", ["run", "smollm2", "hi", "--temperature", "-1"]);
    snapshot!("error_logit_bias", ["run", "smollm2", "hi", "--logit-bias", "x"]);
    snapshot!("error_logprobs", ["run", "smollm2", "hi", "--logprobs", "3"]);
    snapshot!("error_rm", ["rm", "smollm2"]);
    snapshot!("error_bench_weights", ["bench", "--synthetic", "llama-1b", "--weights", "Q9_K"]);
    snapshot!("error_no_command", [] as [&str; 0]);
}

#[test]
fn file_that_is_no_model() {
    let roci = Roci::new();
    std::fs::write(roci.home.path().join("notes.gguf"), "not a model").unwrap();
    snapshot!("error_not_gguf", roci, ["inspect", "notes.gguf"]);
    std::fs::write(roci.home.path().join("empty.gguf"), "").unwrap();
    snapshot!("error_empty_file", roci, ["run", "empty.gguf", "hi"]);
}

#[test]
fn file_without_vocabulary() {
    let roci = Roci::new();
    let path = roci.home.path().join("bare.gguf");
    weights::gguf::write(&path, &weights::Metadata::new(), []).unwrap();
    snapshot!("error_no_vocabulary", roci, ["tokenize", "bare.gguf", "hi"]);
}

#[test]
fn inspect_shows_the_file() {
    let roci = Roci::new();
    tiny::write_vocabulary(roci.home.path());
    snapshot!("inspect", roci, ["inspect", "vocabulary.gguf", "--tensors"]);
    snapshot!("inspect_key", roci, ["inspect", "vocabulary.gguf", "--key", "general.architecture"]);
    snapshot!("inspect_no_key", roci, ["inspect", "vocabulary.gguf", "--key", "general.name"]);
    let json = roci.run(&["inspect", "vocabulary.gguf", "--output", "json"]).json();
    assert_eq!(json["tensors"][0]["shape"], serde_json::json!([2, 4]));
    assert_eq!(json["types"]["F32"]["parameters"], 8);
    assert_eq!(json["metadata"]["tokenizer.ggml.tokens"].as_array().unwrap().len(), 259);
}

#[test]
fn tokenize_reads_text_files_and_stdin() {
    let roci = Roci::new();
    tiny::write_vocabulary(roci.home.path());
    snapshot!("tokenize", roci, ["tokenize", "vocabulary.gguf", "<|im_start|>hé"]);
    snapshot!("tokenize_plain", roci, ["tokenize", "vocabulary.gguf", "--no-special", "<|im_end|>"]);
    std::fs::write(roci.home.path().join("a.txt"), "hi").unwrap();
    let file = roci.run(&["tokenize", "vocabulary.gguf", "--file", "a.txt", "--output", "json"]).json();
    let stdin = roci.run_with_stdin(&["tokenize", "vocabulary.gguf", "--file", "-", "--output", "json"], b"hi").json();
    // Byte b is token 3 + b.
    assert_eq!(file["tokens"], serde_json::json!([3 + 104, 3 + 105]));
    assert_eq!(file, stdin);
    std::fs::write(roci.home.path().join("b.txt"), [0xff, 0xfe]).unwrap();
    snapshot!("error_not_utf8", roci, ["tokenize", "vocabulary.gguf", "--file", "b.txt"]);
}

#[test]
fn list_and_rm() {
    let roci = Roci::new();
    snapshot!("list_empty", roci, ["list"]);
    let folder = roci.cache().join("models/smollm2");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("SmolLM2-135M-Instruct.Q4_1.gguf"), [0; 2000]).unwrap();
    std::fs::create_dir_all(roci.cache().join("downloads")).unwrap();
    std::fs::write(roci.cache().join("downloads/x.part"), [0; 500]).unwrap();
    snapshot!("list", roci, ["list"]);
    let json = roci.run(&["list", "--output", "json"]).json();
    assert_eq!(json["models"][0]["bytes"], 2000);
    snapshot!("rm", roci, ["rm", "smollm2"]);
    assert!(!folder.exists());
    snapshot!("rm_all", roci, ["rm", "--all"]);
    assert!(!roci.cache().join("downloads/x.part").exists());
}

#[test]
fn devices_names_the_cpu() {
    let json = Roci::new().run(&["devices", "--output", "json"]).json();
    assert_eq!(json["devices"][0]["device"], "cpu");
    assert!(json["devices"][0]["cores"].as_u64().unwrap() > 0);
    assert!(Roci::new().run(&["devices"]).stdout.starts_with("cpu  "));
}

#[test]
fn reader_that_goes_away_is_no_error() {
    let roci = Roci::new();
    tiny::write_vocabulary(roci.home.path());
    let mut child = roci
        .command(&["inspect", "vocabulary.gguf", "--output", "json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}

#[test]
fn completions_name_every_command() {
    let roci = Roci::new();
    for shell in ["bash", "zsh", "fish"] {
        let outcome = roci.run(&["completions", shell]);
        assert_eq!(outcome.code, Some(0), "{shell}: {}", outcome.stderr);
        for command in ["serve", "perplexity", "completions"] {
            assert!(outcome.stdout.contains(command), "{shell} has no {command}");
        }
    }
    assert_ne!(roci.run(&["completions", "no-such-shell"]).code, Some(0));
}

#[test]
fn man_writes_a_page_for_every_command() {
    let roci = Roci::new();
    let outcome = roci.run(&["man", "pages/man1"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let page = |name: &str| std::fs::read_to_string(roci.home.path().join("pages/man1").join(name)).unwrap();
    assert!(page("roci.1").contains("roci\\-serve(1)"));
    assert!(page("roci-serve.1").contains("max\\-queue"));
    std::fs::write(roci.home.path().join("file"), "").unwrap();
    snapshot!("error_man", roci, ["man", "file"]);
}
