//! Ops on one element at a time, casts and copies.

use candle_core::scalar::Scalar;
use candle_core::{DType, Result, Tensor};

use crate::case::Case;
use crate::data::{DTYPES, FLOATS, FULL_LIES, LIES, Lie, Values, input};
use crate::judge::Bound;

const SHAPE: [usize; 3] = [3, 5, 7];

type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>, Values, Bound);
type Binary = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, Values, Bound);

const UNARY: [Unary; 24] = [
    ("neg", Tensor::neg, Values::Wild, Bound::Exact),
    ("abs", Tensor::abs, Values::Wild, Bound::Exact),
    ("relu", Tensor::relu, Values::Wild, Bound::Steps(0)),
    ("ceil", Tensor::ceil, Values::Wild, Bound::Exact),
    ("floor", Tensor::floor, Values::Wild, Bound::Exact),
    ("round", Tensor::round, Values::Wild, Bound::Exact),
    ("sign", Tensor::sign, Values::Tame, Bound::Exact),
    ("sqr", Tensor::sqr, Values::Tame, Bound::Steps(2)),
    ("sqrt", Tensor::sqrt, Values::Positive, Bound::Steps(2)),
    ("recip", Tensor::recip, Values::Positive, Bound::Steps(2)),
    ("affine", |x| x.affine(1.5, -0.25), Values::Tame, Bound::Steps(2)),
    ("exp", Tensor::exp, Values::Tame, Bound::Steps(4)),
    ("log", Tensor::log, Values::Positive, Bound::Steps(4)),
    ("sin", Tensor::sin, Values::Tame, Bound::Steps(4)),
    ("cos", Tensor::cos, Values::Tame, Bound::Steps(4)),
    ("tanh", Tensor::tanh, Values::Tame, Bound::Steps(4)),
    ("erf", Tensor::erf, Values::Tame, Bound::Steps(4)),
    ("gelu", Tensor::gelu, Values::Tame, Bound::Steps(4)),
    ("gelu_erf", Tensor::gelu_erf, Values::Tame, Bound::Steps(4)),
    ("silu", Tensor::silu, Values::Tame, Bound::Steps(4)),
    ("sigmoid", candle_nn::ops::sigmoid, Values::Tame, Bound::Steps(4)),
    ("elu", |x| x.elu(0.75), Values::Tame, Bound::Steps(4)),
    ("powf", |x| x.powf(2.5), Values::Positive, Bound::Steps(4)),
    ("to f64 and back", |x| x.to_dtype(DType::F64)?.to_dtype(x.dtype()), Values::Tame, Bound::Exact),
];

/// Of those above, the ones that mean something for whole numbers.
const OF_INTEGERS: [&str; 7] = ["neg", "abs", "relu", "ceil", "floor", "round", "sign"];

const BINARY: [Binary; 12] = [
    ("add", |a, b| a + b, Values::Tame, Bound::Steps(2)),
    ("sub", |a, b| a - b, Values::Tame, Bound::Steps(2)),
    ("mul", |a, b| a * b, Values::Tame, Bound::Steps(2)),
    ("div", |a, b| a / b, Values::Positive, Bound::Steps(2)),
    ("minimum", |a, b| a.minimum(b), Values::Wild, Bound::Steps(0)),
    ("maximum", |a, b| a.maximum(b), Values::Wild, Bound::Steps(0)),
    ("eq", |a, b| a.eq(b), Values::Whole, Bound::Exact),
    ("ne", |a, b| a.ne(b), Values::Whole, Bound::Exact),
    ("lt", |a, b| a.lt(b), Values::Wild, Bound::Exact),
    ("le", |a, b| a.le(b), Values::Whole, Bound::Exact),
    ("gt", |a, b| a.gt(b), Values::Wild, Bound::Exact),
    ("ge", |a, b| a.ge(b), Values::Whole, Bound::Exact),
];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, op, values, bound) in UNARY {
        for dtype in DTYPES {
            if dtype.is_int() && !OF_INTEGERS.contains(&name) {
                continue;
            }
            for lie in LIES {
                // The f8 type has neither infinities nor room for large numbers.
                let values = if dtype == DType::F8E4M3 && values == Values::Wild { Values::Tame } else { values };
                // These add 1 to what nearly cancels it; in f64 there is nothing finer to decide who is right.
                let cancels = dtype == DType::F64 && ["gelu", "gelu_erf", "elu"].contains(&name);
                let bound = if cancels { Bound::OfLargest(4) } else { bound };
                let inputs = vec![input(dtype, &SHAPE, lie, values)];
                cases.push(Case::new(format!("{name} {dtype:?} {lie:?}"), inputs, bound, move |x| op(&x[0])));
            }
        }
    }
    for (name, op, values, bound) in BINARY {
        for dtype in DTYPES {
            for lie in LIES {
                // The other operand lies plainly, so that kernels meet both at once.
                let other = if FULL_LIES.contains(&lie) { Lie::Contiguous } else { lie };
                let inputs = vec![input(dtype, &SHAPE, lie, values), input(dtype, &SHAPE, other, values)];
                let name = format!("{name} {dtype:?} {lie:?}");
                cases.push(Case::new(name, inputs, bound, move |x| op(&x[0], &x[1])));
            }
        }
    }
    casts(&mut cases);
    copies(&mut cases);
    choices(&mut cases);
    cases
}

