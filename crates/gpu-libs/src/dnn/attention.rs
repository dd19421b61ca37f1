//! Scaled dot-product attention of many heads: y = softmax(scale q k^T) v, and its gradients.
//!
//! Tensors are dense, `[batch, heads, steps, size]`. Neither library's projections are used: a projection is a product
//! (`blas`, `blas_lt`). MIOpen computes f32 without masks; cuDNN f32 and f16, causal or not.

use std::cell::OnceCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::rc::Rc;

use gpu::foreign::Address;
use gpu::{Buffer, Slice, SliceMut, Vendor};

use super::calls::{AmdArgument, AttentionRole as Role, Calls, IndexType, Int, MathType, Pass, StepsAxis};
use super::descriptor::Descriptor;
use super::{DataType, Dnn, Handle, NetworkNumber, TensorShape};
use crate::error::{Result, ensure, int};

const CALL: &str = "attention";

/// What a step may look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttentionMask {
    /// Everything.
    None,
    /// Itself and what was before it; cuDNN's alone.
    Causal,
}

/// What a training pass keeps for its gradient.
pub struct AttentionSaved {
    owner: Rc<()>,
    /// cuDNN's own.
    kept: Buffer<u8>,
    /// MIOpen's: the largest number of each row, and one over the sum of what is left of it.
    rows: [Buffer<f32>; 2],
}

/// An attention of tensors of one shape.
pub struct Attention<T: NetworkNumber> {
    dnn: Dnn,
    shape: TensorShape,
    form: Form,
    identity: Rc<()>,
    number: PhantomData<T>,
}

enum Form {
    Amd(Box<Amd>),
    Nvidia(Box<Nvidia>),
}

/// MIOpen's attention is meant for 8-bit floats: numbers are scaled on their way in and out, and dropped. None of that
/// is wanted, so that all scale factors are one and nothing is dropped.
struct Amd {
    attention: Descriptor,
    tensor: Descriptor,
    row: Descriptor,
    scalar: Descriptor,
    index: Descriptor,
    one: Buffer<f32>,
    zero: Buffer<f32>,
    zero_index: Buffer<i64>,
    /// Largest numbers, which nobody asks for.
    largest: [Buffer<f32>; 4],
    forward: OnceCell<AmdSolution>,
    backward: OnceCell<AmdSolution>,
}

struct AmdSolution {
    solution: Descriptor,
    bytes: usize,
}

struct Nvidia {
    attention: Descriptor,
    steps: Descriptor,
    /// How long each sequence is, on the device.
    lengths: Buffer<i32>,
    /// What each step sees: from the first of these to before the second.
    low: Vec<Int>,
    high: Vec<Int>,
    /// The workspace of a forward pass alone, which keeps there what training keeps for the gradient, and so needs more.
    forward_bytes: usize,
    /// The workspace of both passes of training.
    training_bytes: usize,
    kept_bytes: usize,
}

/// What cuDNN's passes are given besides tensors.
struct Memory {
    lengths: Address,
    work: Address,
    bytes: usize,
    kept: Address,
    kept_bytes: usize,
}

impl<T: NetworkNumber> Attention<T> {
    /// An attention of `[batch, heads, steps, size]`. `scale` is usually one over the square root of the size.
    #[track_caller]
    pub fn new(dnn: &Dnn, shape: [usize; 4], scale: f32, mask: AttentionMask) -> Result<Self> {
        let dense = TensorShape::dense(&shape)?;
        let form = match dnn.vendor() {
            Vendor::Amd => {
                let has_it = T::TYPE == DataType::F32 && mask == AttentionMask::None;
                if !has_it {
                    let what = format!("attention of {:?} with mask {mask:?}: f32 without a mask alone", T::TYPE);
                    return Err(dnn.calls().opened.lacks(what));
                }
                Form::Amd(Box::new(Amd::new(dnn, &dense, scale)?))
            }
            Vendor::Nvidia => Form::Nvidia(Box::new(Nvidia::new(dnn, shape, T::TYPE, scale, mask)?)),
        };
        Ok(Self { dnn: dnn.clone(), shape: dense, form, identity: Rc::default(), number: PhantomData })
    }

