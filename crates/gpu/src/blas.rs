//! The vendor's matrix products, where they are there and work: rocBLAS, hipBLAS or cuBLAS by dlopen.
//!
//! Never required. A handle is made by a `Queue`, with its stream, host pointer mode and workspace set
//! before anyone can call it. Row-major in, row-major out, by swapping the operands and never by a
//! transposing copy. Each kind of product is proven on a tiny one first; a kind that fails is off for
//! the run, with its reason.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::fmt;

use half::{bf16, f16};

use crate::blas_library::{BlasLibrary, Gemm, GemmOperand};
use crate::buffer::{Buffer, Element, Slice, SliceMut};
use crate::error::{Error, Result};
use crate::launcher::Launcher;
use crate::queue::{Queue, QueueId};
use crate::raw;

/// The end of the workspace, used for the tiny products and not given to the library.
const PROBE_BYTES: usize = 16 * 1024;
const MIN_WORKSPACE: usize = 1 << 20;
const PROBE_SIDE: usize = 16;

/// Number types that products take or give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Number {
    F32,
    F16,
    BF16,
    I8,
    I32,
}

/// A kind of product: what is multiplied, and what comes out. Floats accumulate in f32, i8 in i32.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ProductTypes {
    /// The type of both factors.
    pub factors: Number,
    /// The type of the result.
    pub product: Number,
}

impl fmt::Debug for ProductTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} x {:?} -> {:?}", self.factors, self.factors, self.product)
    }
}

impl ProductTypes {
    /// Factors of one type, a product of another.
    pub const fn new(factors: Number, product: Number) -> Self {
        Self { factors, product }
    }

    /// Every kind the layer can ask a library for.
    pub const ALL: [ProductTypes; 6] = [
        Self::new(Number::F32, Number::F32),
        Self::new(Number::F16, Number::F16),
        Self::new(Number::F16, Number::F32),
        Self::new(Number::BF16, Number::BF16),
        Self::new(Number::BF16, Number::F32),
        Self::new(Number::I8, Number::I32),
    ];
}

/// An element BLAS can take or give.
pub trait Scalar: Element {
    /// The same type as a value.
    const NUMBER: Number;
    /// A small integer as this type.
    fn small(value: i32) -> Self;
}

macro_rules! scalars {
    ($($ty:ty = $number:ident, $small:expr;)*) => {$(
        impl Scalar for $ty {
            const NUMBER: Number = Number::$number;

            fn small(value: i32) -> Self {
                ($small)(value)
            }
        }
    )*};
}

scalars! {
    f32 = F32, |v: i32| v as f32;
    f16 = F16, |v: i32| f16::from_f32(v as f32);
    bf16 = BF16, |v: i32| bf16::from_f32(v as f32);
    i8 = I8, |v: i32| v as i8;
    i32 = I32, |v: i32| v;
}

/// How a factor lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FactorLayout {
    /// A as [m, k], B as [k, n].
    Plain,
    /// A as [k, m], B as [n, k] (a weight matrix's rows).
    Transposed,
}

/// C [m, n] = A B, all row-major, `batch` times over, each at its stride in elements (0: the same again).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GemmShape {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
    /// How A lies in memory.
    pub a: FactorLayout,
    /// How B lies in memory.
    pub b: FactorLayout,
    /// How many products.
    pub batch: usize,
    /// Elements from one A to the next.
    pub stride_a: usize,
    /// Elements from one B to the next.
    pub stride_b: usize,
    /// Elements from one C to the next.
    pub stride_c: usize,
}

impl GemmShape {
    /// One product of `x` [m, k] with a weight matrix's rows [n, k].
    pub const fn rows(m: usize, n: usize, k: usize) -> Self {
        let (a, b) = (FactorLayout::Plain, FactorLayout::Transposed);
        Self { m, n, k, a, b, batch: 1, stride_a: m * k, stride_b: n * k, stride_c: m * n }
    }
}

/// How a product meets what is there: C = scale * A B + keep * C, C's rows `row_step` elements apart.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Accumulate {
    /// What the product is multiplied by.
    pub scale: f32,
    /// What the old C is multiplied by; with 0 it is not read.
    pub keep: f32,
    /// Elements from a row of C to the next.
    pub row_step: usize,
}

/// A vendor's BLAS library, bound to one queue.
pub struct Blas {
    calls: BlasLibrary,
    handle: raw::Blas,
    queue: QueueId,
    workspace: Buffer<u8>,
    usable: RefCell<Vec<ProductTypes>>,
    dropped: RefCell<Vec<(ProductTypes, String)>>,
}

