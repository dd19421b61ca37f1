//! Convolutions of one to three dimensions, their gradients, and the choice of how they are computed.
//!
//! Each pass starts with what the library expects to be fastest without trying (MIOpen's immediate mode, cuDNN's
//! heuristics). [`Convolution::find`] measures instead. A transposed convolution is `backward_data`.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use gpu::Vendor;
use gpu::foreign::Address;

use super::calls::{AmdArgument, AmdSolution, Calls, ConvolutionMode, MathType, NvidiaSolution, Role};
use super::convolution_options::ConvolutionOptions;
use super::convolution_solution::{ConvolutionSolution, Method};
use super::descriptor::Descriptor;
use super::{DataType, Dnn, Handle, Int, NetworkNumber, Pass, Tensor, TensorLayout, TensorMut, TensorShape, host};
use crate::error::{Result, ensure, int};

const CALL: &str = "convolution";
/// More than either library has for one pass.
const MANY: usize = 64;

/// A convolution of tensors of given shapes.
pub struct Convolution<T: NetworkNumber> {
    dnn: Dnn,
    convolution: Descriptor,
    /// x, w and y.
    descriptors: [Descriptor; 3],
    shapes: [TensorShape; 3],
    /// The bias's gradient, one number for each channel of y.
    bias: Descriptor,
    chosen: [OnceCell<ConvolutionSolution>; 3],
    identity: Rc<()>,
    number: std::marker::PhantomData<T>,
    /// cuDNN keeps the arithmetic in the descriptor; the last one set.
    math: RefCell<Option<Int>>,
}

/// A tensor's place among x, w and y.
const X: usize = 0;
const W: usize = 1;
const Y: usize = 2;

impl Pass {
    /// The two tensors that are read, in MIOpen's order (cuDNN has the other one), and the one that is written.
    fn places(self) -> [usize; 3] {
        match self {
            Pass::Forward => [W, X, Y],
            Pass::BackwardData => [Y, W, X],
            Pass::BackwardWeights => [Y, X, W],
        }
    }
}

impl<T: NetworkNumber> Convolution<T> {
    /// A convolution of `x` (batch, channels, space) with filters `w` (channels out, channels in by groups, space).
    #[track_caller]
    pub fn new(dnn: &Dnn, x: &TensorShape, w: &TensorShape, options: &ConvolutionOptions) -> Result<Self> {
        let y = x.like(&options.output(x.lengths(), w.lengths())?)?;
        // MIOpen takes such strides and computes as if there were none.
        ensure(CALL, dnn.vendor() != Vendor::Amd || x.layout() != TensorLayout::Other, || {
            format!("an input of {:?} with strides {:?}: MIOpen convolves dense ones", x.lengths(), x.strides())
        })?;
        let shapes = [x.clone(), w.clone(), y];
        // A line is a plane of one row: neither library convolves lines.
        let n = options.padding.len().max(2);
        let in_plane = |values: &[usize], filling: usize| -> Result<Vec<Int>> {
            let filling = std::iter::repeat_n(filling, n - values.len());
            filling.chain(values.iter().copied()).map(|value| int(CALL, "an option", value)).collect()
        };
        let (padding, stride) = (in_plane(&options.padding, 0)?, in_plane(&options.stride, 1)?);
        let (dilation, groups) = (in_plane(&options.dilation, 1)?, int(CALL, "groups", options.groups)?);
        let (at_padding, at_stride, at_dilation) = (padding.as_ptr(), stride.as_ptr(), dilation.as_ptr());
        let convolution = Descriptor::make(dnn, Calls::convolution_create, Calls::convolution_destroy)?;
        let (calls, vendor, handle) = (dnn.calls(), dnn.vendor(), convolution.handle());
        let (mode, n) = (ConvolutionMode::Correlation.number(vendor), n as Int);
        // SAFETY: a live descriptor; arrays of n numbers, which the library copies.
        unsafe {
            match vendor {
                Vendor::Amd => calls.convolution_set_amd(handle, n, at_padding, at_stride, at_dilation, mode)?,
                Vendor::Nvidia => {
                    let sum = DataType::F32.number(vendor);
                    calls.convolution_set_nvidia(handle, n, at_padding, at_stride, at_dilation, mode, sum)?;
                }
            }
            calls.convolution_groups(handle, groups)?;
        }
        let plane = |shape: &TensorShape| shape.padded(2, 4);
        let descriptors = [
            Descriptor::tensor(dnn, CALL, T::TYPE, &plane(&shapes[X]))?,
            Descriptor::filter(dnn, CALL, T::TYPE, &plane(&shapes[W]))?,
            Descriptor::tensor(dnn, CALL, T::TYPE, &plane(&shapes[Y]))?,
        ];
        let mut ones = vec![1; plane(&shapes[Y]).lengths().len()];
        ones[1] = w.lengths()[0];
        let bias = Descriptor::tensor(dnn, CALL, T::TYPE, &TensorShape::dense(&ones)?)?;
        Ok(Self {
            dnn: dnn.clone(),
            convolution,
            descriptors,
            shapes,
            bias,
            chosen: Default::default(),
            identity: Rc::default(),
            number: std::marker::PhantomData,
            math: RefCell::default(),
        })
    }