    /// y, for what is not trained.
    #[track_caller]
    pub fn forward(&self, q: Slice<'_, T>, k: Slice<'_, T>, v: Slice<'_, T>, y: SliceMut<'_, T>) -> Result<()> {
        let at = [self.input("q", &q)?, self.input("k", &k)?, self.input("v", &v)?, self.target("y", &y)?];
        match &self.form {
            // MIOpen knows no other way; what it saves is dropped.
            Form::Amd(amd) => amd.forward(&self.dnn, &self.shape, at).map(drop),
            Form::Nvidia(nvidia) => nvidia.forward(&self.dnn, at, None),
        }
    }

    /// As [`Self::forward`], and what the gradients need.
    #[track_caller]
    pub fn forward_training(
        &self,
        q: Slice<'_, T>,
        k: Slice<'_, T>,
        v: Slice<'_, T>,
        y: SliceMut<'_, T>,
    ) -> Result<AttentionSaved> {
        let at = [self.input("q", &q)?, self.input("k", &k)?, self.input("v", &v)?, self.target("y", &y)?];
        let (binding, owner) = (self.dnn.binding(), self.identity.clone());
        match &self.form {
            Form::Amd(amd) => {
                let rows = amd.forward(&self.dnn, &self.shape, at)?;
                Ok(AttentionSaved { owner, kept: binding.alloc(0)?, rows })
            }
            Form::Nvidia(nvidia) => {
                let kept = binding.alloc(nvidia.kept_bytes)?;
                nvidia.forward(&self.dnn, at, Some(&kept))?;
                Ok(AttentionSaved { owner, kept, rows: [binding.alloc(0)?, binding.alloc(0)?] })
            }
        }
    }

