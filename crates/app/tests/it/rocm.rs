//! The binary on AMD's runtime over the software GPU: the CPU's tokens, hostile orders, and faults on demand.
//!
//! `ROCI_GFX_RUN` names the script that runs a program there (`./check amd` sets it); without it these are skipped, or
//! fail with `ROCI_REQUIRE_GPU=1`. Kernels are compiled once, into a cache that all of them share.

mod requests;

use crate::roci::{Outcome, Roci};
use crate::server::Server;
use crate::tiny;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// The script, or a skip with the reason.
fn script() -> Option<String> {
    let script = std::env::var("ROCI_GFX_RUN").ok();
    if script.is_none() {
        let reason = "ROCI_GFX_RUN names no script that runs a program on the software GPU";
        test_support::skip(reason, "ROCI_REQUIRE_GPU");
    }
    script
}

/// The same command on the software GPU, with more environment.
fn on_card(roci: &Roci, script: &str, args: &[&str], env: &[(&str, &str)]) -> Outcome {
    on_card_as(roci, script, &[env!("CARGO_BIN_EXE_roci")], args, env)
}

fn on_card_as(roci: &Roci, script: &str, program: &[&str], args: &[&str], env: &[(&str, &str)]) -> Outcome {
    Outcome::of(command_as(roci, script, program, args, env).output().unwrap(), roci.home.path())
}

