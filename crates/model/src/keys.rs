//! Reads typed numbers of a checkpoint's metadata under a family's prefix.

use weights::{Array, Metadata, Value};

use crate::Error;

pub struct MetadataKeys<'a> {
    pub metadata: &'a Metadata,
    pub prefix: &'a str,
}

impl MetadataKeys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub fn count(&self, name: &str) -> Result<Option<usize>, Error> {
        Ok(self.metadata.u64(&self.key(name))?.map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    /// A number, or the largest of a list that has one for each layer.
    pub fn largest(&self, name: &str) -> Result<Option<usize>, Error> {
        match self.metadata.get(&self.key(name)) {
            Some(Value::Array(_)) => {
                let list = self.metadata.i32s(&self.key(name))?;
                Ok(list.and_then(|list| list.iter().max().map(|n| usize::try_from(*n).unwrap_or(0))))
            }
            _ => self.count(name),
        }
    }

    pub fn is_there(&self, name: &str) -> bool {
        self.metadata.get(&self.key(name)).is_some()
    }

    /// Whether it has one value for each layer.
    pub fn is_list(&self, name: &str) -> bool {
        matches!(self.metadata.get(&self.key(name)), Some(Value::Array(_)))
    }

    /// A list of numbers.
    pub fn numbers(&self, name: &str) -> Result<Option<Vec<f32>>, Error> {
        Ok(self.metadata.f32s(&self.key(name))?.map(<[f32]>::to_vec))
    }

    /// A number for each layer, if it is a list of them.
    pub fn counts(&self, name: &str) -> Result<Option<Vec<usize>>, Error> {
        if !self.is_list(name) {
            return Ok(None);
        }
        let list = self.metadata.i32s(&self.key(name))?;
        Ok(list.map(|list| list.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect()))
    }

    pub fn count_in(&self, name: &str, default: Option<usize>, max: usize) -> Result<usize, Error> {
        let found = self.count(name)?.or(default);
        match found {
            Some(n) if (1..=max).contains(&n) => Ok(n),
            Some(n) => Err(self.error(name, format!("{n} is not between 1 and {max}"))),
            None => Err(self.error(name, "missing".into())),
        }
    }

    /// `config.json` may write a float without a point.
    fn float(&self, name: &str) -> Result<Option<f32>, Error> {
        let key = self.key(name);
        match self.metadata.get(&key).and_then(Value::as_integer) {
            Some(n) => Ok(Some(n as f32)),
            None => Ok(self.metadata.f32(&key)?),
        }
    }

    /// A number above zero.
    pub fn number(&self, name: &str, default: f32) -> Result<f32, Error> {
        let found = self.float(name)?.unwrap_or(default);
        if found.is_finite() && found > 0.0 {
            Ok(found)
        } else {
            Err(self.error(name, format!("{found} is not above zero")))
        }
    }

    /// A number that is not below zero; 0 where there is none.
    pub fn number_or_zero(&self, name: &str) -> Result<f32, Error> {
        let found = self.float(name)?.unwrap_or(0.0);
        if found.is_finite() && found >= 0.0 {
            Ok(found)
        } else {
            Err(self.error(name, format!("{found} is below zero")))
        }
    }

    /// A number above zero, where 0 means none.
    pub fn positive(&self, name: &str) -> Result<Option<f32>, Error> {
        Ok(Some(self.number_or_zero(name)?).filter(|x| *x > 0.0))
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>, Error> {
        Ok(self.metadata.bool(&self.key(name))?)
    }

    pub fn word(&self, name: &str) -> Result<Option<&str>, Error> {
        Ok(self.metadata.string(&self.key(name))?)
    }

    /// A list of flags, which some writers keep as numbers.
    pub fn flags(&self, name: &str) -> Result<Option<Vec<bool>>, Error> {
        match self.metadata.get(&self.key(name)) {
            Some(Value::Array(Array::Bool(flags))) => Ok(Some(flags.clone())),
            Some(Value::Array(_)) => {
                let numbers = self.metadata.i32s(&self.key(name))?;
                Ok(numbers.map(|numbers| numbers.iter().map(|n| *n != 0).collect()))
            }
            // One number is a period.
            _ => Ok(None),
        }
    }

    /// How often layers repeat, where the file has one number for it.
    pub fn period(&self, name: &str) -> Option<usize> {
        let found = self.metadata.get(&self.key(name)).and_then(Value::as_integer)?;
        usize::try_from(found).ok().filter(|n| *n > 0)
    }

    pub fn error(&self, name: &str, what: String) -> Error {
        Error::Metadata { key: self.key(name), what }
    }
}
