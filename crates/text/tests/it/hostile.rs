//! Vocabularies that lie and templates that misbehave: each is an error that says what is wrong.

use std::time::{Duration, SystemTime};

use text::{ChatTemplate, DEFAULT_TEMPLATE, Error, Message, RenderOptions, Tokenizer, Vocab};

fn small() -> Vocab {
    Vocab {
        model: "gpt2".to_owned(),
        pre: "smollm".to_owned(),
        tokens: ["a", "b", "ab", ""].map(String::from).to_vec(),
        merges: vec!["a b".to_owned()],
        ..Vocab::default()
    }
}

#[track_caller]
fn check_vocab(change: impl FnOnce(&mut Vocab), expected: &str) {
    let mut vocab = small();
    change(&mut vocab);
    assert_eq!(Tokenizer::new(vocab).unwrap_err().to_string(), expected);
}

#[test]
fn vocabularies_that_lie() {
    Tokenizer::new(small()).unwrap();
    check_vocab(
        |v| v.model = "hybriddna".to_owned(),
        "tokenizer model `hybriddna` is not supported (supported: gpt2, gemma4, llama, t5, bert, rwkv, plamo2)",
    );
    check_vocab(|v| v.tokens.clear(), "the vocabulary has no tokens");
    check_vocab(|v| v.types = vec![1; 3], "the vocabulary has 4 tokens but 3 token types");
    check_vocab(|v| v.scores = vec![0.0; 9], "the vocabulary has 4 tokens but 9 scores");
    check_vocab(|v| v.eos = Some(4), "the eos token is 4, but the vocabulary has 4 tokens");
    check_vocab(
        |v| v.add_bos = Some(true),
        "the vocabulary requires a bos token at the beginning of a text but defines none",
    );
    check_vocab(|v| v.tokens[1] = "a".to_owned(), "tokens 0 and 1 have the same text \"a\"");
    // Longer than every token: the buffer of the model below would be too short for it.
    check_vocab(|v| v.merges.push("ab ab".to_owned()), "merge 1 (\"ab ab\"): \"abab\" is not a token");
    check_vocab(|v| v.merges[0] = "ab".to_owned(), "merge 0 (\"ab\"): it is not two tokens with a space between");
    check_vocab(|v| v.merges[0] = " ".to_owned(), "merge 0 (\" \"): it is not two tokens with a space between");
}

#[test]
fn odd_vocabularies_that_are_fine() {
    let odd = Vocab { types: vec![1, 99, -5, i32::MIN], eos: Some(3), ..small() };
    let tokenizer = Tokenizer::new(odd).unwrap();
    assert_eq!(tokenizer.encode("abz", text::Specials::Parse), [2], "z has no token");
    assert_eq!(tokenizer.token_bytes(u32::MAX), None);
    assert!(!tokenizer.is_special(u32::MAX) && !tokenizer.is_end(u32::MAX));
    assert_eq!(tokenizer.token_text(4), "");
}

fn render(source: &str) -> Result<String, Error> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(&[Message::new("user", "hi")], &RenderOptions::default())
}

#[track_caller]
fn check_template(source: &str, expected: &str) {
    assert_eq!(render(source).unwrap_err().to_string(), expected);
}

#[test]
fn templates_that_misbehave() {
    assert_eq!(
        render("{% for m in messages %}").unwrap_err().to_string(),
        "the chat template cannot be read: line 1: syntax error: unexpected end of input, expected end of block"
    );
    assert!(matches!(render("{{ messages | nothing }}"), Err(Error::TemplateSyntax(_) | Error::TemplateRender(_))));
    check_template(
        "\n{{ raise_exception('Roles must alternate: ' + messages[0].role) }}",
        "the chat template refused the messages: Roles must alternate: user",
    );
    check_template(
        "{% macro m() %}{{ raise_exception('inner') }}{% endmacro %}{{ m() }}",
        "the chat template refused the messages: inner",
    );
    assert!(matches!(render("\n\n{{ none.x.y }}"), Err(Error::TemplateRender(what)) if what.starts_with("line 3: ")));
    assert!(matches!(render("{{ missing.x.y }}"), Err(Error::TemplateRender(_))));
    assert!(matches!(render("{{ missing | tojson }}"), Err(Error::TemplateRender(_))));
    assert!(matches!(render("{{ strftime_now('%') }}"), Err(Error::TemplateRender(_))));
}