fn command_as(roci: &Roci, script: &str, program: &[&str], args: &[&str], env: &[(&str, &str)]) -> Command {
    let plain = roci.command(args);
    let mut command = Command::new(script);
    command.args(program).args(args).current_dir(roci.home.path()).stdin(std::process::Stdio::null());
    for (key, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    // The caches stay the machine's: AMD's packages, and compiled kernels.
    if let Some(home) = std::env::var_os("HOME") {
        let rocm = std::env::var_os("ROCI_ROCM_CACHE")
            .unwrap_or_else(|| std::path::Path::new(&home).join(".cache/roci-rocm").into());
        command.env("ROCI_ROCM_CACHE", rocm);
    }
    command.env("XDG_CACHE_HOME", std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("rocm-cache"));
    command.envs(env.iter().copied());
    command
}

fn with_tiny() -> Roci {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    roci
}

const TINY: [&str; 11] =
    ["run", "tiny.gguf", "hi", "--raw", "--temperature", "0", "--max-tokens", "8", "--context", "64", "--output=json"];

fn tiny_on_card(roci: &Roci, script: &str, env: &[(&str, &str)]) -> Outcome {
    on_card(roci, script, &[&TINY[..], &["--device", "rocm"]].concat(), env)
}

fn tokens(answer: &Value) -> &Value {
    assert!(answer["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()), "{answer}");
    &answer["tokens"]
}

#[test]
fn a_radeon_that_is_not_there() {
    let Some(script) = script() else { return };
    let outcome = on_card(&Roci::new(), &script, &["devices"], &[]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let card = "rocm:0 Radeon RX 7900 XTX (software model) (gfx1100, discrete, 16.0 GiB, HIP 7.2)";
    assert!(outcome.stdout.contains(card), "{}", outcome.stdout);
}

#[test]
fn tiny_model_gives_the_cpus_tokens_in_ten_hostile_orders() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    let truth = roci.run(&TINY).json();
    let plain = tiny_on_card(&roci, &script, &[]).json();
    assert_eq!(tokens(&plain), tokens(&truth));
    for seed in 1..=10 {
        let found = tiny_on_card(&roci, &script, &[("GFX_SEED", &seed.to_string())]).json();
        assert_eq!(tokens(&found), tokens(&truth), "seed {seed}");
    }
}

/// A prompt of 37 tokens and three more, as a person would ask.
#[test]
fn smollm2_gives_the_cpus_tokens() {
    let Some(script) = script() else { return };
    let Some(model) = crate::truth::smollm2() else { return };
    let roci = Roci::new();
    let prompt = "What is the capital of France?";
    let args = ["run", &model, prompt, "--temperature", "0", "--max-tokens", "3", "--context", "256", "--output=json"];
    let truth = roci.run(&args).json();
    let start = Instant::now();
    let found = on_card(&roci, &script, &[&args[..], &["--device", "rocm", "--step-deadline", "600"]].concat(), &[]);
    let found = found.json();
    let n_prompt = found["prompt_tokens"].as_array().map_or(0, Vec::len);
    println!("{n_prompt} prompt tokens and 3 more: {:.1} s", start.elapsed().as_secs_f64());
    assert_eq!(tokens(&found), tokens(&truth));
    assert_eq!(found["text"], truth["text"]);
}

/// Three generations of the API at work. The older two run over 7.2's ROCr, which alone has the hook.
#[test]
#[ignore = "fetches two older HIP versions"]
fn tiny_model_gives_the_cpus_tokens_on_three_generations_of_hip() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    let truth = roci.run(&TINY).json();
    let binary = env!("CARGO_BIN_EXE_roci");
    for hip in ["5.7", "6.4", "7.2"] {
        let ask = |args: &[&str], env: &[(&str, &str)]| on_card_as(&roci, &script, &["--hip", hip, binary], args, env);
        let devices = ask(&["devices", "--output=json"], &[]).json();
        assert_eq!(devices["devices"][1]["driver"], format!("HIP {hip}"), "{devices}");
        assert_eq!(devices["devices"][1]["refused"], Value::Null, "{devices}");
        for seed in ["", "1", "2", "3"] {
            let found = ask(&[&TINY[..], &["--device", "rocm"]].concat(), &[("GFX_SEED", seed)]);
            assert_eq!(tokens(&found.json()), tokens(&truth), "HIP {hip}, seed `{seed}`");
        }
    }
}

/// HIP 5.2, 5.7, 6.4 and 7.2 as Debian ships them, on a machine without a card. (About 200 MB of downloads.)
#[test]
#[ignore = "fetches three older HIP versions"]
fn every_hip_without_a_card_says_so() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    let binary = env!("CARGO_BIN_EXE_roci");
    for suite in ["bookworm", "trixie", "sid", "experimental"] {
        let ask = |args: &[&str]| on_card_as(&roci, &script, &["--suite", suite, binary], args, &[]);
        let devices = ask(&["devices"]);
        let none = "no AMD GPU in this machine, or none this user may open";
        assert!(devices.code == Some(0) && devices.stdout.contains(none), "{suite}: {}", devices.show());
        let run = ask(&["run", "tiny.gguf", "hi", "--device", "rocm"]);
        assert!(run.code == Some(1) && run.stderr.contains(none), "{suite}: {}", run.show());
        assert!(run.stderr.contains("hint: `roci devices`"), "{suite}: {}", run.show());
    }
}

/// Counted where AMD's runtime asks for memory: sixteen more tokens take none.
#[test]
fn generating_takes_no_memory_at_the_hook() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    let n_allocations = |max_tokens: &str| {
        let mut args = [&TINY[..], &["--device", "rocm"]].concat();
        args[7] = max_tokens;
        let outcome = on_card(&roci, &script, &args, &[("GFX_LOG", "1")]);
        assert_eq!(tokens(&outcome.json()).as_array().unwrap().len().to_string(), max_tokens);
        outcome.stderr.lines().filter(|line| line.starts_with("gfx: allocation ")).count()
    };
    let few = n_allocations("8");
    assert!(few > 3, "{few}");
    assert_eq!(n_allocations("24"), few);
}

/// AMD's real rocBLAS, with the kernels it brings and without them: then it ends the process that asks for them, which is a
/// child, and the model runs on our own kernels.
#[test]
#[ignore = "fetches rocBLAS, 1.2 GB once it is unpacked"]
fn rocblas_without_its_kernels_ends_a_child_only() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    let truth = roci.run(&TINY).json();
    let empty = roci.home.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let ask = |more: &[&str], env: &[(&str, &str)]| {
        let args = [&TINY[..], &["--device", "rocm", "-v"], more].concat();
        let outcome = on_card(&roci, &script, &args, &[&[("GFX_WITH", "librocblas5")], env].concat());
        assert_eq!(tokens(&outcome.json()), tokens(&truth), "{}", outcome.show());
        outcome.stderr
    };
    let without = [("ROCBLAS_TENSILE_LIBPATH", empty.to_str().unwrap())];
    let said = ask(&[], &[]);
    assert!(said.contains("large products through rocBLAS"), "{said}");
    let said = ask(&[], &without);
    assert!(said.contains("do not use the vendor's library: BLAS test: the driver ended the process"), "{said}");
    assert!(said.contains("SIGABRT") && said.contains("rocBLAS error: Cannot read"), "{said}");
    assert!(!said.contains("engine's process died"), "{said}");
    let said = ask(&["--blas", "off"], &without);
    assert!(said.contains("the vendor's library: it is turned off") && !said.contains("BLAS test"), "{said}");
}

