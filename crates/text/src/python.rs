//! Values written as Python writes them.
//!
//! Chat templates were tried out on Python's Jinja, so what they print is what Python's `str` and
//! `json.dumps` print: `True`, `['a']`, `1e+16`, and a space after each comma of JSON.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::chat_template::meter;

/// Containers nested deeper than this are refused: the writers below call themselves.
const MAX_DEPTH: usize = 200;

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested deeper than {MAX_DEPTH} levels"))
}

/// `str(value)`; an undefined value is empty, as Jinja prints it.
pub(crate) fn write_str(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => {
            out.push_str(value.as_str().unwrap_or_default());
            Ok(())
        }
        _ => write_repr(value, out, 0),
    }
}

/// `repr(value)`.
fn write_repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    // A list may hold the same list twice, and that one another.
    meter::check(out.len())?;
    match value.kind() {
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => write_float(f64::try_from(value.clone())?, out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (idx, item) in value.try_iter()?.enumerate() {
                if idx > 0 {
                    out.push_str(", ");
                }
                write_repr(&item, out, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (idx, key) in value.try_iter()?.enumerate() {
                if idx > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, out, depth + 1)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => _ = write!(out, "{value}"),
    }
    Ok(())
}

/// A string literal: single quotes, unless only those occur inside.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => _ = write!(out, "\\x{:02x}", c as u32),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// The shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16 on.
fn write_float(x: f64, out: &mut String) {
    if !x.is_finite() {
        out.push_str(if x.is_nan() {
            "nan"
        } else if x > 0.0 {
            "inf"
        } else {
            "-inf"
        });
        return;
    }
    let short = format!("{x:e}");
    let (digits, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        _ = write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs());
    } else {
        _ = write!(out, "{x:?}");
    }
}

/// The arguments of `json.dumps` that transformers' `tojson` takes.
pub(crate) struct JsonStyle {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    is_ascii: bool,
    sorts_keys: bool,
}

impl JsonStyle {
    pub(crate) fn from_kwargs(args: &[Value], kwargs: &Kwargs) -> Result<Self, Error> {
        let positional = |idx: usize| args.get(idx).cloned();
        let named = |name: &str| kwargs.get::<Option<Value>>(name);
        let present = |value: Option<Value>| value.filter(|value| !value.is_none() && !value.is_undefined());
        let is_ascii = positional(0).or(named("ensure_ascii")?).is_some_and(|value| value.is_true());
        let indent = match present(positional(1).or(named("indent")?)) {
            None => None,
            Some(value) => Some(match value.as_str() {
                Some(text) => text.to_owned(),
                None => " ".repeat(usize::try_from(i64::try_from(value)?.clamp(0, 64)).unwrap_or(0)),
            }),
        };
        let (item_separator, key_separator) = match present(positional(2).or(named("separators")?)) {
            // json.dumps leaves no blank at the end of a line.
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
            Some(pair) => {
                let part = |idx| pair.get_item_by_index(idx).map(|part| part.to_string());
                (part(0)?, part(1)?)
            }
        };
        let sorts_keys = positional(3).or(named("sort_keys")?).is_some_and(|value| value.is_true());
        kwargs.assert_all_used()?;
        Ok(Self { indent, item_separator, key_separator, is_ascii, sorts_keys })
    }

    pub(crate) fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, &mut out, 0)?;
        Ok(out)
    }

    fn write(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        meter::check(out.len())?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => _ = write!(out, "{value}"),
            ValueKind::Number => match f64::try_from(value.clone())? {
                x if x.is_nan() => out.push_str("NaN"),
                f64::INFINITY => out.push_str("Infinity"),
                f64::NEG_INFINITY => out.push_str("-Infinity"),
                x => write_float(x, out),
            },
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut n_items = 0;
                out.push('[');
                for item in value.try_iter()? {
                    self.separate(n_items, depth, out);
                    self.write(&item, out, depth + 1)?;
                    n_items += 1;
                }
                self.close(n_items, depth, out);
                out.push(']');
            }
            ValueKind::Map => self.write_map(value, out, depth)?,
            kind => {
                let problem = format!("tojson: a value of type {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, problem));
            }
        }
        Ok(())
    }

    fn write_map(&self, map: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = map.try_iter()?.collect();
        if self.sorts_keys {
            keys.sort();
        }
        out.push('{');
        for (idx, key) in keys.iter().enumerate() {
            self.separate(idx, depth, out);
            match key.as_str() {
                Some(text) => self.write_string(text, out),
                // Keys that are no strings are written as JSON writes them as values, in quotes.
                None => {
                    out.push('"');
                    self.write(key, out, depth + 1)?;
                    out.push('"');
                }
            }
            out.push_str(&self.key_separator);
            self.write(&map.get_item(key)?, out, depth + 1)?;
        }
        self.close(keys.len(), depth, out);
        out.push('}');
        Ok(())
    }

    fn separate(&self, idx: usize, depth: usize, out: &mut String) {
        if idx > 0 {
            out.push_str(&self.item_separator);
        }
        self.break_line(depth + 1, out);
    }

    fn close(&self, n_items: usize, depth: usize, out: &mut String) {
        if n_items > 0 {
            self.break_line(depth, out);
        }
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{08}' => out.push_str("\\b"),
                '\u{0C}' => out.push_str("\\f"),
                '\0'..='\u{1F}' => _ = write!(out, "\\u{:04x}", c as u32),
                c if self.is_ascii && !(' '..='~').contains(&c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_prints_them() {
        // repr() of CPython 3.
        for (x, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (123456.789, "123456.789"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            let mut out = String::new();
            write_float(x, &mut out);
            assert_eq!(out, expected);
        }
    }
}
