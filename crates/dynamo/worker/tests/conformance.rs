//! Dynamo's own conformance kit, and what it does not ask: texts, stop tokens, wrong requests, the events of the cache.

use clap::Parser;
use dynamo_backend_common::testing::{mock_context, run_conformance};
use dynamo_backend_common::{
    BackendError, ErrorType, FinishReason, GenerateContext, GuidedDecodingOptions, LLMEngine, LLMEngineOutput,
    OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions,
};
use futures::StreamExt;
use roci_dynamo_worker::{EngineArgs, Isolation, RociEngine};
use std::path::Path;
use std::time::Duration;

// The random llama that `rocinante` is tested with.
#[path = "../../../rocinante/tests/it/folder.rs"]
mod folder;

fn engine(path: &Path) -> RociEngine {
    let path = path.to_str().unwrap();
    let args =
        EngineArgs::parse_from(["roci-dynamo-worker", "--model-path", path, "--device", "cpu", "--deterministic"]);
    RociEngine::new(&args, Isolation::Thread).unwrap().0
}

fn asked(prompt: Vec<u32>, n: u32) -> PreprocessedRequest {
    PreprocessedRequest::builder()
        .model("little-llama".to_owned())
        .token_ids(prompt)
        .stop_conditions(StopConditions { max_tokens: Some(n), ..StopConditions::default() })
        .sampling_options(SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() })
        .output_options(OutputOptions::default())
        .build()
        .unwrap()
}

async fn chunks(engine: &RociEngine, request: PreprocessedRequest) -> Result<Vec<LLMEngineOutput>, String> {
    let stream = engine.generate(request, GenerateContext::new(mock_context(), None)).await;
    let items: Vec<_> = stream.map_err(|error| error.to_string())?.collect().await;
    items.into_iter().map(|item| item.map_err(|error| error.to_string())).collect()
}

fn tokens(chunks: &[LLMEngineOutput]) -> Vec<u32> {
    chunks.iter().flat_map(|chunk| chunk.token_ids.clone()).collect()
}

fn last(chunks: &[LLMEngineOutput]) -> &LLMEngineOutput {
    chunks.last().unwrap()
}

#[tokio::test]
async fn dynamos_conformance_kit_passes() {
    let home = tempfile::tempdir().unwrap();
    let path = folder::write(home.path(), None, |_| ());
    run_conformance(|| engine(&path)).await.unwrap();
}