    /// The output's shape: the input's layout, other lengths.
    pub fn output(&self) -> &TensorShape {
        &self.shapes[Y]
    }

    /// What the library offers for a pass, the best by its own guess first.
    #[track_caller]
    pub fn solutions(&self, pass: Pass) -> Result<Vec<ConvolutionSolution>> {
        self.dnn.enter()?;
        match self.dnn.vendor() {
            Vendor::Amd => self.immediate(pass),
            Vendor::Nvidia => {
                let calls = self.dnn.calls();
                self.algorithms(pass, |[first, second, out], n, found| {
                    let (handle, convolution, limit) = (self.dnn.handle(), self.convolution.handle(), MANY as Int);
                    // SAFETY: live descriptors; room for as many answers as said.
                    unsafe {
                        match pass {
                            Pass::Forward => {
                                calls.forward_guess(handle, first, second, convolution, out, limit, n, found)
                            }
                            Pass::BackwardData => {
                                calls.data_guess(handle, first, second, convolution, out, limit, n, found)
                            }
                            Pass::BackwardWeights => {
                                calls.weights_guess(handle, first, second, convolution, out, limit, n, found)
                            }
                        }
                    }
                })
            }
        }
    }

    /// Runs what the library has for a pass on memory of its own, and lists it, the fastest first. The fastest that
    /// fits the workspace is what the pass does from now on.
    #[track_caller]
    pub fn find(&mut self, pass: Pass) -> Result<Vec<ConvolutionSolution>> {
        self.dnn.enter()?;
        let found = match self.dnn.vendor() {
            Vendor::Amd => self.measured(pass)?,
            Vendor::Nvidia => {
                let calls = self.dnn.calls();
                self.algorithms(pass, |[first, second, out], n, found| {
                    let (handle, convolution, limit) = (self.dnn.handle(), self.convolution.handle(), MANY as Int);
                    // SAFETY: live descriptors; room for as many answers as said; the library brings its own memory.
                    unsafe {
                        match pass {
                            Pass::Forward => {
                                calls.forward_find(handle, first, second, convolution, out, limit, n, found)
                            }
                            Pass::BackwardData => {
                                calls.data_find(handle, first, second, convolution, out, limit, n, found)
                            }
                            Pass::BackwardWeights => {
                                calls.weights_find(handle, first, second, convolution, out, limit, n, found)
                            }
                        }
                    }
                })?
            }
        };
        let fitting = self.fitting(pass, &found)?;
        self.choose(fitting)?;
        Ok(found)
    }

