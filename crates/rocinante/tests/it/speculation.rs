//! Speculation on a real model: answers are those of the same model without it, token by token. Needs ROCI_SMOLLM2.

use crate::folder;
use rocinante::{
    Constraint, Device, Drafted, Error, Message, Model, Options, Request, Sampling, Scheduling, Speculate, WholeAnswer,
    Workload,
};
use std::path::PathBuf;
use weights::Checkpoint;

fn smollm2() -> Option<PathBuf> {
    test_support::fetched::path(test_support::fetched::SMOLLM2)
}

/// With the kernels whose sums do not depend on the number of rows, prompts in chunks, and a pool that is too small for
/// all requests at once.
fn options(speculate: Speculate) -> Options {
    let scheduling = Scheduling { prefill_chunk: Some(24), kv_tokens: Some(256), ..Scheduling::default() };
    Options {
        device: Device::Cpu,
        context: Some(256),
        deterministic: true,
        speculate,
        workload: Workload::Server(scheduling),
        ..Options::default()
    }
}

fn requests() -> Vec<Request> {
    let base = Request { max_tokens: Some(40), ..Request::default() };
    let warm = Sampling { temperature: 0.8, seed: 11, ..Sampling::default() };
    let sampled = |sampling| Request { sampling, ..base.clone() };
    vec![
        base.clone(),
        sampled(warm.clone()),
        sampled(Sampling { top_k: 20, top_p: 0.9, seed: 12, ..warm.clone() }),
        sampled(Sampling { repetition_penalty: 1.2, frequency_penalty: 0.3, ..Sampling::default() }),
        Request { constraint: Some(Constraint::Regex("(one, |two, |three, ){12}end".to_owned())), ..base.clone() },
        Request { stop: vec!["seven".to_owned()], ..base.clone() },
        Request { logprobs: Some(2), ..base.clone() },
        Request { prediction: Some("one, two, three, four, five, six, seven".to_owned()), ..base },
    ]
}

/// All answers to one question, asked at the same time.
fn answers(model: &Model) -> (Vec<WholeAnswer>, Drafted) {
    let list = "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve";
    let question = [Message::new("user", format!("Repeat this list: {list}. Then repeat it again."))];
    let all: Vec<_> = requests().into_iter().map(|request| model.chat(&question, request).unwrap()).collect();
    let mut drafted = Drafted::default();
    let whole = all.into_iter().map(|answer| {
        let mut whole = answer.whole().unwrap();
        drafted += std::mem::take(&mut whole.usage).drafted;
        whole
    });
    (whole.collect(), drafted)
}

#[test]
fn answers_are_the_same_with_and_without() {
    let Some(path) = smollm2() else { return };
    let (truth, drafted) = answers(&Model::open_with(&path, &options(Speculate::Off)).unwrap());
    assert_eq!(drafted, Drafted::default());
    for speculate in [Speculate::Ngram, Speculate::Draft(path.clone())] {
        let (found, drafted) = answers(&Model::open_with(&path, &options(speculate.clone())).unwrap());
        for (found, truth) in found.iter().zip(&truth) {
            // Without log-probabilities they are NaN.
            let tokens = |answer: &WholeAnswer| answer.tokens.iter().map(|token| token.token).collect::<Vec<_>>();
            assert_eq!(tokens(found), tokens(truth), "{speculate}");
            let said = |answer: &WholeAnswer| (answer.text.clone(), answer.finish, answer.stop.clone());
            assert_eq!(said(found), said(truth), "{speculate}");
            assert_eq!(found.logprobs, truth.logprobs, "{speculate}");
        }
        assert!(drafted.n_accepted > 0, "{speculate}: {drafted:?}");
    }
}