/// After any fault a new process works, and within 10 s. It takes one or two; kernels may have to be compiled first, and
/// other tests share the machine, so the best of three counts.
fn check_recovery(roci: &Roci, script: &str) {
    let seconds = |_| {
        let start = Instant::now();
        tiny_on_card(roci, script, &[]).json();
        start.elapsed().as_secs_f64()
    };
    let soon = (0..3).map(seconds).find(|seconds| *seconds < 10.0);
    println!("a new process answered after {:.1} s", soon.expect("a new process needs more than 10 s"));
}

/// The dispatch that hangs is one of generation, not of loading: the error reaches the request.
#[test]
fn a_hang_is_caught_by_the_step_deadline() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    check_recovery(&roci, &script);
    let counters = roci.home.path().join("counters.jsonl");
    let counted = [("GFX_COUNTERS", counters.to_str().unwrap())];
    let undisturbed = tiny_on_card(&roci, &script, &counted).json();
    let n_dispatches = std::fs::read_to_string(&counters).unwrap().lines().count();
    // Half of all dispatches belong to AMD's copies; the last named ones are of the answer.
    let named = std::fs::read_to_string(&counters).unwrap().lines().filter(|l| !l.contains("\"dispatch\":0,")).count();
    assert!(named > 20, "{n_dispatches} dispatches, {named} of ours");
    let at = (named - 3).to_string();
    let args = [&TINY[..], &["--device", "rocm", "--step-deadline", "3"]].concat();
    let start = Instant::now();
    let outcome = on_card(&roci, &script, &args, &[("GFX_HANG_AT", &at)]);
    // The engine is a process of its own: another takes its place and continues where it stopped.
    assert_eq!(outcome.code, Some(0), "{}", outcome.show());
    let said = &outcome.stderr;
    assert!(said.contains("as GFX_HANG_AT asks"), "{said}");
    assert!(said.contains("has not finished") && said.contains("a new engine took over"), "{said}");
    assert_eq!(tokens(&outcome.json()), tokens(&undisturbed), "{said}");
    assert!(said.contains("rocm:0"), "the device is named: {said}");
    // A run that waits for the device again at its end would need as long as the deadline of another.
    assert!(start.elapsed() < Duration::from_secs(60), "it took {:?}", start.elapsed());
    check_recovery(&roci, &script);
}

#[test]
fn a_page_fault_names_the_kernel_and_ends_the_process() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    let outcome = tiny_on_card(&roci, &script, &[("GFX_FAULT_AT", "5")]);
    assert_ne!(outcome.code, Some(0), "{}", outcome.show());
    assert!(outcome.stderr.contains("memory access fault at dispatch 5"), "{}", outcome.stderr);
    check_recovery(&roci, &script);
}

/// `auto` does not take a card that lacks what the model needs; one that was named is an error that says what.
#[test]
fn a_model_that_gpus_cannot_compute_goes_to_the_cpu() {
    let Some(script) = script() else { return };
    let roci = Roci::new();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/testdata/families/mamba2-deep.gguf");
    let plan = |device| on_card(&roci, &script, &["inspect", model, "--plan", "--device", device], &[]);
    let (auto, named) = (plan("auto"), plan("rocm:0"));
    assert_eq!(auto.code, Some(0), "{}", auto.show());
    let said = format!("{}{}", auto.stdout, auto.stderr);
    assert!(
        said.contains("cpu")
            && said.contains("it needs recurrent states deeper than 256, which roci's GPU kernels do not support yet"),
        "{said}"
    );
    assert_eq!(named.code, Some(1), "{}", named.show());
    assert!(named.stderr.contains("recurrent states") && named.stderr.contains("--device cpu"), "{}", named.stderr);
}