    /// Makes one of this convolution's solutions what its pass does from now on.
    #[track_caller]
    pub fn choose(&mut self, solution: ConvolutionSolution) -> Result<()> {
        ensure(CALL, Rc::ptr_eq(&self.identity, &solution.owner), || "a solution of another convolution".into())?;
        let pass = solution.pass as usize;
        self.chosen[pass] = OnceCell::from(solution);
        Ok(())
    }

    /// Memory that a pass works in.
    #[track_caller]
    pub fn workspace_bytes(&self, pass: Pass) -> Result<usize> {
        Ok(self.chosen(pass)?.workspace_bytes)
    }

    /// y = x convolved with w.
    #[track_caller]
    pub fn forward(&self, x: Tensor<'_, T>, w: Tensor<'_, T>, y: TensorMut<'_, T>) -> Result<()> {
        let at = [self.input(X, &x)?, self.input(W, &w)?, self.output_at(Y, &y)?];
        self.run(Pass::Forward, at)
    }

    /// As [`Self::forward`], at addresses: for a crate that stands in for another library, whose callers pass pointers.
    ///
    /// # Safety
    /// x, w and y are live memory that the handle's stream may use, with elements of their shapes' spans.
    #[track_caller]
    pub unsafe fn forward_at(&self, x: Address, w: Address, y: Address) -> Result<()> {
        self.run(Pass::Forward, [x, w, y])
    }

    /// dx, from y's gradient: the transposed convolution.
    #[track_caller]
    pub fn backward_data(&self, dy: Tensor<'_, T>, w: Tensor<'_, T>, dx: TensorMut<'_, T>) -> Result<()> {
        let at = [self.output_at(X, &dx)?, self.input(W, &w)?, self.input(Y, &dy)?];
        self.run(Pass::BackwardData, at)
    }

    /// dw, from y's gradient.
    #[track_caller]
    pub fn backward_weights(&self, dy: Tensor<'_, T>, x: Tensor<'_, T>, dw: TensorMut<'_, T>) -> Result<()> {
        let at = [self.input(X, &x)?, self.output_at(W, &dw)?, self.input(Y, &dy)?];
        self.run(Pass::BackwardWeights, at)
    }

    /// The gradient of a number that is added to each channel of y: `db` has one for each.
    #[track_caller]
    pub fn backward_bias(&self, dy: Tensor<'_, T>, db: gpu::SliceMut<'_, T>) -> Result<()> {
        let channels = self.shapes[Y].lengths()[1];
        ensure(CALL, db.len() == channels, || format!("{} biases of {channels} channels", db.len()))?;
        let (at, at_bias) = (self.input(Y, &dy)?, self.dnn.binding().output(&db)?);
        self.dnn.enter()?;
        let (calls, handle, out) = (self.dnn.calls(), self.dnn.handle(), self.bias.handle());
        // SAFETY: memory of this queue, checked against the descriptors; scale factors that outlive the call.
        unsafe { calls.bias_gradient(handle, host(&1.0), self.descriptors[Y].handle(), at, host(&0.0), out, at_bias) }
    }

    #[track_caller]
    fn fits(&self, place: usize, shape: &TensorShape) -> Result<()> {
        let (want, name) = (&self.shapes[place], ["the input", "the filter", "the output"][place]);
        ensure(CALL, shape == want, || {
            let (lengths, strides) = (shape.lengths(), shape.strides());
            format!(
                "{name} has lengths {lengths:?} and strides {strides:?}, the convolution was made for {:?} and {:?}",
                want.lengths(),
                want.strides()
            )
        })
    }

    #[track_caller]
    fn input(&self, place: usize, tensor: &Tensor<'_, T>) -> Result<Address> {
        self.fits(place, &tensor.shape)?;
        Ok(self.dnn.binding().input(&tensor.data)?)
    }

    #[track_caller]
    fn output_at(&self, place: usize, tensor: &TensorMut<'_, T>) -> Result<Address> {
        self.fits(place, &tensor.shape)?;
        Ok(self.dnn.binding().output(&tensor.data)?)
    }