    /// The gradients of q, k and v from what a training pass has read, written and saved, and from y's gradient.
    #[track_caller]
    pub fn backward(
        &self,
        saved: AttentionSaved,
        [q, k, v]: [Slice<'_, T>; 3],
        y: Slice<'_, T>,
        dy: Slice<'_, T>,
        [dq, dk, dv]: [SliceMut<'_, T>; 3],
    ) -> Result<()> {
        ensure(CALL, Rc::ptr_eq(&self.identity, &saved.owner), || "saved by another attention".into())?;
        let inputs = [self.input("q", &q)?, self.input("k", &k)?, self.input("v", &v)?];
        let (y, dy) = (self.input("y", &y)?, self.input("y's gradient", &dy)?);
        let outputs =
            [self.target("q's gradient", &dq)?, self.target("k's gradient", &dk)?, self.target("v's gradient", &dv)?];
        match &self.form {
            Form::Amd(amd) => amd.backward(&self.dnn, &saved, inputs, [y, dy], outputs),
            Form::Nvidia(nvidia) => nvidia.backward(&self.dnn, &saved, inputs, dy, outputs),
        }
    }

    #[track_caller]
    fn due(&self, what: &str, len: usize) -> Result<()> {
        let due = self.shape.elements();
        ensure(CALL, len == due, || format!("{what}: {len} elements where {due} are due"))
    }

    #[track_caller]
    fn input(&self, what: &str, slice: &Slice<'_, T>) -> Result<Address> {
        self.due(what, slice.len())?;
        Ok(self.dnn.binding().input(slice)?)
    }

    #[track_caller]
    fn target(&self, what: &str, slice: &SliceMut<'_, T>) -> Result<Address> {
        self.due(what, slice.len())?;
        Ok(self.dnn.binding().output(slice)?)
    }
}

impl Amd {
    #[track_caller]
    fn new(dnn: &Dnn, shape: &TensorShape, scale: f32) -> Result<Self> {
        let mut attention: Handle = std::ptr::null_mut();
        dnn.enter()?;
        // SAFETY: a valid out pointer. What the library makes is an object of the same kind as its problems are given
        // to destroy; it has no function of its own for it and is small, so it is kept for good.
        unsafe {
            dnn.calls().mha_create(&mut attention)?;
            dnn.calls().mha_set(attention, scale)?;
        }
        let attention = Descriptor::own(dnn, attention, |_, _| Ok(()));
        let mut of_rows = shape.lengths().to_vec();
        of_rows[3] = 1;
        let single = TensorShape::dense(&[1, 1, 1, 1])?;
        let index = Descriptor::make(dnn, Calls::tensor_create, Calls::tensor_destroy)?;
        let (lengths, strides) = single.ints(CALL)?;
        let number = IndexType::I64.number(Vendor::Amd);
        // SAFETY: a live descriptor; arrays of four numbers each, which the library copies.
        unsafe { dnn.calls().tensor_set(index.handle(), number, 4, lengths.as_ptr(), strides.as_ptr()) }?;
        let largest = || dnn.binding().upload(&[0f32]);
        Ok(Self {
            attention,
            tensor: Descriptor::tensor(dnn, CALL, DataType::F32, shape)?,
            row: Descriptor::tensor(dnn, CALL, DataType::F32, &TensorShape::dense(&of_rows)?)?,
            scalar: Descriptor::tensor(dnn, CALL, DataType::F32, &single)?,
            index,
            one: dnn.binding().upload(&[1f32])?,
            zero: dnn.binding().upload(&[0f32])?,
            zero_index: dnn.binding().upload(&[0i64])?,
            largest: [largest()?, largest()?, largest()?, largest()?],
            forward: OnceCell::new(),
            backward: OnceCell::new(),
        })
    }

    /// What a role's tensor looks like.
    fn descriptor(&self, role: Role) -> &Descriptor {
        match role {
            Role::Q | Role::K | Role::V | Role::O | Role::DO | Role::DQ | Role::DK | Role::DV => &self.tensor,
            Role::M | Role::ZInv => &self.row,
            Role::DropoutSeed | Role::DropoutOffset => &self.index,
            _ => &self.scalar,
        }
    }

    /// The fastest solution by the library's order.
    #[track_caller]
    fn solution<'a>(
        &self,
        dnn: &Dnn,
        cell: &'a OnceCell<AmdSolution>,
        pass: Pass,
        roles: impl Iterator<Item = Role>,
    ) -> Result<&'a AmdSolution> {
        if let Some(found) = cell.get() {
            return Ok(found);
        }
        let calls = dnn.calls();
        let mut problem: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer and a live descriptor, which the library copies.
        unsafe { calls.mha_problem(&mut problem, self.attention.handle(), pass.number(Vendor::Amd)) }?;
        let problem = Descriptor::own(dnn, problem, Calls::problem_destroy);
        for role in roles {
            let (number, tensor) = (role.number(Vendor::Amd), self.descriptor(role).handle());
            // SAFETY: live objects; the library copies the descriptor.
            unsafe { calls.problem_tensor(problem.handle(), number, tensor) }?;
        }
        let (mut solution, mut n, mut bytes): (Handle, usize, usize) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: live objects; room for the one answer asked for; null asks for the library's own options.
        unsafe { calls.find(dnn.handle(), problem.handle(), std::ptr::null_mut(), &mut solution, &mut n, 1) }?;
        if n == 0 {
            return Err(calls.opened.lacks(format!("{pass:?} attention on this device")));
        }
        let solution = Descriptor::own(dnn, solution, Calls::solution_destroy);
        // SAFETY: a live solution and a valid out pointer.
        unsafe { calls.solution_bytes(solution.handle(), &mut bytes) }?;
        let _ = cell.set(AmdSolution { solution, bytes });
        Ok(cell.get().expect("just set"))
    }

    #[track_caller]
    fn run(&self, dnn: &Dnn, solution: &AmdSolution, tensors: &[(Role, Address)]) -> Result<()> {
        let work = dnn.workspace(CALL, solution.bytes)?;
        // Null instead of a descriptor: the problem's own.
        let argument = |&(role, at): &(Role, Address)| AmdArgument {
            role: role.number(Vendor::Amd),
            tensor: std::ptr::null_mut(),
            at: at as *mut c_void,
        };
        let arguments: Vec<AmdArgument> = tensors.iter().map(argument).collect();
        dnn.enter()?;
        // SAFETY: a live solution; memory of this queue, as large as the problem's descriptors say; the workspace is as
        // large as was asked for.
        unsafe {
            let (handle, n, arguments) = (dnn.handle(), arguments.len(), arguments.as_ptr());
            dnn.calls().solution_run(handle, solution.solution.handle(), n, arguments, work, solution.bytes)
        }
    }

