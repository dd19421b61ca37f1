//! Answers that are kept: chat completions with `store`, and responses that nobody waits for.

use crate::roci::Roci;
use crate::serve::{chat, metric, start, streamed, wait_until};
use crate::server::Server;
use crate::tiny;
use serde_json::{Value, json};

fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[test]
fn chat_completions_are_kept_when_asked_to() {
    let (_roci, server) = start(&["--context", "256", "--max-stored", "3"]);
    let path = "/v1/chat/completions";
    let ask = |text: &str, topic: &str| {
        let mut body = chat(text, 2);
        (body["store"], body["metadata"]) = (true.into(), json!({"topic": topic}));
        server.post(path, &body).json["id"].as_str().unwrap().to_owned()
    };
    server.post(path, &chat("not kept", 2));
    let (a, b) = (ask("one", "x"), ask("two", "y"));
    let mut body = streamed("three", 2);
    (body["store"], body["n"]) = (true.into(), 2.into());
    server.post(path, &body);
    let list = server.get(path).json;
    assert_eq!(list["object"], "list");
    let c = ids(&list)[2].to_owned();
    assert_eq!(ids(&list), [&a, &b, &c]);
    assert_eq!(list["data"][2]["choices"][1]["message"]["content"], "xx", "a stream is kept whole");
    assert_eq!(ids(&server.get(&format!("{path}?metadata[topic]=y")).json), [&b]);
    assert_eq!(ids(&server.get(&format!("{path}?limit=1&order=desc")).json), [&c]);
    assert_eq!(ids(&server.get(&format!("{path}?after={a}&limit=1")).json), [&b]);
    assert_eq!(server.get(&format!("{path}?limit=0")).status, 400);
    let one = server.get(&format!("{path}/{a}")).json;
    assert_eq!((&one["object"], &one["metadata"]["topic"]), (&json!("chat.completion"), &json!("x")));
    let messages = server.get(&format!("{path}/{a}/messages")).json;
    assert_eq!(messages["data"][0]["content"], "one");
    let changed = server.post(&format!("{path}/{a}"), &json!({"metadata": {"topic": "z"}}));
    assert_eq!((changed.status, &changed.json["metadata"]["topic"]), (200, &json!("z")));
    assert_eq!(server.post(&format!("{path}/{a}"), &json!({"metadata": {"topic": 1}})).status, 400);
    let deleted = server.ask("DELETE", &format!("{path}/{b}"), "").json;
    assert_eq!((&deleted["deleted"], &deleted["object"]), (&json!(true), &json!("chat.completion.deleted")));
    assert_eq!(server.get(&format!("{path}/{b}")).status, 404);
    assert_eq!(server.get(&format!("/v1/responses/{a}")).status, 404, "a completion is no response");
    ask("four", "");
    ask("five", "");
    assert_eq!(server.get(&format!("{path}/{a}")).status, 404, "the oldest leaves");
}

#[test]
fn a_response_in_the_background() {
    let (_roci, server) = start(&["--context", "100000"]);
    let body = json!({"input": "hi", "background": true, "max_output_tokens": 40, "temperature": 0});
    let made = server.post("/v1/responses", &body).json;
    assert_eq!((&made["status"], &made["background"]), (&json!("queued"), &json!(true)));
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    wait_until("it is done", || server.get(&path).json["status"] == "incomplete");
    let done = server.get(&path).json;
    assert_eq!(done["usage"]["output_tokens"], 40);
    // Its events can be read again, from any of them on.
    let events = |query: &str| {
        let text = server.get(&format!("{path}?stream=true{query}")).text;
        let values = text.lines().filter_map(|line| line.strip_prefix("data: ")).map(|data| {
            let value: Value = serde_json::from_str(data).unwrap();
            (value["sequence_number"].as_u64().unwrap(), value["type"].as_str().unwrap().to_owned())
        });
        values.collect::<Vec<_>>()
    };
    let all = events("");
    assert_eq!((all[0].1.as_str(), all.last().unwrap().1.as_str()), ("response.created", "response.incomplete"));
    assert_eq!(events("&starting_after=4"), all[5..]);
    assert_eq!(events("&starting_after=100000"), []);
    assert_eq!(server.get(&format!("{path}?stream=true&starting_after=x")).status, 400);
    // One can go on from it.
    let next = json!({"input": "more", "previous_response_id": made["id"], "max_output_tokens": 1});
    assert_eq!(server.post("/v1/responses", &next).status, 200);
    let plain = server.post("/v1/responses", &json!({"input": "hi", "max_output_tokens": 1})).json;
    let plain_path = format!("/v1/responses/{}", plain["id"].as_str().unwrap());
    assert_eq!(server.post(&format!("{plain_path}/cancel"), &json!({})).status, 400);
    assert_eq!(server.get(&format!("{plain_path}?stream=true")).status, 400);
}

