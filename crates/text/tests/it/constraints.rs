//! Constraints, followed by a model that has no opinion: tokens are drawn at random among those allowed, and what
//! comes out must be what was asked for. JSON is judged by the `jsonschema` crate, expressions by `regex`.

use std::sync::Arc;

use serde_json::{Value, json};
use test_support::fetched;
use text::Tokenizer;
use text::constraint::{Compiler, Constraint, Matcher, Refusal};

use crate::golden::read_json;
use crate::small_vocab;

fn tokenizer() -> Arc<Tokenizer> {
    small_vocab::tokenizer("smollm")
}

fn compiler() -> Compiler {
    let tokenizer = tokenizer();
    Compiler::new(&tokenizer, tokenizer.n_vocab()).unwrap()
}

/// SplitMix64: the same draws on every machine.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % n as u64) as usize
    }
}

fn allowed(matcher: &mut Matcher) -> Vec<u32> {
    let mut ids = Vec::new();
    matcher
        .allowed(|words| {
            ids = (0..words.len() as u32 * 32).filter(|&id| words[id as usize / 32] & (1 << (id % 32)) != 0).collect();
        })
        .unwrap();
    ids
}

/// An answer of random tokens. After a while the shortest way out is preferred: closing marks, then the end.
pub fn answer(tokenizer: &Arc<Tokenizer>, matcher: &mut Matcher, seed: u64) -> Option<String> {
    let mut draws = Draws(seed);
    let mut bytes = Vec::new();
    for n_tokens in 0..400 {
        let ids = allowed(matcher);
        assert!(!ids.is_empty(), "nothing is allowed after {:?}", String::from_utf8_lossy(&bytes));
        let end = ids.iter().copied().find(|&id| tokenizer.is_end(id));
        let is_closing = |id: &u32| match tokenizer.token_bytes(*id) {
            Some(&[byte]) => b"\"}])el0@.com\n".contains(&byte),
            _ => false,
        };
        let closings: Vec<u32> = ids.iter().copied().filter(is_closing).collect();
        let closing = (!closings.is_empty()).then(|| closings[draws.below(closings.len())]);
        let id = match (end, closing) {
            (Some(end), _) if n_tokens > 8 || ids.len() == 1 => end,
            (_, Some(closing)) if n_tokens > 8 && draws.below(3) > 0 => closing,
            _ => ids[draws.below(ids.len())],
        };
        if tokenizer.is_end(id) {
            return Some(String::from_utf8(bytes).expect("whole characters"));
        }
        bytes.extend_from_slice(tokenizer.token_bytes(id).unwrap());
        matcher.accept(id).unwrap();
    }
    None
}

/// Many answers; most must come to an end, and each that does must be good.
fn check(compiler: &Compiler, constraint: &Constraint, is_good: impl Fn(&str) -> Result<(), String>) {
    let tokenizer = tokenizer();
    let mut n_done = 0;
    for seed in 0..6 {
        let mut matcher = compiler.build(constraint).unwrap();
        if let Some(answer) = answer(&tokenizer, &mut matcher, seed) {
            n_done += 1;
            is_good(&answer).unwrap_or_else(|problem| panic!("{constraint:?}\n{answer:?}\n{problem}"));
        }
    }
    assert!(n_done >= 3, "{constraint:?}: only {n_done} answers came to an end");
}

#[test]
fn json_follows_its_schema() {
    let compiler = compiler();
    for schema in read_json("schemas.json").as_array().unwrap() {
        let validator = jsonschema::validator_for(schema).unwrap();
        check(&compiler, &Constraint::JsonSchema(schema.clone()), |answer| {
            let value: Value = match serde_json::from_str(answer) {
                // An exponent beyond f64 is still a number.
                Err(error) if error.to_string().contains("out of range") => return Ok(()),
                value => value.map_err(|error| error.to_string())?,
            };
            validator.validate(&value).map_err(|error| error.to_string())
        });
    }
}

