//! What a chat template may make while it renders. minijinja counts instructions, but one instruction may double a
//! text or write out a list that holds itself many times over. So everything that makes text is charged here to one
//! budget per rendering: the operators by rewriting the template (`a ~ b` becomes `__cat(a, b)`), filters and methods by
//! standing in front of them, long literal text by a call in its middle.

use std::cell::Cell;
use std::fmt::{self, Write as _};

use minijinja::machinery::{Span, ast};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, filters};

/// What a rendering may make in all: room to begin with, and so much for each byte it is given. Templates that gather a
/// text piece by piece copy it with every piece.
const BASE_BYTES: usize = 16 << 20;
const BYTES_PER_BYTE: usize = 512;
const MAX_BYTES: usize = 1 << 30;
/// What an element of a list is charged.
const ELEMENT_BYTES: usize = 32;
/// Literal text from this length on is charged; what is shorter, the number of instructions bounds.
const LONG_BYTES: usize = 256;
/// Widths in format strings have fewer digits.
const MAX_WIDTH_DIGITS: usize = 4;

/// Filters that may make more than they are given.
const FILTERS: [&str; 12] =
    ["replace", "join", "indent", "format", "escape", "e", "pprint", "upper", "lower", "title", "list", "batch"];

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(MAX_BYTES) };
}

/// Runs a rendering that is given `n_bytes` with a budget of its own.
pub(super) fn metered<T>(n_bytes: usize, render: impl FnOnce() -> T) -> T {
    let budget = BASE_BYTES.saturating_add(n_bytes.saturating_mul(BYTES_PER_BYTE)).min(MAX_BYTES);
    let before = LEFT.replace(budget);
    let rendered = render();
    LEFT.set(before);
    rendered
}

/// Takes from the budget of this thread's rendering.
pub(crate) fn charge(n_bytes: usize) -> Result<(), Error> {
    match LEFT.get().checked_sub(n_bytes) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => Err(too_much()),
    }
}

/// Whether a text that is being written may still grow.
pub(crate) fn check(n_bytes: usize) -> Result<(), Error> {
    if n_bytes <= LEFT.get() { Ok(()) } else { Err(too_much()) }
}

fn too_much() -> Error {
    Error::new(ErrorKind::InvalidOperation, "it makes more text than a conversation can need")
}

/// Puts the meters in place.
pub(super) fn install(env: &mut Environment<'static>) {
    env.add_function("__add", add);
    env.add_function("__cat", |a: Value, b: Value| cat(&a, &b));
    env.add_function("__mul", mul);
    env.add_function("__raw", |n: usize| charge(n).map(|()| ""));
    env.add_filter("__plain_replace", filters::replace);
    env.add_filter("__plain_join", filters::join);
    env.add_filter("__plain_indent", filters::indent);
    env.add_filter("__plain_format", filters::format);
    env.add_filter("__plain_escape", filters::escape);
    env.add_filter("__plain_e", filters::escape);
    env.add_filter("__plain_pprint", filters::pprint);
    env.add_filter("__plain_upper", filters::upper);
    env.add_filter("__plain_lower", filters::lower);
    env.add_filter("__plain_title", filters::title);
    env.add_filter("__plain_list", filters::list);
    env.add_filter("__plain_batch", filters::batch);
    for name in FILTERS {
        env.add_filter(name, move |state: &mut State, args: Rest<Value>| {
            expect(name, &args)?;
            let made = state.apply_filter(&format!("__plain_{name}"), &args)?;
            charge(size(&made))?;
            Ok::<_, Error>(made)
        });
    }
    env.set_unknown_method_callback(|state, value, method, args| {
        let all: Vec<Value> = std::iter::once(value.clone()).chain(args.iter().cloned()).collect();
        expect(method, &all)?;
        let made = minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)?;
        charge(size(&made))?;
        Ok(made)
    });
}

