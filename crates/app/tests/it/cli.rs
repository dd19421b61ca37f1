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

/// Each kind of file that is no model has its own hint.
#[test]
fn files_that_cannot_be_read_say_what_to_do() {
    let roci = Roci::new();
    let home = roci.home.path();
    let check = |file: &str, message: &str, hint: &str| {
        let outcome = roci.run(&["inspect", file]);
        assert_eq!(outcome.code, Some(1), "{file}");
        let stderr = &outcome.stderr;
        assert!(stderr.contains(message) && stderr.contains(hint), "{file}: {stderr}");
    };
    tiny::write(home);
    let whole = std::fs::read(home.join("tiny.gguf")).unwrap();
    std::fs::write(home.join("cut.gguf"), &whole[..whole.len() - 1000]).unwrap();
    let (has, needs) = (whole.len() - 1000, whole.len());
    check(
        "cut.gguf",
        &format!("incomplete: the file has {has} bytes, its tensors end at byte {needs}"),
        "download the file",
    );
    std::fs::write(home.join("header.gguf"), &whole[..100]).unwrap();
    check("header.gguf", "header.gguf", "incomplete or damaged: download it again");
    std::fs::write(home.join("page.gguf"), "<!DOCTYPE html><html>").unwrap();
    check("page.gguf", "neither GGUF nor safetensors", "it is a web page");
    std::fs::write(home.join("pointer.gguf"), "version https://git-lfs.github.com/spec/v1").unwrap();
    check("pointer.gguf", "neither GGUF nor safetensors", "git lfs pull");
    std::fs::write(home.join("model.bin"), "PK\x03\x04 and so on").unwrap();
    check("model.bin", "neither GGUF nor safetensors", "PyTorch");
    check("nowhere.gguf", "there is no file `nowhere.gguf`", "give the path of a GGUF file");
}

#[test]
fn parsers_show_the_line_with_the_mistake() {
    let roci = Roci::new();
    let home = roci.home.path();
    tiny::write(home);
    std::fs::write(home.join("Modelfile"), "FROM tiny.gguf\nPARAMTER seed 1\n").unwrap();
    snapshot!("error_modelfile", roci, ["create", "mine"]);
    std::fs::write(home.join("schema.json"), "{\n  \"type\": \"object\",\n  x\n}\n").unwrap();
    snapshot!("error_schema", roci, ["run", "tiny.gguf", "hi", "--json-schema", "schema.json"]);
    std::fs::create_dir_all(roci.cache()).unwrap();
    std::fs::write(roci.cache().join("config.toml"), "[run]\nseed = \n").unwrap();
    let wrong = roci.run(&["run", "tiny.gguf", "hi"]);
    assert!(wrong.stderr.contains("\n2 | seed = \n  |        ^"), "{}", wrong.stderr);
}

#[test]
fn a_mistake_in_the_settings_stops_only_its_own_command() {
    let roci = Roci::new();
    std::fs::create_dir_all(roci.cache()).unwrap();
    std::fs::write(roci.cache().join("config.toml"), "[run]\ntemprature = 1\n").unwrap();
    let run = roci.run(&["run", "tiny.gguf", "hi"]);
    assert!(run.code == Some(1) && run.stderr.contains("[run]: there is no setting `temprature`"), "{}", run.stderr);
    let list = roci.run(&["list"]);
    assert_eq!(list.code, Some(0), "{}", list.stderr);
    assert!(
        list.stderr.contains("warning: ") && list.stderr.contains("(did you mean `temperature`?)"),
        "{}",
        list.stderr
    );
}

#[test]
fn doctors_exit_status_says_whether_there_are_problems() {
    let machine = |name: &str| format!("{}/testdata/doctor/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let status = |name: &str| Roci::new().run(&["doctor", "--machine", &machine(name)]);
    assert_eq!(status("rx7900xtx").code, Some(0));
    // Warnings alone are no failure.
    let warned = status("mi300x-two");
    assert!(warned.code == Some(0) && warned.stdout.ends_with("no problem found, 1 warning\n"), "{}", warned.stdout);
    let ill = status("no-groups");
    assert!(ill.code == Some(1) && ill.stdout.ends_with("2 problems found\n"), "{}", ill.stdout);
    assert_eq!(ill.stderr, "");
}

#[test]
fn layers_for_a_gpu_that_is_not_there_are_reported() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    // Hidden from both drivers, so that it holds on a machine with a GPU too.
    let mut command = roci.command(&["run", "tiny.gguf", "hi", "-n", "1", "-ngl", "99"]);
    command.env("HIP_VISIBLE_DEVICES", "-1").env("CUDA_VISIBLE_DEVICES", "-1");
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let first = stderr.lines().next().unwrap_or_default();
    assert!(first.starts_with("warning: -ngl 99 has no effect, the model runs on the CPU: no AMD GPU: "), "{stderr}");
}

