//! What people are used to from ollama and llama.cpp, and settings for every command.

use crate::roci::Roci;
use crate::server::Server;
use crate::tiny;

const RECIPE: &str = "FROM ./tiny.gguf\nPARAMETER num_predict 3\nPARAMETER num_ctx 128\nPARAMETER seed 7\n\
                      SYSTEM \"\"\"Be brief.\"\"\"\nMESSAGE user hello\nMESSAGE assistant hi\n";

#[test]
fn a_model_of_ones_own() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    std::fs::write(roci.home.path().join("Modelfile"), RECIPE).unwrap();
    let created = roci.run(&["create", "mine"]);
    assert_eq!((created.code, created.stdout.as_str()), (Some(0), "created mine\n"), "{}", created.stderr);
    let shown = roci.run(&["show", "mine"]).stdout;
    assert!(shown.contains("num_predict  3") && shown.contains("system\n  Be brief."), "{shown}");
    let recipe = roci.run(&["show", "mine", "--modelfile"]).stdout;
    assert!(recipe.starts_with("FROM [HOME]/tiny.gguf\n") && recipe.contains("PARAMETER num_ctx 128\n"), "{recipe}");

    let answer = roci.run(&["run", "mine", "x", "--output", "json"]).json();
    assert_eq!((answer["tokens"].as_array().unwrap().len(), &answer["seed"]), (3, &serde_json::json!(7)));
    // What is typed wins over the name's settings.
    let answer = roci.run(&["run", "mine", "x", "-n", "2", "--output", "json"]).json();
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 2);
    // The system prompt and the conversation are read before the question.
    let plain = roci.run(&["run", "tiny.gguf", "x", "-n", "1", "-c", "128", "--output", "json"]).json();
    assert!(answer["prompt_tokens"].as_array().unwrap().len() > plain["prompt_tokens"].as_array().unwrap().len() + 20);

    assert_eq!(roci.run(&["cp", "mine", "other:v1"]).code, Some(0));
    assert!(roci.run(&["list"]).stdout.contains("other:v1"));
    assert_eq!(roci.run(&["rm", "mine", "other:v1"]).code, Some(0));
    assert!(roci.home.path().join("tiny.gguf").exists(), "a file elsewhere is not ours to remove");
    std::fs::write(roci.home.path().join("Modelfile"), "FROM tiny.gguf\nPARAMETR x 1\n").unwrap();
    let wrong = roci.run(&["create", "mine"]);
    assert!(wrong.stderr.contains("line 2: there is no instruction `PARAMETR`"), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("hint: did you mean PARAMETER?"), "{}", wrong.stderr);
}

#[test]
fn flags_of_llama_cpp() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let args = ["run", "-m", "tiny.gguf", "-p", "hi", "-n", "2", "-c", "128", "-t", "1", "-ngl", "0", "-s", "3"];
    let answer = roci.run(&[&args[..], &["--temp", "0", "--output", "json"]].concat()).json();
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 2);
    assert_eq!(answer["threads"], 1);
    let word = roci.run(&[
        "run",
        "-m",
        "tiny.gguf",
        "hi",
        "-n",
        "2",
        "-c",
        "128",
        "-s",
        "3",
        "--temp",
        "0",
        "--output",
        "json",
    ]);
    assert_eq!(word.json()["tokens"], answer["tokens"]);
    let bench =
        roci.run(&["bench", "-m", "tiny.gguf", "-p", "16", "-n", "4", "-r", "1", "-t", "1", "--output", "json"]);
    assert_eq!(bench.json()["generate"], 4);
}

#[test]
fn flags_that_others_have() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let run = |more: &[&str]| roci.run(&[&["run", "tiny.gguf", "hi", "-n", "2", "-c", "128"], more].concat());
    let left_out = run(&["-fa", "on", "--mlock"]);
    assert_eq!(left_out.code, Some(0), "{}", left_out.stderr);
    assert!(left_out.stderr.contains("note: -fa, --mlock: not needed here, ignored"), "{}", left_out.stderr);
    assert_eq!(run(&["-fa", "on", "-q"]).stderr, "");
    let refused = roci.run(&["serve", "tiny.gguf", "--api-key", "secret"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.starts_with("error: there is no --api-key here\nhint: "), "{}", refused.stderr);
    assert!(!refused.stderr.contains("secret"), "{}", refused.stderr);
    // The template of a thinking model is told, as ollama's flag does it.
    let template = "{% if enable_thinking is defined and not enable_thinking %}no{% else %}thinks{% endif %}";
    std::fs::write(roci.home.path().join("t.jinja"), template).unwrap();
    let n_prompt = |more: &[&str]| {
        let args = [&["--chat-template-file", "t.jinja", "--output", "json"], more].concat();
        run(&args).json()["prompt_tokens"].as_array().unwrap().len()
    };
    assert_eq!((n_prompt(&[]), n_prompt(&["--think=false"]), n_prompt(&["--think"])), (6, 2, 6));
}

