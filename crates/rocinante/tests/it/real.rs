//! A real model, through the calls that the crate's documentation shows. Needs ROCI_SMOLLM2 (the path of
//! SmolLM2-135M-Instruct.Q4_1.gguf); without it these are skipped, or fail where ROCI_REQUIRE_MODEL=1.

use rocinante::{Constraint, Message, Model, Request};

fn smollm2() -> Option<Model> {
    let Some(path) = std::env::var_os("ROCI_SMOLLM2") else {
        assert!(std::env::var("ROCI_REQUIRE_MODEL").as_deref() != Ok("1"), "ROCI_SMOLLM2 names no file");
        eprintln!("skipped: ROCI_SMOLLM2 names no SmolLM2-135M-Instruct.Q4_1.gguf");
        return None;
    };
    Some(Model::open(path).unwrap())
}

#[test]
fn it_knows_the_capital_of_france() {
    let Some(model) = smollm2() else { return };
    assert!(model.plan().device.refused.is_empty() && model.device().starts_with("cpu"), "a test does not probe GPUs");
    let question = [Message::new("user", "What is the capital of France?")];
    let mut answer = model.chat(&question, Request { max_tokens: Some(24), ..Request::default() }).unwrap();
    let text: String = answer.texts().map(Result::unwrap).collect();
    assert!(text.contains("Paris"), "{text}");
    let form = Constraint::Regex("(yes|no)".to_owned());
    let request = Request { constraint: Some(form), ..Request::default() };
    let answer = model.complete("Is water wet? Answer: ", request).unwrap().text().unwrap();
    assert!(answer == "yes" || answer == "no", "{answer}");
}

#[test]
fn similar_texts_have_similar_vectors() {
    let Some(model) = smollm2() else { return };
    let [cat, kitten, tax] = ["a cat", "a kitten", "the tax law of 1913"].map(|text| model.embed(text).unwrap());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert!(dot(&cat, &kitten) > dot(&cat, &tax));
}