    /// The scale factors and the dropout of both passes.
    #[track_caller]
    fn settings(&self, dnn: &Dnn) -> Result<Vec<(Role, Address)>> {
        let at = |buffer: &Buffer<f32>| dnn.binding().input(&buffer.all());
        let (one, zero, index) = (at(&self.one)?, at(&self.zero)?, dnn.binding().input(&self.zero_index.all())?);
        let ones = [Role::DescaleQ, Role::DescaleK, Role::DescaleV, Role::DescaleS, Role::ScaleS];
        let mut settings: Vec<_> = ones.map(|role| (role, one)).to_vec();
        settings.extend([(Role::DropoutProbability, zero), (Role::DropoutSeed, index), (Role::DropoutOffset, index)]);
        Ok(settings)
    }

    #[track_caller]
    fn forward(&self, dnn: &Dnn, shape: &TensorShape, [q, k, v, y]: [Address; 4]) -> Result<[Buffer<f32>; 2]> {
        let n_rows = shape.elements() / shape.lengths()[3];
        let rows = [dnn.binding().alloc::<f32>(n_rows)?, dnn.binding().alloc::<f32>(n_rows)?];
        let at = |buffer: &Buffer<f32>| dnn.binding().input(&buffer.all());
        let mut tensors = self.settings(dnn)?;
        tensors.extend([(Role::Q, q), (Role::K, k), (Role::V, v), (Role::O, y), (Role::ScaleO, at(&self.one)?)]);
        tensors.extend([(Role::M, at(&rows[0])?), (Role::ZInv, at(&rows[1])?)]);
        tensors.extend([(Role::AmaxO, at(&self.largest[0])?), (Role::AmaxS, at(&self.largest[1])?)]);
        let solution = self.solution(dnn, &self.forward, Pass::Forward, tensors.iter().map(|(role, _)| *role))?;
        self.run(dnn, solution, &tensors)?;
        Ok(rows)
    }

    #[track_caller]
    fn backward(
        &self,
        dnn: &Dnn,
        saved: &AttentionSaved,
        [q, k, v]: [Address; 3],
        [y, dy]: [Address; 2],
        [dq, dk, dv]: [Address; 3],
    ) -> Result<()> {
        let at = |buffer: &Buffer<f32>| dnn.binding().input(&buffer.all());
        let mut tensors = self.settings(dnn)?;
        let ones = [Role::DescaleO, Role::DescaleDO, Role::DescaleDS, Role::ScaleDS, Role::ScaleDQ, Role::ScaleDK];
        for role in ones.into_iter().chain([Role::ScaleDV]) {
            tensors.push((role, at(&self.one)?));
        }
        tensors.extend([(Role::Q, q), (Role::K, k), (Role::V, v), (Role::O, y), (Role::DO, dy)]);
        tensors.extend([(Role::M, at(&saved.rows[0])?), (Role::ZInv, at(&saved.rows[1])?)]);
        tensors.extend([(Role::DQ, dq), (Role::DK, dk), (Role::DV, dv)]);
        for (role, buffer) in [Role::AmaxDQ, Role::AmaxDK, Role::AmaxDV, Role::AmaxDS].into_iter().zip(&self.largest) {
            tensors.push((role, at(buffer)?));
        }
        let roles = tensors.iter().map(|(role, _)| *role);
        let solution = self.solution(dnn, &self.backward, Pass::BackwardData, roles)?;
        // MIOpen computes two of the products on streams of its own, which wait for nothing that was enqueued here.
        dnn.binding().wait()?;
        self.run(dnn, solution, &tensors)
    }
}

