//! The stream of an answer's events, for threads and for executors.

use crate::folder;
use futures_util::StreamExt;
use rocinante::{
    AnswerEvent, Constraint, Device, Error, Finish, Message, Model, Next, Options, Piece, RenderOptions, Request,
};
use serde_json::json;
use std::time::{Duration, Instant};

fn model(home: &tempfile::TempDir) -> Model {
    let path = folder::write(home.path(), Some(folder::TOOLS_TEMPLATE), |_| ());
    Model::open_with(path, &Options { device: Device::Cpu, n_threads: Some(1), ..Options::default() }).unwrap()
}

fn question() -> [Message; 1] {
    [Message::new("user", "hi")]
}

/// Held to exactly this text.
fn saying(text: &str) -> Request {
    let escape = |c: char| if "{}.()[]+*?|\\^$/".contains(c) { format!("\\{c}") } else { c.to_string() };
    let escaped: String = text.chars().map(escape).collect();
    Request { constraint: Some(Constraint::Regex(escaped)), ..Request::default() }
}

#[test]
fn reasoning_text_and_usage() {
    let home = tempfile::tempdir().unwrap();
    let whole = model(&home).chat(&question(), saying("<think>ab</think>cd")).unwrap().whole().unwrap();
    assert_eq!((whole.reasoning.as_str(), whole.text.as_str(), whole.finish), ("ab", "cd", Finish::End));
    assert_eq!(whole.usage.n_generated, whole.tokens.len());
    assert!(whole.usage.n_reasoning > 0 && whole.usage.n_reasoning < whole.usage.n_generated);
    assert!(whole.usage.n_prompt > 0 && whole.usage.timings.ttft > Duration::ZERO);
}

#[test]
fn tool_calls_come_apart_from_the_text() {
    let home = tempfile::tempdir().unwrap();
    let model = model(&home);
    let tools = json!([{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]);
    let options = RenderOptions { add_generation_prompt: true, tools: Some(tools), ..RenderOptions::default() };
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {\"zone\": 1}}</tool_call>";
    assert!(model.prompt(&question(), &options).unwrap().text.contains("\"now\""), "the template tells of the tool");
    let whole = model.chat_with(&question(), &options, saying(call)).unwrap().whole().unwrap();
    assert_eq!((whole.text.as_str(), whole.finish, whole.tool_calls.len()), ("", Finish::ToolCalls, 1));
    let found = &whole.tool_calls[0];
    assert_eq!((found.name.as_str(), found.id.len()), ("now", "call_".len() + 24));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&found.arguments).unwrap(), json!({"zone": 1}));
    // Without tools the same words are only text.
    let text = model.chat(&question(), saying(call)).unwrap().text().unwrap();
    assert_eq!(text, call);
}

#[test]
fn control_tokens_of_users_and_tools_are_text() {
    let home = tempfile::tempdir().unwrap();
    let template = "{% for message in messages %}{{ message.content }}{{ message.results | join }}{% endfor %}";
    let path = folder::write(home.path(), Some(template), |_| ());
    let model = Model::open_with(path, &Options { device: Device::Cpu, ..Options::default() }).unwrap();
    let end = model.tokenizer().token_id("<|im_end|>").expect("a control token");
    let n_ends = |role: &str| {
        let mut message = Message::new(role, "1<|im_end|>");
        message.extra.insert("results".to_owned(), json!(["2", "<|im_end|>"]));
        let prompt = model.prompt(&[message], &RenderOptions::default()).unwrap();
        assert_eq!(prompt.text, "1<|im_end|>2<|im_end|>");
        prompt.tokens.iter().filter(|token| token.0 == end).count()
    };
    assert_eq!((n_ends("user"), n_ends("tool"), n_ends("assistant")), (0, 0, 2));
}

