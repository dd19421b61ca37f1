//! llama.cpp's own API, as its clients and its tests use it, on the tiny model.

use crate::roci::Roci;
use crate::serve::{chat, start};
use crate::server::Server;
use crate::tiny;
use serde_json::{Value, json};

fn events(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

#[test]
fn llama_cpps_own_paths() {
    let (_roci, server) = start(&["--context", "256"]);
    let body = json!({"prompt": "hi", "n_predict": 4, "logit_bias": {"123": 1000}, "n_probs": 2});
    let whole = server.post("/completion", &body).json;
    assert_eq!(
        (&whole["content"], &whole["stop"], &whole["stop_type"]),
        (&json!("xxxx"), &json!(true), &json!("limit"))
    );
    assert_eq!((&whole["tokens_predicted"], &whole["timings"]["predicted_n"]), (&json!(4), &json!(4)), "{whole}");
    assert_eq!(whole["completion_probabilities"].as_array().unwrap().len(), 4);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let text = server.post("/completion", &streamed).text;
    let events: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let shown: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!((shown.as_str(), &events.last().unwrap()["stop"]), ("xxxx", &json!(true)));
    let two = server.post("/completion", &json!({"prompt": ["a", "b"], "n_predict": 1})).json;
    assert_eq!(two.as_array().unwrap().len(), 2);
    assert_eq!(server.post("/completion", &json!({"n_predict": 1})).status, 400);
    let props = server.get("/props").json;
    assert_eq!((&props["model_path"], &props["total_slots"]), (&json!("tiny.gguf"), &json!(64)), "{props}");
    assert_eq!(server.get("/slots").json.as_array().unwrap().len(), 64);
    assert_eq!(server.get("/lora-adapters").json, json!([]));
    let prompt = server.post("/apply-template", &json!({"messages": [{"role": "user", "content": "hi"}]})).json;
    assert!(prompt["prompt"].as_str().unwrap().contains("hi"), "{prompt}");
    let vectors = server.post("/embedding", &json!({"content": "hi"})).json;
    assert_eq!(vectors[0]["embedding"].as_array().unwrap().len(), 1);
}

/// Texts, token ids and objects in one list, as llama.cpp takes them.
#[test]
fn prompts_of_texts_and_tokens() {
    let (_roci, server) = start(&["--context", "256"]);
    let ask = |prompt: Value| {
        let body = json!({"prompt": prompt, "n_predict": 1, "temperature": 0});
        server.post("/completion", &body)
    };
    let text = ask(json!("hi")).json;
    assert_eq!(text["prompt"], "hi");
    for same in [json!([107, 108]), json!(["h", 108]), json!({"prompt_string": "hi"})] {
        let answer = ask(same.clone()).json;
        assert_eq!((&answer["prompt"], &answer["content"]), (&json!("hi"), &text["content"]), "{same}: {answer}");
    }
    let several = ask(json!([[107, 108], "hi", {"prompt_string": "hi"}, [107, "i"]])).json;
    assert_eq!(several.as_array().unwrap().len(), 4, "{several}");
    assert!(several.as_array().unwrap().iter().all(|one| one["content"] == text["content"]), "{several}");
    for wrong in [
        json!({"prompt_string": "hi", "multimodal_data": ["aGk="]}),
        json!([107, {"prompt_string": "hi"}]),
        json!([107, [108]]),
        json!({"other": "hi"}),
        json!([4_000_000, "hi"]),
    ] {
        let answer = ask(wrong.clone());
        assert_eq!(
            (answer.status, &answer.json["error"]["param"]),
            (400, &json!("prompt")),
            "{wrong}: {}",
            answer.text
        );
    }
    let vectors = server.post("/v1/embeddings", &json!({"input": ["hi", [107, 108], {"prompt_string": "hi"}]})).json;
    let data = vectors["data"].as_array().unwrap();
    assert!(data.len() == 3 && data.iter().all(|one| one["embedding"] == data[0]["embedding"]), "{vectors}");
}

#[test]
fn biases_as_a_list_of_pairs() {
    let (_roci, server) = start(&["--context", "256"]);
    let ask = |bias: Value| {
        let body = json!({"prompt": "hi", "n_predict": 4, "temperature": 0, "logit_bias": bias});
        server.post("/completion", &body)
    };
    for bias in [json!([[123, 1000]]), json!([["x", 1000]]), json!({"x": 1000})] {
        assert_eq!(ask(bias.clone()).json["content"], "xxxx", "{bias}");
    }
    let never = ask(json!([[123, 1000], [123, false]])).json;
    assert!(!never["content"].as_str().unwrap().contains('x'), "{never}");
    let biases = &never["generation_settings"]["logit_bias"];
    assert_eq!(biases, &json!([{"token": 123, "bias": 1000.0}, {"token": 123, "bias": null}]));
    for wrong in [json!([[123, true]]), json!([[123]]), json!([[4_000_000, 1]]), json!([[123, 2000]]), json!(3)] {
        let answer = ask(wrong.clone());
        assert_eq!((answer.status, &answer.json["error"]["param"]), (400, &json!("logit_bias")), "{wrong}");
    }
}

#[test]
fn answers_say_what_they_were_made_of() {
    let (_roci, server) = start(&["--context", "64", "--default-seed", "42"]);
    let body =
        json!({"prompt": "hi", "n_predict": 3, "logit_bias": {"123": 1000}, "return_tokens": true, "n_probs": 2});
    let whole = server.post("/completion", &body).json;
    assert_eq!(whole["tokens"], json!([123, 123, 123]));
    let top = &whole["completion_probabilities"][0]["top_logprobs"];
    // The model's own likeliest, whatever the bias; the tiny vocabulary has its bytes from the fourth token on.
    assert_eq!(top[0]["id"].as_u64(), top[0]["bytes"][0].as_u64().map(|byte| byte + 3), "{top}");
    assert_eq!(top.as_array().unwrap().len(), 2, "{top}");
    let settings = &whole["generation_settings"];
    assert_eq!((&settings["seed"], &settings["n_predict"], &settings["top_k"]), (&json!(42), &json!(3), &json!(40)));
    assert_eq!(server.get("/props").json["default_generation_settings"]["params"]["seed"], 42);

    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = events(&server.post("/completion", &streamed).text);
    let tokens: Vec<&Value> = events.iter().flat_map(|event| event["tokens"].as_array().unwrap()).collect();
    assert_eq!(tokens, [&json!(123); 3]);

    let mut several = body.clone();
    several["n"] = 2.into();
    assert_eq!(server.post("/completion", &several).status, 400);

    let mut some = body.clone();
    some["response_fields"] = json!(["content", "generation_settings/n_predict", "nothing"]);
    assert_eq!(server.post("/completion", &some).json, json!({"content": "xxx", "generation_settings/n_predict": 3}));

    let full = server.post("/completion", &json!({"prompt": "hi", "ignore_eos": true, "n_predict": -1})).json;
    assert_eq!((&full["truncated"], &full["timings"]["predicted_n"]), (&json!(true), &json!(62)), "{full}");
    let banned = full["generation_settings"]["logit_bias"].as_array().unwrap();
    assert!(!banned.is_empty() && banned.iter().all(|entry| entry["bias"].is_null()), "{banned:?}");
    let one = server.post("/completion", &json!({"prompt": "hi", "n_predict": 1})).json;
    assert_eq!(one["timings"]["predicted_per_second"], 0.0, "the first token is the prompt's: {one}");
}

/// llama.cpp's clients leave `/v1` out, and know a prompt that is too long by the error's type.
#[test]
fn paths_without_v1() {
    let (_roci, server) = start(&["--context", "64"]);
    assert_eq!(server.post("/chat/completions", &chat("hi", 2)).json["choices"][0]["message"]["content"], "xx");
    let mut no_name = chat("hi", 2);
    no_name["model"] = Value::Null;
    assert_eq!(server.post("/chat/completions", &no_name).json["choices"][0]["message"]["content"], "xx");
    let completion = server.post("/completions", &json!({"prompt": "hi", "n_predict": 2, "logit_bias": {"x": 1000}}));
    assert_eq!(completion.json["content"], "xx", "{}", completion.text);
    assert_eq!(server.post("/embeddings", &json!({"content": "hi"})).json[0]["index"], 0);
    assert_eq!(server.post("/responses", &json!({"input": "hi", "max_output_tokens": 1})).json["object"], "response");
    let ranked = server.post("/v1/reranking", &json!({"query": "a", "documents": ["b", "c"]}));
    assert_eq!(ranked.json["results"].as_array().unwrap().len(), 2, "{}", ranked.text);
    let counted = server.post("/chat/completions/input_tokens", &chat("hi", 1)).json;
    assert_eq!(counted["input_tokens"], server.post("/v1/chat/completions/render", &chat("hi", 1)).json["n_tokens"]);

    let too_long = chat(&"a".repeat(100), 4);
    let error = &server.post("/chat/completions", &too_long).json["error"];
    assert_eq!((&error["type"], &error["n_ctx"]), (&json!("exceed_context_size_error"), &json!(64)), "{error}");
    assert!(error["n_prompt_tokens"].as_u64().unwrap() > 100, "{error}");
    assert!(error["message"].as_str().unwrap().contains("exceeds the available context size"), "{error}");
    let openai = &server.post("/v1/chat/completions", &too_long).json["error"];
    assert_eq!(
        (&openai["type"], &openai["code"]),
        (&json!("invalid_request_error"), &json!("context_length_exceeded"))
    );
}

#[test]
fn timings_and_the_beginning_of_an_answer_by_request() {
    let (_roci, server) = start(&["--context", "256"]);
    let mut body = chat("hi", 3);
    assert!(server.post("/v1/chat/completions", &body).json.get("timings").is_none());
    body["timings_per_token"] = true.into();
    assert_eq!(server.post("/v1/chat/completions", &body).json["timings"]["predicted_n"], 3);
    (body["stream"], body["stream_options"]) = (true.into(), json!({"include_usage": true}));
    let events = events(&server.post("/v1/chat/completions", &body).text);
    let last = events.last().unwrap();
    assert_eq!((&last["choices"], &last["timings"]["predicted_n"]), (&json!([]), &json!(3)), "{last}");
    assert!(events.iter().all(|event| event["system_fingerprint"].is_string()), "{events:?}");

    // Several answers: their times add up, and the first token of each is the prompt's.
    let mut several = chat("hi", 4);
    (several["timings_per_token"], several["n"]) = (true.into(), 3.into());
    let timings = server.post("/v1/chat/completions", &several).json["timings"].clone();
    let number = |name: &str| timings[name].as_f64().unwrap();
    assert_eq!(number("predicted_n"), 12.0, "{timings}");
    assert!((number("predicted_per_token_ms") * 9.0 - number("predicted_ms")).abs() < 1e-6, "{timings}");

    let template = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/apply-template", &body)
    };
    assert!(template(json!({})).json["prompt"].as_str().unwrap().ends_with("<|im_start|>assistant\n"));
    let open = template(json!({"add_generation_prompt": false})).json;
    assert!(open["prompt"].as_str().unwrap().ends_with("hi<|im_end|>\n"), "{open}");
    let both = template(json!({"add_generation_prompt": true, "continue_final_message": true}));
    assert_eq!(both.status, 400, "{}", both.text);
}