fn endless() -> Value {
    json!({"input": "hi", "background": true, "temperature": 0, "max_output_tokens": 90_000})
}

/// Starts one that runs until it is stopped, and says where it is.
fn start_endless(server: &Server, headers: &str) -> String {
    let mut body = endless();
    // The tiny model never ends this by itself.
    body["text"] = json!({"format": {"type": "json_schema", "name": "x", "schema": {"type": "array", "items":
        {"type": "string"}, "minItems": 100_000}}});
    let made = server.post_with("/v1/responses", &body, headers);
    assert_eq!(made.status, 200, "{}", made.text);
    format!("/v1/responses/{}", made.json["id"].as_str().unwrap())
}

#[test]
fn a_response_in_the_background_can_be_cancelled() {
    let (_roci, server) = start(&["--context", "100000"]);
    for is_deleted in [false, true] {
        let path = start_endless(&server, "");
        wait_until("it runs", || server.get(&path).json["status"] == "in_progress");
        match is_deleted {
            false => {
                let cancelled = server.post(&format!("{path}/cancel"), &json!({}));
                assert_eq!((cancelled.status, &cancelled.json["status"]), (200, &json!("cancelled")));
                assert_eq!(server.get(&path).json["status"], "cancelled");
            }
            true => assert_eq!(server.ask("DELETE", &path, "").json["deleted"], true),
        }
        wait_until("the engine forgets it", || metric(&server, "roci_requests_running") == 0.0);
        assert_eq!(metric(&server, "roci_kv_blocks_held{"), 0.0);
    }
    assert_eq!(server.post("/v1/responses/resp_none/cancel", &json!({})).status, 404);
}

#[test]
fn a_response_in_the_background_holds_its_keys_place() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let key = roci.run(&["key", "new", "--file", "k.txt", "--name", "one", "--concurrent", "1"]).stdout;
    let key = format!("Authorization: Bearer {}\r\n", key.trim());
    let args = ["serve", "tiny.gguf", "--context", "100000", "--api-key-file", "k.txt", "--open-metrics"];
    let server = Server::start(&roci, &args);
    start_endless(&server, &key);
    wait_until("it runs", || metric(&server, "roci_requests_running") == 1.0);
    let refused = server.post_with("/v1/chat/completions", &chat("hi", 1), &key);
    assert_eq!(refused.status, 429);
}

/// What is not offered is refused, not passed over.
#[test]
fn what_is_not_offered_is_said() {
    let (_roci, server) = start(&["--context", "256"]);
    let check = |path: &str, mut body: Value, key: &str, value: Value| {
        body[key] = value;
        let answer = server.post(path, &body);
        assert_eq!((answer.status, &answer.json["error"]["param"]), (400, &json!(key)), "{}", answer.text);
    };
    let path = "/v1/chat/completions";
    check(path, chat("hi", 1), "modalities", json!(["text", "audio"]));
    check(path, chat("hi", 1), "functions", json!([{"name": "f"}]));
    check(path, chat("hi", 1), "metadata", json!({"a": 1}));
    let path = "/v1/responses";
    check(path, json!({"input": "hi"}), "conversation", json!("conv_1"));
    check(path, json!({"input": "hi"}), "prompt", json!({"id": "p"}));
    check(path, json!({"input": "hi", "store": false}), "background", json!(true));
}
