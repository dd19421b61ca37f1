//! Products in which each run of rows has its own weight matrix: the experts of a mixture, the heads of compressed
//! attention.
//!
//! Groups of few rows share two parallel regions, one that rounds and one that multiplies: a token's eight experts are
//! a few microseconds of work each, less than a region of their own would cost. A group of many rows fills a region by
//! itself.

use std::cell::RefCell;
use std::ops::Range;

use super::activations::{Activations, RoundedBy};
use super::left::HostLeft;
use super::matmul::{ProductInput, ProductJob, TASK_ROWS, TASKS_PER_THREAD};
use super::matmul::{check_weight, rounding, run_task, takes_rounded, tile_rows};
use crate::matmul::{Mode, OP, Product, matmul};
use crate::plan::{self, Machine, ProductShape, SOME_ROWS};
use crate::view::SharedPtr;
use crate::{Error, Exec, Place, PlaceMut, Pool, View, ViewMut, observe};

/// Some rows and the matrix they are multiplied with.
#[derive(Clone)]
pub struct RowGroup<'w> {
    pub rows: Range<usize>,
    /// `[n_out, n_in]`
    pub weight: View<'w>,
}

/// Groups, and where their products go: `[n_rows, n_out]`, f32.
pub struct GroupProduct<'w, 'o> {
    pub groups: Vec<RowGroup<'w>>,
    pub out: ViewMut<'o>,
}

/// Rows up to which rounding them is not worth waking anybody.
const ALONE_ROWS: usize = 4;

thread_local! {
    /// The rounded rows of each group of few.
    static ACTIVATIONS: RefCell<Vec<Activations>> = const { RefCell::new(Vec::new()) };
}

/// `out[r] = x[r] * weight of r's group`, for several products of the same groups of rows; `x` is `[n_rows, n_in]`, f32.
/// Rows of no group keep what they hold.
pub fn group_matmul(exec: Exec, x: View, products: &mut [GroupProduct]) -> Result<(), Error> {
    let pool = exec.cpu_only("group_matmul")?;
    let Some(first) = products.first() else { return Ok(()) };
    let rows: Vec<Range<usize>> = first.groups.iter().map(|group| group.rows.clone()).collect();
    check(pool, x.shape, &rows, products)?;
    let is_few = |rows: &Range<usize>| rows.len() <= SOME_ROWS;
    for (i, rows) in rows.iter().enumerate().filter(|(_, rows)| !is_few(rows)) {
        multiply_many(exec, x, i, rows, products)?;
    }
    if x.shape[1] == 0 {
        return Ok(());
    }
    let few = rows.iter().enumerate().filter(|(_, rows)| is_few(rows) && !rows.is_empty());
    let jobs = few.map(|(i, rows)| group_jobs(pool, x, i, rows, products)).collect::<Result<Vec<_>, Error>>()?;
    if !jobs.is_empty() {
        run(pool, x.shape[1], &jobs);
    }
    Ok(())
}

/// Groups are in order, so that no two tasks share a row, and the same for every product.
fn check(
    pool: &Pool,
    [n_rows, n_in]: [usize; 2],
    rows: &[Range<usize>],
    products: &mut [GroupProduct],
) -> Result<(), Error> {
    let mut end = 0;
    for rows in rows {
        if rows.start < end || rows.end < rows.start || rows.end > n_rows {
            return Err(Error::Argument { op: OP, what: format!("rows {rows:?} after {end}, of {n_rows}") });
        }
        end = rows.end;
    }
    for product in products.iter_mut() {
        let n_out = product.out.shape[1];
        product.out.expect_shape(OP, "out", [n_rows, n_out])?;
        product.out.f32s(OP, "out")?;
        if !product.groups.iter().map(|group| &group.rows).eq(rows) {
            return Err(Error::Argument { op: OP, what: "products of other groups".into() });
        }
        for group in &product.groups {
            group.weight.expect_shape(OP, "weight", [n_out, n_in])?;
            check_weight(pool, &group.weight)?;
        }
    }
    Ok(())
}

/// Group `i`, whose rows are enough for products of their own.
fn multiply_many(
    exec: Exec,
    x: View,
    i: usize,
    rows: &Range<usize>,
    products: &mut [GroupProduct],
) -> Result<(), Error> {
    let n_in = x.shape[1];
    let mut parts = Vec::with_capacity(products.len());
    for product in products.iter_mut() {
        let n_out = product.out.shape[1];
        let bytes = product.out.host_bytes(OP, "out")?;
        let out = ViewMut {
            dtype: weights::Dtype::F32,
            shape: [rows.len(), n_out],
            layout: crate::Layout::Rows,
            place: PlaceMut::Host(&mut bytes[rows.start * n_out * 4..rows.end * n_out * 4]),
        };
        parts.push(Product::write(product.groups[i].weight, out));
    }
    let bytes = &x.host_bytes(OP, "x")?[rows.start * n_in * 4..rows.end * n_in * 4];
    matmul(exec, View { shape: [rows.len(), n_in], place: Place::Host(bytes), ..x }, &mut parts)
}

