//! A product of given shapes: its descriptors, its algorithms, and how it runs.

use std::cell::OnceCell;
use std::marker::PhantomData;
use std::rc::Rc;

use gpu::foreign::Address;
use gpu::{Slice, Vendor};

use super::calls::{
    AmdFound, Calls, Compute, DataType, Epilogue, Handle, Int, LayoutAttribute, LibraryChoice, NvidiaFound, Operation,
    PreferenceAttribute, ProductAttribute,
};
use super::{BlasLt, Descriptor, Destroy, host};
use crate::blas::{self, Factor, Product};
use crate::error::{Error, Result, ensure, int};
use crate::view::{MatrixBatch, MatrixBatchMut, MatrixOrder, MatrixShape};

const CALL: &str = "matmul";
/// As many algorithms as are asked for.
const MANY: usize = 16;
/// What a growing workspace may grow to for one product.
const WORKSPACE_LIMIT: usize = 32 << 20;

impl Epilogue {
    /// Whether a bias is added.
    pub fn has_bias(self) -> bool {
        matches!(self, Epilogue::Bias | Epilogue::BiasRelu | Epilogue::BiasGelu)
    }
}

/// One way to compute a product.
#[derive(Clone)]
pub struct MatmulAlgorithm {
    /// The product that it was listed for.
    owner: Rc<()>,
    /// Memory it works in.
    pub workspace_bytes: usize,
    /// How often the device would be full of its work.
    pub waves: f32,
    /// The library's own description; AMD's takes the first three words.
    words: [u64; 8],
}

impl std::fmt::Debug for MatmulAlgorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "algorithm {:x?}, {} bytes, {} waves", &self.words[..3], self.workspace_bytes, self.waves)
    }
}

/// How the matrices of a batch lie: what a plan keeps of a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BatchShape {
    matrix: MatrixShape,
    n: usize,
    stride: usize,
}

/// D = f(alpha A B + beta D + bias) for factors of type `F` and results of type `P`, with sums in f32.
pub struct Matmul<F: Factor, P: Product<F, Sum = f32>> {
    lt: BlasLt,
    product: Descriptor,
    preference: Descriptor,
    /// Of the factors and the result as the library sees them: by columns, the factors of a result by rows exchanged.
    layouts: [Descriptor; 3],
    is_exchanged: bool,
    /// Of A, B and D as they were given.
    shapes: [BatchShape; 3],
    epilogue: Epilogue,
    chosen: OnceCell<MatmulAlgorithm>,
    identity: Rc<()>,
    numbers: PhantomData<(F, P)>,
}

