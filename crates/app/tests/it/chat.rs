//! The chat, driven through a pseudo-terminal as a person would.

use crate::roci::Roci;
use crate::tiny;
use rexpect::session::{PtySession, spawn_command};

/// What the line editor sends when it is ready to read (bracketed paste on).
const READY: &str = "\x1b[?2004h";

fn start(roci: &Roci) -> PtySession {
    tiny::write(roci.home.path());
    start_with(roci, &[])
}

fn start_with(roci: &Roci, more: &[&str]) -> PtySession {
    // The bias makes the tiny model say `x` for ever.
    let args = ["run", "tiny.gguf", "--logit-bias", "123=1000", "--max-tokens", "4", "--context", "128"];
    let mut command = roci.command(&[&args[..], more].concat());
    command.stdin(std::process::Stdio::inherit()).env("TERM", "xterm");
    let mut chat = spawn_command(command, Some(60_000)).unwrap();
    // The banner names the device.
    chat.exp_string("tiny on cpu (").unwrap();
    chat.exp_string("say something, or /help").unwrap();
    chat.exp_string(READY).unwrap();
    chat
}

/// Types a line at the prompt, sees the text, and waits for the next prompt.
fn say(chat: &mut PtySession, line: &str, expected: &str) {
    chat.send_line(line).unwrap();
    chat.exp_string(expected).unwrap();
    chat.exp_string(READY).unwrap();
}

#[test]
fn conversation_with_commands() {
    let roci = Roci::new();
    let mut chat = start(&roci);
    say(&mut chat, "/help", "/regen");
    say(&mut chat, "/system", "/system TEXT sets another one");
    say(&mut chat, "/set colour 1", "The settings are temperature, top-k");
    say(&mut chat, "hello", "xxxx\r\n(ended by max-tokens 4");
    say(&mut chat, "/stats", "4 generated");
    say(&mut chat, "/model", "tiny");
    say(&mut chat, "/model nobody", "unknown model `nobody`");
    say(&mut chat, "/model tiny.gguf", "tiny answers from here on");
    say(&mut chat, "/staats", "did you mean /stats?");
    say(&mut chat, "/set max-tokens 2", "");
    say(&mut chat, "/set", "max-tokens 2");
    say(&mut chat, "/set temperature hot", "invalid value `hot` for temperature");
    say(&mut chat, "/regen", "ended by max-tokens 2");
    say(&mut chat, "/nonsense", "there is no command /nonsense");
    say(&mut chat, "/save talk.json", "saved 2 messages");
    say(&mut chat, "/clear", "");
    say(&mut chat, "/regen", "there is no question yet");
    say(&mut chat, "/load talk.json", "loaded 2 messages");
    say(&mut chat, "/load missing.json", "cannot read `missing.json`");
    chat.send_line("/exit").unwrap();
    chat.exp_eof().unwrap();
    let saved = std::fs::read_to_string(roci.home.path().join("talk.json")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["messages"][0], serde_json::json!({"role": "user", "content": "hello"}));
    assert_eq!(saved["messages"][1], serde_json::json!({"role": "assistant", "content": "xx"}));
    let history = std::fs::read_to_string(roci.cache().join("state/history")).unwrap();
    assert!(history.contains("hello"), "{history}");
}

/// What is typed while an answer is written, or pasted as several lines, waits for its turn.
#[test]
fn lines_typed_ahead_are_kept() {
    let roci = Roci::new();
    let mut chat = start(&roci);
    chat.send("hello\n/set top-k 7\n/set\n/save talk.json\n").unwrap();
    chat.flush().unwrap();
    chat.exp_string("xxxx").unwrap();
    chat.exp_string("top-k 7,").unwrap();
    chat.exp_string("saved 2 messages").unwrap();
    chat.send_control('d').unwrap();
    chat.exp_eof().unwrap();
}

#[test]
fn commands_as_ollama_has_them() {
    let roci = Roci::new();
    let mut chat = start(&roci);
    say(&mut chat, "/?", "this list");
    say(&mut chat, "/set parameter top_k 7", "");
    say(&mut chat, "/show", "top-k 7");
    say(&mut chat, "/show info", "context 128 tokens");
    say(&mut chat, "/set system Be brief", "the system prompt is set");
    say(&mut chat, "/show system", "Be brief");
    say(&mut chat, "/show colour", "nothing to show of `colour`");
    chat.send_line("/bye").unwrap();
    chat.exp_eof().unwrap();
}