fn casts(cases: &mut Vec<Case>) {
    for from in DTYPES {
        for to in DTYPES {
            for lie in [Lie::Contiguous, Lie::Transposed, Lie::Offset] {
                let inputs = vec![input(from, &SHAPE, lie, Values::Wild)];
                let name = format!("cast {from:?} to {to:?} {lie:?}");
                let case = Case::new(name, inputs, Bound::Exact, move |x| x[0].to_dtype(to));
                cases.push(case.without_reference());
            }
        }
    }
}

/// A number of a type, as Candle's fills want it.
fn scalar(dtype: DType) -> Scalar {
    match dtype {
        DType::U8 => Scalar::U8(3),
        DType::U32 => Scalar::U32(3),
        DType::I16 => Scalar::I16(-3),
        DType::I32 => Scalar::I32(-3),
        DType::I64 => Scalar::I64(-3),
        DType::BF16 => Scalar::BF16(half::bf16::from_f32(0.75)),
        DType::F16 => Scalar::F16(half::f16::from_f32(0.75)),
        DType::F32 => Scalar::F32(0.75),
        DType::F64 => Scalar::F64(0.75),
        _ => Scalar::F8E4M3(float8::F8E4M3::from_f32(0.75)),
    }
}

fn copies(cases: &mut Vec<Case>) {
    for dtype in DTYPES {
        let mut push = |name: String, inputs, op: fn(&[Tensor]) -> Result<Tensor>| {
            cases.push(Case::new(format!("{name} {dtype:?}"), inputs, Bound::Exact, op).without_reference());
        };
        for lie in LIES {
            let wild = input(dtype, &SHAPE, lie, Values::Wild);
            push(format!("copy {lie:?}"), vec![wild.clone()], |x| x[0].copy());
            push(format!("contiguous {lie:?}"), vec![wild], |x| x[0].force_contiguous());
        }
        for lie in FULL_LIES {
            let pair =
                || vec![input(dtype, &SHAPE, lie, Values::Wild), input(dtype, &SHAPE, Lie::Contiguous, Values::Wild)];
            push(format!("cat 0 {lie:?}"), pair(), |x| Tensor::cat(x, 0));
            push(format!("cat 2 {lie:?}"), pair(), |x| Tensor::cat(x, 2));
        }
        let part = || {
            vec![
                input(dtype, &[4, 9], Lie::Contiguous, Values::Wild),
                input(dtype, &[4, 3], Lie::Contiguous, Values::Wild),
            ]
        };
        push("slice_set".to_owned(), part(), |x| {
            let target = x[0].copy()?;
            target.slice_set(&x[1], 1, 4)?;
            Ok(target)
        });
        push("pad".to_owned(), part(), |x| x[1].pad_with_zeros(0, 1, 2));
        push("flip".to_owned(), part(), |x| x[0].flip(&[0]));
        push("roll".to_owned(), part(), |x| x[0].roll(2, 1));
        for lie in [Lie::Contiguous, Lie::Narrow, Lie::Transposed] {
            // A fill that goes through a view must leave what lies around it alone.
            push(
                format!("const_set {lie:?}"),
                vec![input(dtype, &[6, 8], Lie::Contiguous, Values::Wild)],
                match lie {
                    Lie::Contiguous => |x| x[0].copy().and_then(|y| y.const_set(scalar(y.dtype())).map(|()| y)),
                    Lie::Narrow => |x| {
                        let y = x[0].copy()?;
                        y.narrow(1, 2, 3)?.const_set(scalar(y.dtype()))?;
                        Ok(y)
                    },
                    _ => |x| {
                        let y = x[0].copy()?;
                        y.t()?.narrow(0, 1, 5)?.const_set(scalar(y.dtype()))?;
                        Ok(y)
                    },
                },
            );
        }
    }
}

fn choices(cases: &mut Vec<Case>) {
    for condition in [DType::U8, DType::U32, DType::I64] {
        for dtype in DTYPES {
            for lie in LIES {
                let other = if FULL_LIES.contains(&lie) { Lie::Contiguous } else { lie };
                let inputs = vec![
                    input(condition, &SHAPE, other, Values::Below(2)),
                    input(dtype, &SHAPE, lie, Values::Wild),
                    input(dtype, &SHAPE, other, Values::Wild),
                ];
                let name = format!("where {condition:?} {dtype:?} {lie:?}");
                let case = Case::new(name, inputs, Bound::Exact, |x| x[0].where_cond(&x[1], &x[2]));
                cases.push(case.without_reference());
            }
        }
    }
    for dtype in FLOATS {
        for lie in FULL_LIES {
            let inputs = vec![input(dtype, &SHAPE, lie, Values::Wild)];
            cases.push(Case::new(format!("clamp {dtype:?} {lie:?}"), inputs, Bound::Steps(0), |x| {
                x[0].clamp(-2.0, 2.0)
            }));
        }
    }
}
