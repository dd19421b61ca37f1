//! A file's metadata: keys and values in file order, with typed reading.
//!
//! The typed readers tell three cases apart: the key is missing (`Ok(None)`), it is there and fits, or it is there with
//! another type (an error that names the key). Integers of any width are taken where they fit, because writers differ.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::{Array, Error, Result, Value};

/// Keys and values, in the order of the file.
#[derive(Clone, Default, Debug)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    by_key: HashMap<String, usize>,
}

impl Metadata {
    /// No keys yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key, in place where it exists and at the end where it does not; hands back the value it had.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        if let Some(&idx) = self.by_key.get(&key) {
            return Some(std::mem::replace(&mut self.entries[idx].1, value));
        }
        self.by_key.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// The value of a key, of whatever type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.by_key.get(key).map(|&idx| &self.entries[idx].1)
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// In file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// An integer of any width that fits; `None` without the key.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.integer(key, "an integer from 0 to 4294967295")
    }

    /// An integer of any width that fits; `None` without the key.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.integer(key, "an integer from 0 to 18446744073709551615")
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, wanted: &'static str) -> Result<Option<T>> {
        self.read(key, wanted, |value| value.as_integer().and_then(|wide| T::try_from(wide).ok()))
    }

    /// An f64 is rounded.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.read(key, "a float", |value| match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// A bool; `None` without the key.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.read(key, "a bool", |value| match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// A string; `None` without the key.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        self.read(key, "a string", |value| match value {
            Value::String(v) => Some(v.as_str()),
            _ => None,
        })
    }

    /// An array of strings; `None` without the key.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.read(key, "an array of strings", |value| match value {
            Value::Array(Array::String(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of f32; `None` without the key.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>> {
        self.read(key, "an array of f32", |value| match value {
            Value::Array(Array::F32(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// Borrowed from an i32 array, converted from other integer arrays whose values all fit.
    pub fn i32s(&self, key: &str) -> Result<Option<Cow<'_, [i32]>>> {
        self.read(key, "an array of integers that fit i32", |value| match value {
            Value::Array(Array::I32(v)) => Some(Cow::Borrowed(v.as_slice())),
            Value::Array(Array::U8(v)) => converted(v),
            Value::Array(Array::I8(v)) => converted(v),
            Value::Array(Array::U16(v)) => converted(v),
            Value::Array(Array::I16(v)) => converted(v),
            Value::Array(Array::U32(v)) => converted(v),
            Value::Array(Array::U64(v)) => converted(v),
            Value::Array(Array::I64(v)) => converted(v),
            _ => None,
        })
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        take: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match take(value) {
            Some(taken) => Ok(Some(taken)),
            None => Err(Error::WrongType { key: key.to_owned(), wanted, found: value.describe() }),
        }
    }
}

fn converted<T: Copy + TryInto<i32>>(values: &[T]) -> Option<Cow<'static, [i32]>> {
    values.iter().map(|&v| v.try_into().ok()).collect::<Option<Vec<i32>>>().map(Cow::Owned)
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut metadata = Self::new();
        for (key, value) in pairs {
            metadata.set(key, value);
        }
        metadata
    }
}

#[cfg(test)]
mod tests {
    use super::Metadata;
    use crate::Value;

    #[test]
    fn set_replaces_in_place() {
        let mut metadata: Metadata = [("a", 1u32), ("b", 2)].into_iter().collect();
        assert_eq!(metadata.set("a", 3u32), Some(Value::U32(1)));
        let pairs: Vec<_> = metadata.iter().map(|(key, value)| (key, value.clone())).collect();
        assert_eq!(pairs, [("a", Value::U32(3)), ("b", Value::U32(2))]);
    }

    #[test]
    fn typed_readers_tell_missing_from_wrong() {
        let mut metadata = Metadata::new();
        metadata.set("small", 7u8);
        metadata.set("below", -1i64);
        metadata.set("large", u64::MAX);
        metadata.set("text", "x");
        metadata.set("wide", vec![1u64, 2]);
        metadata.set("too wide", vec![1u64, 1 << 31]);
        assert_eq!(metadata.u32("none").unwrap(), None);
        assert_eq!(metadata.u32("small").unwrap(), Some(7));
        assert_eq!(metadata.u64("large").unwrap(), Some(u64::MAX));
        assert_eq!(metadata.i32s("wide").unwrap().unwrap().as_ref(), [1, 2]);
        let text = |error: crate::Error| error.to_string();
        assert_eq!(
            text(metadata.u32("below").unwrap_err()),
            "metadata key `below`: expected an integer from 0 to 4294967295, found i64 -1"
        );
        assert_eq!(
            text(metadata.f32("text").unwrap_err()),
            "metadata key `text`: expected a float, found a string of 1 bytes"
        );
        assert!(metadata.u32("large").is_err());
        assert!(metadata.i32s("too wide").is_err());
        assert!(metadata.strings("wide").is_err());
    }
}