impl<F: Factor, P: Product<F, Sum = f32>> Matmul<F, P> {
    /// A product of matrices that lie as these do; nothing of their contents is used. Any of them may lie by rows or by
    /// columns.
    #[track_caller]
    pub fn new(
        lt: &BlasLt,
        a: &MatrixBatch<'_, F>,
        b: &MatrixBatch<'_, F>,
        d: &MatrixBatchMut<'_, P>,
        epilogue: Epilogue,
    ) -> Result<Self> {
        let shapes = [
            BatchShape { matrix: a.first.shape, n: a.n, stride: a.stride },
            BatchShape { matrix: b.first.shape, n: b.n, stride: b.stride },
            BatchShape { matrix: d.first.shape, n: d.n, stride: d.stride },
        ];
        let [of_a, of_b, of_d] = shapes.map(|shape| shape.matrix);
        same("columns of A and rows of B", of_a.columns, of_b.rows)?;
        same("rows of A and D", of_a.rows, of_d.rows)?;
        same("columns of B and D", of_b.columns, of_d.columns)?;
        same("matrices in A and D", a.n, d.n)?;
        same("matrices in B and D", b.n, d.n)?;
        let elements = of_a.rows.min(of_a.columns).min(of_d.columns).min(d.n);
        ensure(CALL, elements > 0, || format!("{shapes:?} has nothing to multiply"))?;

        // D^T = B^T A^T: what lies by rows is, by columns, the transposed matrix.
        let is_exchanged = of_d.order == MatrixOrder::Rows;
        let order = if is_exchanged { [1, 0, 2] } else { [0, 1, 2] };
        let [first, second, result] = order.map(|i| shapes[i]);
        let (factor, product_type) = (data_type(F::TYPE), data_type(P::TYPE));
        let layouts = [lt.layout(first, factor)?, lt.layout(second, factor)?, lt.layout(result, product_type)?];
        let vendor = lt.inner.binding.vendor();
        let (compute, scale) = (Compute::F32.number(vendor), DataType::F32.number(vendor));
        // SAFETY: valid out pointers.
        let (product, preference) = unsafe {
            (
                lt.make_one(Calls::product_destroy, |at| lt.inner.calls.product_create(at, compute, scale))?,
                lt.make_one(Calls::preference_destroy, |at| lt.inner.calls.preference_create(at))?,
            )
        };
        let plan = Self {
            lt: lt.clone(),
            product,
            preference,
            layouts,
            is_exchanged,
            shapes,
            epilogue,
            chosen: OnceCell::new(),
            identity: Rc::default(),
            numbers: PhantomData,
        };
        let op = |shape: BatchShape| {
            // Each factor as the library's columns: what its order and the result's order make of it.
            let is_turned = (shape.matrix.order == MatrixOrder::Rows) != is_exchanged;
            if is_turned { Operation::Transpose } else { Operation::None }.number(vendor)
        };
        plan.set(ProductAttribute::OperationA, &op(first))?;
        plan.set(ProductAttribute::OperationB, &op(second))?;
        plan.set(ProductAttribute::Epilogue, &epilogue.number(vendor))?;
        if epilogue.has_bias() {
            plan.set(ProductAttribute::BiasType, &product_type.number(vendor))?;
        }
        plan.allow_workspace(lt.inner.work.limit().unwrap_or(WORKSPACE_LIMIT))?;
        Ok(plan)
    }

    /// Numbers in the bias: one for each column of a D that lies by rows, one for each row of a D that lies by columns.
    pub fn bias_len(&self) -> usize {
        let d = self.shapes[2].matrix;
        if self.is_exchanged { d.columns } else { d.rows }
    }

    /// What the library has for this product, the best by its own guess first.
    #[track_caller]
    pub fn algorithms(&self) -> Result<Vec<MatmulAlgorithm>> {
        let inner = &self.lt.inner;
        let (mut amd, mut nvidia, mut n) = ([AmdFound::default(); MANY], [NvidiaFound::default(); MANY], 0);
        let vendor = inner.binding.vendor();
        let found = vendor.pick(amd.as_mut_ptr().cast(), nvidia.as_mut_ptr().cast());
        let (handle, product, [a, b, d]) = (inner.handle, self.product.handle, self.handles());
        let (preference, limit) = (self.preference.handle, MANY as Int);
        inner.binding.enter()?;
        // SAFETY: live descriptors; room for as many answers as said.
        let listed = unsafe { inner.calls.heuristic(handle, product, a, b, d, d, preference, limit, found, &mut n) };
        match listed {
            Ok(()) => {}
            Err(Error::Call { name, .. }) if name.ends_with("NOT_SUPPORTED") => n = 0,
            // The shapes were checked: this is hipBLASLt's answer where it was packed without files for a chip.
            Err(Error::Call { library, name, .. }) if name == "HIPBLAS_STATUS_INVALID_VALUE" => {
                let arch = &inner.binding.device().properties().arch;
                return Err(Error::Unsupported { library, what: format!("kernels for {arch} ({name})") });
            }
            Err(error) => return Err(error),
        }
        let n = usize::try_from(n).unwrap_or(0).min(MANY);
        let algorithm = |status, words, workspace_bytes, waves| {
            let owner = self.identity.clone();
            (status == 0).then_some(MatmulAlgorithm { owner, workspace_bytes, waves, words })
        };
        Ok(match vendor {
            Vendor::Amd => {
                let wide = |[a, b, c]: [u64; 3]| [a, b, c, 0, 0, 0, 0, 0];
                amd[..n].iter().filter_map(|x| algorithm(x.status, wide(x.algorithm), x.bytes, x.waves)).collect()
            }
            Vendor::Nvidia => {
                nvidia[..n].iter().filter_map(|x| algorithm(x.status, x.algorithm, x.bytes, x.waves)).collect()
            }
        })
    }

