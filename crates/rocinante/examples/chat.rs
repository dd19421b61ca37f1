//! Asks a model once and prints the answer as it comes: `cargo run --example chat -- MODEL "QUESTION" [DEVICE]`.

use std::io::Write;

use rocinante::{Message, Model, Options, Request, device};

fn main() -> rocinante::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, question, rest @ ..] = args.as_slice() else {
        eprintln!("usage: chat MODEL QUESTION [cpu|cuda:0|rocm:0]");
        return Ok(());
    };
    let device = device(rest.first().map_or("cpu", String::as_str))?;
    let model = Model::open_with(path, Options { device, ..Options::default() })?;
    for piece in model.chat(&[Message::new("user", question.as_str())], Request::default())? {
        print!("{}", piece?);
        std::io::stdout().flush().ok();
    }
    println!();
    Ok(())
}