/// Charges what filters and methods of this name make that may be far larger than what they are given.
fn expect(name: &str, args: &[Value]) -> Result<(), Error> {
    let text = |i: usize| args.get(i).and_then(Value::as_str).unwrap_or_default();
    match name {
        "replace" => {
            let n_found = match text(1) {
                "" => text(0).len() + 1,
                from => text(0).matches(from).count(),
            };
            check(n_found.saturating_mul(text(2).len()))
        }
        // The list is the first argument of the filter, the second of the method.
        "join" => {
            let (list, between) = match args.first().map(Value::kind) {
                Some(ValueKind::String) if args.len() > 1 && args[1].as_str().is_none() => (&args[1], text(0)),
                _ => (&args[0], text(1)),
            };
            let mut n_bytes = 0_usize;
            for item in list.try_iter()? {
                n_bytes = n_bytes.saturating_add(written(&item)?.len() + between.len());
                check(n_bytes)?;
            }
            Ok(())
        }
        "indent" => {
            let width = args.get(1).and_then(|width| usize::try_from(width.clone()).ok()).unwrap_or(4);
            check(width.saturating_mul(text(0).lines().count() + 1))
        }
        "format" => {
            let runs = text(0).split(|c: char| !c.is_ascii_digit());
            match runs.into_iter().any(|digits| digits.len() > MAX_WIDTH_DIGITS) {
                true => Err(Error::new(ErrorKind::InvalidOperation, "a format asks for too wide a field")),
                false => args.iter().skip(1).try_for_each(|arg| written(arg).map(drop)),
            }
        }
        "pprint" | "escape" | "e" => args.iter().take(1).try_for_each(|arg| written(arg).map(drop)),
        _ => Ok(()),
    }
}

/// What a value takes: of a text its bytes, of a list its elements.
fn size(value: &Value) -> usize {
    match value.kind() {
        ValueKind::String => value.as_str().map_or(0, str::len),
        ValueKind::Seq | ValueKind::Map => value.len().unwrap_or(0).saturating_mul(ELEMENT_BYTES),
        _ => 0,
    }
}

/// A text that ends with an error where the budget does.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        check(self.0.len() + text.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(text);
        Ok(())
    }
}

fn written(value: &Value) -> Result<String, Error> {
    let mut out = Bounded(String::new());
    write!(out, "{value}").map_err(|_| too_much())?;
    Ok(out.0)
}

/// `a ~ b`
fn cat(a: &Value, b: &Value) -> Result<Value, Error> {
    let mut out = Bounded(String::new());
    write!(out, "{a}{b}").map_err(|_| too_much())?;
    charge(out.0.len())?;
    Ok(out.0.into())
}

/// `a + b`
fn add(state: &State, a: Value, b: Value) -> Result<Value, Error> {
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        charge(a.len() + b.len())?;
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(&a) && is_list(&b) {
        let mut items = Vec::new();
        for item in a.try_iter()?.chain(b.try_iter()?) {
            charge(ELEMENT_BYTES)?;
            items.push(item);
        }
        // Slices of texts are made by nothing that could be charged but this.
        let texts = b.try_iter()?.filter_map(|item| item.as_str().map(str::len));
        charge(texts.fold(0, usize::saturating_add))?;
        return Ok(items.into());
    }
    state.env().compile_expression("a + b")?.eval(minijinja::context! { a, b })
}

/// `a * b`
fn mul(state: &State, a: Value, b: Value) -> Result<Value, Error> {
    for (value, n) in [(&a, &b), (&b, &a)] {
        if let (n_bytes @ 1.., Ok(n)) = (size(value), usize::try_from(n.clone())) {
            charge(n_bytes.saturating_mul(n))?;
        }
    }
    state.env().compile_expression("a * b")?.eval(minijinja::context! { a, b })
}

/// The template with its operators and long texts charged.
pub(super) fn rewrite(source: &str, syntax: SyntaxConfig) -> Result<String, Error> {
    let template = minijinja::machinery::parse(source, super::NAME, syntax)?;
    let mut edits = Edits { source, all: Vec::new(), is_lost: false };
    edits.statement(&template);
    match edits.is_lost {
        true => Err(Error::new(ErrorKind::SyntaxError, "an operator stands where none was expected")),
        false => Ok(edits.apply()),
    }
}

/// Texts to put in, and how many bytes they stand for.
struct Edits<'a> {
    source: &'a str,
    all: Vec<Edit>,
    /// An operator was not found where the parser saw it.
    is_lost: bool,
}