impl Nvidia {
    #[track_caller]
    fn new(dnn: &Dnn, shape: [usize; 4], number: DataType, scale: f32, mask: AttentionMask) -> Result<Self> {
        let [batch, heads, n_steps, size] = shape;
        // Heads are sequences of their own: cuDNN's heads share their vectors, and differ by projections.
        let n_sequences = batch * heads;
        let (n, steps, size) =
            (int(CALL, "heads", n_sequences)?, int(CALL, "steps", n_steps)?, int(CALL, "a size", size)?);
        let (calls, handle) = (dnn.calls(), dnn.handle());
        let data = number.number(Vendor::Nvidia);
        let sum = DataType::F32.number(Vendor::Nvidia);
        let math = if number == DataType::F32 { MathType::Fma } else { MathType::Default }.number(Vendor::Nvidia);
        let attention = Descriptor::make(dnn, Calls::attention_create, Calls::attention_destroy)?;
        let described = Descriptor::make(dnn, Calls::steps_create, Calls::steps_destroy)?;
        let lengths = vec![steps; n_sequences];
        let axes = [StepsAxis::Batch, StepsAxis::Beam, StepsAxis::Time, StepsAxis::Vector];
        let mut by_axis = [0; 4];
        for (axis, length) in axes.into_iter().zip([n, 1, steps, size]) {
            by_axis[axis.number(Vendor::Nvidia) as usize] = length;
        }
        let axes = axes.map(|axis| axis.number(Vendor::Nvidia));
        let (mut weights, mut forward_bytes, mut training_bytes, mut kept_bytes) = (0, 0, 0, 0);
        // No dropout, neither of the weights nor of the result. What lies past a sequence's end is left as it is; the
        // library knows nothing else yet.
        let none: Handle = std::ptr::null_mut();
        // SAFETY: live descriptors and valid out pointers; arrays of the lengths given, which the library copies.
        unsafe {
            let scale = f64::from(scale);
            calls.attention_set(
                attention.handle(),
                0,
                1,
                scale,
                data,
                sum,
                math,
                none,
                none,
                size,
                size,
                size,
                0,
                0,
                0,
                0,
                steps,
                steps,
                n,
                1,
            )?;
            let (lengths, at_axes) = (lengths.as_ptr(), axes.as_ptr());
            calls.steps_set(described.handle(), data, 4, by_axis.as_ptr(), at_axes, n_sequences, lengths, none)?;
            // Without a place for the reserve's size it is the size for what is not trained.
            let attention = attention.handle();
            calls.attention_bytes(handle, attention, &mut weights, &mut forward_bytes, std::ptr::null_mut())?;
            calls.attention_bytes(handle, attention, &mut weights, &mut training_bytes, &mut kept_bytes)?;
        }
        let high = (1..=steps).map(|step| if mask == AttentionMask::Causal { step } else { steps }).collect();
        let lengths = dnn.binding().upload(&lengths)?;
        let low = vec![0; n_steps];
        Ok(Self { attention, steps: described, lengths, low, high, forward_bytes, training_bytes, kept_bytes })
    }

    #[track_caller]
    fn memory(&self, dnn: &Dnn, kept: Option<&Buffer<u8>>) -> Result<Memory> {
        let lengths = dnn.binding().input(&self.lengths.all())?;
        let (kept, kept_bytes, bytes) = match kept {
            Some(kept) => (dnn.binding().input(&kept.all())?, kept.len(), self.training_bytes),
            None => (0, 0, self.forward_bytes),
        };
        Ok(Memory { lengths, work: dnn.workspace(CALL, bytes)?, bytes, kept, kept_bytes })
    }

    #[track_caller]
    fn forward(&self, dnn: &Dnn, [q, k, v, y]: [Address; 4], kept: Option<&Buffer<u8>>) -> Result<()> {
        let Memory { lengths, work, bytes, kept, kept_bytes } = self.memory(dnn, kept)?;
        let (handle, by, s) = (dnn.handle(), self.attention.handle(), self.steps.handle());
        let (low, high) = (self.low.as_ptr(), self.high.as_ptr());
        // All steps at once.
        let step = -1;
        dnn.enter()?;
        // SAFETY: memory of this queue, as large as the descriptors say; a window for each step; workspace and reserve
        // are as large as was asked for; without projections there are no weights.
        unsafe {
            dnn.calls().attention(
                handle, by, step, low, high, lengths, lengths, s, q, 0, s, k, s, v, s, y, 0, 0, bytes, work,
                kept_bytes, kept,
            )
        }
    }

    #[track_caller]
    fn backward(
        &self,
        dnn: &Dnn,
        saved: &AttentionSaved,
        [q, k, v]: [Address; 3],
        dy: Address,
        [dq, dk, dv]: [Address; 3],
    ) -> Result<()> {
        let Memory { lengths, work, bytes, kept, kept_bytes } = self.memory(dnn, Some(&saved.kept))?;
        let (handle, by, s) = (dnn.handle(), self.attention.handle(), self.steps.handle());
        let (low, high) = (self.low.as_ptr(), self.high.as_ptr());
        dnn.enter()?;
        // SAFETY: as for `forward`.
        unsafe {
            dnn.calls().attention_back(
                handle, by, low, high, lengths, lengths, s, dy, s, dq, q, s, dk, k, s, dv, v, 0, 0, bytes, work,
                kept_bytes, kept,
            )
        }
    }
}