#[test]
fn threads_and_executors_read_the_same() {
    let home = tempfile::tempdir().unwrap();
    let model = model(&home);
    let request = Request { logprobs: Some(2), max_tokens: Some(12), ..Request::default() };
    let start = || model.complete("The 12", request.clone()).unwrap();
    let without_times = |event: AnswerEvent| match event {
        AnswerEvent::Finished(mut finished) => {
            finished.usage.timings = Default::default();
            finished.usage.n_cached = 0;
            AnswerEvent::Finished(finished)
        }
        event => event,
    };
    let blocking: Vec<AnswerEvent> = start().map(|event| without_times(event.unwrap())).collect();
    let stream = start().into_stream().map(|event| without_times(event.unwrap()));
    let streamed: Vec<AnswerEvent> = futures_executor::block_on(stream.collect());
    assert_eq!(blocking, streamed);
    assert!(blocking.iter().any(|event| matches!(event, AnswerEvent::Token(token) if token.top.len() == 2)));
    let whole = start().whole().unwrap();
    let awaited = futures_executor::block_on(start().collect_whole()).unwrap();
    assert_eq!((&whole.text, &whole.tokens), (&awaited.text, &awaited.tokens));
    assert_eq!(start().text().unwrap(), whole.text);
}

#[test]
fn stop_strings_end_an_answer_and_are_not_shown() {
    let home = tempfile::tempdir().unwrap();
    let model = model(&home);
    let request = Request { stop: vec!["cd".to_owned()], ..saying("abcdef") };
    let whole = model.chat(&question(), request).unwrap().whole().unwrap();
    assert_eq!((whole.text.as_str(), whole.finish, whole.stop.as_deref()), ("ab", Finish::StopString, Some("cd")));
}

#[test]
fn limits_and_cancels_are_told_apart() {
    let home = tempfile::tempdir().unwrap();
    let model = model(&home);
    let endless = |max_tokens| Request { max_tokens, ..saying(&"a".repeat(900)) };
    let finish = |request| model.complete("hi", request).unwrap().whole().unwrap().finish;
    assert_eq!(finish(endless(Some(3))), Finish::Length);
    let mut answer = model.complete("hi", endless(None)).unwrap();
    // The first token is on its way; then the caller has enough.
    while !matches!(answer.next().unwrap().unwrap(), AnswerEvent::Piece(Piece::Text { .. })) {}
    answer.cancel();
    assert_eq!(answer.whole().unwrap().finish, Finish::Cancelled);
    let mut answer = model.complete("hi", endless(None)).unwrap();
    assert!(matches!(answer.next_timeout(Duration::ZERO).unwrap(), Next::TimedOut | Next::Event(_)));
    drop(answer);
    let deadline = Instant::now() + Duration::from_secs(60);
    while model.engine().stats().unwrap().n_running > 0 {
        assert!(Instant::now() < deadline, "dropping an answer stops the model");
    }
}

#[test]
fn wrong_requests_cost_nothing() {
    let home = tempfile::tempdir().unwrap();
    let model = model(&home);
    assert!(matches!(model.answer(Vec::new(), &Request::default(), plain(&model)), Err(Error::EmptyPrompt)));
    let long = "a b ".repeat(2000);
    let too_long = model.complete(&long, Request::default());
    assert!(matches!(too_long, Err(Error::PromptTooLong { n_ctx: 1024, n_ctx_train: 1024, .. })), "{too_long:?}");
    assert!(matches!(model.check(&Constraint::Regex("(".to_owned())), Err(Error::Constraint(_))));
    let request = Request { constraint: Some(Constraint::Regex("(".to_owned())), ..Request::default() };
    let failed = model.complete("hi", request).unwrap().whole();
    assert!(matches!(failed, Err(Error::Constraint(_))), "{failed:?}");
    assert!(matches!(model.rerank("a", &["b"]), Err(Error::NoScores)));
}

fn plain(model: &Model) -> rocinante::Splitter {
    rocinante::Splitter::plain(model.tokenizer(), Vec::new(), false)
}