struct Edit {
    at: usize,
    n_replaced: usize,
    /// Of two at the same place the smaller goes first.
    rank: i64,
    text: String,
}

impl Edits<'_> {
    fn apply(mut self) -> String {
        self.all.sort_by_key(|edit| (edit.at, edit.rank));
        let (mut out, mut at) = (String::with_capacity(self.source.len() * 2), 0);
        for edit in &self.all {
            out.push_str(&self.source[at..edit.at]);
            out.push_str(&edit.text);
            at = edit.at + edit.n_replaced;
        }
        out.push_str(&self.source[at..]);
        out
    }

    fn push(&mut self, at: usize, n_replaced: usize, rank: i64, text: impl Into<String>) {
        self.all.push(Edit { at, n_replaced, rank, text: text.into() });
    }

    fn statements(&mut self, all: &[ast::Stmt]) {
        all.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &ast::Stmt) {
        use ast::Stmt as S;
        match statement {
            S::Template(template) => self.statements(&template.children),
            S::EmitExpr(emit) => self.expression(&emit.expr),
            S::EmitRaw(raw) => self.raw(raw.raw, raw.span()),
            S::ForLoop(for_loop) => {
                self.expression(&for_loop.iter);
                for_loop.filter_expr.iter().for_each(|filter| self.expression(filter));
                self.statements(&for_loop.body);
                self.statements(&for_loop.else_body);
            }
            S::IfCond(condition) => {
                self.expression(&condition.expr);
                self.statements(&condition.true_body);
                self.statements(&condition.false_body);
            }
            S::WithBlock(with) => {
                with.assignments.iter().for_each(|(_, value)| self.expression(value));
                self.statements(&with.body);
            }
            S::Set(set) => self.expression(&set.expr),
            S::SetBlock(set) => self.statements(&set.body),
            S::AutoEscape(escape) => self.statements(&escape.body),
            S::FilterBlock(filter) => self.statements(&filter.body),
            S::Block(block) => self.statements(&block.body),
            S::Macro(definition) => {
                definition.defaults.iter().for_each(|default| self.expression(default));
                self.statements(&definition.body);
            }
            S::CallBlock(block) => {
                self.call(&block.call);
                self.statements(&block.macro_decl.body);
            }
            S::Do(call) => self.call(&call.call),
            S::Import(_) | S::FromImport(_) | S::Extends(_) | S::Include(_) | S::Continue(_) | S::Break(_) => {}
        }
    }

    fn expression(&mut self, expression: &ast::Expr) {
        use ast::Expr as E;
        match expression {
            E::Var(_) | E::Const(_) => {}
            E::Slice(slice) => {
                self.expression(&slice.expr);
                [&slice.start, &slice.stop, &slice.step].into_iter().flatten().for_each(|part| self.expression(part));
            }
            E::UnaryOp(unary) => self.expression(&unary.expr),
            E::BinOp(binary) => self.binary(binary, binary.span()),
            E::Compare(compare) => {
                self.expression(&compare.expr);
                compare.ops.iter().for_each(|part| self.expression(&part.expr));
            }
            E::IfExpr(choice) => {
                self.expression(&choice.test_expr);
                self.expression(&choice.true_expr);
                choice.false_expr.iter().for_each(|part| self.expression(part));
            }
            E::Filter(filter) => {
                filter.expr.iter().for_each(|inner| self.expression(inner));
                self.arguments(&filter.args);
            }
            E::Test(test) => {
                self.expression(&test.expr);
                self.arguments(&test.args);
            }
            E::GetAttr(get) => self.expression(&get.expr),
            E::GetItem(get) => {
                self.expression(&get.expr);
                self.expression(&get.subscript_expr);
            }
            E::Call(call) => self.call(call),
            E::List(list) => list.items.iter().for_each(|item| self.expression(item)),
            E::Tuple(tuple) => tuple.items.iter().for_each(|item| self.expression(item)),
            E::Map(map) => map.keys.iter().chain(&map.values).for_each(|item| self.expression(item)),
        }
    }

    fn call(&mut self, call: &ast::Call) {
        self.expression(&call.expr);
        self.arguments(&call.args);
    }

    fn arguments(&mut self, all: &[ast::CallArg]) {
        for argument in all {
            match argument {
                ast::CallArg::Pos(value)
                | ast::CallArg::Kwarg(_, value)
                | ast::CallArg::PosSplat(value)
                | ast::CallArg::KwargSplat(value) => self.expression(value),
            }
        }
    }

    fn binary(&mut self, binary: &ast::BinOp, span: Span) {
        self.expression(&binary.left);
        self.expression(&binary.right);
        let (operator, function) = match binary.op {
            ast::BinOpKind::Add => ('+', "__add("),
            ast::BinOpKind::Concat => ('~', "__cat("),
            ast::BinOpKind::Mul => ('*', "__mul("),
            _ => return,
        };
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        // After the left side come only the brackets around it.
        let after_left = binary.left.span().end_offset as usize;
        let between = self.source.get(after_left..end).and_then(|rest| rest.split_once(operator));
        let is_bracket = |c: char| c.is_whitespace() || c == ')';
        let Some((before, _)) = between.filter(|(before, _)| before.chars().all(is_bracket)) else {
            self.is_lost = true;
            return;
        };
        // The longer of two that begin together goes first, the shorter of two that end together.
        let length = (end - start) as i64;
        self.push(start, 0, -length, function);
        self.push(after_left + before.len(), 1, 0, ",");
        self.push(end, 0, length - i64::MAX / 2, ")");
    }

    /// A call in the middle of a word: what is trimmed around tags stays as it is.
    fn raw(&mut self, text: &str, span: Span) {
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        let Some(source) = self.source.get(start..end) else { return };
        if text.len() < LONG_BYTES || self.source[..start].trim_end().ends_with("%}") && self.is_verbatim(start) {
            return;
        }
        let bytes = source.as_bytes();
        let is_letter = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let middle = (1..bytes.len()).find(|&i| is_letter(bytes.get(i - 1)) && is_letter(bytes.get(i)));
        if let Some(middle) = middle {
            self.push(start + middle, 0, 0, format!("{{{{ __raw({}) }}}}", text.len()));
        }
    }

    /// Whether the text from here on stands in `{% raw %}`, where a call would be shown as it is.
    fn is_verbatim(&self, start: usize) -> bool {
        let tag = self.source[..start].trim_end().rfind("{%").map_or("", |at| &self.source[at..start]);
        tag.trim_start_matches("{%").trim_start_matches(['-', '+']).trim_start().starts_with("raw")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_rewrite(source: &str, expected: &str) {
        assert_eq!(rewrite(source, SyntaxConfig::default()).unwrap(), expected);
    }

    #[test]
    fn operators_become_calls() {
        check_rewrite("{{ a ~ b }}", "{{ __cat(a , b) }}");
        check_rewrite("{{ a + b + c }}", "{{ __add(__add(a , b) , c) }}");
        check_rewrite("{{ (a ~ b) + (c) * 2 - 1 }}", "{{ __add((__cat(a , b)) , __mul((c) , 2)) - 1 }}");
        check_rewrite("{{ a.b['c'](1)|f(x+y)~'~'~m[1:] }}", "{{ __cat(__cat(a.b['c'](1)|f(__add(x,y)),'~'),m[1:]) }}");
        check_rewrite("{%- set ns.x = ns.x ~ ns.x -%}", "{%- set ns.x = __cat(ns.x , ns.x) -%}");
        check_rewrite("{{ a ** 2 }}{{ a - b }} a + b", "{{ a ** 2 }}{{ a - b }} a + b");
        check_rewrite("{{ x if a + b else c ~ d }}", "{{ x if __add(a , b) else __cat(c , d) }}");
    }

    #[test]
    fn long_text_is_charged_where_nothing_is_trimmed() {
        let long = "word ".repeat(60);
        check_rewrite(
            &format!("{{%- if a -%}} {long}{{%- endif %}}"),
            &format!("{{%- if a -%}} w{{{{ __raw(299) }}}}{}{{%- endif %}}", &long[1..]),
        );
        let raw = format!("{{% raw %}}{long}{{% endraw %}}");
        check_rewrite(&raw, &raw);
    }
}
