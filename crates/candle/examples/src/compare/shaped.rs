//! Reductions, norms, indexing, sorting, products, convolutions, pooling and resizing.

use candle_core::{D, DType, Result, Tensor};
use candle_nn::{ops, rotary_emb};

use crate::case::Case;
use crate::data::{DTYPES, FLOATS, FULL_LIES, Lie, Values, input};
use crate::judge::Bound;

const SHAPE: [usize; 3] = [3, 5, 7];
/// Longer than a block of the reductions has threads for one row's elements.
const LONG: [usize; 2] = [3, 1500];

/// How far the CPU's own sum of 1,500 numbers in their order may be off, where there is nothing finer than f64 to tell.
const IN_ORDER: u64 = 100;

type On = fn(&[Tensor]) -> Result<Tensor>;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    reductions(&mut cases);
    norms(&mut cases);
    indexing(&mut cases);
    sorting(&mut cases);
    products(&mut cases);
    products_of_views(&mut cases);
    convolutions(&mut cases);
    images(&mut cases);
    cases
}

fn reductions(cases: &mut Vec<Case>) {
    type Along = fn(&Tensor, usize) -> Result<Tensor>;
    let along: [(&str, Along, Values); 5] = [
        ("sum", |x, dim| x.sum(dim), Values::Whole),
        ("min", |x, dim| x.min(dim), Values::Wild),
        ("max", |x, dim| x.max(dim), Values::Wild),
        ("argmin", |x, dim| x.argmin(dim), Values::Whole),
        ("argmax", |x, dim| x.argmax(dim), Values::Wild),
    ];
    for dtype in DTYPES {
        for (name, op, values) in along {
            let values = if dtype == DType::F8E4M3 { Values::Whole } else { values };
            for lie in FULL_LIES {
                for dim in 0..3 {
                    let inputs = vec![input(dtype, &SHAPE, lie, values)];
                    let name = format!("{name} {dim} {dtype:?} {lie:?}");
                    cases.push(Case::new(name, inputs, Bound::Steps(0), move |x| op(&x[0], dim)));
                }
            }
            let inputs = vec![input(dtype, &LONG, Lie::Contiguous, values)];
            cases.push(Case::new(format!("{name} long {dtype:?}"), inputs, Bound::Steps(0), move |x| op(&x[0], 1)));
        }
        let inputs = || vec![input(dtype, &SHAPE, Lie::Transposed, Values::Whole)];
        cases.push(Case::new(format!("sum all {dtype:?}"), inputs(), Bound::Exact, |x| x[0].sum_all()));
        cases.push(Case::new(format!("sum 0 and 2 {dtype:?}"), inputs(), Bound::Exact, |x| x[0].sum_keepdim((0, 2))));
    }
    for dtype in [DType::F32, DType::F64] {
        let inputs = vec![input(dtype, &LONG, Lie::Contiguous, Values::Positive)];
        let bound = Bound::Steps(if dtype == DType::F64 { IN_ORDER } else { 2 });
        cases.push(Case::new(format!("mean long {dtype:?}"), inputs, bound, |x| x[0].mean(1)));
    }
}

