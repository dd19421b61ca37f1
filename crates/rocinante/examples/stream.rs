//! Awaits an answer's events on an executor and tells reasoning from text: `cargo run --example stream -- MODEL "QUESTION"`.

use rocinante::{AnswerEvent, Message, Model, Piece, Request};

fn main() -> rocinante::Result<()> {
    rocinante::answer_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, question] = args.as_slice() else {
        eprintln!("usage: stream MODEL QUESTION");
        return Ok(());
    };
    let model = Model::open(path)?;
    // Any executor will do; this one runs on the spot.
    futures_executor::block_on(async {
        let mut answer = model.chat(&[Message::new("user", question.as_str())], Request::default())?;
        while let Some(event) = answer.next_event().await {
            match event? {
                AnswerEvent::Piece(Piece::Reasoning(text)) => eprint!("{text}"),
                AnswerEvent::Piece(Piece::Text { text, .. }) => print!("{text}"),
                AnswerEvent::Finished(finished) => println!("\n{:?}: {:?}", finished.finish, finished.usage),
                _ => {}
            }
        }
        Ok(())
    })
}
