//! GBNF, llama.cpp's grammars, in words llguidance knows.
//!
//! GBNF has no tokens: a rule may cut a text anywhere. Lark reads a text lexeme by lexeme, each as long as it can be.
//! So every part of a grammar that needs no recursion becomes one terminal, that is one regular expression, and only
//! rules that call themselves stay rules. In those, two neighbouring parts that begin and end alike may still be read
//! more greedily than llama.cpp would.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::{Error, Result};

/// Deeper nesting than this is refused: the parser below calls itself.
const MAX_DEPTH: usize = 100;

#[derive(Clone, Debug, PartialEq)]
enum GrammarNode {
    Literal(String),
    /// A set of characters, written as a regular expression.
    Class(String),
    Rule(String),
    Sequence(Vec<GrammarNode>),
    Choice(Vec<GrammarNode>),
    Repeat(Box<GrammarNode>, usize, Option<usize>),
}

/// The same grammar in llguidance's dialect of Lark.
pub(crate) fn to_lark(source: &str) -> Result<String> {
    let rules = GbnfParser { source, at: 0, depth: 0 }.grammar()?;
    if !rules.contains_key("root") {
        return Err(Error::Constraint("the grammar has no rule `root`".to_owned()));
    }
    for (name, node) in &rules {
        if let Some(missing) = calls(node).into_iter().find(|called| !rules.contains_key(called)) {
            return Err(Error::Constraint(format!("rule `{name}` calls `{missing}`, which the grammar does not have")));
        }
    }
    let mut writer = LarkWriter { recursive: recursive(&rules), out: String::new(), n_made: 0 };
    _ = writeln!(writer.out, "start: {}", writer.name("root"));
    for (name, node) in &rules {
        let lark_name = writer.name(name);
        let body = if writer.recursive.contains(name) { writer.rule(node) } else { writer.terminal(node) };
        _ = writeln!(writer.out, "{lark_name}: {body}");
    }
    Ok(writer.out)
}

fn calls(node: &GrammarNode) -> BTreeSet<String> {
    match node {
        GrammarNode::Literal(_) | GrammarNode::Class(_) => BTreeSet::new(),
        GrammarNode::Rule(name) => BTreeSet::from([name.clone()]),
        GrammarNode::Sequence(nodes) | GrammarNode::Choice(nodes) => nodes.iter().flat_map(calls).collect(),
        GrammarNode::Repeat(node, ..) => calls(node),
    }
}

