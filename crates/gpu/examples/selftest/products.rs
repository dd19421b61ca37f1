//! Checks of the vendor's BLAS, where there is one.

use half::{bf16, f16};

use gpu::{Blas, Error, FactorLayout, GemmShape, ProductTypes, Queue, Scalar};

use super::{Bench, Failure, Numbers, Outcome, passed};
use crate::ensure;

const WORKSPACE: usize = 8 << 20;

/// A handle, or why there is none. rocBLAS may abort on a card it has no files for: ask a child first.
fn open(bench: &Bench, queue: &Queue) -> Result<Result<Blas, String>, Failure> {
    let (program, arguments) = bench.child.clone();
    let probe = gpu::discovery::Probe::through(program, arguments.into_iter().map(Into::into));
    if let Err(error) = probe.blas(bench.device.vendor(), bench.device.ordinal()) {
        return Ok(Err(error.to_string()));
    }
    match queue.blas(queue.alloc(WORKSPACE)?, &ProductTypes::ALL) {
        Ok(blas) => Ok(Ok(blas)),
        Err(error @ Error::NoBlas { .. }) => Ok(Err(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Small integers, so that every number type gives the exact sum.
fn product<F: Scalar, P: Scalar>(queue: &Queue, blas: &Blas, shape: GemmShape) -> Result<(), Failure> {
    let GemmShape { m, n, k, batch, .. } = shape;
    let mut numbers = Numbers::new((m * n * k) as u64);
    let mut draw = |len: usize| -> Vec<i32> { (0..len).map(|_| (numbers.next_u32() % 5) as i32 - 2).collect() };
    let (a, b) = (draw(m * k * batch), draw(n * k * batch));
    let as_type = |values: &[i32]| values.iter().map(|v| F::small(*v)).collect::<Vec<F>>();
    let (da, db) = (queue.buffer_from(&as_type(&a))?, queue.buffer_from(&as_type(&b))?);
    let mut dc = queue.alloc_zeroed::<P>(m * n * batch)?;
    blas.multiply(&queue.launcher(), shape, da.all(), db.all(), dc.all_mut())?;
    let got = queue.read(dc.all())?;
    for i in 0..batch {
        for row in 0..m {
            for column in 0..n {
                let left = |j: usize| match shape.a {
                    FactorLayout::Plain => a[i * m * k + row * k + j],
                    FactorLayout::Transposed => a[i * m * k + j * m + row],
                };
                let right = |j: usize| match shape.b {
                    FactorLayout::Plain => b[i * n * k + j * n + column],
                    FactorLayout::Transposed => b[i * n * k + column * k + j],
                };
                let want: i32 = (0..k).map(|j| left(j) * right(j)).sum();
                let got = got[i * m * n + row * n + column];
                ensure!(got == P::small(want), "{shape:?} of {}: [{row}, {column}] is {got:?}, not {want}", F::C_NAME);
            }
        }
    }
    Ok(())
}

pub fn blas(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let blas = match open(bench, &queue)? {
        Ok(blas) => blas,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let mut n_products = 0;
    for (a, b) in [
        (FactorLayout::Plain, FactorLayout::Transposed),
        (FactorLayout::Plain, FactorLayout::Plain),
        (FactorLayout::Transposed, FactorLayout::Plain),
        (FactorLayout::Transposed, FactorLayout::Transposed),
    ] {
        // cuBLAS wants int8 rows in multiples of 4: all sizes here are.
        for (m, n, k, batch) in [(4, 8, 16, 1), (20, 12, 36, 1), (8, 16, 32, 3)] {
            let shape = GemmShape { a, b, batch, ..GemmShape::rows(m, n, k) };
            macro_rules! each {
                ($($f:ty, $p:ty;)*) => {$(
                    if blas.can(ProductTypes::new(<$f>::NUMBER, <$p>::NUMBER)) {
                        // int8 is offered for weight rows only by some libraries.
                        let is_rows = (a, b) == (FactorLayout::Plain, FactorLayout::Transposed);
                        if <$f>::NUMBER != gpu::Number::I8 || is_rows {
                            product::<$f, $p>(&queue, &blas, shape)?;
                            n_products += 1;
                        }
                    }
                )*};
            }
            each! { f32, f32; f16, f16; f16, f32; bf16, bf16; bf16, f32; i8, i32; }
        }
    }
    ensure!(n_products > 0, "no kind of product works: {:?}", blas.dropped());
    // Odd sizes, for the kinds that take them.
    product::<f32, f32>(&queue, &blas, GemmShape::rows(3, 5, 7))?;
    // A matrix that does not fit, and a handle used through another queue.
    let (x, mut y) = (queue.alloc_zeroed::<f32>(12)?, queue.alloc_zeroed::<f32>(12)?);
    let short = blas.multiply(&queue.launcher(), GemmShape::rows(4, 4, 4), x.all(), x.all(), y.all_mut());
    ensure!(matches!(short, Err(Error::Bounds { .. })), "{short:?}");
    let other = bench.queue()?;
    let foreign = blas.multiply(&other.launcher(), GemmShape::rows(2, 2, 3), x.all(), x.all(), y.all_mut());
    ensure!(matches!(foreign, Err(Error::Foreign { .. })), "{foreign:?}");
    passed(format!("{}: {n_products} products; dropped {:?}", blas.library(), blas.dropped()))
}

pub fn blas_in_graph(bench: &Bench) -> Result<Outcome, Failure> {
    let mut queue = bench.queue()?;
    let blas = match open(bench, &queue)? {
        Ok(blas) => blas,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let x = queue.buffer_from(&[f16::from_f32(2.0); 64 * 64])?;
    let mut y = queue.alloc_zeroed::<f16>(64 * 64)?;
    let before = bench.device.counters();
    let shape = GemmShape::rows(64, 64, 64);
    let graph = queue.capture(|l| blas.multiply(l, shape, x.all(), x.all(), y.all_mut()))?;
    queue.replay(&graph)?;
    queue.replay(&graph)?;
    let cost = bench.device.counters() - before;
    ensure!(queue.read(y.all())?.iter().all(|v| *v == f16::from_f32(256.0)), "the replayed product is wrong");
    ensure!(cost.allocations == 0, "{cost:?}");
    passed(blas.library())
}