    pub(super) fn dnn(&self) -> &Dnn {
        &self.dnn
    }

    /// The descriptors: the convolution's, those of x, w and y, and the bias's.
    pub(super) fn handles(&self) -> (Handle, [Handle; 3], Handle) {
        (self.convolution.handle(), self.descriptors.each_ref().map(Descriptor::handle), self.bias.handle())
    }

    /// The addresses of x, w and y, checked against the shapes.
    #[track_caller]
    pub(super) fn addresses(&self, x: &Tensor<'_, T>, w: &Tensor<'_, T>, y: &TensorMut<'_, T>) -> Result<[Address; 3]> {
        Ok([self.input(X, x)?, self.input(W, w)?, self.output_at(Y, y)?])
    }

    /// Workspace of one of cuDNN's algorithms, whose arithmetic is set with it.
    #[track_caller]
    pub(super) fn bytes_of_algorithm(&self, pass: Pass, wanted: Int) -> Result<usize> {
        for solution in self.solutions(pass)? {
            if let Method::Algorithm { number, math } = solution.method
                && number == wanted
            {
                self.set_math(math)?;
                return Ok(solution.workspace_bytes);
            }
        }
        Err(self.dnn.calls().opened.lacks(format!("algorithm {wanted} for this convolution")))
    }

    /// The descriptors of a pass, in this vendor's order.
    fn ordered(&self, pass: Pass) -> [Handle; 3] {
        let [first, second, out] = pass.places().map(|place| self.descriptors[place].handle());
        self.dnn.vendor().pick([first, second, out], [second, first, out])
    }

    #[track_caller]
    fn fitting(&self, pass: Pass, solutions: &[ConvolutionSolution]) -> Result<ConvolutionSolution> {
        let limit = self.dnn.workspace_limit();
        let found = solutions.iter().find(|solution| solution.workspace_bytes <= limit).cloned();
        if let Some(found) = found {
            return Ok(found);
        }
        let Some(least) = solutions.iter().map(|solution| solution.workspace_bytes).min() else {
            let [x, w, _] = self.shapes.each_ref().map(TensorShape::lengths);
            let what = format!("{pass:?} convolution of {:?} {x:?} with {w:?} on this device", T::TYPE);
            return Err(self.dnn.calls().opened.lacks(what));
        };
        ensure(CALL, false, || format!("needs a workspace of {least} bytes, was given {limit}"))?;
        unreachable!()
    }

    #[track_caller]
    fn chosen(&self, pass: Pass) -> Result<&ConvolutionSolution> {
        let cell = &self.chosen[pass as usize];
        if cell.get().is_none() {
            let _ = cell.set(self.fitting(pass, &self.solutions(pass)?)?);
        }
        Ok(cell.get().expect("just set"))
    }

    /// MIOpen's solutions without trying.
    #[track_caller]
    fn immediate(&self, pass: Pass) -> Result<Vec<ConvolutionSolution>> {
        let (calls, handle, convolution) = (self.dnn.calls(), self.dnn.handle(), self.convolution.handle());
        let [first, second, out] = self.ordered(pass);
        let mut n = 0;
        // SAFETY: live descriptors and a valid out pointer.
        unsafe {
            match pass {
                Pass::Forward => calls.forward_count(handle, first, second, convolution, out, &mut n)?,
                Pass::BackwardData => calls.data_count(handle, first, second, convolution, out, &mut n)?,
                Pass::BackwardWeights => calls.weights_count(handle, first, second, convolution, out, &mut n)?,
            }
        }
        let (mut found, limit) = (vec![AmdSolution::default(); n], n);
        let at = found.as_mut_ptr();
        // SAFETY: live descriptors; room for as many answers as said.
        unsafe {
            match pass {
                Pass::Forward => calls.forward_list(handle, first, second, convolution, out, limit, &mut n, at)?,
                Pass::BackwardData => calls.data_list(handle, first, second, convolution, out, limit, &mut n, at)?,
                Pass::BackwardWeights => {
                    calls.weights_list(handle, first, second, convolution, out, limit, &mut n, at)?;
                }
            }
        }
        found.truncate(n);
        let solution = |found: AmdSolution| ConvolutionSolution {
            owner: self.identity.clone(),
            pass,
            workspace_bytes: found.bytes,
            ms: (found.ms > 0.0).then_some(found.ms),
            method: Method::Immediate(found.solution),
        };
        Ok(found.into_iter().map(solution).collect())
    }

