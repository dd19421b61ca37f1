//! What a constraint may ask of the compiler, checked before it sees any of it. Constraints come from anybody, and
//! llguidance calls itself for every level of nesting and for every reference that leads to another one.

use serde_json::Value;

use super::Constraint;
use crate::{Error, Result};

/// Values (objects, lists, numbers, texts) in a schema. The largest schemas in use, such as FHIR's, stay below it.
const MAX_NODES: usize = 100_000;
/// Levels of a schema. Deeper JSON does not come out of a parser.
const MAX_DEPTH: usize = 128;
/// References in a schema, each of which may lead to the next.
const MAX_REFERENCES: usize = 4_000;
/// A regular expression or a grammar.
const MAX_TEXT_BYTES: usize = 256 << 10;
/// Groups within groups in a grammar.
const MAX_GROUPS: usize = 500;

/// The thread that compiles. A chain of [`MAX_REFERENCES`] takes a sixth of it; only pages that are used take memory.
pub(super) const STACK_BYTES: usize = 256 << 20;

/// Refuses what could not be compiled within bounds.
pub(super) fn check(constraint: &Constraint) -> Result<()> {
    match constraint {
        Constraint::Json => Ok(()),
        Constraint::JsonSchema(schema) => check_schema(schema),
        Constraint::Regex(text) | Constraint::Lark(text) | Constraint::Gbnf(text) => check_text(text),
    }
}

fn too_large(what: &str, n: usize, max: usize) -> Error {
    Error::Constraint(format!("it has {n} {what}; at most {max} are taken"))
}

fn check_schema(schema: &Value) -> Result<()> {
    let (mut n_nodes, mut n_references) = (0, 0);
    let mut todo = vec![(schema, 1)];
    while let Some((value, depth)) = todo.pop() {
        n_nodes += 1;
        if depth > MAX_DEPTH {
            return Err(Error::Constraint(format!("it is nested deeper than {MAX_DEPTH} levels")));
        }
        match value {
            Value::Array(items) => todo.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => {
                n_references += usize::from(fields.get("$ref").is_some_and(Value::is_string));
                todo.extend(fields.values().map(|field| (field, depth + 1)));
            }
            _ => {}
        }
        if n_nodes + todo.len() > MAX_NODES {
            return Err(Error::Constraint(format!("it has more than {MAX_NODES} values")));
        }
    }
    match n_references > MAX_REFERENCES {
        true => Err(too_large("references", n_references, MAX_REFERENCES)),
        false => Ok(()),
    }
}

fn check_text(text: &str) -> Result<()> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(too_large("bytes", text.len(), MAX_TEXT_BYTES));
    }
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            // A rule ends with its line: what quotes and expressions left open does not add up.
            b'\n' => depth = 0,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    match deepest > MAX_GROUPS {
        true => Err(Error::Constraint(format!("its groups are nested deeper than {MAX_GROUPS} levels"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn refused(constraint: &Constraint, expected: &str) {
        let message = check(constraint).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn what_is_too_large_is_refused_and_says_why() {
        refused(&Constraint::JsonSchema(json!({"enum": vec![0; 200_000]})), "more than 100000 values");
        let nested = (0..200).fold(json!({}), |inner, _| json!({"items": inner}));
        refused(&Constraint::JsonSchema(nested), "deeper than 128");
        let references: Vec<Value> = (0..5_000).map(|i| json!({"$ref": format!("#/$defs/a{i}")})).collect();
        refused(&Constraint::JsonSchema(json!({"anyOf": references})), "5000 references");
        refused(&Constraint::Regex("a".repeat(300_000)), "300000 bytes");
        refused(&Constraint::Lark(format!("start: {}", "(".repeat(1_000))), "deeper than 500");
    }

    #[test]
    fn what_people_send_is_taken() {
        let wide = json!({"enum": (0..10_000).collect::<Vec<_>>()});
        for constraint in [
            Constraint::Json,
            Constraint::JsonSchema(wide),
            Constraint::JsonSchema(json!({"properties": {"$ref": {"type": "string"}}})),
            Constraint::Regex("(a|b)+".to_owned()),
        ] {
            check(&constraint).unwrap();
        }
    }
}