    /// Makes one of this product's algorithms what it is computed by.
    #[track_caller]
    pub fn choose(&mut self, algorithm: MatmulAlgorithm) -> Result<()> {
        ensure(CALL, Rc::ptr_eq(&self.identity, &algorithm.owner), || "an algorithm of another product".into())?;
        self.chosen = OnceCell::from(algorithm);
        Ok(())
    }

    /// D = f(alpha A B + beta D + bias). Every matrix must lie as the one the product was planned for; `bias` is
    /// `Some` if and only if the epilogue adds one.
    #[track_caller]
    pub fn run(
        &self,
        alpha: f32,
        a: MatrixBatch<'_, F>,
        b: MatrixBatch<'_, F>,
        bias: Option<Slice<'_, P>>,
        beta: f32,
        d: MatrixBatchMut<'_, P>,
    ) -> Result<()> {
        let found = [(a.first.shape, a.n, a.stride), (b.first.shape, b.n, b.stride), (d.first.shape, d.n, d.stride)];
        for ((name, want), (matrix, n, stride)) in ["A", "B", "D"].into_iter().zip(self.shapes).zip(found) {
            let have = BatchShape { matrix, n, stride };
            ensure(CALL, have == want, || format!("{name} is {have:?}, the product was planned for {want:?}"))?;
        }
        let inner = &self.lt.inner;
        let (at_a, at_b) = (inner.binding.input(&a.first.data)?, inner.binding.input(&b.first.data)?);
        let at_d = inner.binding.output(&d.first.data)?;
        self.set_bias(bias)?;
        let algorithm = self.chosen()?;
        let work = inner.work.at_least(&inner.binding, CALL, algorithm.workspace_bytes)?;
        let (at_first, at_second) = if self.is_exchanged { (at_b, at_a) } else { (at_a, at_b) };
        let ([first, second, result], bytes) = (self.handles(), algorithm.workspace_bytes);
        let (alpha, beta, words) = (host(&alpha), host(&beta), host(&algorithm.words));
        inner.binding.enter()?;
        // SAFETY: memory of this queue, checked against the shapes of the descriptors; an algorithm listed for these
        // descriptors with as much workspace as it asked for; scalars and words outlive the call.
        unsafe {
            inner.calls.matmul(
                inner.handle,
                self.product.handle,
                alpha,
                at_first,
                first,
                at_second,
                second,
                beta,
                at_d,
                result,
                at_d,
                result,
                words,
                work,
                bytes,
                inner.binding.stream(),
            )
        }
    }

    #[track_caller]
    fn set_bias(&self, bias: Option<Slice<'_, P>>) -> Result<()> {
        match (bias, self.epilogue.has_bias()) {
            (None, false) => Ok(()),
            (Some(bias), true) => {
                let (len, due) = (bias.len(), self.bias_len());
                ensure(CALL, len == due, || format!("a bias of {len} where {due} are due"))?;
                let at: Address = self.lt.inner.binding.input(&bias)?;
                self.set(ProductAttribute::Bias, &at)
            }
            (bias, _) => {
                let (epilogue, is) = (self.epilogue, if bias.is_some() { "a bias" } else { "no bias" });
                Err(Error::shape(CALL, format!("{is} for the epilogue {epilogue:?}")))
            }
        }
    }