#[test]
fn a_mistyped_command_is_suggested() {
    let outcome = Roci::new().run(&["lst"]);
    assert!(outcome.code == Some(2) && outcome.stderr.contains("'list'"), "{}", outcome.stderr);
}

#[test]
fn flags_without_a_command_are_told_the_commands_that_are_for_people() {
    let outcome = Roci::new().run(&["-q"]);
    assert_eq!(outcome.code, Some(2));
    assert!(
        outcome.stderr.starts_with("error: no command was given\nhint: `roci run MODEL` chats"),
        "{}",
        outcome.stderr
    );
    assert!(!outcome.stderr.contains("engine"), "{}", outcome.stderr);
}

#[test]
fn words_without_quotes_are_one_prompt() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let tokens = |args: &[&str]| {
        let more = ["-n", "1", "-c", "256", "--output", "json"];
        roci.run(&[&["run", "tiny.gguf"], args, &more[..]].concat()).json()["prompt_tokens"].clone()
    };
    assert_eq!(tokens(&["what", "is", "this?"]), tokens(&["what is this?"]));
}

#[test]
fn numbers_that_others_use_for_no_limit() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let run = |args: &[&str]| {
        let base = ["run", "tiny.gguf", "hi", "-c", "64", "--logit-bias", "123=1000", "--output", "json"];
        roci.run(&[&base[..], args].concat()).json()
    };
    let endless = run(&["-n", "-1", "--seed", "-1"]);
    assert_eq!(endless["finish_reason"], "context", "it ends where the context does");
    let none = run(&["--max-tokens", "0"]);
    assert_eq!((none["tokens"].as_array().unwrap().len(), &none["finish_reason"]), (0, &serde_json::json!("length")));
    assert!(none["prompt_tokens"].as_array().unwrap().len() > 2);
}

#[test]
fn settings_that_cannot_be_meant_are_told() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let both = roci.run(&["run", "-q", "-v", "tiny.gguf", "hi", "-n", "1", "-c", "128"]);
    assert_eq!(both.code, Some(1));
    assert!(both.stderr.starts_with("error: --quiet and --verbose contradict each other"), "{}", both.stderr);
    let hot = roci.run(&["run", "tiny.gguf", "hi", "-n", "1", "-c", "128", "--temperature", "9"]);
    assert_eq!(hot.code, Some(0));
    assert!(hot.stderr.contains("warning: --temperature 9 makes answers mostly random"), "{}", hot.stderr);
    let model = roci.run(&["upgrade", "qwen3"]);
    assert!(model.code == Some(1) && model.stderr.contains("`roci pull qwen3`"), "{}", model.stderr);
}

#[test]
fn embeddings_as_text() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let json = roci.run(&["embed", "tiny.gguf", "hi", "there", "-c", "128"]).json();
    let text = roci.run(&["embed", "tiny.gguf", "hi", "there", "-c", "128", "--output", "text"]).stdout;
    let numbers = |line: &str| line.split(' ').map(|word| word.parse::<f32>().unwrap()).collect::<Vec<_>>();
    let vectors: Vec<Vec<f32>> = text.lines().map(numbers).collect();
    let expected: Vec<Vec<f32>> = serde_json::from_value(json["embeddings"].clone()).unwrap();
    assert_eq!(vectors, expected);
}

#[test]
fn a_wrong_quantization_is_told_without_the_network() {
    let outcome = Roci::new().run(&["pull", "qwen3:8b-q9_9"]);
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome.stderr.starts_with("error: there is no quantization `q9_9`\nhint: usual ones are"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn upgrade_without_an_address_says_what_can_be_done() {
    let outcome = Roci::new().run(&["upgrade"]);
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome.stderr.contains("built without the address") && outcome.stderr.contains("git pull"),
        "{}",
        outcome.stderr
    );
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
fn inspect_of_an_unknown_family_says_what_is_missing() {
    let roci = Roci::new();
    for (architecture, needs) in [("rwkv6", ": it needs recurrent state of another kind"), ("nobody", "")] {
        let mut metadata = weights::Metadata::new();
        metadata.set("general.architecture", architecture);
        weights::gguf::write(&roci.home.path().join("other.gguf"), &metadata, []).unwrap();
        let said = roci.run(&["inspect", "other.gguf"]).show();
        let expected = format!("runs      no: architecture `{architecture}` is not supported{needs}\n");
        assert!(said.contains(&expected), "{said}");
        let json = roci.run(&["inspect", "other.gguf", "--output", "json"]).json();
        assert!(json["missing"].as_str().unwrap().starts_with("architecture"), "{json}");
    }
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
