//! A served folder of safetensors is as good as a GGUF file: it keeps its tools, its reasoning and its size.

use crate::folder;
use crate::roci::Roci;
use crate::server::Server;
use serde_json::{Value, json};

fn start(roci: &Roci) -> Server {
    folder::write(roci.home.path(), Some(folder::TOOLS_TEMPLATE), |_| ());
    Server::start(roci, &["serve", "little-llama"])
}

#[test]
fn tools_are_called_in_the_folders_own_format() {
    let roci = Roci::new();
    let server = start(&roci);
    let parameters = json!({"type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"],
        "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "now", "parameters": parameters}});
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool], "tool_choice": "required",
        "parallel_tool_calls": false, "temperature": 0, "max_tokens": 600});
    let rendered = server.post("/v1/chat/completions/render", &body).text;
    assert!(rendered.contains("Tools: ") && !rendered.contains("You can call these tools"), "{rendered}");
    let answer = server.post("/v1/chat/completions", &body);
    let choice = &answer.json["choices"][0];
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!((&function["name"], &choice["finish_reason"]), (&json!("now"), &json!("tool_calls")), "{}", answer.text);
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"zone": "UTC"}));
}

#[test]
fn reasoning_comes_apart() {
    let roci = Roci::new();
    let server = start(&roci);
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "guided_regex": "<think>ab</think>cd"});
    let answer = server.post("/v1/chat/completions", &body);
    let message = &answer.json["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("ab"), &json!("cd")), "{}", answer.text);
}

#[test]
fn its_size_is_that_of_its_weights() {
    let roci = Roci::new();
    let server = start(&roci);
    let n_bytes = folder::weights_bytes(&roci.home.path().join("little-llama"));
    let listed = server.get("/api/tags").json;
    assert_eq!(listed["models"][0]["size"], n_bytes, "{listed}");
    assert_eq!(listed["models"][0]["details"]["family"], "llama", "{listed}");
}