#[test]
fn what_cannot_draft_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let tiny = folder::write(home.path(), None, |_| ());
    let open = |path: &PathBuf, speculate| {
        Model::open_with(path, &Options { device: Device::Cpu, speculate, ..Options::default() }).unwrap_err()
    };
    let error = open(&tiny, Speculate::Mtp);
    assert!(matches!(&error, Error::NoMtp { .. }) && error.to_string().contains("qwen35"), "{error}");
    // Gemma 4's drafters are files of their own.
    let options = Options { device: Device::Cpu, speculate: Speculate::Mtp, ..Options::default() };
    let error = Model::from_checkpoint(tiny_with_vocabulary("families", "gemma4"), &options).unwrap_err().to_string();
    assert!(error.contains("assistant") && error.contains("draft=PATH"), "{error}");
    // They are nothing alone, and fit the model that they were made for.
    for form in ["gemma4", "gemma4.gguf"] {
        let error = open(&drafter(form), Speculate::Off).to_string();
        assert!(error.contains("gemma4-assistant") && error.contains("--speculate draft="), "{error}");
    }
    let error = open(&tiny, Speculate::Draft(drafter("gemma4")));
    assert!(matches!(&error, Error::DraftModel { draft, .. } if *draft == drafter("gemma4")), "{error}");
    assert!(error.to_string().contains("a Gemma 4, this is a llama"), "{error}");
    let options = Options { speculate: Speculate::Draft(drafter("gemma4-moe")), ..options };
    let error = Model::from_checkpoint(tiny_with_vocabulary("families", "gemma4"), &options).unwrap_err().to_string();
    assert!(error.contains("gemma4-moe` was made for another model: its layer 0"), "{error}");
    let error = open(&tiny, Speculate::Draft("nowhere.gguf".into())).to_string();
    assert!(error.contains("nowhere.gguf"), "{error}");
    let Some(path) = smollm2() else { return };
    let error = open(&path, Speculate::Draft(tiny.clone()));
    assert!(matches!(&error, Error::DraftVocabulary { draft, .. } if *draft == tiny), "{error}");
    assert!(error.to_string().contains("it has 423 tokens, the model 49152"), "{error}");
}

/// A tiny model whose vocabulary is the printable characters; those in `next` have a layer that guesses the token after the
/// next.
fn tiny_with_vocabulary(folder: &str, name: &str) -> Checkpoint {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/testdata").join(folder);
    let checkpoint = Checkpoint::open(&folder.join(format!("{name}.gguf"))).unwrap();
    let n_vocab = checkpoint.metadata().u32(&format!("{name}.vocab_size")).unwrap().unwrap() as usize;
    let tokens: Vec<String> = (0..n_vocab).map(|i| char::from_u32(0x21 + i as u32).unwrap().to_string()).collect();
    let mut metadata = checkpoint.metadata().clone();
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", "smollm");
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.token_type", vec![1_i32; n_vocab]);
    metadata.set("tokenizer.ggml.merges", Vec::<String>::new());
    Checkpoint::from_parts(metadata, checkpoint.tensors().to_vec()).unwrap()
}

#[test]
fn a_models_own_layer_drafts() {
    for name in ["qwen35", "qwen35moe", "qwen3next", "glm4moe"] {
        let answer = |speculate: Speculate, workload| {
            let options =
                Options { device: Device::Cpu, context: Some(128), speculate, workload, ..Options::default() };
            let model = Model::from_checkpoint(tiny_with_vocabulary("next", name), &options).unwrap();
            let request = Request { max_tokens: Some(60), ..Request::default() };
            let answer = model.complete("WHATISTHIS", request).unwrap().whole().unwrap();
            (answer.text, answer.usage.drafted)
        };
        let (text, drafted) = answer(Speculate::Off, Workload::Conversation);
        assert_eq!((text.is_empty(), drafted), (false, Drafted::default()));
        for workload in [Workload::Conversation, Workload::Server(Scheduling::default())] {
            let (found, drafted) = answer(Speculate::Mtp, workload);
            assert_eq!(found, text, "{name}");
            assert!(drafted.n_tokens > 0, "{name}: {drafted:?}");
        }
    }
}

fn drafter(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/testdata/drafters").join(name)
}

/// Behind a prompt that is computed and again behind one that is found in the cache, with windows of their own.
#[test]
fn a_drafter_reads_the_models_keys_and_values() {
    for form in ["gemma4", "gemma4.gguf"] {
        let answer = |speculate: Speculate, workload| {
            let options =
                Options { device: Device::Cpu, context: Some(128), speculate, workload, ..Options::default() };
            let model = Model::from_checkpoint(tiny_with_vocabulary("families", "gemma4"), &options).unwrap();
            let ask = || {
                let request = Request { max_tokens: Some(60), ..Request::default() };
                let answer = model.complete("WHATISTHISANDWHYISITSOLONG", request).unwrap().whole().unwrap();
                (answer.text, answer.usage.drafted)
            };
            [ask(), ask()]
        };
        let [(text, drafted), again] = answer(Speculate::Off, Workload::Conversation);
        assert_eq!((text.is_empty(), drafted, &again.0), (false, Drafted::default(), &text));
        for workload in [Workload::Conversation, Workload::Server(Scheduling::default())] {
            for (found, drafted) in answer(Speculate::Draft(drafter(form)), workload) {
                assert_eq!(found, text, "{form}");
                assert!(drafted.n_tokens > 0, "{form}: {drafted:?}");
            }
        }
    }
}
