//! API keys. The file holds a SHA-256 of each key, never the key: keys are 256 random bits, so a plain hash cannot be
//! searched backwards. A key that a client sends is hashed and compared with all of them in constant time.
//!
//! A line of the file is `NAME SHA256 [NAME=VALUE]...`; `#` begins a comment. What may be set is in `SETTINGS`.

use crate::hint::HintExt;
use anyhow::{Context, Result, anyhow, bail};
use rocinante::ids;
use sha2::{Digest, Sha256};
use std::path::Path;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// What a line may say after the hash.
const SETTINGS: &str = "[rate=N] [concurrent=N] [priority=N|CLASS] [request-tokens=N] [day-tokens=N] [month-tokens=N] [unload=yes] [admin=yes]";

/// Priorities by name. A point of priority is worth 16 turns.
const CLASSES: [(&str, i32); 4] = [("batch", -4), ("low", -1), ("normal", 0), ("high", 1)];

/// One client, as the key file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub name: String,
    hash: [u8; 32],
    /// Requests a minute.
    pub rate: Option<u32>,
    /// Requests at once.
    pub concurrent: Option<u32>,
    pub priority: i32,
    /// Tokens that one request may ask for: its prompt and all its answers.
    pub request_tokens: Option<u64>,
    /// Tokens a day and a month, prompts and answers together.
    pub day_tokens: Option<u64>,
    pub month_tokens: Option<u64>,
    /// Whether it may take models out of memory.
    pub may_unload: bool,
    /// Whether it sees what all keys use, and may add and remove models.
    pub is_admin: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<Key>);

impl Keys {
    pub fn open(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the key file `{}`", path.display()))
            .hint("`roci key new --name NAME --file FILE` makes one")?;
        let keys = Self::parse(&text).with_context(|| format!("`{}`", path.display()))?;
        match keys.0.is_empty() {
            true => Err(anyhow!("`{}` contains no key", path.display())).hint("`roci key new --name NAME --file FILE`"),
            false => Ok(keys),
        }
    }

    pub fn parse(text: &str) -> Result<Self> {
        let mut keys: Vec<Key> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let key = parse_line(line).with_context(|| format!("line {}", i + 1))?;
            if keys.iter().any(|other| other.name == key.name) {
                bail!("line {}: a second key named `{}`", i + 1, key.name);
            }
            keys.push(key);
        }
        Ok(Self(keys))
    }

    pub fn all(&self) -> &[Key] {
        &self.0
    }

    /// The index of the key that a client sent. Takes the same time whichever it is, and if it is none.
    pub fn find(&self, sent: &[u8]) -> Option<usize> {
        let hash = Sha256::digest(sent);
        let mut found = u64::MAX;
        for (i, key) in self.0.iter().enumerate() {
            let is_equal: Choice = hash.as_slice().ct_eq(&key.hash);
            found.conditional_assign(&(i as u64), is_equal);
        }
        usize::try_from(found).ok().filter(|&i| i < self.0.len())
    }
}

fn parse_line(line: &str) -> Result<Key> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(hash)) = (words.next(), words.next()) else {
        bail!("expected NAME SHA256 {SETTINGS}");
    };
    let mut key = Key {
        name: name.to_owned(),
        hash: parse_hash(hash)?,
        rate: None,
        concurrent: None,
        priority: 0,
        request_tokens: None,
        day_tokens: None,
        month_tokens: None,
        may_unload: false,
        is_admin: false,
    };
    for word in words {
        let (what, value) = word.split_once('=').with_context(|| format!("`{word}` is not NAME=VALUE"))?;
        let number = || value.parse::<u64>().ok().filter(|&n| n > 0);
        let bad = || anyhow!("`{word}`: expected a number of at least 1");
        let small = || number().and_then(|n| u32::try_from(n).ok()).ok_or_else(bad);
        let flag = || match value {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err(anyhow!("`{word}`: expected yes or no")),
        };
        match what {
            "rate" => key.rate = Some(small()?),
            "concurrent" => key.concurrent = Some(small()?),
            "priority" => key.priority = priority(value).with_context(|| format!("`{word}`"))?,
            "request-tokens" => key.request_tokens = Some(number().ok_or_else(bad)?),
            "day-tokens" => key.day_tokens = Some(number().ok_or_else(bad)?),
            "month-tokens" => key.month_tokens = Some(number().ok_or_else(bad)?),
            "unload" => key.may_unload = flag()?,
            "admin" => key.is_admin = flag()?,
            _ => bail!("`{what}` is unknown: expected {SETTINGS}"),
        }
    }
    Ok(key)
}