#[test]
fn templates_that_never_end() {
    let endless = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    check_template(endless, "the chat template failed: it took more than 2000000 steps");
    assert!(matches!(
        render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        Err(Error::TemplateRender(_) | Error::TemplateSyntax(_))
    ));
    let deep = format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(matches!(render(&format!("{{{{ {deep} }}}}")), Err(Error::TemplateSyntax(_))));
}

/// Each of these would take all memory there is.
#[test]
fn templates_that_grow_without_end() {
    let forty = |step: &str| {
        format!(
            "{{% set ns = namespace(s='0123456789', l=[1]) %}}{{% for i in range(40) %}}{{% set ns.s = {step} %}}\
             {{% endfor %}}{{{{ ns.s | length }}}}"
        )
    };
    let long = "x".repeat(5_000);
    for source in [
        forty("ns.s ~ ns.s"),
        forty("ns.s + ns.s"),
        forty("ns.s * 10"),
        forty("ns.s | tojson | tojson"),
        forty("ns.s | replace('0', ns.s)"),
        forty("ns.s.replace('0', ns.s)"),
        forty("[ns.s, ns.s] | join"),
        forty("''.join([ns.s, ns.s])"),
        forty("'%s%s' | format(ns.s, ns.s)"),
        forty("[ns.s, ns.s]") + "{{ ns.s }}",
        forty("[ns.s, ns.s]") + "{{ ns.s | tojson }}",
        forty("[ns.s, ns.s]") + "{{ ns.s ~ '' }}",
        forty("ns.s") + "{{ '%99999999999s' | format('a') }}",
        "{% set ns = namespace(l=[]) %}{% set s = 'x' * 1000000 %}{% for i in range(90000) %}\
         {% set ns.l = ns.l + [s[1:]] %}{% endfor %}"
            .to_owned(),
        "{% macro m() %}{% for a in range(90000) %}LONG{% endfor %}{% endmacro %}{% set x = m() %}"
            .replace("LONG", &long),
    ] {
        let error = render(&source).expect_err(&source).to_string();
        assert!(error.starts_with("the chat template failed: "), "{error}");
        assert!(
            error.contains("more text than") || error.contains("too") || error.contains("steps"),
            "{source}: {error}"
        );
    }
}

#[test]
fn operators_mean_what_they_meant() {
    let check = |source: &str, expected: &str| assert_eq!(render(source).unwrap(), expected, "{source}");
    check(
        "{{ 1 + 2 }} {{ 1.5 + 1 }} {{ 'a' + 'b' }} {{ [1] + [2, 3] }} {{ 2 * 3 }} {{ 'ab' * 2 }} {{ 2 ** 3 }}",
        "3 2.5 ab [1, 2, 3] 6 abab 8",
    );
    check("{{ 1 ~ none ~ 'x' ~ missing ~ [1] ~ true }}", "1Nonex[1]True");
    check(
        "{{ (messages + [1]) | length }} {{ messages[0].role ~ ':' }} {{ ('a,b'.split(',') + ['c']) | join('-') }}",
        "2 user: a-b-c",
    );
    check(
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a' ~ 'b') + '!' }}{% filter upper %}q{% endfilter %}",
        "<ab>!Q",
    );
    assert!(render("{{ 1 + 'a' }}").is_err());
    assert!(render("{{ missing + 'a' }}").is_err());
}

#[test]
fn a_panic_of_the_engine_is_an_error() {
    check_template("{{ [][::-1] | list }}", "the chat template failed: the template engine broke on it");
    assert_eq!(render("{% for m in [][::-1] %}x{% endfor %}{% for m in messages[::-1] %}y{% endfor %}").unwrap(), "y");
}

#[test]
fn messages_are_data_and_never_templates() {
    let messages = [Message::new("user", "{{ 1 + 1 }}{% raw %}<b>&amp;")];
    let template = ChatTemplate::new(DEFAULT_TEMPLATE, "", "").unwrap();
    let text =
        template.render(&messages, &RenderOptions { add_generation_prompt: true, ..Default::default() }).unwrap();
    assert_eq!(text, "<|im_start|>user\n{{ 1 + 1 }}{% raw %}<b>&amp;<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn the_clock_can_be_set() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_721_995_200);
    let template = ChatTemplate::new("{{ strftime_now('%d %b %Y %H:%M') }}", "", "").unwrap().with_time(now).unwrap();
    assert_eq!(template.render(&[], &RenderOptions::default()).unwrap(), "26 Jul 2024 12:00");
    let clock = ChatTemplate::new("{{ strftime_now('%Y') }}", "", "").unwrap();
    assert!(clock.render(&[], &RenderOptions::default()).unwrap().parse::<u32>().unwrap() >= 2024);
}
