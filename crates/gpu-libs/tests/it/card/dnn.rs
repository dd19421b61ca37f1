//! MIOpen and cuDNN against PyTorch's numbers (testdata/dnn.json, written by tests/golden-dnn).

mod attention;
mod convolution;
mod fusion;
mod layers;
mod recurrent;

use std::sync::OnceLock;

use gpu::{Buffer, Queue};
use gpu_libs::dnn::NetworkNumber;
use serde_json::Value;

/// One case of the golden file.
pub(super) struct Case(&'static Value);

/// A tensor of the golden file.
pub(super) struct Golden {
    pub lengths: Vec<usize>,
    pub data: Vec<f64>,
}

impl Case {
    pub fn named(name: &str) -> Self {
        static FILE: OnceLock<Value> = OnceLock::new();
        let file = FILE.get_or_init(|| test_support::golden::json(env!("CARGO_MANIFEST_DIR"), "dnn.json"));
        Self(file.get(name).unwrap_or_else(|| panic!("no case {name}")))
    }

    fn number(&self, key: &str) -> usize {
        self.0[key].as_u64().unwrap_or_else(|| panic!("no {key}")) as usize
    }

    fn numbers(&self, key: &str) -> Vec<usize> {
        let list = self.0[key].as_array().unwrap_or_else(|| panic!("no {key}"));
        list.iter().map(|n| n.as_u64().unwrap() as usize).collect()
    }

    pub fn tensor(&self, key: &str) -> Golden {
        let value = &self.0[key];
        let list = |key: &str| value[key].as_array().unwrap_or_else(|| panic!("no {key}")).iter();
        Golden {
            lengths: list("shape").map(|n| n.as_u64().unwrap() as usize).collect(),
            data: list("data").map(|x| x.as_f64().unwrap()).collect(),
        }
    }
}

impl Golden {
    pub fn upload<T: From32>(&self, queue: &Queue) -> Buffer<T> {
        super::upload(queue, &self.data.iter().map(|x| T::from_f32(*x as f32)).collect::<Vec<T>>())
    }

    /// Memory for a tensor of this shape, with something in it.
    pub fn room<T: From32>(&self, queue: &Queue) -> Buffer<T> {
        super::upload(queue, &vec![T::from_f32(77.0); self.data.len()])
    }

    #[track_caller]
    pub fn check<T: From32>(&self, queue: &Queue, found: &Buffer<T>, bound: f64) {
        let found: Vec<f32> = super::read(queue, found.all()).into_iter().map(T::to_f32).collect();
        super::close(&found, &self.data, bound);
    }
}

/// A network's number and f32.
pub(super) trait From32: NetworkNumber {
    fn from_f32(x: f32) -> Self;
    fn to_f32(self) -> f32;
}

macro_rules! from_32 {
    ($($ty:ty: $from:expr, $to:expr;)*) => {$(
        impl From32 for $ty {
            fn from_f32(x: f32) -> Self { $from(x) }
            fn to_f32(self) -> f32 { $to(self) }
        }
    )*};
}

from_32! {
    f32: |x| x, |x| x;
    half::f16: half::f16::from_f32, half::f16::to_f32;
    half::bf16: half::bf16::from_f32, half::bf16::to_f32;
}