fn priority(value: &str) -> Result<i32> {
    let class = CLASSES.iter().find(|(name, _)| *name == value).map(|(_, priority)| *priority);
    class.or_else(|| value.parse().ok()).context("expected a number, batch, low, normal or high")
}

fn parse_hash(text: &str) -> Result<[u8; 32]> {
    let bytes: Option<Vec<u8>> = match text.is_ascii() {
        true => (0..text.len()).step_by(2).map(|i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok()).collect(),
        false => None,
    };
    bytes.and_then(|bytes| bytes.try_into().ok()).context("the hash is not 64 hexadecimal digits")
}

/// A new key, and its line for the file without limits.
pub fn generate(name: &str) -> (String, String) {
    let mut bytes = [0; 32];
    ids::fill(&mut bytes);
    let key = format!("roci-{}", ids::hex(&bytes));
    let line = format!("{name} {}", ids::hex(&Sha256::digest(key.as_bytes())));
    (key, line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_its_hash_alone() {
        let (first, first_line) = generate("a");
        let (second, second_line) = generate("b");
        let file = format!("# who may ask\n{first_line} rate=60 concurrent=2\n\n{second_line} priority=-1 # slow\n");
        let keys = Keys::parse(&file).unwrap();
        assert!(!file.contains(&first), "the key itself is not kept");
        assert_eq!(keys.find(first.as_bytes()), Some(0));
        assert_eq!(keys.find(second.as_bytes()), Some(1));
        for wrong in ["", "roci-", &first[..first.len() - 1], &format!("{first} "), &first.to_uppercase()] {
            assert_eq!(keys.find(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!((keys.all()[0].rate, keys.all()[0].concurrent, keys.all()[1].priority), (Some(60), Some(2), -1));
        assert_eq!(Keys::default().find(b"anything"), None);
    }

    #[test]
    fn settings_of_a_key() {
        let hash = "0".repeat(64);
        let line =
            format!("a {hash} priority=high day-tokens=5000000000 month-tokens=9 admin=yes\nb {hash} priority=batch");
        let keys = Keys::parse(&line).unwrap();
        let (a, b) = (&keys.all()[0], &keys.all()[1]);
        assert_eq!((a.priority, a.day_tokens, a.month_tokens, a.is_admin), (1, Some(5_000_000_000), Some(9), true));
        assert_eq!((b.priority, b.day_tokens, b.is_admin, b.may_unload), (-4, None, false, false));
    }

    #[test]
    fn bad_lines_are_named() {
        let check = |text: &str, expected: &str| {
            let error = Keys::parse(text).unwrap_err();
            let text = format!("{error:#}");
            assert!(text.contains(expected), "`{text}` does not contain `{expected}`");
        };
        let hash = "0".repeat(64);
        check("alone", "line 1: expected NAME SHA256");
        check("a 1234", "64 hexadecimal digits");
        check(&format!("a {}é", "0".repeat(62)), "64 hexadecimal digits");
        check(&format!("a {hash} rate=0"), "expected a number of at least 1");
        check(&format!("a {hash} speed=1"), "`speed` is unknown");
        check(&format!("a {hash} unload=perhaps"), "expected yes or no");
        check(&format!("a {hash} priority=urgent"), "batch, low, normal or high");
        check(&format!("a {hash} day-tokens=none"), "expected a number of at least 1");
        check(&format!("a {hash}\na {hash}"), "line 2: a second key named `a`");
    }
}