/// Every process of the engine faults in the same kernel: the third death is the last on the card.
#[test]
fn an_answer_continues_on_the_cpu_when_the_card_is_given_up() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    let truth = roci.run(&TINY).json();
    let outcome = on_card(&roci, &script, &[&TINY[..], &["--device", "auto"]].concat(), &[("GFX_FAULT_AT", "165")]);
    let said = &outcome.stderr;
    assert_eq!(outcome.code, Some(0), "{}", outcome.show());
    assert!(said.contains("memory access fault at dispatch 165"), "{said}");
    assert!(said.contains("the GPU is given up; the answer continues on the CPU"), "{said}");
    assert_eq!(tokens(&outcome.json()), tokens(&truth), "{said}");
    // One that was named is not given up for another.
    let outcome = tiny_on_card(&roci, &script, &[("GFX_FAULT_AT", "165")]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.show());
    assert!(outcome.stderr.contains("--device cpu"), "{}", outcome.stderr);
}

#[test]
fn a_full_card_is_an_error_with_the_numbers() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    // The weights are small; the scratch memory is not.
    let outcome = tiny_on_card(&roci, &script, &[("GFX_FAIL_ALLOC", "1@100000000")]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.show());
    let said = &outcome.stderr;
    assert!(said.contains("bytes wanted") && said.contains("free"), "{said}");
    // The weights' allocation, the first of that size; and the small one that the host shares with the card.
    for (ask, want) in [("1@4500000", "bytes wanted"), ("10", "out of memory")] {
        let outcome = tiny_on_card(&roci, &script, &[("GFX_FAIL_ALLOC", ask)]);
        assert_eq!(outcome.code, Some(1), "{ask}: {}", outcome.show());
        let said = &outcome.stderr;
        assert!(said.contains("cannot load `tiny.gguf`: rocm:0") && said.contains(want), "{ask}: {said}");
        assert!(said.contains("hint: `roci devices` shows the device"), "{ask}: {said}");
    }
    check_recovery(&roci, &script);
}

/// What streams of a deterministic server on the card say, how often its engine died, and its log. Only a hang needs a
/// short deadline: on a busy machine a step of the software GPU may take seconds.
fn streams(
    roci: &Roci,
    script: &str,
    (n_streams, n_tokens): (usize, usize),
    env: &[(&str, &str)],
) -> (Vec<String>, f64, String) {
    let can_hang = env.iter().any(|(name, value)| name.contains("HANG") || value.contains("hang"));
    let deadline_s = if can_hang { "10" } else { "600" };
    let args =
        ["serve", "tiny.gguf", "--deterministic", "--context", "256", "--max-engine-deaths", "100", "--port", "0"];
    let args = [&args[..], &["--device", "rocm", "--step-deadline", deadline_s]].concat();
    let mut server = Server::of(command_as(roci, script, &[env!("CARGO_BIN_EXE_roci")], &args, env));
    let ask = |n: usize| {
        let prompt = format!("{n} and the beginning of something");
        let mut body =
            serde_json::json!({"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": true});
        body["stream"] = true.into();
        crate::serve_deaths::read_stream(&server, "/v1/completions", &body).0
    };
    let texts = std::thread::scope(|scope| {
        let all: Vec<_> = (0..n_streams).map(|n| scope.spawn(move || ask(n))).collect();
        all.into_iter().map(|asking| asking.join().unwrap()).collect()
    });
    let n_deaths = crate::serve::metric(&server, "roci_engine_deaths_total");
    server.terminate();
    assert_eq!(server.wait(), Some(0), "{}", server.log());
    let log = server.log();
    (texts, n_deaths, log)
}

