//! Published chat templates over many conversations, as transformers renders them.
//!
//! The templates are data of the models named by their files; goldens by testdata/make/by_transformers.py.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use test_support::fetched;
use text::{ChatTemplate, Error, Message, RenderOptions};

use crate::golden::{read_json, testdata};

/// Noon of 26 July 2024: where the clock stood when the goldens were made.
fn stopped_clock() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_721_995_200)
}

fn message(value: &Value) -> Message {
    // `content` may be null or a list, so all fields go the way of extra ones.
    let extra = value.as_object().unwrap().clone();
    match (&value["content"], extra.len()) {
        (Value::String(content), 2) => Message::new(value["role"].as_str().unwrap(), content),
        _ => Message { extra, ..Message::default() },
    }
}

fn open(source: &str) -> Result<ChatTemplate, Error> {
    ChatTemplate::new(source, "<BOS>", "<EOS>")?.with_time(stopped_clock())
}

fn render(template: &ChatTemplate, conversation: &Value) -> Result<String, Error> {
    let messages: Vec<Message> = conversation["messages"].as_array().unwrap().iter().map(message).collect();
    let options = RenderOptions {
        add_generation_prompt: conversation["add_generation_prompt"].as_bool().unwrap(),
        tools: conversation.get("tools").cloned(),
        extra: conversation["extra"].as_object().cloned().unwrap_or_default(),
    };
    template.render(&messages, &options)
}

/// What may become of a conversation on which a template breaks in Python, without meaning to.
#[derive(Copy, Clone, PartialEq)]
enum Failures {
    MustFail,
    MayRender,
}

/// What is wrong with a result, if anything.
fn difference(result: Result<String, Error>, expected: &Value, failures: Failures) -> Option<String> {
    let is_right = match (&result, expected) {
        (Ok(text), Value::String(expected)) => text == expected,
        (Err(Error::TemplateRefused(message)), expected) if expected["refused"].is_string() => {
            message == &expected["refused"]
        }
        (Err(Error::TemplateRender(_)), expected) => expected["failed"].is_string(),
        (Ok(_), expected) => failures == Failures::MayRender && expected["failed"].is_string(),
        _ => false,
    };
    (!is_right).then(|| match result {
        Ok(text) => format!("\n  expected {expected}\n  found    {}", Value::from(text)),
        Err(error) => format!("\n  expected {expected}\n  found    {error}"),
    })
}

fn check(folder: &Path, golden: &Value, failures: Failures) {
    let conversations = read_json("conversations.json");
    let mut wrong = Vec::new();
    for (name, results) in golden.as_object().unwrap() {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template = open(&source).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (conversation, expected) in conversations.as_array().unwrap().iter().zip(results.as_array().unwrap()) {
            if let Some(what) = difference(render(&template, conversation), expected, failures) {
                wrong.push(format!("{name}, {}: {what}", conversation["name"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn published_templates_as_transformers() {
    check(&testdata("templates"), &read_json("golden/templates.json"), Failures::MustFail);
}

/// Templates under licences of their own are not kept here; llama.cpp's source package has them.
#[test]
fn templates_beside_the_vocabularies_as_transformers() {
    let Some(folder) = fetched::path(fetched::VOCABULARIES) else { return };
    check(&folder.join("templates"), &read_json("golden/templates-llama-cpp.json"), Failures::MustFail);
}

/// Every template of llama.cpp's source package, rendered on the spot by Python's jinja2.
#[test]
fn all_templates_as_jinja2() {
    let (Some(models), Some(python)) = (fetched::path(fetched::VOCABULARIES), fetched::python(&["jinja2"])) else {
        return;
    };
    let folder = models.join("templates");
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "jinja")).collect();
    paths.sort();
    assert!(paths.len() >= 60, "only {} templates", paths.len());
    let mut command = std::process::Command::new(python);
    command.arg(testdata("make/by_jinja2.py")).arg(testdata("conversations.json")).args(&paths);
    let output = command.env("PYTHONIOENCODING", "utf-8").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut golden: Value = serde_json::from_slice(&output.stdout).unwrap();
    // This one joins texts it calls safe for HTML with others, which Python then escapes (`&lt;`) for the model to read.
    golden.as_object_mut().unwrap().remove("meetkai-functionary-medium-v3.1");
    check(&folder, &golden, Failures::MayRender);
}