#[tokio::test]
async fn tokens_are_those_of_the_model_and_end_where_they_should() {
    let home = tempfile::tempdir().unwrap();
    let path = folder::write(home.path(), None, |_| ());
    let engine = engine(&path);
    engine.start(7).await.unwrap();

    let model = rocinante::Model::open_with(
        &path,
        &rocinante::Options { device: rocinante::Device::Cpu, deterministic: true, ..Default::default() },
    )
    .unwrap();
    let splitter = rocinante::Splitter::plain(model.tokenizer(), Vec::new(), false);
    let request = rocinante::Request { max_tokens: Some(9), ..Default::default() };
    let prompt = [5, 6, 7, 8].map(rocinante::TokenId).to_vec();
    let whole = model.answer(prompt, &request, splitter).unwrap().whole().unwrap();
    let truth: Vec<u32> = whole.tokens.iter().map(|token| token.token.0).collect();

    let found = chunks(&engine, asked(vec![5, 6, 7, 8], 9)).await.unwrap();
    assert_eq!(tokens(&found), truth);
    assert_eq!(truth.len(), 9, "an end of the model's own would make the rest of this test say nothing");
    assert!(matches!(last(&found).finish_reason, Some(FinishReason::Length)));
    let usage = last(&found).completion_usage.clone().unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (4, 9));

    // A stop token ends the answer where it first comes, and is the last one sent.
    let stop = truth[4];
    let first = truth.iter().position(|&token| token == stop).unwrap();
    let mut request = asked(vec![5, 6, 7, 8], 9);
    request.stop_conditions.stop_token_ids_hidden = Some(vec![stop]);
    let found = chunks(&engine, request.clone()).await.unwrap();
    assert_eq!(tokens(&found), truth[..=first]);
    assert!(matches!(last(&found).finish_reason, Some(FinishReason::Stop)));
    // Unless ends are to be ignored.
    request.stop_conditions.ignore_eos = Some(true);
    assert_eq!(tokens(&chunks(&engine, request).await.unwrap()).len(), 9);

    let mut request = asked(vec![5, 6, 7, 8], 2);
    request.output_options.logprobs = Some(3);
    let found = chunks(&engine, request).await.unwrap();
    let (logprob, top) = (found[0].log_probs.clone().unwrap()[0], found[0].top_logprobs.clone().unwrap()[0].clone());
    assert_eq!((top.len(), top[0].token_id, top[0].logprob), (3, truth[0], logprob));
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_answer_ends_and_frees_its_place() {
    let home = tempfile::tempdir().unwrap();
    let path = folder::write(home.path(), None, |_| ());
    let engine = engine(&path);
    engine.start(7).await.unwrap();
    assert_eq!(engine.is_quiescent().await.unwrap(), Some(true));
    let mut request = asked(vec![5, 6, 7, 8], 900);
    request.stop_conditions.ignore_eos = Some(true);

    let context = mock_context();
    let mut stream = engine.generate(request.clone(), GenerateContext::new(context.clone(), None)).await.unwrap();
    let mut found = vec![stream.next().await.unwrap().unwrap(), stream.next().await.unwrap().unwrap()];
    assert_eq!(engine.is_quiescent().await.unwrap(), Some(false));
    context.stop_generating();
    engine.abort(context).await;
    found.extend(stream.by_ref().map(|item| item.unwrap()).collect::<Vec<_>>().await);
    assert!(matches!(last(&found).finish_reason, Some(FinishReason::Cancelled)));
    let usage = last(&found).completion_usage.clone().unwrap();
    assert_eq!(usage.completion_tokens as usize, tokens(&found).len());
    assert!(usage.completion_tokens < 900);
    drained(&engine).await;

    // Nobody asks for the rest of this one, or says so.
    let mut stream = engine.generate(request.clone(), GenerateContext::new(mock_context(), None)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    drained(&engine).await;

    // An answer that runs while the worker goes down ends with an error that lets Dynamo ask another worker.
    let mut stream = engine.generate(request, GenerateContext::new(mock_context(), None)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    engine.cleanup().await.unwrap();
    let items: Vec<_> = stream.collect().await;
    let error = items.last().unwrap().as_ref().unwrap_err();
    assert_eq!(error.error_type(), ErrorType::Backend(BackendError::EngineShutdown), "{error}");
}

async fn drained(engine: &RociEngine) {
    for _ in 0..200 {
        if engine.is_quiescent().await.unwrap() == Some(true) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("something is still running");
}

#[tokio::test]
async fn what_cannot_be_done_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = folder::write(home.path(), None, |_| ());
    let engine = engine(&path);
    assert!(chunks(&engine, asked(vec![1], 1)).await.unwrap_err().contains("not loaded"));
    engine.start(7).await.unwrap();
    type Change = fn(&mut PreprocessedRequest);
    let wrong: [(&str, Change); 7] = [
        ("empty", |request| request.token_ids = Vec::new().into()),
        ("several answers", |request| request.sampling_options.n = Some(2)),
        ("beam search", |request| request.sampling_options.use_beam_search = Some(true)),
        ("of the prompt", |request| request.output_options.prompt_logprobs = Some(1)),
        ("adapters", |request| {
            request.routing = serde_json::from_value(serde_json::json!({"lora_name": "poet"})).unwrap();
        }),
        ("cache_salt", |request| {
            request.routing = serde_json::from_value(serde_json::json!({"cache_salt": "mine"})).unwrap();
        }),
        ("structural_tag", |request| {
            let tag = GuidedDecodingOptions { structural_tag: Some(1.into()), ..GuidedDecodingOptions::default() };
            request.sampling_options.guided_decoding = Some(tag);
        }),
    ];
    for (what, change) in wrong {
        let mut request = asked(vec![1, 2], 2);
        change(&mut request);
        let error = chunks(&engine, request).await.unwrap_err();
        assert!(error.contains(what), "{what}: {error}");
    }
    let long = chunks(&engine, asked(vec![3; 5000], 2)).await.unwrap_err();
    assert!(long.contains("5000 tokens"), "{long}");
    // Token ids beyond the vocabulary are an error of this request, and of no other.
    assert!(chunks(&engine, asked(vec![1, 4_000_000], 2)).await.is_err());
    assert_eq!(tokens(&chunks(&engine, asked(vec![1, 2], 2)).await.unwrap()).len(), 2);
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn guided_answers_have_their_form() {
    let home = tempfile::tempdir().unwrap();
    let path = folder::write(home.path(), None, |_| ());
    let engine = engine(&path);
    engine.start(7).await.unwrap();
    let model = rocinante::Model::open(&path).unwrap();
    let mut request = asked(vec![5, 6], 40);
    let choice = Some(vec!["12".to_owned(), "(1.2)".to_owned()]);
    request.sampling_options.guided_decoding =
        Some(GuidedDecodingOptions { choice, ..GuidedDecodingOptions::default() });
    let found = chunks(&engine, request.clone()).await.unwrap();
    let text = model.tokenizer().decode(&tokens(&found));
    assert!(["12", "(1.2)"].iter().any(|choice| text.starts_with(choice)), "{text}");
    assert!(matches!(last(&found).finish_reason, Some(FinishReason::Stop)));

    let regex = Some("(".to_owned());
    request.sampling_options.guided_decoding =
        Some(GuidedDecodingOptions { regex, ..GuidedDecodingOptions::default() });
    assert!(chunks(&engine, request).await.is_err());
    engine.cleanup().await.unwrap();
}

#[test]
fn what_a_worker_cannot_be_is_said_before_it_loads() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("model.gguf");
    std::fs::write(&file, "").unwrap();
    let (file, folder) = (file.to_str().unwrap(), home.path().to_str().unwrap());
    let refused = |args: &[&str]| {
        let args = EngineArgs::parse_from([&["roci-dynamo-worker"], args].concat());
        RociEngine::new(&args, Isolation::Thread).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(refused(&["--model-path", file]).contains("--tokenizer"));
    assert_eq!(refused(&["--model-path", file, "--tokenizer", folder]), "");
    assert!(refused(&["--model-path", folder, "--disaggregation-mode", "prefill"]).contains("`agg`"));
    assert!(refused(&["--model-path", folder, "--enable-rl"]).contains("--enable-rl"));
    assert!(refused(&["--model-path", folder, "--route-to-encoder"]).contains("no images"));
}