fn norms(cases: &mut Vec<Case>) {
    for dtype in FLOATS {
        for (size, n) in [("short", 7), ("long", 1500)] {
            let row = |values| input(dtype, &[n], Lie::Contiguous, values);
            let x = |lie| input(dtype, &[3, 5, n], lie, Values::Tame);
            let name = |name: &str| format!("{name} {size} {dtype:?}");
            for lie in [Lie::Contiguous, Lie::Offset] {
                let softmax: On = |x| ops::softmax_last_dim(&x[0]);
                let bound = Bound::Steps(if dtype == DType::F64 { IN_ORDER } else { 4 });
                cases.push(Case::new(format!("{} {lie:?}", name("softmax")), vec![x(lie)], bound, softmax));
                let inputs = vec![x(lie), row(Values::Positive)];
                let case = |x: &[Tensor]| ops::rms_norm(&x[0], &x[1], 1e-5);
                let case = Case::new(format!("{} {lie:?}", name("rms_norm")), inputs, Bound::Steps(2), case);
                cases.push(case.with_reference(|x| ops::rms_norm_slow(&x[0], &x[1], 1e-5)));
                let inputs = vec![x(lie), row(Values::Positive), row(Values::Tame)];
                let case = |x: &[Tensor]| ops::layer_norm(&x[0], &x[1], &x[2], 1e-5);
                let case = Case::new(format!("{} {lie:?}", name("layer_norm")), inputs, finest(dtype, 2), case);
                cases.push(case.with_reference(|x| ops::layer_norm_slow(&x[0], &x[1], &x[2], 1e-5)));
            }
            let inputs = vec![x(Lie::Transposed)];
            // Five ops, each within its bound; the logarithm of a sum near 1 makes more of its error.
            cases.push(Case::new(name("log_softmax"), inputs, Bound::OfLargest(4), |x| ops::log_softmax(&x[0], 1)));
        }
        let ropes: [(&str, On, [usize; 4]); 3] = [
            ("rope", |x| rotary_emb::rope(&x[0], &x[1], &x[2]), [2, 3, 5, 8]),
            ("rope_i", |x| rotary_emb::rope_i(&x[0], &x[1], &x[2]), [2, 3, 5, 8]),
            ("rope_thd", |x| rotary_emb::rope_thd(&x[0], &x[1], &x[2]), [2, 5, 3, 8]),
        ];
        for (name, op, shape) in ropes {
            for angles in [vec![5, 4], vec![2, 5, 4]] {
                for lie in [Lie::Contiguous, Lie::Offset] {
                    let angle = || input(dtype, &angles, Lie::Contiguous, Values::Tame);
                    let inputs = vec![input(dtype, &shape, lie, Values::Tame), angle(), angle()];
                    let name = format!("{name} {dtype:?} {lie:?} {angles:?}");
                    cases.push(Case::new(name, inputs, Bound::Steps(2), op));
                }
            }
        }
    }
}

/// So many steps; in f64, where there is nothing finer to tell whose rounding errors are left of what nearly cancels, at
/// the size of the largest number.
fn finest(dtype: DType, steps: u64) -> Bound {
    if dtype == DType::F64 { Bound::OfLargest(4) } else { Bound::Steps(steps) }
}

fn indexing(cases: &mut Vec<Case>) {
    for ids in [DType::U8, DType::U32, DType::I64] {
        for dtype in DTYPES {
            let mut push = |name: &str, inputs, op: On| {
                let case = Case::new(format!("{name} {ids:?} {dtype:?}"), inputs, Bound::Exact, op);
                cases.push(case.without_reference());
            };
            let id = |shape: &[usize], lie| input(ids, shape, lie, Values::Below(5));
            let full = |lie| input(dtype, &SHAPE, lie, Values::Wild);
            for lie in FULL_LIES {
                let inputs = vec![full(lie), id(&[9], Lie::Contiguous)];
                push(&format!("index_select 1 {lie:?}"), inputs, |x| x[0].index_select(&x[1], 1));
            }
            let rows = input(dtype, &[5, 6], Lie::Offset, Values::Wild);
            push("index_select by a view", vec![rows.clone(), id(&[4], Lie::Offset)], |x| x[0].index_select(&x[1], 0));
            push("index_select by none", vec![rows.clone(), id(&[0], Lie::Empty)], |x| x[0].index_select(&x[1], 0));
            push("embedding", vec![rows, id(&[4], Lie::Contiguous)], |x| x[0].embedding(&x[1]));
            for lie in [Lie::Contiguous, Lie::Offset] {
                let inputs = vec![full(lie), id(&[3, 4, 7], lie)];
                push(&format!("gather {lie:?}"), inputs, |x| x[0].gather(&x[1], 1));
                let small = input(dtype, &[3, 4, 7], lie, Values::Whole);
                let whole = input(dtype, &SHAPE, lie, Values::Whole);
                let inputs = || vec![whole.clone(), id(&[3, 4, 7], lie), small.clone()];
                push(&format!("scatter {lie:?}"), inputs(), |x| x[0].scatter(&x[1], &x[2], 1));
                push(&format!("scatter_add {lie:?}"), inputs(), |x| x[0].scatter_add(&x[1], &x[2], 1));
            }
            let whole = |shape: &[usize]| input(dtype, shape, Lie::Contiguous, Values::Whole);
            let inputs = vec![whole(&SHAPE), id(&[4], Lie::Contiguous), whole(&[3, 4, 7])];
            push("index_add", inputs, |x| x[0].index_add(&x[1], &x[2], 1));
        }
    }
}