/// What an operator sets counts for llama.cpp's routes too; its own values are for what nobody set.
#[test]
fn operators_defaults_come_before_llama_cpps() {
    let (_roci, server) = start(&["--context", "256", "--default-temperature", "0.25"]);
    let params = server.get("/props").json["default_generation_settings"]["params"].clone();
    assert_eq!((&params["temperature"], &params["top_k"]), (&json!(0.25), &json!(40)));
    let answer = server.post("/completion", &json!({"prompt": "hi", "n_predict": 1})).json;
    assert_eq!(answer["generation_settings"]["temperature"], 0.25, "{answer}");
}

#[test]
fn metrics_under_llama_cpps_names() {
    let (_roci, server) = start(&["--context", "256"]);
    for n_predict in [1, 4] {
        let answer =
            server.post("/completion", &json!({"prompt": "hello", "n_predict": n_predict, "ignore_eos": true}));
        assert_eq!(answer.json["timings"]["predicted_n"], n_predict);
    }
    let value_on = |page: &str, name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("llamacpp:{name} ")));
        line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("no {name} in {page}"))
    };
    // The engine's process reports its steps from time to time.
    let mut page = server.get("/metrics").text;
    for _ in 0..100 {
        if value_on(&page, "n_decode_total") >= 5.0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        page = server.get("/metrics").text;
    }
    let value = |name: &str| value_on(&page, name);
    assert_eq!((value("tokens_predicted_total"), value("n_tokens_max")), (5.0, 9.0));
    assert_eq!(value("prompt_tokens_total") + value("prompt_tokens_cached_total"), 10.0);
    assert!(value("n_decode_total") >= 5.0 && value("predicted_tokens_seconds") > 0.0);
    assert!(page.contains("# TYPE llamacpp:requests_deferred gauge"));
}