/// The same without a fault, and how many of our kernels it ran, those of loading among them.
fn undisturbed(roci: &Roci, script: &str, size: (usize, usize)) -> (Vec<String>, usize) {
    let counters = roci.home.path().join("counters.jsonl");
    let _ = std::fs::remove_file(&counters);
    let (truth, n_deaths, _) = streams(roci, script, size, &[("GFX_COUNTERS", counters.to_str().unwrap())]);
    assert_eq!((truth.len(), n_deaths), (size.0, 0.0));
    let all = std::fs::read_to_string(&counters).unwrap();
    (truth, all.lines().filter(|line| !line.contains("\"dispatch\":0,")).count())
}

/// Streams under faults of processes or of the card: their texts are those of an undisturbed server.
fn check_texts(roci: &Roci, script: &str, size: (usize, usize), truth: &[String], fault: (&str, &str), n_least: f64) {
    let start = Instant::now();
    let (texts, n_deaths, log) = streams(roci, script, size, &[fault]);
    println!("{} streams, {fault:?}: {n_deaths} deaths, {:.1} s", size.0, start.elapsed().as_secs_f64());
    assert!(n_deaths >= n_least, "{fault:?}: {n_deaths} deaths\n{log}");
    assert_eq!(texts, truth, "{fault:?}");
}

/// A page fault and a hang in the middle of streams. Every process meets the fault at the same dispatch, late enough
/// that the process after it has less to do.
#[test]
fn streams_survive_a_page_fault_and_a_hang() {
    let Some(script) = script() else { return };
    let (roci, size) = (with_tiny(), (6, 40));
    check_recovery(&roci, &script);
    let (truth, n_dispatches) = undisturbed(&roci, &script, size);
    let at = (n_dispatches * 3 / 4).to_string();
    for fault in ["GFX_FAULT_AT", "GFX_HANG_AT"] {
        check_texts(&roci, &script, size, &truth, (fault, &at), 1.0);
    }
}

/// Every process meets the fault in the middle of the work that an undisturbed one does.
#[test]
#[ignore = "32 streams on the software GPU, several deaths: minutes"]
fn many_streams_survive_page_faults_and_hangs() {
    let Some(script) = script() else { return };
    let (roci, size) = (with_tiny(), (32, 96));
    check_recovery(&roci, &script);
    let (truth, n_dispatches) = undisturbed(&roci, &script, size);
    let at = (n_dispatches / 2).to_string();
    for fault in ["GFX_FAULT_AT", "GFX_HANG_AT"] {
        check_texts(&roci, &script, size, &truth, (fault, &at), 1.0);
    }
}

/// Twenty deaths of processes that use the card, under 32 streams: each lives for three to five steps.
fn twenty_deaths(kind: &str) {
    let Some(script) = script() else { return };
    let (roci, size) = (with_tiny(), (32, 96));
    check_recovery(&roci, &script);
    let (truth, _) = undisturbed(&roci, &script, size);
    let steps: Vec<String> = (0..20).map(|n| format!("{kind}@{}", 3 + n % 3)).collect();
    check_texts(&roci, &script, size, &truth, ("ROCI_FAULT", &steps.join(",")), 20.0);
}

#[test]
#[ignore = "20 deaths under 32 streams on the software GPU: minutes"]
fn twenty_deaths_by_kill_9_beside_the_card() {
    twenty_deaths("kill");
}

#[test]
#[ignore = "20 deaths under 32 streams on the software GPU: minutes"]
fn twenty_refused_allocations_beside_the_card() {
    twenty_deaths("memory");
}

/// While the model is loaded, in the prompt and in the answer: each time the call, the wait and the device.
#[test]
fn a_hang_is_caught_wherever_it_is() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    for (at, want) in
        [("1", "error: cannot load `tiny.gguf`"), ("5", "error: cannot load"), ("165", "error: generation failed")]
    {
        let args = [&TINY[..], &["--device", "rocm", "--step-deadline", "2"]].concat();
        let outcome = on_card(&roci, &script, &args, &[("GFX_HANG_AT", at)]);
        let said = &outcome.stderr;
        assert_eq!(outcome.code, Some(1), "{at}: {}", outcome.show());
        assert!(said.contains(want) && said.contains("has not finished") && said.contains("rocm:0"), "{at}: {said}");
    }
    check_recovery(&roci, &script);
}
