//! Several questions at once: the engine computes them in the same steps. `cargo run --example parallel -- MODEL Q...`.

use rocinante::{Message, Model, Options, Request, Scheduling, Workload};

fn main() -> rocinante::Result<()> {
    rocinante::answer_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, questions @ ..] = args.as_slice() else {
        eprintln!("usage: parallel MODEL QUESTION...");
        return Ok(());
    };
    let workload = Workload::Server(Scheduling::default());
    let model = Model::open_with(path, &Options { workload, ..Options::default() })?;
    let ask = |question: &String| {
        let request = Request { max_tokens: Some(32), ..Request::default() };
        model.chat(&[Message::new("user", question.as_str())], request)
    };
    // Every question is submitted before the first answer is awaited.
    let answers = questions.iter().map(ask).collect::<rocinante::Result<Vec<_>>>()?;
    for (question, answer) in questions.iter().zip(answers) {
        println!("{question}\n  {}", answer.text()?.trim());
    }
    Ok(())
}