/// llama.cpp's and OpenAI's clients send null, or nothing, for the only model.
#[test]
fn a_model_that_is_null_is_the_only_one() {
    let (_roci, server) = start(&["--context", "256"]);
    let say = json!([{"role": "user", "content": "hi"}]);
    for (path, mut body) in [
        ("/v1/chat/completions", json!({"messages": say, "max_tokens": 1})),
        ("/v1/embeddings", json!({"input": "hi"})),
        ("/embedding", json!({"content": "hi"})),
        ("/tokenize", json!({"content": "hi"})),
        ("/detokenize", json!({"tokens": [1]})),
        ("/v1/messages", json!({"messages": say, "max_tokens": 1})),
        ("/api/chat", json!({"messages": say, "stream": false, "options": {"num_predict": 1}})),
        ("/api/generate", json!({"prompt": "hi", "stream": false, "options": {"num_predict": 1}})),
        ("/api/embed", json!({"input": "hi"})),
        ("/api/embeddings", json!({"prompt": "hi"})),
    ] {
        body["model"] = Value::Null;
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
    // What is no name is still said to be none.
    let wrong = server.post("/v1/embeddings", &json!({"input": "hi", "model": 3}));
    assert_eq!((wrong.status, wrong.json["error"]["param"].as_str()), (400, Some("model")), "{}", wrong.text);
}

/// llguidance's own words for it mean nothing to a client.
#[test]
fn a_grammar_that_fits_no_text_is_refused_in_plain_words() {
    let (_roci, server) = start(&["--context", "256"]);
    for more in [json!({"grammar": "root ::= root"}), json!({"json_schema": {"$ref": "#"}})] {
        let mut body = chat("hi", 3);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = server.post("/v1/chat/completions", &body);
        assert_eq!(refused.status, 400, "{}", refused.text);
        assert!(refused.text.contains("no text fits it") && !refused.text.contains("verbose"), "{}", refused.text);
    }
}

#[test]
fn a_chat_template_from_a_file() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let template = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}";
    std::fs::write(roci.home.path().join("mine.jinja"), template).unwrap();
    let server =
        Server::start(&roci, &["serve", "tiny.gguf", "--context", "256", "--chat-template-file", "mine.jinja"]);
    let prompt = server.post("/apply-template", &json!({"messages": [{"role": "user", "content": "hi"}]})).json;
    assert_eq!(prompt["prompt"], "[user] hi\n");
    let run = |file: &str| {
        roci.run(&["run", "tiny.gguf", "hi", "-c", "256", "-n", "1", "--output", "json", "--chat-template-file", file])
    };
    assert_eq!(run("mine.jinja").json()["prompt_tokens"].as_array().unwrap().len(), "[user] hi\n".len());
    let missing = run("nothing.jinja");
    assert!(missing.code == Some(1) && missing.stderr.contains("nothing.jinja"), "{}", missing.stderr);
}