    /// MIOpen's solutions, tried.
    #[track_caller]
    fn measured(&self, pass: Pass) -> Result<Vec<ConvolutionSolution>> {
        let (calls, vendor) = (self.dnn.calls(), self.dnn.vendor());
        let mut problem: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer and a live descriptor, which the library copies.
        unsafe { calls.problem_convolution(&mut problem, self.convolution.handle(), pass.number(vendor)) }?;
        let problem = Descriptor::own(&self.dnn, problem, Calls::problem_destroy);
        for (role, tensor) in [Role::X, Role::W, Role::Y].into_iter().zip(&self.descriptors) {
            // SAFETY: live objects; the library copies the descriptor.
            unsafe { calls.problem_tensor(problem.handle(), role.number(vendor), tensor.handle()) }?;
        }
        let (mut found, mut n) = ([std::ptr::null_mut(); MANY], 0);
        // SAFETY: live objects; room for as many answers as said; null asks for the library's own options and memory.
        unsafe {
            let options = std::ptr::null_mut();
            calls.find(self.dnn.handle(), problem.handle(), options, found.as_mut_ptr(), &mut n, MANY)
        }?;
        let own = |handle: &Handle| Rc::new(Descriptor::own(&self.dnn, *handle, Calls::solution_destroy));
        let found: Vec<Rc<Descriptor>> = found[..n.min(MANY)].iter().map(own).collect();
        let mut solutions = Vec::with_capacity(found.len());
        for solution in found {
            let (mut workspace_bytes, mut ms) = (0, 0.0);
            // SAFETY: a live solution and valid out pointers.
            unsafe {
                calls.solution_bytes(solution.handle(), &mut workspace_bytes)?;
                calls.solution_time(solution.handle(), &mut ms)?;
            }
            let method = Method::Found(solution);
            let owner = self.identity.clone();
            solutions.push(ConvolutionSolution { owner, pass, workspace_bytes, ms: Some(ms), method });
        }
        solutions.sort_by(|a, b| a.ms.unwrap_or(f32::MAX).total_cmp(&b.ms.unwrap_or(f32::MAX)));
        Ok(solutions)
    }

    /// cuDNN's algorithms, as one of its functions lists them.
    #[track_caller]
    fn algorithms(
        &self,
        pass: Pass,
        list: impl FnOnce([Handle; 3], *mut Int, *mut NvidiaSolution) -> Result<()>,
    ) -> Result<Vec<ConvolutionSolution>> {
        // f32 stays f32: tf32 would keep ten bits of it.
        let math = if T::TYPE == DataType::F32 { MathType::Fma } else { MathType::Default };
        self.set_math(math.number(Vendor::Nvidia))?;
        let (mut found, mut n) = ([NvidiaSolution::default(); MANY], 0);
        list(self.ordered(pass), &mut n, found.as_mut_ptr())?;
        let found = &found[..usize::try_from(n).unwrap_or(0).min(MANY)];
        let solution = |found: &NvidiaSolution| ConvolutionSolution {
            owner: self.identity.clone(),
            pass,
            workspace_bytes: found.bytes,
            ms: (found.ms > 0.0).then_some(found.ms),
            method: Method::Algorithm { number: found.algorithm, math: found.math },
        };
        Ok(found.iter().filter(|found| found.status == 0).map(solution).collect())
    }