fn sorting(cases: &mut Vec<Case>) {
    for dtype in DTYPES {
        for (size, shape) in [("short", [6, 9]), ("long", [2, 1500])] {
            for (way, ascending) in [("up", true), ("down", false)] {
                for lie in [Lie::Contiguous, Lie::Offset] {
                    // Many equal numbers, so that the order among those shows.
                    let inputs = vec![input(dtype, &shape, lie, Values::Whole)];
                    let name = format!("argsort {way} {size} {dtype:?} {lie:?}");
                    cases.push(Case::new(name, inputs, Bound::Exact, move |x| x[0].arg_sort_last_dim(ascending)));
                }
            }
        }
    }
}

fn products(cases: &mut Vec<Case>) {
    let shapes =
        [[1, 1, 1, 1], [1, 33, 1, 70], [2, 1, 64, 19], [2, 40, 33, 7], [3, 17, 5, 128], [1, 4, 4, 0], [2, 0, 3, 5]];
    for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
        for [batch, m, n, k] in shapes {
            for lie in [Lie::Contiguous, Lie::Offset, Lie::Transposed, Lie::Broadcast] {
                let inputs = vec![
                    input(dtype, &[batch, m, k], lie, Values::Tame),
                    input(dtype, &[batch, k, n], lie, Values::Tame),
                ];
                let name = format!("matmul {batch} x {m} x {n} x {k} {dtype:?} {lie:?}");
                // A quarter of each, so that numbers are at most 1.
                cases.push(Case::new(name, inputs, Bound::Products(k), |x| {
                    x[0].affine(0.25, 0.0)?.matmul(&x[1].affine(0.25, 0.0)?)
                }));
            }
        }
    }
}

fn products_of_views(cases: &mut Vec<Case>) {
    let ops: [(&str, On); 3] = [
        ("one matrix for all", |x| x[0].matmul(&x[1].broadcast_left(x[0].dim(0)?)?)),
        ("transposed, one matrix for all", |x| {
            x[0].t()?.contiguous()?.t()?.matmul(&x[1].broadcast_left(x[0].dim(0)?)?)
        }),
        ("all by a transposed matrix", |x| x[0].matmul(&x[1].t()?.contiguous()?.t()?.broadcast_left(x[0].dim(0)?)?)),
    ];
    for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
        for (name, op) in ops {
            let inputs = vec![
                input(dtype, &[3, 6, 20], Lie::Contiguous, Values::Whole),
                input(dtype, &[20, 9], Lie::Contiguous, Values::Whole),
            ];
            let case = Case::new(format!("matmul {name} {dtype:?}"), inputs, Bound::Products(20), op);
            cases.push(case.with_reference(move |x| one_by_one(x, &op)));
        }
    }
}

/// The same for each of a batch alone: Candle's CPU product of a transposed batch and one matrix for all of it takes the
/// rows of the batch as if they were not transposed, and transposed convolutions go through it.
fn one_by_one(x: &[Tensor], op: &dyn Fn(&[Tensor]) -> Result<Tensor>) -> Result<Tensor> {
    let each = (0..x[0].dim(0)?).map(|i| op(&[x[0].narrow(0, i, 1)?, x[1].clone()])).collect::<Result<Vec<_>>>()?;
    Tensor::cat(&each, 0)
}

