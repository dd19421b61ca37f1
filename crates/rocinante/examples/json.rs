//! An answer that is JSON of a schema: `cargo run --example json -- MODEL "Who was Ada Lovelace?"`.

use rocinante::{Constraint, Message, Model, Request};
use serde_json::json;

fn main() -> rocinante::Result<()> {
    rocinante::answer_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, question] = args.as_slice() else {
        eprintln!("usage: json MODEL QUESTION");
        return Ok(());
    };
    let model = Model::open(path)?;
    let schema = Constraint::JsonSchema(json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "born": {"type": "integer"}},
        "required": ["name", "born"],
        "additionalProperties": false,
    }));
    model.check(&schema)?;
    let request = Request { constraint: Some(schema), ..Request::default() };
    println!("{}", model.chat(&[Message::new("user", question.as_str())], request)?.text()?);
    Ok(())
}
