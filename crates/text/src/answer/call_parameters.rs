//! A call's arguments as one JSON object, passed on parameter by parameter.

use std::fmt::Display;

use serde_json::Value;

use super::Delta;

/// How many parameters of a call have been passed on.
#[derive(Default, Debug)]
pub(crate) struct CallParameters {
    n: usize,
}

impl CallParameters {
    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// Passes on a parameter of call `index`; `json` is its value.
    pub(crate) fn push(&mut self, index: usize, key: impl Into<Value>, json: impl Display, out: &mut Vec<Delta>) {
        let before = if self.n == 0 { "{" } else { ", " };
        out.push(Delta::Arguments { index, text: format!("{before}{}: {json}", key.into()) });
        self.n += 1;
    }

    /// Closes the object.
    pub(crate) fn close(&self, index: usize, out: &mut Vec<Delta>) {
        let text = if self.n == 0 { "{}" } else { "}" };
        out.push(Delta::Arguments { index, text: text.to_owned() });
    }
}
