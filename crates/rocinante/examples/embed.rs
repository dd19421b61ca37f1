//! Finds the text that is nearest to a question: `cargo run --example embed -- MODEL QUESTION TEXT...`.

use rocinante::Model;

fn main() -> rocinante::Result<()> {
    rocinante::answer_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, question, texts @ ..] = args.as_slice() else {
        eprintln!("usage: embed MODEL QUESTION TEXT...");
        return Ok(());
    };
    let model = Model::open(path)?;
    let question = model.embed(question)?;
    let vectors = model.embed_all(texts.iter().map(|text| model.encode_raw(text)).collect())?;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let mut ranked: Vec<(f32, &String)> = vectors.iter().map(|vector| dot(&question, vector)).zip(texts).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (score, text) in ranked {
        println!("{score:.4}  {text}");
    }
    Ok(())
}
