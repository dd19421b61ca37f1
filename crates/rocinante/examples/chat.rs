//! Asks a model once and prints the answer as it comes: `cargo run --example chat -- MODEL "QUESTION" [DEVICE]`.

use std::io::Write;

use rocinante::{Message, Model, Options, Request};

fn main() -> rocinante::Result<()> {
    rocinante::answer_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, question, rest @ ..] = args.as_slice() else {
        eprintln!("usage: chat MODEL QUESTION [auto|cpu|cuda:0|rocm:0]");
        return Ok(());
    };
    let device = rest.first().map_or("auto", String::as_str).parse()?;
    let model = Model::open_with(path, &Options { device, ..Options::default() })?;
    for text in model.chat(&[Message::new("user", question.as_str())], Request::default())?.texts() {
        print!("{}", text?);
        std::io::stdout().flush().ok();
    }
    println!();
    Ok(())
}