/// Rules that reach themselves, and those that reach such a one.
fn recursive(rules: &BTreeMap<String, GrammarNode>) -> BTreeSet<String> {
    let direct: BTreeMap<&String, BTreeSet<String>> = rules.iter().map(|(name, node)| (name, calls(node))).collect();
    let reach = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut todo: Vec<&String> = direct[from].iter().collect();
        while let Some(name) = todo.pop() {
            if seen.insert(name.clone()) {
                todo.extend(&direct[name]);
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = rules.keys().map(|name| (name, reach(name))).collect();
    let circles: BTreeSet<&String> = rules.keys().filter(|&name| reached[name].contains(name)).collect();
    let reaches_circle = |name: &&String| circles.contains(name) || circles.iter().any(|&c| reached[*name].contains(c));
    rules.keys().filter(reaches_circle).cloned().collect()
}

struct LarkWriter {
    recursive: BTreeSet<String>,
    out: String,
    n_made: usize,
}

impl LarkWriter {
    /// Lark tells rules and terminals apart by their case; letters and digits are all it takes besides `_`.
    fn name(&self, name: &str) -> String {
        let spelt: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if self.recursive.contains(name) {
            format!("r_{}", spelt.to_ascii_lowercase())
        } else {
            format!("T_{}", spelt.to_ascii_uppercase())
        }
    }

    fn is_regular(&self, node: &GrammarNode) -> bool {
        calls(node).is_disjoint(&self.recursive)
    }

    /// A part that is one regular expression.
    fn terminal(&self, node: &GrammarNode) -> String {
        match node {
            GrammarNode::Literal(text) => serde_json::Value::from(text.as_str()).to_string(),
            GrammarNode::Class(class) => format!("/{class}/"),
            GrammarNode::Rule(name) => self.name(name),
            GrammarNode::Sequence(nodes) if nodes.is_empty() => "\"\"".to_owned(),
            GrammarNode::Sequence(nodes) => {
                format!("({})", nodes.iter().map(|node| self.terminal(node)).collect::<Vec<_>>().join(" "))
            }
            GrammarNode::Choice(nodes) => {
                format!("({})", nodes.iter().map(|node| self.terminal(node)).collect::<Vec<_>>().join(" | "))
            }
            GrammarNode::Repeat(node, min, max) => format!("({}){}", self.terminal(node), count(*min, *max)),
        }
    }

    /// A part that calls recursive rules; what between does not becomes terminals of their own.
    fn rule(&mut self, node: &GrammarNode) -> String {
        match node {
            GrammarNode::Literal(_) | GrammarNode::Class(_) => self.made(node),
            GrammarNode::Rule(name) => self.name(name),
            GrammarNode::Sequence(nodes) => {
                let mut parts: Vec<String> = Vec::new();
                let mut at = 0;
                while at < nodes.len() {
                    let n_regular = nodes[at..].iter().take_while(|node| self.is_regular(node)).count();
                    if n_regular > 0 {
                        parts.push(self.made(&GrammarNode::Sequence(nodes[at..at + n_regular].to_vec())));
                        at += n_regular;
                    } else {
                        parts.push(self.rule(&nodes[at]));
                        at += 1;
                    }
                }
                if parts.is_empty() { "\"\"".to_owned() } else { format!("({})", parts.join(" ")) }
            }
            GrammarNode::Choice(nodes) => {
                let parts: Vec<String> = nodes
                    .iter()
                    .map(|node| if self.is_regular(node) { self.made(node) } else { self.rule(node) })
                    .collect();
                format!("({})", parts.join(" | "))
            }
            GrammarNode::Repeat(node, min, max) if self.is_regular(node) => {
                self.made(&GrammarNode::Repeat(node.clone(), *min, *max))
            }
            GrammarNode::Repeat(node, min, max) => format!("({}){}", self.rule(node), count(*min, *max)),
        }
    }

    /// A terminal of its own for this part.
    fn made(&mut self, node: &GrammarNode) -> String {
        if let GrammarNode::Sequence(nodes) = node
            && let [GrammarNode::Rule(name)] = nodes.as_slice()
        {
            return self.name(name);
        }
        let body = self.terminal(node);
        let name = format!("M_{}", self.n_made);
        self.n_made += 1;
        _ = writeln!(self.out, "{name}: {body}");
        name
    }
}

fn count(min: usize, max: Option<usize>) -> String {
    match (min, max) {
        (0, Some(1)) => "?".to_owned(),
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

struct GbnfParser<'a> {
    source: &'a str,
    at: usize,
    depth: usize,
}

impl GbnfParser<'_> {
    fn grammar(mut self) -> Result<BTreeMap<String, GrammarNode>> {
        let mut rules = BTreeMap::new();
        self.skip_space();
        while self.at < self.source.len() {
            let name = self.name().ok_or_else(|| self.error("expected the name of a rule"))?;
            self.skip_space();
            if !self.take("::=") {
                return Err(self.error("expected `::=`"));
            }
            let node = self.choice()?;
            if rules.insert(name.clone(), node).is_some() {
                return Err(self.error(&format!("rule `{name}` stands twice")));
            }
            self.skip_space();
        }
        Ok(rules)
    }

    fn choice(&mut self) -> Result<GrammarNode> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("it is nested too deep"));
        }
        let mut options = vec![self.sequence()?];
        while self.take("|") {
            options.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(if options.len() == 1 { options.swap_remove(0) } else { GrammarNode::Choice(options) })
    }

    fn sequence(&mut self) -> Result<GrammarNode> {
        let mut parts = Vec::new();
        loop {
            self.skip_space();
            let node = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    GrammarNode::Class("(?s:.)".to_owned())
                }
                Some('(') => {
                    self.at += 1;
                    let inner = self.choice()?;
                    self.skip_space();
                    if !self.take(")") {
                        return Err(self.error("expected `)`"));
                    }
                    inner
                }
                Some(c) if is_name(c) => {
                    let start = self.at;
                    let Some(name) = self.name() else { break };
                    self.skip_space();
                    // The next rule begins here.
                    if self.source[self.at..].starts_with("::=") {
                        self.at = start;
                        break;
                    }
                    GrammarNode::Rule(name)
                }
                _ => break,
            };
            parts.push(self.repeated(node)?);
        }
        Ok(GrammarNode::Sequence(parts))
    }

    fn repeated(&mut self, mut node: GrammarNode) -> Result<GrammarNode> {
        loop {
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let end = self.source[self.at..].find('}').ok_or_else(|| self.error("expected `}`"))?;
                    let inner = &self.source[self.at + 1..self.at + end];
                    let bounds = bounds(inner).ok_or_else(|| self.error("expected `{n}`, `{n,}` or `{n,m}`"))?;
                    self.at += end;
                    bounds
                }
                _ => return Ok(node),
            };
            self.at += 1;
            node = GrammarNode::Repeat(Box::new(node), min, max);
        }
    }

    fn literal(&mut self) -> Result<GrammarNode> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                Some('"') => break,
                Some(_) => text.push(self.character()?),
                None => return Err(self.error("a string has no end")),
            }
        }
        self.at += 1;
        Ok(GrammarNode::Literal(text))
    }

    fn class(&mut self) -> Result<GrammarNode> {
        self.at += 1;
        let mut class = String::from(if self.take("^") { "[^" } else { "[" });
        let is_empty = self.peek() == Some(']');
        loop {
            match self.peek() {
                Some(']') => break,
                Some(_) => {}
                None => return Err(self.error("a set of characters has no end")),
            }
            let first = self.character()?;
            _ = write!(class, "\\u{{{:x}}}", first as u32);
            let rest = &self.source[self.at..];
            if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                let last = self.character()?;
                if last < first {
                    return Err(self.error("a range of characters runs backwards"));
                }
                _ = write!(class, "-\\u{{{:x}}}", last as u32);
            }
        }
        self.at += 1;
        if is_empty {
            return Err(self.error("a set of characters is empty"));
        }
        class.push(']');
        Ok(GrammarNode::Class(class))
    }

    /// One character, escapes read.
    fn character(&mut self) -> Result<char> {
        let c = self.peek().ok_or_else(|| self.error("it ends too early"))?;
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let escaped = self.peek().ok_or_else(|| self.error("it ends too early"))?;
        self.at += escaped.len_utf8();
        let n_digits = match escaped {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => return Ok(escaped),
            _ => return Err(self.error(&format!("`\\{escaped}` is not an escape"))),
        };
        let digits = self.source.get(self.at..self.at + n_digits);
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).and_then(char::from_u32);
        self.at += n_digits;
        code.ok_or_else(|| self.error("an escape names no character"))
    }

    fn name(&mut self) -> Option<String> {
        let rest = &self.source[self.at..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        self.at += end;
        (end > 0).then(|| rest[..end].to_owned())
    }

    fn skip_space(&mut self) {
        loop {
            let rest = &self.source[self.at..];
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn peek(&self) -> Option<char> {
        self.source[self.at..].chars().next()
    }

    fn take(&mut self, text: &str) -> bool {
        let is_there = self.source[self.at..].starts_with(text);
        self.at += if is_there { text.len() } else { 0 };
        is_there
    }

    fn error(&self, problem: &str) -> Error {
        let before = self.source.get(..self.at).unwrap_or(self.source);
        Error::Constraint(format!("the grammar, line {}: {problem}", 1 + before.matches('\n').count()))
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

fn bounds(inner: &str) -> Option<(usize, Option<usize>)> {
    let number = |text: &str| text.trim().parse().ok();
    match inner.split_once(',') {
        None => number(inner).map(|n| (n, Some(n))),
        Some((min, max)) if max.trim().is_empty() => Some((number(min)?, None)),
        Some((min, max)) => {
            Some((number(min)?, Some(number(max)?))).filter(|&(min, max)| max.is_none_or(|max| min <= max))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        assert_eq!(to_lark(source).unwrap().trim(), expected.trim());
    }

    #[test]
    fn without_recursion_everything_is_a_terminal() {
        check("root ::= \"a\" [0-9]+ # digits\n", "start: T_ROOT\nT_ROOT: (\"a\" (/[\\u{30}-\\u{39}]/)+)");
        check(
            "root ::= x-y{2,3}\nx-y ::= \"b\" | \"\"",
            "start: T_ROOT\nT_ROOT: ((T_X_Y){2,3})\nT_X_Y: ((\"b\") | (\"\"))",
        );
    }

    #[test]
    fn rules_that_call_themselves_stay_rules() {
        check(
            "root ::= \"(\" [ ]? root \")\" | \"x\"",
            "start: r_root\nM_0: (\"(\" (/[\\u{20}]/)?)\nM_1: (\")\")\nM_2: (\"x\")\nr_root: ((M_0 r_root M_1) | M_2)",
        );
    }

    #[test]
    fn what_is_no_grammar_is_an_error_with_its_line() {
        let check = |source: &str, expected: &str| {
            let message = to_lark(source).unwrap_err().to_string();
            assert!(message.ends_with(expected), "{message}");
        };
        check("", "the grammar has no rule `root`");
        check("root ::= a", "rule `root` calls `a`, which the grammar does not have");
        check("root ::= \"a", "line 1: a string has no end");
        check("root ::= \"a\"\n\nroot ::= \"b\"", "line 3: rule `root` stands twice");
        check("root ::= [b-a]", "line 1: a range of characters runs backwards");
        check("root ::= (\"a\"", "line 1: expected `)`");
        check("root ::= \"a\"{3,2}", "line 1: expected `{n}`, `{n,}` or `{n,m}`");
        check(&format!("root ::= {}", "(".repeat(5000)), "it is nested too deep");
    }
}