fn convolutions(cases: &mut Vec<Case>) {
    for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
        for lie in [Lie::Contiguous, Lie::Offset, Lie::Transposed] {
            for (padding, stride, dilation) in [(0, 1, 1), (1, 2, 1), (2, 1, 2)] {
                let mut push = |name: &str, shapes: [&[usize]; 2], k, op: Box<dyn Fn(&[Tensor]) -> Result<Tensor>>| {
                    let op = std::rc::Rc::new(op);
                    let again = op.clone();
                    let inputs = vec![
                        input(dtype, shapes[0], lie, Values::Tame),
                        input(dtype, shapes[1], Lie::Contiguous, Values::Tame),
                    ];
                    // As Candle's CUDA back end decides: by a product and a sum, with the product rounded between them.
                    let in_parts = name == "conv_transpose1d" && padding == 0 && dilation == 1;
                    let name = format!("{name} {padding} {stride} {dilation} {dtype:?} {lie:?}");
                    let case = Case::new(name, inputs, Bound::Products(k), move |x| {
                        op(&[x[0].affine(0.25, 0.0)?, x[1].affine(0.25, 0.0)?])
                    });
                    cases.push(case.with_reference(move |x| {
                        let x = [x[0].affine(0.25, 0.0)?, x[1].affine(0.25, 0.0)?];
                        if in_parts { transposed_in_parts(&x, stride, dtype) } else { one_by_one(&x, &**again) }
                    }));
                };
                let op = move |x: &[Tensor]| x[0].conv1d(&x[1], padding, stride, dilation, 1);
                push("conv1d", [&[2, 4, 11], &[6, 4, 3]], 12, Box::new(op));
                let op = move |x: &[Tensor]| x[0].conv1d(&x[1], padding, stride, dilation, 2);
                push("conv1d in groups", [&[2, 4, 11], &[6, 2, 3]], 6, Box::new(op));
                let op = move |x: &[Tensor]| x[0].conv2d(&x[1], padding, stride, dilation, 1);
                push("conv2d", [&[2, 4, 7, 9], &[5, 4, 3, 3]], 36, Box::new(op));
                let op = move |x: &[Tensor]| x[0].conv_transpose1d(&x[1], padding, 0, stride, dilation, 1);
                push("conv_transpose1d", [&[2, 4, 6], &[4, 5, 3]], 12, Box::new(op));
                let op = move |x: &[Tensor]| x[0].conv_transpose2d(&x[1], padding, 0, stride, dilation);
                push("conv_transpose2d", [&[2, 4, 5, 6], &[4, 3, 3, 3]], 36, Box::new(op));
            }
        }
    }
}

/// conv_transpose1d without padding and dilation: every position's product with the whole kernel, rounded to `dtype`, and
/// the sum of what falls on one place.
fn transposed_in_parts(x: &[Tensor], stride: usize, dtype: DType) -> Result<Tensor> {
    let ((n_batch, c_in, l_in), (_, c_out, k)) = (x[0].dims3()?, x[1].dims3()?);
    let mut all = Vec::new();
    for batch in 0..n_batch {
        let parts = x[0].get(batch)?.t()?.contiguous()?.matmul(&x[1].reshape((c_in, c_out * k))?)?;
        let parts = parts.to_dtype(dtype)?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
        let mut out = vec![0.0; c_out * ((l_in - 1) * stride + k)];
        for (l, part) in parts.iter().enumerate() {
            for (i, number) in part.iter().enumerate() {
                out[i / k * ((l_in - 1) * stride + k) + l * stride + i % k] += number;
            }
        }
        all.extend(out);
    }
    Tensor::from_vec(all, (n_batch, c_out, (l_in - 1) * stride + k), x[0].device())
}

fn images(cases: &mut Vec<Case>) {
    for dtype in FLOATS {
        for lie in [Lie::Contiguous, Lie::Offset, Lie::Transposed] {
            let mut push = |name: &str, bound, op: On| {
                let inputs = vec![input(dtype, &[2, 3, 8, 10], lie, Values::Tame)];
                cases.push(Case::new(format!("{name} {dtype:?} {lie:?}"), inputs, bound, op));
            };
            push("avg_pool2d", Bound::Steps(2), |x| x[0].avg_pool2d(2));
            push("avg_pool2d in steps", Bound::Steps(2), |x| x[0].avg_pool2d_with_stride((3, 2), (2, 1)));
            push("max_pool2d", Bound::Exact, |x| x[0].max_pool2d(2));
            push("max_pool2d in steps", Bound::Exact, |x| x[0].max_pool2d_with_stride((3, 2), (2, 1)));
            push("upsample_nearest2d", Bound::Exact, |x| x[0].upsample_nearest2d(13, 20));
            push("upsample_bilinear2d", finest(dtype, 2), |x| x[0].upsample_bilinear2d(13, 20, false));
            push("upsample_bilinear2d to corners", finest(dtype, 2), |x| x[0].upsample_bilinear2d(5, 17, true));
            // A product with a triangle of ones.
            push("cumsum", Bound::Products(10), |x| x[0].affine(0.25, 0.0)?.cumsum(D::Minus1));
        }
    }
}