    #[track_caller]
    fn set_math(&self, math: Int) -> Result<()> {
        if self.math.borrow().is_none_or(|last| last != math) {
            // SAFETY: a live descriptor.
            unsafe { self.dnn.calls().convolution_math(self.convolution.handle(), math) }?;
            *self.math.borrow_mut() = Some(math);
        }
        Ok(())
    }

    /// Runs a pass on x, w and y.
    #[track_caller]
    fn run(&self, pass: Pass, at: [Address; 3]) -> Result<()> {
        let solution = self.chosen(pass)?;
        let bytes = solution.workspace_bytes;
        let work = self.dnn.workspace(CALL, bytes)?;
        self.dnn.enter()?;
        match &solution.method {
            Method::Immediate(id) => self.run_immediate(pass, *id, at, work, bytes),
            Method::Found(found) => self.run_found(found, at, work, bytes),
            Method::Algorithm { number, math } => {
                self.set_math(*math)?;
                self.run_algorithm(pass, *number, at, work, bytes)
            }
        }
    }

    #[track_caller]
    fn run_immediate(&self, pass: Pass, id: u64, at: [Address; 3], work: Address, bytes: usize) -> Result<()> {
        let (calls, handle, by) = (self.dnn.calls(), self.dnn.handle(), self.convolution.handle());
        let [a, b, out] = self.ordered(pass);
        let [at_a, at_b, at_out] = pass.places().map(|place| at[place]);
        // SAFETY: memory of this queue, checked against the descriptors; the workspace is as large as was asked for.
        unsafe {
            match pass {
                Pass::Forward => calls.forward_amd(handle, a, at_a, b, at_b, by, out, at_out, work, bytes, id),
                Pass::BackwardData => calls.data_amd(handle, a, at_a, b, at_b, by, out, at_out, work, bytes, id),
                Pass::BackwardWeights => calls.weights_amd(handle, a, at_a, b, at_b, by, out, at_out, work, bytes, id),
            }
        }
    }

    #[track_caller]
    fn run_found(&self, found: &Descriptor, at: [Address; 3], work: Address, bytes: usize) -> Result<()> {
        let roles = [Role::X, Role::W, Role::Y].map(|role| role.number(Vendor::Amd));
        let arguments: Vec<AmdArgument> = roles
            .into_iter()
            .zip(at)
            .map(|(role, at)| AmdArgument { role, tensor: std::ptr::null_mut(), at: at as *mut std::ffi::c_void })
            .collect();
        let (handle, n) = (self.dnn.handle(), arguments.len());
        // SAFETY: a live solution of this problem; memory of this queue, checked against the problem's tensors; the
        // workspace is as large as was asked for.
        unsafe { self.dnn.calls().solution_run(handle, found.handle(), n, arguments.as_ptr(), work, bytes) }
    }

    #[track_caller]
    fn run_algorithm(&self, pass: Pass, number: Int, at: [Address; 3], work: Address, bytes: usize) -> Result<()> {
        let (calls, handle, by) = (self.dnn.calls(), self.dnn.handle(), self.convolution.handle());
        let [a, b, out] = self.ordered(pass);
        let [at_b, at_a, at_out] = pass.places().map(|place| at[place]);
        let (alpha, beta) = (&1.0, &0.0);
        let (one, zero) = (host(alpha), host(beta));
        // SAFETY: memory of this queue, checked against the descriptors; the workspace is as large as was asked for;
        // scale factors that outlive the call.
        unsafe {
            match pass {
                Pass::Forward => {
                    calls.forward_nvidia(handle, one, a, at_a, b, at_b, by, number, work, bytes, zero, out, at_out)
                }
                Pass::BackwardData => {
                    calls.data_nvidia(handle, one, a, at_a, b, at_b, by, number, work, bytes, zero, out, at_out)
                }
                Pass::BackwardWeights => {
                    calls.weights_nvidia(handle, one, a, at_a, b, at_b, by, number, work, bytes, zero, out, at_out)
                }
            }
        }
    }
}