/// Layouts that people use are possible; blanks without end are not.
#[test]
fn white_space_in_json_is_bounded() {
    let (tokenizer, compiler) = (tokenizer(), compiler());
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a"], "additionalProperties": false});
    let is_taken = |text: &str| {
        let mut matcher = compiler.build(&Constraint::JsonSchema(schema.clone())).unwrap();
        let ids = tokenizer.encode(text, text::Specials::Plain);
        ids.into_iter().all(|id| allowed(&mut matcher).contains(&id) && matcher.accept(id).is_ok())
    };
    for layout in [
        "{\"a\":[1,2]}",
        "{\"a\": [1, 2]}",
        "{ \"a\" : [ 1 , 2 ] }",
        "{\n  \"a\": [\n    1,\n    2\n  ]\n}",
        "{\r\n\t\"a\": [\r\n\t\t1\r\n\t]\r\n}",
    ] {
        assert!(is_taken(layout), "{layout:?}");
    }
    for layout in ["{\n\n\"a\"", "{    \"a\"", "{\"a\": \n"] {
        assert!(!is_taken(layout), "{layout:?}");
    }
}

#[test]
fn any_json_is_an_object() {
    check(&compiler(), &Constraint::Json, |answer| match serde_json::from_str(answer) {
        Ok(Value::Object(_)) => Ok(()),
        // An exponent beyond f64 is still a number.
        Err(error) if error.to_string().contains("out of range") => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn expressions_match_the_whole_answer() {
    let compiler = compiler();
    for source in [r"[a-z]{3}-\d{2,4}", "(yes|no|maybe)", r"\w+@\w+\.(com|org)", "é+x?", r"(\d{1,3}\.){3}\d{1,3}"] {
        let regex = regex::Regex::new(&format!("^(?:{source})$")).unwrap();
        check(&compiler, &Constraint::Regex(source.to_owned()), |answer| {
            if regex.is_match(answer) { Ok(()) } else { Err(source.to_owned()) }
        });
    }
}

#[test]
fn grammars_of_both_dialects() {
    let compiler = compiler();
    let is_balanced = |answer: &str| -> Result<(), String> {
        let depth = answer.chars().try_fold(0i32, |depth, c| match c {
            '(' => Some(depth + 1),
            ')' => Some(depth - 1).filter(|&depth| depth >= 0),
            'x' => Some(depth),
            _ => None,
        });
        if depth == Some(0) { Ok(()) } else { Err("not balanced".to_owned()) }
    };
    check(&compiler, &Constraint::grammar("start: \"(\" start \")\" | \"x\""), is_balanced);
    check(&compiler, &Constraint::grammar("root ::= \"(\" root \")\" | \"x\""), is_balanced);
}

/// llama.cpp's own grammar files.
#[test]
fn published_gbnf_grammars() {
    let Some(models) = fetched::path(fetched::VOCABULARIES) else { return };
    let folder = models.parent().unwrap().join("grammars");
    let compiler = compiler();
    let read = |name: &str| Constraint::Gbnf(std::fs::read_to_string(folder.join(name)).unwrap());
    check(&compiler, &read("json.gbnf"), |answer| {
        serde_json::from_str::<Value>(answer).map(drop).map_err(|error| error.to_string())
    });
    check(&compiler, &read("list.gbnf"), |answer| {
        answer.lines().all(|line| line.starts_with("- ")).then_some(()).ok_or_else(|| "no list".to_owned())
    });
    for name in ["arithmetic.gbnf", "c.gbnf", "chess.gbnf", "english.gbnf", "japanese.gbnf", "json_arr.gbnf"] {
        let mut matcher = compiler.build(&read(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        for _ in 0..20 {
            let ids = allowed(&mut matcher);
            assert!(!ids.is_empty(), "{name}");
            matcher.accept(ids[ids.len() / 2]).unwrap();
        }
    }
}

#[test]
fn an_answer_goes_on_where_another_left_it() {
    let compiler = compiler();
    let constraint = Constraint::JsonSchema(json!({"type": "object", "properties": {"a": {"type": "integer"}}}));
    let mut first = compiler.build(&constraint).unwrap();
    let mut draws = Draws(3);
    let mut taken = Vec::new();
    for _ in 0..12 {
        let ids = allowed(&mut first);
        let id = ids[draws.below(ids.len())];
        if tokenizer().is_end(id) {
            break;
        }
        first.accept(id).unwrap();
        taken.push(id);
        let mut second = compiler.build(&constraint).unwrap();
        taken.iter().for_each(|&id| second.accept(id).unwrap());
        assert_eq!(allowed(&mut first), allowed(&mut second));
    }
}

#[test]
fn what_cannot_be_followed_is_an_error_that_says_why() {
    let compiler = compiler();
    let check = |constraint: Constraint, part: &str| {
        let message = compiler.build(&constraint).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.starts_with("the constraint cannot be used: "), "{constraint:?}: {message}");
        assert!(message.contains(part), "{constraint:?}: {message}");
    };
    check(Constraint::JsonSchema(json!({"type": "strin"})), "strin");
    check(Constraint::JsonSchema(json!({"$ref": "#/$defs/missing"})), "missing");
    check(Constraint::JsonSchema(json!([1])), "a JSON schema is an object");
    check(Constraint::Regex("(".to_owned()), "");
    check(Constraint::Lark("start: nothing".to_owned()), "nothing");
    check(Constraint::Gbnf("root ::= nothing".to_owned()), "nothing");
    assert!(Constraint::from_spec("{}").is_err() && Constraint::from_spec("x").is_err());
    for constraint in [Constraint::Json, Constraint::Regex("a".to_owned()), Constraint::JsonSchema(json!(true))] {
        assert_eq!(Constraint::from_spec(&constraint.to_spec()).unwrap(), constraint);
    }
}

/// A schema whose definitions lead from one to the next, `n` times.
fn chain(n: usize, link: impl Fn(String) -> Value) -> Value {
    let mut definitions: serde_json::Map<String, Value> =
        (0..n).map(|i| (format!("a{i}"), link(format!("#/$defs/a{}", i + 1)))).collect();
    definitions.insert(format!("a{n}"), json!({"type": "integer"}));
    json!({"$ref": "#/$defs/a0", "$defs": definitions})
}

#[test]
fn chains_of_references_do_not_end_the_program() {
    let compiler = compiler();
    let properties = |to: String| json!({"type": "object", "properties": {"a": {"$ref": to}}, "required": ["a"]});
    for schema in [chain(615, |to| json!({"$ref": to})), chain(227, properties), chain(1_500, properties)] {
        compiler.build(&Constraint::JsonSchema(schema.clone())).unwrap();
        compiler.build(&Constraint::Lark(format!("start: %json {schema}"))).unwrap();
    }
    let error = compiler.build(&Constraint::JsonSchema(chain(5_000, properties))).unwrap_err();
    assert!(error.to_string().contains("5001 references"), "{error}");
}

#[test]
fn a_guard_is_asked_before_anything_is_compiled() {
    let guard = |constraint: &Constraint| match constraint {
        Constraint::Regex(_) => Err(Refusal::Wrong("no expressions here".to_owned())),
        _ => Ok(()),
    };
    let compiler = compiler().guarded(Arc::new(guard));
    compiler.build(&Constraint::Json).unwrap();
    let error = compiler.build(&Constraint::Regex("a".to_owned())).unwrap_err();
    assert!(error.to_string().contains("no expressions here"), "{error}");
}

/// An object that must have three properties has three: a key that is written twice is one.
#[test]
fn a_key_written_twice_is_one_property() {
    let schema = json!({"type": "object", "minProperties": 3, "maxProperties": 4,
        "patternProperties": {"^[ab]{1,12}$": {"type": "integer"}}, "additionalProperties": false});
    let is_good = |text: &str| match serde_json::from_str::<Value>(text).map(|value| value.as_object().unwrap().len()) {
        Ok(3 | 4) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    check(&compiler(), &Constraint::JsonSchema(schema), is_good);
}