    #[track_caller]
    fn chosen(&self) -> Result<&MatmulAlgorithm> {
        if self.chosen.get().is_none() {
            let Some(best) = self.algorithms()?.into_iter().next() else {
                let [a, b, _] = self.shapes.map(|shape| (shape.matrix.rows, shape.matrix.columns));
                let device = &self.lt.inner.binding.device().properties().arch;
                let types = format!("{:?} into {:?}", F::TYPE, P::TYPE);
                let what = format!("product of {a:?} and {b:?}, {types}, with {:?} on {device}", self.epilogue);
                return Err(self.lt.inner.calls.opened.lacks(what));
            };
            let _ = self.chosen.set(best);
        }
        Ok(self.chosen.get().expect("just set"))
    }

    fn handles(&self) -> [Handle; 3] {
        self.layouts.each_ref().map(|layout| layout.handle)
    }

    #[track_caller]
    fn set<T>(&self, attribute: ProductAttribute, value: &T) -> Result<()> {
        let (inner, bytes) = (&self.lt.inner, size_of::<T>());
        let attribute = attribute.number(inner.binding.vendor());
        // SAFETY: a live descriptor; a value of the attribute's type, which the library copies.
        unsafe { inner.calls.product_set(self.product.handle, attribute, host(value), bytes) }
    }

    #[track_caller]
    fn allow_workspace(&self, bytes: usize) -> Result<()> {
        let (inner, bytes) = (&self.lt.inner, bytes as u64);
        let attribute = PreferenceAttribute::WorkspaceBytes.number(inner.binding.vendor());
        // SAFETY: as for `set`.
        unsafe { inner.calls.preference_set(self.preference.handle, attribute, host(&bytes), size_of::<u64>()) }
    }
}

impl BlasLt {
    /// # Safety
    /// `create` writes an object that `destroy` destroys.
    #[track_caller]
    unsafe fn make_one(&self, destroy: Destroy, create: impl FnOnce(*mut Handle) -> Result<()>) -> Result<Descriptor> {
        self.inner.binding.enter()?;
        let mut handle: Handle = std::ptr::null_mut();
        create(&mut handle)?;
        Ok(Descriptor { lt: self.clone(), handle, destroy })
    }

    /// What lies by rows is described as the transposed matrix by columns.
    #[track_caller]
    fn layout(&self, shape: BatchShape, number: DataType) -> Result<Descriptor> {
        let (inner, matrix) = (&self.inner, shape.matrix);
        let vendor = inner.binding.vendor();
        let (rows, columns) = match matrix.order {
            MatrixOrder::Columns => (matrix.rows, matrix.columns),
            MatrixOrder::Rows => (matrix.columns, matrix.rows),
        };
        let (rows, columns, step) = (rows as u64, columns as u64, matrix.step as i64);
        let (number, calls) = (number.number(vendor), inner.calls);
        // SAFETY: a valid out pointer.
        let layout =
            unsafe { self.make_one(Calls::layout_destroy, |at| calls.layout_create(at, number, rows, columns, step)) }?;
        let (batch, stride): (LibraryChoice, i64) = (int(CALL, "the batch", shape.n)?, shape.stride as i64);
        let attributes = [LayoutAttribute::Batch, LayoutAttribute::Stride].map(|attribute| attribute.number(vendor));
        // SAFETY: a live descriptor; values of the attributes' types, which the library copies.
        unsafe {
            calls.layout_set(layout.handle, attributes[0], host(&batch), size_of::<LibraryChoice>())?;
            calls.layout_set(layout.handle, attributes[1], host(&stride), size_of::<i64>())?;
        }
        Ok(layout)
    }
}

/// Those whose sums are f32 and no others reach this module.
fn data_type(of: blas::DataType) -> DataType {
    match of {
        blas::DataType::F16 => DataType::F16,
        blas::DataType::BF16 => DataType::BF16,
        _ => DataType::F32,
    }
}

#[track_caller]
fn same(what: &str, a: usize, b: usize) -> Result<()> {
    ensure(CALL, a == b, || format!("{what}: {a} and {b}"))
}
