//! Lets a model call a tool, runs it and hands the result back: `cargo run --example tools -- MODEL "QUESTION"`.

use rocinante::{Message, Model, RenderOptions, Request};
use serde_json::json;

fn main() -> rocinante::Result<()> {
    rocinante::answer_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, question] = args.as_slice() else {
        eprintln!("usage: tools MODEL QUESTION");
        return Ok(());
    };
    let model = Model::open(path)?;
    let tools = json!([{"type": "function", "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }}]);
    let options = RenderOptions { tools: Some(tools), ..RenderOptions::default() };
    let mut messages = vec![Message::new("user", question.as_str())];
    let answer = model.chat_with(&messages, &options, Request::default())?.whole()?;
    let Some(call) = answer.tool_calls.first() else {
        println!("{}", answer.text);
        return Ok(());
    };
    println!("the model calls {}({})", call.name, call.arguments);
    messages.push(Message::new("assistant", answer.text));
    messages.push(Message::new("tool", "18 degrees, light rain"));
    println!("{}", model.chat_with(&messages, &options, Request::default())?.text()?);
    Ok(())
}