#[test]
fn figures_follow_every_answer() {
    let roci = Roci::new();
    let mut chat = start(&roci);
    say(&mut chat, "hello", "[4 tokens");
    chat.send_control('d').unwrap();
    chat.exp_eof().unwrap();
}

#[test]
fn a_block_is_one_question() {
    let roci = Roci::new();
    let mut chat = start(&roci);
    chat.send_line("\"\"\"first").unwrap();
    chat.exp_string(READY).unwrap();
    say(&mut chat, "/help is text here\"\"\"", "xxxx");
    say(&mut chat, "/save talk.json", "saved 2 messages");
    chat.send_line("/exit").unwrap();
    chat.exp_eof().unwrap();
    let saved = std::fs::read_to_string(roci.home.path().join("talk.json")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["messages"][0]["content"], "first\n/help is text here");
}

#[test]
fn the_context_slides_with_a_note() {
    let roci = Roci::new();
    let mut chat = start(&roci);
    for _ in 0..2 {
        say(&mut chat, "a question of some words", "xxxx");
    }
    say(&mut chat, "another question of some words", "messages: the context holds 128 tokens)");
    say(&mut chat, "/stats", "4 generated");
    chat.send_control('d').unwrap();
    chat.exp_eof().unwrap();
}

#[test]
fn question_that_does_not_fit_keeps_the_chat_alive() {
    let roci = Roci::new();
    let mut chat = start(&roci);
    say(&mut chat, &"a".repeat(200), "the context holds 128");
    say(&mut chat, "hi", "xxxx");
    chat.send_control('d').unwrap();
    chat.exp_eof().unwrap();
}

#[test]
fn control_c_stops_the_answer_and_not_the_program() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let args = ["run", "tiny.gguf", "--logit-bias", "123=1000", "--max-tokens", "1000000", "--context", "200000"];
    let mut command = roci.command(&args);
    command.stdin(std::process::Stdio::inherit()).env("TERM", "xterm");
    let mut chat = spawn_command(command, Some(60_000)).unwrap();
    chat.exp_string(READY).unwrap();
    chat.send_line("go on for ever").unwrap();
    chat.exp_string("xxxxxxxx").unwrap();
    chat.send_control('c').unwrap();
    chat.exp_string("(stopped)").unwrap();
    chat.exp_string(READY).unwrap();
    // At the prompt it only reminds.
    chat.send_control('c').unwrap();
    chat.exp_string("Ctrl-D to leave").unwrap();
    chat.send_line("/exit").unwrap();
    chat.exp_eof().unwrap();
}

#[test]
fn control_c_ends_a_single_answer_with_its_figures() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let args = ["run", "tiny.gguf", "hi", "--logit-bias", "123=1000", "--max-tokens", "1000000"];
    let mut command = roci.command(&[&args[..], &["--context", "200000"]].concat());
    command.stdin(std::process::Stdio::inherit());
    let mut answer = spawn_command(command, Some(60_000)).unwrap();
    answer.exp_string("xxxxxxxx").unwrap();
    answer.send_control('c').unwrap();
    answer.exp_string(", stopped, first token after").unwrap();
    answer.exp_eof().unwrap();
    let status = format!("{:?}", answer.process().wait().unwrap());
    assert!(status.starts_with("Exited(") && status.ends_with(", 130)"), "{status}");
}

/// The next chat with the same file continues the conversation, and computes only what is new.
#[test]
fn a_session_goes_on_in_the_next_chat() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let mut chat = start_with(&roci, &["--session", "talk"]);
    say(&mut chat, "A question of some length, for blocks of sixteen.", "xxxx");
    chat.send_line("/exit").unwrap();
    chat.exp_eof().unwrap();
    let mut chat = start_with(&roci, &["--session", "talk"]);
    say(&mut chat, "More", "xxxx");
    say(&mut chat, "/stats", "cached");
    say(&mut chat, "/save talk.json", "saved 4 messages");
    chat.send_control('d').unwrap();
    chat.exp_eof().unwrap();
    let saved = std::fs::read_to_string(roci.home.path().join("talk.json")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    let said: Vec<&str> =
        saved["messages"].as_array().unwrap().iter().filter_map(|one| one["content"].as_str()).collect();
    assert_eq!(said, ["A question of some length, for blocks of sixteen.", "xxxx", "More", "xxxx"]);
}
