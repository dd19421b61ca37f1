//! Answers as models of each family write them, whole and cut into pieces of every size. Longer than other files, because
//! it is one list of cases.

use proptest::prelude::*;
use serde_json::{Value, json};
use test_support::fetched;
use text::answer::{AnswerFormat, Call, ForcedTool, ParsedAnswer, Parser};
use text::constraint::Compiler;

use crate::small_vocab;

/// A family: what its template holds, what its model writes, and what that means.
struct Case {
    name: &'static str,
    template: &'static str,
    prompt: &'static str,
    text: &'static str,
    reasoning: &'static str,
    shown: &'static str,
    calls: &'static [(&'static str, &'static str)],
}

const CASE: Case = Case { name: "", template: "", prompt: "", text: "", reasoning: "", shown: "", calls: &[] };
const WEATHER: &[(&str, &str)] = &[("get_weather", r#"{"city": "Paris", "days": 3}"#)];
const TWO: &[(&str, &str)] = &[("get_weather", r#"{"city": "Paris", "days": 3}"#), ("now", "{}")];

const CASES: &[Case] = &[
    Case { name: "plain", text: "Hello,\n\n world! <b>5 < 6</b>\n", shown: "Hello,\n\n world! <b>5 < 6</b>\n", ..CASE },
    Case {
        name: "hermes",
        template: "<tool_call>",
        text: "Let me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        shown: "Let me look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "hermes, cut in the mark that ends a call",
        template: "<tool_call>",
        text: "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "hermes, cut in the mark of another call",
        template: "<tool_call>",
        text: "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>\n<tool_c",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "hermes, cut before another call has a name",
        template: "<tool_call>",
        text: "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>\n<tool_call>\n{\"na",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "text after a call that only looks like a mark's beginning",
        template: "<tool_call>",
        text: "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>\n5 < 6 <to",
        shown: "5 < 6",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "lfm2",
        template: "<|tool_call_start|>",
        text: "I look.\n<|tool_call_start|>[get_weather(city=\"Paris\", days=3), now()]<|tool_call_end|>",
        shown: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "gemma-4",
        template: "<|tool_call>call: <tool_call|>",
        text: "I look.<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>",
        shown: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "gemma-4, with values inside of values",
        template: "<|tool_call>call: <tool_call|>",
        text: "<|tool_call>call:plan{at:{<|\"|>x, y<|\"|>:[1,-2.5,true],name:<|\"|>a}b, \"c\"<|\"|>},to:null}<tool_call|>",
        calls: &[("plan", r#"{"at": {"x, y":[1,-2.5,true],"name":"a}b, \"c\""}, "to": null}"#)],
        ..CASE
    },
    Case {
        name: "deepseek-v3.2",
        template: "<｜DSML｜invoke name=",
        text: "I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        shown: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "deepseek-v4",
        template: "<｜DSML｜invoke name= tool_calls>",
        text: "I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        shown: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "minicpm-5",
        template: "<function name=\"<param name=\"",
        text: "I look.\n<function name=\"get_weather\"><param name=\"city\"><![CDATA[Paris]]></param><param name=\"days\">3</param></function>\n<function name=\"now\"></function>",
        shown: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "solar-open",
        template: "<|begin|>assistant<|think|> <|tool_call:begin|>",
        text: "<|think|>They want it.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": \"Paris\", \"days\": 3}<|tool_call:end|><|tool_call:begin|>a2<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        reasoning: "They want it.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "solar-open, an answer",
        template: "<|begin|>assistant<|think|> <|tool_call:begin|>",
        text: "<|think|>Easy.<|end|><|begin|>assistant<|content|>It is 5.",
        reasoning: "Easy.",
        shown: "It is 5.",
        ..CASE
    },
    Case {
        name: "olmo-3",
        template: "<function_calls>",
        text: "I look.\n<function_calls>\nget_weather(city=\"Paris\", days=3)\nnow()\n</function_calls>",
        shown: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "tool-calls, a list (Hunyuan, Jamba, Apriel)",
        template: "<tool_calls> <answer> </think> <think>",
        text: "<think>\nhm\n</think>\n<answer>I look.</answer>\n<tool_calls>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"now\", \"arguments\": {}}]</tool_calls>",
        reasoning: "hm",
        shown: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "ernie, an answer",
        template: "<think> <response>",
        text: "<think>\nhm\n</think>\n\n<response>\nIt is 5.\n</response>\n",
        reasoning: "hm",
        shown: "It is 5.",
        ..CASE
    },
    Case {
        name: "internlm-2",
        template: "<|plugin|>",
        text: "I look.<|action_start|><|plugin|>\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}<|action_end|>",
        shown: "I look.",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "gigachat-3",
        template: "<|role_sep|> <|message_sep|> function call",
        text: "I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}<|message_sep|>\n\n",
        shown: "I look.",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "gigachat-3.1",
        template: "<|role_sep|> <|message_sep|> <|function_call|>",
        text: "I look.<|function_call|>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}",
        shown: "I look.",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "nemotron-v2",
        template: "<TOOLCALL>",
        text: "I look.<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>",
        shown: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "pythonic",
        template: "[func_name1(params_name1=params_value1",
        text: " [get_weather(city='Paris', days=3), now()]",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "pythonic with marks and values of all kinds",
        template: "[func_name1(params_name1=params_value1",
        text: "<|python_start|>[f(a=[1, (2, 3)], b={'k': \"a, b) = 'c'\"}, c=None, d=-0.5, e=x+1,)]<|python_end|> Done.",
        calls: &[("f", r#"{"a": [1,[2,3]], "b": {"k":"a, b) = 'c'"}, "c": null, "d": -0.5, "e": "x+1"}"#)],
        shown: "Done.",
        ..CASE
    },
    Case {
        name: "a list that begins no call",
        template: "[func_name1(params_name1=params_value1",
        text: "[1, 2] is a list, and [so(x=1)] is this.",
        shown: "[1, 2] is a list, and [so(x=1)] is this.",
        ..CASE
    },
    Case {
        name: "hermes with reasoning",
        template: "<tool_call> </think>",
        text: "<think>\nThe user wants weather.\n\nI call it.\n</think>\n\n<tool_call>{\"arguments\": {\"city\": \"Paris\", \"days\": 3}, \"name\": \"get_weather\"}</tool_call>",
        reasoning: "The user wants weather.\n\nI call it.",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "reasoning opened by the prompt",
        template: "<think>",
        prompt: "<|im_start|>assistant\n<think>\n",
        text: "hmm <thing> \n</think>\n\nAnswer </think>",
        reasoning: "hmm <thing>",
        shown: "Answer </think>",
        ..CASE
    },
    Case {
        name: "a tag that begins no call",
        template: "<tool_call>",
        text: "Write <tool_call> like this, or <tool_call>{\"x\": 1}</tool_call>.",
        shown: "Write <tool_call> like this, or <tool_call>{\"x\": 1}</tool_call>.",
        ..CASE
    },
    Case {
        name: "a call that is cut",
        template: "<tool_call>",
        text: "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Pa",
        calls: &[("get_weather", "{\"city\": \"Pa")],
        ..CASE
    },
    Case {
        name: "arguments as a string",
        template: "<tool_call>",
        text: "<tool_call>{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\", \\\"days\\\": 3}\"}</tool_call>",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "llama 3",
        template: "<|start_header_id|> Environment: ipython",
        text: "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "llama 3, a function object",
        template: "<|start_header_id|> Environment: ipython",
        text: "{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}}",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "llama 3, JSON that is no call",
        template: "<|start_header_id|> Environment: ipython",
        text: "{\"city\": \"Paris\"} is it.",
        shown: "{\"city\": \"Paris\"} is it.",
        ..CASE
    },
    Case {
        name: "llama 3, a program",
        template: "<|start_header_id|> Environment: ipython",
        text: "<|python_tag|>print(\"a\")\nx = 1",
        calls: &[("python", r#"{"code":"print(\"a\")\nx = 1"}"#)],
        ..CASE
    },
    Case {
        name: "mistral, a list",
        template: "[TOOL_CALLS]",
        text: "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"now\", \"arguments\": {}}]",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "mistral, named",
        template: "[TOOL_CALLS] [ARGS]",
        text: "Sure.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\", \"days\": 3}[TOOL_CALLS]now[ARGS]{}",
        shown: "Sure.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "deepseek v3",
        template: "<｜tool▁sep｜> ```json",
        text: "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\", \"days\": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        shown: "Yes.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "deepseek v3.1",
        template: "<｜tool▁sep｜> </think>",
        text: "</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        shown: "</think>",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "kimi k2",
        template: "<|tool_calls_section_begin|>",
        text: "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\", \"days\": 3}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "glm",
        template: "<arg_key> </think>",
        text: "<think>let me see</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        reasoning: "let me see",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "qwen3 coder",
        template: "<tool_call> <function= <parameter=",
        text: "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        shown: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "minimax",
        template: "<minimax:tool_call>",
        text: "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "functionary v3.1",
        template: "<function=",
        text: "<function=get_weather>{\"city\": \"Paris\", \"days\": 3}</function>\n<function=now>{}</function>",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "functionary v3.2",
        template: ">>>all",
        text: "all\nI look.>>>get_weather\n{\"city\": \"Paris\", \"days\": 3}>>>now\n{}",
        shown: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "harmony",
        template: "<|channel|> <|message|>",
        text: "<|channel|>analysis<|message|>They want it.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\", \"days\": 3}<|call|>",
        reasoning: "They want it.",
        shown: "I look.",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "harmony, recipient first",
        template: "<|channel|> <|message|>",
        text: " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Paris\", \"days\": 3}<|call|>",
        calls: WEATHER,
        ..CASE
    },
    Case {
        name: "harmony without channels",
        template: "<|channel|> <|message|>",
        text: "Just text.",
        shown: "Just text.",
        ..CASE
    },
    Case {
        name: "granite",
        template: "<|tool_call|>",
        text: "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"now\"}]",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "command r7b",
        template: "<|START_ACTION|> <|START_THINKING|> <|START_RESPONSE|>",
        text: "<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}},\n {\"tool_call_id\": \"1\", \"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>",
        reasoning: "I look.",
        calls: TWO,
        ..CASE
    },
    Case {
        name: "command r7b, an answer",
        template: "<|START_ACTION|> <|START_THINKING|> <|START_RESPONSE|>",
        text: "<|START_THINKING|>Easy.<|END_THINKING|><|START_RESPONSE|>It is 5.<|END_RESPONSE|>",
        reasoning: "Easy.",
        shown: "It is 5.",
        ..CASE
    },
];

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"],
            "additionalProperties": false}}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {},
            "additionalProperties": false}}},
    ])
}

fn expected(case: &Case) -> ParsedAnswer {
    let calls = case.calls.iter().map(|&(name, arguments)| Call {
        id: None,
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    });
    ParsedAnswer { reasoning: case.reasoning.to_owned(), text: case.shown.to_owned(), calls: calls.collect() }
}

/// Ids come from the model; the cases do not spell them out.
fn without_ids(mut answer: ParsedAnswer) -> ParsedAnswer {
    answer.calls.iter_mut().for_each(|call| call.id = None);
    answer
}

fn parse_pieces<'a>(case: &Case, pieces: impl Iterator<Item = &'a str>) -> ParsedAnswer {
    let mut parser = Parser::new(&AnswerFormat::detect(case.template), case.prompt, &tools());
    let mut answer = ParsedAnswer::default();
    for piece in pieces {
        parser.push(piece).into_iter().for_each(|delta| answer.add(delta));
    }
    parser.finish().into_iter().for_each(|delta| answer.add(delta));
    answer
}

#[test]
fn every_family_is_understood() {
    for case in CASES {
        let found = Parser::parse(&AnswerFormat::detect(case.template), case.prompt, &tools(), case.text);
        assert_eq!(without_ids(found), expected(case), "{}", case.name);
    }
}

#[test]
fn the_cut_into_pieces_does_not_matter() {
    let by_char = |text: &'static str| text.split_inclusive(|_: char| true);
    for case in CASES {
        assert_eq!(without_ids(parse_pieces(case, by_char(case.text))), expected(case), "{} by characters", case.name);
    }
    let cases = (0..CASES.len(), prop::collection::vec(1..12usize, 1..40));
    proptest!(|((idx, sizes) in cases)| {
        let case = &CASES[idx];
        let mut rest = case.text;
        let pieces = sizes.iter().cycle().map_while(|&n| {
            let end = rest.char_indices().nth(n).map_or(rest.len(), |(at, _)| at);
            let piece;
            (piece, rest) = rest.split_at(end);
            (!piece.is_empty()).then_some(piece)
        });
        let pieces: Vec<&str> = pieces.collect();
        prop_assert_eq!(without_ids(parse_pieces(case, pieces.into_iter())), expected(case), "{}", case.name);
    });
}

/// Whatever a model writes, cut however: the same answer, and no panic.
#[test]
fn soup_of_marks() {
    let marks: Vec<&str> = CASES.iter().flat_map(|case| AnswerFormat::detect(case.template).marks()).collect();
    let part = prop_oneof![
        prop::sample::select(marks).prop_map(str::to_owned),
        "[a-z{}\\[\\]\":, \n<>]{0,8}",
        prop::sample::select(vec![
            "{\"name\": \"f\"",
            "\"arguments\": {",
            "}",
            "}}",
            "\n",
            "f[ARGS]",
            "to=functions.f "
        ])
        .prop_map(str::to_owned),
    ];
    let input = (0..CASES.len(), prop::collection::vec(part, 0..12), prop::collection::vec(1..9usize, 1..20));
    proptest!(|((idx, parts, sizes) in input)| {
        let case = &CASES[idx];
        let text = parts.concat();
        let whole = parse_pieces(case, std::iter::once(text.as_str()));
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        for &n in sizes.iter().cycle() {
            let end = rest.char_indices().nth(n).map_or(rest.len(), |(at, _)| at);
            let (piece, tail) = rest.split_at(end);
            pieces.push(piece);
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(parse_pieces(case, pieces.into_iter()), whole, "{}: {:?}", case.name, text);
    });
}

#[test]
fn arguments_stream_before_the_call_ends() {
    let mut parser = Parser::new(&AnswerFormat::detect("<tool_call>"), "", &Value::Null);
    let mut answer = ParsedAnswer::default();
    let mut push = |text: &str| {
        parser.push(text).into_iter().for_each(|delta| answer.add(delta));
        answer.clone()
    };
    assert_eq!(push("a <").text, "a");
    assert_eq!(push("b").text, "a <b");
    assert!(push("<tool_call>{\"name\": \"f").calls.is_empty());
    assert_eq!(push("\", \"arguments\": {\"x\": \"on").calls[0].arguments, "{\"x\": \"on");
    assert_eq!(push("e\"").calls[0].arguments, "{\"x\": \"one\"");
}

#[test]
fn bare_values_take_the_type_of_the_schema() {
    let tools = json!([{"name": "f", "parameters": {"properties": {
        "s": {"type": "string"}, "n": {"type": "number"}, "l": {"type": "array"}, "u": {"type": ["string", "null"]}}}}]);
    let text = "<tool_call>f\n<arg_key>s</arg_key><arg_value>5</arg_value><arg_key>n</arg_key><arg_value>5</arg_value>\
        <arg_key>l</arg_key><arg_value>[1, \"a\"]</arg_value><arg_key>x</arg_key><arg_value>true</arg_value>\
        <arg_key>u</arg_key><arg_value>null</arg_value><arg_key>y</arg_key><arg_value>a \"b\"</arg_value></tool_call>";
    let answer = Parser::parse(&AnswerFormat::detect("<arg_key>"), "", &tools, text);
    let expected = r#"{"s": "5", "n": 5, "l": [1, "a"], "x": true, "u": null, "y": "a \"b\""}"#;
    assert_eq!(answer.calls[0].arguments, expected);
}

/// What is forced is a call: random tokens under the grammar, read back by the parser, checked against the schema.
#[test]
fn a_required_call_is_a_call() {
    let tokenizer = small_vocab::tokenizer("smollm");
    let compiler = Compiler::new(&tokenizer, tokenizer.n_vocab()).unwrap();
    let templates: std::collections::BTreeSet<&str> = CASES.iter().map(|case| case.template).collect();
    for template in templates {
        let format = AnswerFormat::detect(template).forced();
        for choice in [ForcedTool::Required, ForcedTool::Named("get_weather".to_owned()), ForcedTool::RequiredMany] {
            let constraint = format.constraint(&tools(), &choice, "", &tokenizer).unwrap();
            let mut n_done = 0;
            for seed in 0..4 {
                let mut matcher =
                    compiler.build(&constraint).unwrap_or_else(|error| panic!("{template}: {error}\n{constraint:?}"));
                let Some(text) = crate::constraints::answer(&tokenizer, &mut matcher, seed) else { continue };
                n_done += 1;
                let answer = Parser::parse(&format, "", &tools(), &text);
                assert!(!answer.calls.is_empty(), "{template} {choice:?}: {text:?}");
                for call in &answer.calls {
                    let arguments: Value = serde_json::from_str(&call.arguments)
                        .unwrap_or_else(|error| panic!("{template}: {error}: {:?} of {text:?}", call.arguments));
                    let tool =
                        tools().as_array().unwrap().iter().find(|t| t["function"]["name"] == *call.name).cloned();
                    let schema =
                        tool.unwrap_or_else(|| panic!("{template}: {text:?}"))["function"]["parameters"].clone();
                    assert!(jsonschema::is_valid(&schema, &arguments), "{template}: {text:?}");
                }
            }
            // Random tokens do not find the end of free text.
            let has_free_text = format!("{constraint:?}").contains("(?s:.*)");
            assert!(n_done >= 1 || has_free_text, "{template} {choice:?}: no answer came to an end");
        }
    }
    let none = AnswerFormat::default().constraint(&tools(), &ForcedTool::Named("x".to_owned()), "", &tokenizer);
    assert_eq!(none.unwrap_err().to_string(), "the constraint cannot be used: no tool is named `x`");
}

/// The published templates, and the family each is known as.
#[test]
fn families_are_known_by_their_templates() {
    let Some(folder) = fetched::path(fetched::VOCABULARIES) else { return };
    for (name, tools, reasons) in [
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", false),
        ("Qwen-Qwen2.5-7B-Instruct", "hermes", false),
        ("Qwen-Qwen3-0.6B", "hermes", true),
        ("Qwen3-Coder", "qwen3-coder", false),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama-3", false),
        ("meta-llama-Llama-3.3-70B-Instruct", "llama-3", false),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", false),
        ("Mistral-Small-3.2-24B-Instruct-2506", "mistral", false),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "mistral", true),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-v3", true),
        ("deepseek-ai-DeepSeek-V3.1", "deepseek-v3.1", true),
        ("openai-gpt-oss-120b", "harmony", true),
        ("GLM-4.6", "glm-4", true),
        ("ibm-granite-granite-3.3-2B-Instruct", "granite", true),
        ("ibm-granite-granite-4.0", "hermes", false),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command-r7b", true),
        ("CohereForAI-c4ai-command-r-plus-tool_use", "command-r", false),
        ("meetkai-functionary-medium-v3.1", "functionary-v3.1", false),
        ("meetkai-functionary-medium-v3.2", "functionary-v3.2", false),
        ("Kimi-K2-Instruct", "kimi-k2", false),
        ("MiniMax-M2", "minimax", true),
        ("ByteDance-Seed-OSS", "seed-oss", true),
        ("LFM2.5-8B-A1B", "lfm2", true),
        ("google-gemma-4-31B-it", "gemma-4", true),
        ("deepseek-ai-DeepSeek-V3.2", "deepseek-v3.2", true),
        ("NVIDIA-Nemotron-Nano-v2", "nemotron-v2", true),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3-coder", true),
        ("Qwen3.5-4B", "qwen3-coder", true),
        ("GLM-4.7-Flash", "glm-4", true),
        ("inclusionai-ling-3.0-flash", "glm-4", true),
        ("Apertus-8B-Instruct", "apertus", true),
        ("upstage-Solar-Open-100B", "solar-open", true),
        ("openbmb-MiniCPM5-1B", "minicpm-5", true),
        ("Apriel-1.6-15b-Thinker-fixed", "tool-calls", false),
        ("unsloth-Apriel-1.5", "tool-calls", false),
        ("MiniMax-M1", "tool-calls", false),
        ("LFM2-8B-A1B", "lfm2", false),
        ("LFM2.5-Instruct", "lfm2", true),
        ("Cohere2MoE", "command-r7b", true),
        ("GigaChat3-10B-A1.8B", "gigachat-3", false),
        ("GigaChat3.1-10B-A1.8B", "gigachat-3.1", false),
        ("deepseek-ai-DeepSeek-V4", "deepseek-v4", true),
        ("ibm-granite-granite-4.1", "hermes", false),
        ("Kimi-K2-Thinking", "kimi-k2", true),
        ("StepFun3.5-Flash", "qwen3-coder", true),
        ("poolside-Laguna-S-2.1", "glm-4", true),
        ("unsloth-mistral-Devstral-Small-2507", "mistral", false),
        ("HuggingFaceTB-SmolLM3-3B", "none", true),
        ("microsoft-Phi-3.5-mini-instruct", "none", false),
        ("google-gemma-2-2b-it", "none", false),
    ] {
        let source = std::fs::read_to_string(folder.join(format!("templates/{name}.jinja"))).unwrap();
        let format = AnswerFormat::detect(&source);
        assert_eq!((format.name(), format.has_reasoning()), (tools, reasons), "{name}");
    }
}