impl Blas {
    #[track_caller]
    pub(crate) fn new(queue: &Queue, workspace: Buffer<u8>, wanted: &[ProductTypes]) -> Result<Self> {
        let device = queue.device();
        let none = |why: String| Error::NoBlas { device: device.label().to_owned(), why };
        if workspace.len() < MIN_WORKSPACE {
            return Err(none(format!("a workspace of {} bytes; at least {MIN_WORKSPACE}", workspace.len())));
        }
        let mut reasons = Vec::new();
        let mut opened = None;
        for numbers in device.vendor().blas_libraries() {
            match BlasLibrary::open(device.vendor(), *numbers) {
                Ok(calls) => {
                    opened = Some(calls);
                    break;
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        let calls = opened.ok_or_else(|| none(reasons.join("; ")))?;
        let mut handle = raw::Blas::NULL;
        // The library makes its handle for the thread's current device, which `bind` sets first.
        // SAFETY: a valid out pointer.
        let created = queue.bind(|_| unsafe { (calls.create)(&mut handle) })?;
        calls.check(calls.numbers.create, created)?;
        let blas = Self {
            calls,
            handle,
            queue: queue.id(),
            workspace,
            usable: RefCell::default(),
            dropped: RefCell::default(),
        };
        blas.bind(queue)?;
        for kinds in wanted {
            match blas.probe(queue, *kinds) {
                Ok(()) => blas.usable.borrow_mut().push(*kinds),
                Err(error) => blas.dropped.borrow_mut().push((*kinds, error.to_string())),
            }
        }
        Ok(blas)
    }

    fn bind(&self, queue: &Queue) -> Result<()> {
        let BlasLibrary { numbers, set_stream, set_pointer_mode, set_workspace, .. } = &self.calls;
        // SAFETY: a handle made above and the stream of the queue that makes this.
        let status = queue.bind(|stream| unsafe { set_stream(self.handle, stream) })?;
        self.calls.check(numbers.set_stream, status)?;
        // SAFETY: a live handle; factors are passed from the host's stack.
        let status = unsafe { set_pointer_mode(self.handle, numbers.pointer_mode_host) };
        self.calls.check(numbers.set_pointer_mode, status)?;
        if let Some(set_workspace) = set_workspace {
            let bytes = self.workspace.len() - PROBE_BYTES;
            // SAFETY: device memory of this queue that `self` owns for as long as the handle.
            let status = unsafe { set_workspace(self.handle, self.workspace.all().address(), bytes) };
            self.calls.check(numbers.set_workspace, status)?;
        }
        Ok(())
    }

    /// `rocBLAS (librocblas.so.5)`
    pub fn library(&self) -> String {
        format!("{} ({})", self.calls.numbers.name, self.calls.path)
    }

    /// Whether a kind of product was proven and has not failed since.
    pub fn can(&self, kinds: ProductTypes) -> bool {
        self.usable.borrow().contains(&kinds)
    }

    /// What was dropped, and why.
    pub fn dropped(&self) -> Vec<(ProductTypes, String)> {
        self.dropped.borrow().clone()
    }

    /// Enqueue C = A B.
    #[track_caller]
    pub fn multiply<F: Scalar, P: Scalar>(
        &self,
        launcher: &Launcher<'_>,
        shape: GemmShape,
        a: Slice<'_, F>,
        b: Slice<'_, F>,
        c: SliceMut<'_, P>,
    ) -> Result<()> {
        self.multiply_into(launcher, shape, a, b, c, Accumulate { scale: 1.0, keep: 0.0, row_step: shape.n })
    }

    /// Enqueue C = scale * A B + keep * C, for floats.
    #[track_caller]
    pub fn multiply_into<F: Scalar, P: Scalar>(
        &self,
        launcher: &Launcher<'_>,
        shape: GemmShape,
        a: Slice<'_, F>,
        b: Slice<'_, F>,
        c: SliceMut<'_, P>,
        finish: Accumulate,
    ) -> Result<()> {
        let kinds = ProductTypes::new(F::NUMBER, P::NUMBER);
        if !self.can(kinds) {
            let reason = self.dropped.borrow().iter().find(|(known, _)| *known == kinds).map(|(_, why)| why.clone());
            let why = format!("{kinds:?} {}", reason.unwrap_or_else(|| "was not asked for".into()));
            return Err(Error::NoBlas { device: launcher.device().label().to_owned(), why });
        }
        let done = self.enqueue(launcher, shape, a, b, c, finish);
        if let Err(error @ Error::Blas { .. }) = &done {
            self.usable.borrow_mut().retain(|usable| *usable != kinds);
            self.dropped.borrow_mut().push((kinds, error.to_string()));
        }
        done
    }

    #[track_caller]
    fn enqueue<F: Scalar, P: Scalar>(
        &self,
        launcher: &Launcher<'_>,
        shape: GemmShape,
        a: Slice<'_, F>,
        b: Slice<'_, F>,
        c: SliceMut<'_, P>,
        finish: Accumulate,
    ) -> Result<()> {
        if launcher.queue_id() != self.queue {
            let (owner, user) = (self.queue.0, launcher.queue_id().0);
            return Err(Error::Foreign { what: "a BLAS handle", owner, user, at: std::panic::Location::caller() });
        }
        for allocation in [a.allocation(), b.allocation(), c.allocation(), self.workspace.all().allocation()] {
            launcher.own(allocation)?;
        }
        let [m, n, k, batch] = shape.check(a.len(), b.len(), c.len(), finish.row_step)?;
        let ld_c = c_int::try_from(finish.row_step).map_err(|_| Error::bounds("blas", "a row step past 2^31-1"))?;
        // A row-major matrix is the column-major matrix of its transpose, so C' = B' A' with the operands
        // swapped gives row-major C with no copy.
        let numbers = &self.calls.numbers;
        let op = |layout| if layout == FactorLayout::Plain { numbers.op_none } else { numbers.op_transpose };
        let ld_a = if shape.a == FactorLayout::Plain { k } else { m };
        let ld_b = if shape.b == FactorLayout::Plain { n } else { k };
        let (one_f32, zero_f32, one_i32, zero_i32) = (finish.scale, finish.keep, 1i32, 0i32);
        let is_integer = P::NUMBER == Number::I32;
        let pick = |float: &f32, integer: &i32| -> *const c_void {
            if is_integer { std::ptr::from_ref(integer).cast() } else { std::ptr::from_ref(float).cast() }
        };
        let (one, zero) = (pick(&one_f32, &one_i32), pick(&zero_f32, &zero_i32));
        let compute = if is_integer { numbers.compute_i32 } else { numbers.compute_f32 };
        let (factor, product) = (self.calls.number(F::NUMBER), self.calls.number(P::NUMBER));
        launcher.device().make_current()?;
        // SAFETY: a live handle bound to this queue's stream; `shape.check` showed that every matrix of the
        // batch lies inside its slice; all slices belong to this queue; the factors outlive the call.
        let status = unsafe {
            self.calls.gemm(Gemm {
                handle: self.handle,
                op_a: op(shape.b),
                op_b: op(shape.a),
                m: n,
                n: m,
                k,
                alpha: one,
                a: GemmOperand { at: b.address(), kind: factor, ld: ld_b, stride: shape.stride_b as i64 },
                b: GemmOperand { at: a.address(), kind: factor, ld: ld_a, stride: shape.stride_a as i64 },
                beta: zero,
                c: GemmOperand { at: c.address(), kind: product, ld: ld_c, stride: shape.stride_c as i64 },
                batch,
                compute,
            })
        };
        self.calls.check(numbers.gemm, status)
    }

    /// A tiny product of small integers, exact in every number type.
    fn probe(&self, queue: &Queue, kinds: ProductTypes) -> Result<()> {
        use Number::{BF16, F16, F32, I8, I32};
        match (kinds.factors, kinds.product) {
            (F32, F32) => self.probe_as::<f32, f32>(queue),
            (F16, F16) => self.probe_as::<f16, f16>(queue),
            (F16, F32) => self.probe_as::<f16, f32>(queue),
            (BF16, BF16) => self.probe_as::<bf16, bf16>(queue),
            (BF16, F32) => self.probe_as::<bf16, f32>(queue),
            (I8, I32) => self.probe_as::<i8, i32>(queue),
            _ => Err(Error::bounds("blas", format!("{kinds:?} is not a product any library offers"))),
        }
    }

    fn probe_as<F: Scalar, P: Scalar>(&self, queue: &Queue) -> Result<()> {
        const N: usize = PROBE_SIDE;
        const PART: usize = PROBE_BYTES / 4;
        let base = self.workspace.len() - PROBE_BYTES;
        let part = |i: usize| base + i * PART..base + i * PART + PART;
        let (left, right) = (|i: usize| (i * 7 % 5) as i32 - 2, |i: usize| (i * 3 % 7) as i32 - 3);
        let fill = |value: &dyn Fn(usize) -> i32, range: std::ops::Range<usize>| -> Result<()> {
            let mut staging = queue.pinned::<F>(N * N)?;
            staging.iter_mut().enumerate().for_each(|(i, slot)| *slot = F::small(value(i)));
            let target = self.probe_slice::<F>(range, N * N)?;
            queue.upload(staging, target)?.wait().map(drop)
        };
        fill(&left, part(0))?;
        fill(&right, part(1))?;
        let (a, b) = (self.probe_slice::<F>(part(0), N * N)?, self.probe_slice::<F>(part(1), N * N)?);
        let c = self.probe_slice::<P>(part(2), N * N)?;
        let finish = Accumulate { scale: 1.0, keep: 0.0, row_step: N };
        self.enqueue(&queue.launcher(), GemmShape::rows(N, N, N), a.as_slice(), b.as_slice(), c, finish)?;
        let got = queue.read(self.probe_slice::<P>(part(2), N * N)?.as_slice())?;
        for (i, got) in got.iter().enumerate() {
            let (row, column) = (i / N, i % N);
            let want: i32 = (0..N).map(|j| left(row * N + j) * right(column * N + j)).sum();
            if *got != P::small(want) {
                let text = format!("the probe's element {i} is {got:?}, not {want}");
                return Err(Error::Blas {
                    library: self.calls.path.clone(),
                    call: self.calls.numbers.gemm,
                    status: 0,
                    text,
                });
            }
        }
        Ok(())
    }

    /// A unique view of a part of the probe area. Nobody else holds one: the buffer is private, the library
    /// was given only what lies before it, and the probe takes disjoint parts.
    fn probe_slice<T: Element>(&self, range: std::ops::Range<usize>, len: usize) -> Result<SliceMut<'_, T>> {
        let bytes = range.start..range.start + len * size_of::<T>();
        SliceMut::over(&self.workspace, bytes)?.cast()
    }
}

impl GemmShape {
    /// The sizes as the libraries take them, if every matrix lies inside its slice.
    #[track_caller]
    fn check(&self, a_len: usize, b_len: usize, c_len: usize, row_step: usize) -> Result<[c_int; 4]> {
        let &GemmShape { m, n, k, batch, .. } = self;
        let narrow = |value: usize| c_int::try_from(value).ok().filter(|value| *value > 0);
        let (Some(m_), Some(n_), Some(k_), Some(batch_)) = (narrow(m), narrow(n), narrow(k), narrow(batch)) else {
            return Err(Error::bounds("blas", format!("{m} x {n} x {k}, batch {batch}: not 1 to 2^31-1 each")));
        };
        let last = batch - 1;
        if row_step < n {
            return Err(Error::bounds("blas", format!("C: rows of {n}, {row_step} apart")));
        }
        // C's rows may lie further apart than they are long; the last one ends with its numbers.
        let c_whole = (m - 1).checked_mul(row_step).and_then(|start| start.checked_add(n));
        for (name, rows, columns, whole, stride, len) in [
            ("A", m, k, m.checked_mul(k), self.stride_a, a_len),
            ("B", k, n, k.checked_mul(n), self.stride_b, b_len),
            ("C", m, n, c_whole, self.stride_c, c_len),
        ] {
            let end = last.checked_mul(stride).and_then(|start| start.checked_add(whole?));
            let is_inside = end.is_some_and(|end| end <= len) && i64::try_from(stride).is_ok();
            if !is_inside {
                let why = format!("{name}: {batch} of {rows} x {columns} at a stride of {stride} in {len} elements");
                return Err(Error::bounds("blas", why));
            }
        }
        if batch > 1 && self.stride_c < c_whole.unwrap_or(usize::MAX) {
            return Err(Error::bounds("blas", format!("products overlap at a stride of {}", self.stride_c)));
        }
        Ok([m_, n_, k_, batch_])
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let shared = &self.workspace.all().allocation().shared;
        if shared.wait_so_far("the last product of a BLAS handle").is_ok() {
            // SAFETY: made by `create`, destroyed once, and nothing of it is running.
            unsafe { (self.calls.destroy)(self.handle) };
        }
    }
}