#[test]
fn settings_from_the_config_file() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let config = |text: &str| {
        std::fs::create_dir_all(roci.cache()).unwrap();
        std::fs::write(roci.cache().join("config.toml"), text).unwrap();
    };
    config("[run]\nmax-tokens = 3\ncontext = 128\n");
    let answer = |args: &[&str]| roci.run(&[&["run", "tiny.gguf", "hi", "--output", "json"], args].concat()).json();
    assert_eq!(answer(&[])["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(answer(&["-n", "2"])["tokens"].as_array().unwrap().len(), 2, "what is typed wins");
    config("[run]\nmax-tokns = 3\n");
    let wrong = roci.run(&["run", "tiny.gguf", "hi"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.stderr.contains("config.toml`: line 2: [run]: there is no setting `max-tokns`"), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("did you mean `max-tokens`?"), "{}", wrong.stderr);
}

#[test]
fn quiet_means_results_only() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let args = ["run", "-q", "tiny.gguf", "hi", "-n", "2", "-c", "128"];
    let outcome = roci.run(&args);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
}

#[test]
fn errors_are_coloured_where_they_may_be() {
    let roci = Roci::new();
    let run = |name: &str, value: &str| {
        let output = roci.command(&["run", "nobody", "hi"]).env(name, value).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run("CLICOLOR_FORCE", "1").starts_with("\x1b[1;31merror:\x1b[0m unknown model"));
    assert!(run("NO_COLOR", "1").starts_with("error: unknown model"));
    assert!(run("TERM", "xterm").starts_with("error: "), "a pipe is no terminal");
}

#[test]
fn a_full_disk_is_named_by_every_writer() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    // A file system of 16 kB, where this test may mount one.
    let small = roci.home.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mount =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"]).arg(&small).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        return test_support::skip("a small file system cannot be mounted here", "ROCI_REQUIRE_MOUNT");
    }
    let outcome = roci.run(&["quantize", "tiny.gguf", "small/x.gguf", "--type", "Q8_0"]);
    let left = std::fs::read_dir(&small).unwrap().count();
    let unmounted = std::process::Command::new("umount").arg(&small).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert_eq!((outcome.code, left), (Some(1), 0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no space left on the disk of `small/x.gguf`: "), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains(" needed, ") && outcome.stderr.contains("hint: free some space"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn serve_says_what_is_wrong_with_a_file_as_run_does() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let whole = std::fs::read(roci.home.path().join("tiny.gguf")).unwrap();
    std::fs::write(roci.home.path().join("cut.gguf"), &whole[..whole.len() - 1000]).unwrap();
    let served = roci.run(&["serve", "cut.gguf", "--port", "0"]);
    assert_eq!(served.code, Some(1));
    assert_eq!(served.stderr, roci.run(&["run", "cut.gguf", "hi"]).stderr);
    assert!(served.stderr.contains("hint: ") && served.stderr.contains("download the file again"), "{}", served.stderr);
}

/// Nothing is here, and nothing can be fetched: the start, a request and `ps` each say so.
#[test]
fn serve_with_an_empty_store() {
    let roci = Roci::new();
    // Nobody listens there.
    let nowhere = [("HF_ENDPOINT", "http://127.0.0.1:9"), ("PIP_INDEX_URL", "http://127.0.0.1:9/simple")];
    let server = Server::start_with(&roci, &["serve", "--context", "128"], &nowhere);
    let note = server.log();
    assert!(note.contains("note: no model is here yet; one is downloaded when"), "{note}");
    assert!(note.contains("smollm2 (98 MB)") && note.contains("`roci pull NAME`"), "{note}");
    let body = serde_json::json!({"model": "qwen3:8b", "messages": [{"role": "user", "content": "hi"}]});
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 502, "{}", answer.json);
    let error = &answer.json["error"];
    assert_eq!(error["code"], "download_failed");
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("`qwen3:8b` could not be downloaded: "), "{message}");
    assert!(message.contains("check the connection") && message.contains("skipped hf:"), "{message}");
    let wrong = serde_json::json!({"model": "qwen3:8b-q9_9", "messages": [{"role": "user", "content": "hi"}]});
    let answer = server.post("/v1/chat/completions", &wrong);
    assert_eq!(answer.status, 404, "{}", answer.json);
}

#[test]
fn serve_without_arguments_offers_what_is_here() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    std::fs::write(roci.home.path().join("Modelfile"), RECIPE).unwrap();
    roci.run(&["create", "one"]);
    roci.run(&["create", "two"]);
    let server = Server::start(&roci, &["serve", "--context", "128"]);
    let address = server.address().to_owned();
    let names = server.get("/v1/models").json;
    let names: Vec<&str> = names["data"].as_array().unwrap().iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(names, ["one", "two"]);
    // What the files say is told before they are loaded.
    let meta = &server.get("/v1/models").json["data"][0]["meta"];
    assert_eq!((&meta["is_loaded"], &meta["family"]), (&false.into(), &"llama".into()), "{meta}");
    assert_eq!(server.get("/api/tags").json["models"][0]["details"]["family"], "llama");
    assert_eq!(roci.run(&["ps", "--server", &address]).stdout, "no model is in memory\n");
    let asked = server.post(
        "/api/generate",
        &serde_json::json!({"model": "two", "prompt": "x", "stream": false,
                                                                 "options": {"num_predict": 1}}),
    );
    assert_eq!(asked.status, 200);
    let shown = roci.run(&["ps", "--server", &address]).stdout;
    assert!(shown.starts_with("NAME  WEIGHTS") && shown.contains("KV CACHE"), "{shown}");
    assert!(shown.contains("\ntwo ") && shown.ends_with("until stopped\n"), "{shown}");
    assert_eq!(roci.run(&["stop", "two", "--server", &address]).stdout, "stopped two\n");
    assert_eq!(roci.run(&["ps", "--server", &address]).stdout, "no model is in memory\n");
    let nobody = roci.run(&["ps", "--server", "http://127.0.0.1:9"]);
    assert!(nobody.stderr.starts_with("error: no server answers at http://127.0.0.1:9"), "{}", nobody.stderr);
}