/// Plans group `i`, whose few rows are multiplied together with those of the other groups.
fn group_jobs<'a, 'w: 'a>(
    pool: &Pool,
    x: View<'a>,
    i: usize,
    rows: &Range<usize>,
    products: &mut [GroupProduct<'w, '_>],
) -> Result<GroupJobs<'a>, Error> {
    let n_in = x.shape[1];
    let x = &x.f32s(OP, "x")?[rows.start * n_in..rows.end * n_in];
    let weights = products.iter().filter_map(|product| product.groups[i].weight.host_bytes(OP, "weight").ok());
    observe::see(x, n_in, weights);
    let weights: Vec<_> = products.iter().map(|product| product.groups[i].weight.kind()).collect();
    let shape = ProductShape { n_rows: rows.len(), n_in, weights: &weights, may_be_coarse: false };
    let kernels = plan::plan(Machine::Cpu(pool.isa()), pool.numerics(), &shape).kernels;
    let jobs = products.iter_mut().zip(kernels).map(|(product, kernel)| {
        let (weight, n_out) = (product.groups[i].weight, product.out.shape[1]);
        let out = &mut product.out.f32s(OP, "out")?[rows.start * n_out..rows.end * n_out];
        ProductJob::new(kernel, weight, SharedPtr::new(out), Mode::Write)
    });
    let jobs = jobs.collect::<Result<Vec<ProductJob>, Error>>()?;
    let is_rounded = jobs.iter().any(|job| takes_rounded(job.kernel, job.dtype));
    Ok(GroupJobs { x, n_rows: rows.len(), is_rounded, jobs })
}

/// What is done with the rows of one group.
struct GroupJobs<'a> {
    x: &'a [f32],
    n_rows: usize,
    is_rounded: bool,
    jobs: Vec<ProductJob<'a>>,
}

fn run(pool: &Pool, n_in: usize, groups: &[GroupJobs]) {
    ACTIVATIONS.with_borrow_mut(|rounded| {
        rounded.resize_with(rounded.len().max(groups.len()), Activations::new);
        let shared = SharedPtr::new(rounded);
        let round = |i: usize| {
            let group = &groups[i];
            if !group.is_rounded {
                return;
            }
            // SAFETY: one of the list for each group, and each group is rounded once.
            let rounded = unsafe { &mut shared.slice(i, 1)[0] };
            let shape = [group.n_rows, n_in];
            let rounding = rounding(pool.isa(), &group.jobs);
            let tile_rows = tile_rows(pool.isa(), group.n_rows);
            rounded.round(pool, RoundedBy::Caller, &HostLeft::Rows(group.x), shape, tile_rows, rounding);
        };
        if groups.iter().map(|group| group.n_rows).sum::<usize>() <= ALONE_ROWS {
            (0..groups.len()).for_each(round);
        } else {
            pool.run(groups.len(), |i, _| round(i));
        }
        let n_parts = |job: &ProductJob| job.n_out.div_ceil(TASK_ROWS);
        let n_all: usize = groups.iter().flat_map(|group| &group.jobs).map(n_parts).sum();
        let n_cols = n_all.div_ceil(pool.n_threads() * TASKS_PER_THREAD).max(1) * TASK_ROWS;
        let mut tasks = Vec::with_capacity(2 * pool.n_threads() * TASKS_PER_THREAD + groups.len());
        for (i, group) in groups.iter().enumerate() {
            for job in &group.jobs {
                let starts = (0..job.n_out).step_by(n_cols);
                tasks.extend(starts.map(|first| (i, job, first..(first + n_cols).min(job.n_out))));
            }
        }
        let rounded = &*rounded;
        pool.run(tasks.len(), |task_idx, _| {
            let (i, job, cols) = &tasks[task_idx];
            let group = &groups[*i];
            let (isa, numerics) = (pool.isa(), pool.numerics());
            let input = ProductInput { isa, numerics, x: group.x, n_rows: group.n_rows, n_in, rounded: &rounded[*i] };
            run_task(&input, job, cols.clone());
        });
    });
}
