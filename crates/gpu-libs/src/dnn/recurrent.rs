//! Recurrent networks: plain ones, LSTM and GRU, of any number of layers, one way or both ways, with their gradients.
//!
//! Sequences lie step after step: `[steps, batch, size]`; those that are shorter than the longest are padded, and their
//! results beyond their ends are zero. All weights and biases of a network are one array whose parts [`Rnn::part`]
//! names. There is no dropout between layers.

use std::marker::PhantomData;
use std::rc::Rc;

use gpu::foreign::Address;
use gpu::{Buffer, Slice, SliceMut, Vendor};

use super::calls::{
    Calls, Handle, Int, MathType, RnnAlgorithm, RnnBias, RnnCell, RnnInput, RnnLayout, RnnPadding, RnnPass,
    WeightGradient,
};
use super::descriptor::Descriptor;
use super::recurrent_options::{RnnGate, RnnOptions, RnnPart, RnnSource, RnnWay};
use super::{DataType, Dnn, NetworkNumber, TensorShape};
use crate::error::{Result, ensure, int};

const CALL: &str = "rnn";

/// States before the first step: `[layers x directions, batch, hidden]`.
#[derive(Clone, Copy, Debug)]
pub struct RnnState<'a, T: NetworkNumber> {
    pub hidden: Slice<'a, T>,
    /// Of LSTM, and of no other cell.
    pub cell: Option<Slice<'a, T>>,
}

/// States, or their gradients, that are written.
#[derive(Debug)]
pub struct RnnStateMut<'a, T: NetworkNumber> {
    pub hidden: SliceMut<'a, T>,
    /// Of LSTM, and of no other cell.
    pub cell: Option<SliceMut<'a, T>>,
}

/// What a training pass has read and written.
#[derive(Clone, Copy, Debug)]
pub struct RnnTensors<'a, T: NetworkNumber> {
    pub x: Slice<'a, T>,
    pub initial: Option<RnnState<'a, T>>,
    pub y: Slice<'a, T>,
}

/// Gradients of what a network has put out.
#[derive(Clone, Copy, Debug)]
pub struct RnnOutputGradients<'a, T: NetworkNumber> {
    pub y: Slice<'a, T>,
    /// Of the last states; zero if there is none.
    pub last: Option<RnnState<'a, T>>,
}

/// Where the gradients of a network go.
#[derive(Debug)]
pub struct RnnGradients<'a, T: NetworkNumber> {
    pub x: SliceMut<'a, T>,
    pub initial: Option<RnnStateMut<'a, T>>,
    pub weights: Option<SliceMut<'a, T>>,
}

/// What a training pass keeps for its gradient.
pub struct RnnSaved {
    owner: Rc<()>,
    kept: Buffer<u8>,
}

/// A recurrent network for sequences of given lengths.
pub struct Rnn<T: NetworkNumber> {
    dnn: Dnn,
    rnn: Descriptor,
    /// cuDNN wants one, even if nothing is dropped.
    _dropout: Option<Descriptor>,
    options: RnnOptions,
    steps: usize,
    batch: usize,
    x: Descriptor,
    y: Descriptor,
    state: Descriptor,
    /// One step of x, which MIOpen asks for where it wants to know the input's size.
    step: Descriptor,
    weight_bytes: usize,
    identity: Rc<()>,
    number: PhantomData<T>,
}

/// The addresses of a state: zero where there is none.
type StateAt = (Address, Address);

impl<T: NetworkNumber> Rnn<T> {
    /// A network for a batch of sequences, one for each of `lengths`.
    #[track_caller]
    pub fn new(dnn: &Dnn, options: RnnOptions, lengths: &[usize]) -> Result<Self> {
        let (batch, steps) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
        ensure(CALL, lengths.iter().all(|length| *length > 0) && batch > 0, || {
            format!("sequences of {lengths:?} steps")
        })?;
        let RnnOptions { input, hidden, layers, .. } = options;
        ensure(CALL, input > 0 && hidden > 0 && layers > 0, || format!("{options:?} has nothing in it"))?;
        let lengths = lengths.iter().map(|length| int(CALL, "a length", *length)).collect::<Result<Vec<Int>>>()?;
        let (rnn, dropout) = describe(dnn, options, T::TYPE)?;
        let shape = TensorShape::dense(&[layers * options.directions(), batch, hidden])?;
        let made = Self {
            dnn: dnn.clone(),
            rnn,
            _dropout: dropout,
            options,
            steps,
            batch,
            x: sequence(dnn, T::TYPE, [steps, batch, input], &lengths)?,
            y: sequence(dnn, T::TYPE, [steps, batch, options.output()], &lengths)?,
            state: Descriptor::tensor_as_is(dnn, CALL, T::TYPE, &shape)?,
            step: Descriptor::tensor_as_is(dnn, CALL, T::TYPE, &TensorShape::dense(&[batch, input])?)?,
            weight_bytes: 0,
            identity: Rc::default(),
            number: PhantomData,
        };
        let (calls, handle, rnn, mut weight_bytes) = (dnn.calls(), dnn.handle(), made.rnn.handle(), 0);
        // SAFETY: live descriptors and a valid out pointer.
        unsafe {
            match dnn.vendor() {
                Vendor::Amd => {
                    let number = T::TYPE.number(Vendor::Amd);
                    calls.rnn_weight_bytes_amd(handle, rnn, made.step.handle(), &mut weight_bytes, number)
                }
                Vendor::Nvidia => calls.rnn_weight_bytes_nvidia(handle, rnn, &mut weight_bytes),
            }
        }?;
        Ok(Self { weight_bytes, ..made })
    }

    /// Elements of the array of all weights and biases.
    pub fn weights(&self) -> usize {
        self.weight_bytes.div_ceil(size_of::<T>())
    }

    /// Elements of the states of all layers and directions.
    pub fn states(&self) -> usize {
        self.options.layers * self.options.directions() * self.batch * self.options.hidden
    }

    /// Where the weights of a gate lie.
    #[track_caller]
    pub fn part(&self, layer: usize, way: RnnWay, gate: RnnGate, source: RnnSource) -> Result<RnnPart> {
        let RnnOptions { cell, hidden, layers, input, bias, .. } = self.options;
        let directions = self.options.directions();
        ensure(CALL, layer < layers && (way == RnnWay::Forwards || directions == 2), || {
            format!("layer {layer}, {way:?}, of {:?}", self.options)
        })?;
        let Some(index) = gate.index(self.dnn.vendor(), cell) else {
            ensure(CALL, false, || format!("{cell:?} has no gate {gate:?}"))?;
            unreachable!()
        };
        let below = if layer == 0 { input } else { hidden * directions };
        let columns = if source == RnnSource::Input { below } else { hidden };
        let id = index + if source == RnnSource::Hidden { self.options.gates() } else { 0 };
        let layer = layer * directions + usize::from(way == RnnWay::Backwards);
        let (matrix, at_bias) = self.places(int(CALL, "a layer", layer)?, id as Int)?;
        let bias = (bias == RnnBias::Two).then_some(at_bias..at_bias + hidden);
        let part = RnnPart { matrix: matrix..matrix + hidden * columns, rows: hidden, columns, bias };
        let is_inside = [Some(part.matrix.end), part.bias.as_ref().map(|bias| bias.end)];
        // What the library says is used as offsets into memory: it has to be inside.
        ensure(CALL, is_inside.into_iter().flatten().all(|end| end <= self.weights()), || {
            format!("{part:?} is not inside of {} weights", self.weights())
        })?;
        Ok(part)
    }

    /// The first elements of a matrix and of its bias.
    #[track_caller]
    fn places(&self, layer: Int, id: Int) -> Result<(usize, usize)> {
        let (calls, rnn) = (self.dnn.calls(), self.rnn.handle());
        let shape = Descriptor::make(&self.dnn, Calls::tensor_create, Calls::tensor_destroy)?;
        let second = Descriptor::make(&self.dnn, Calls::tensor_create, Calls::tensor_destroy)?;
        if self.dnn.vendor() == Vendor::Amd {
            let (mut matrix, mut bias, x) = (0, 0, self.step.handle());
            // SAFETY: live descriptors and valid out pointers.
            unsafe {
                calls.rnn_matrix_amd(rnn, layer, x, id, shape.handle(), &mut matrix)?;
                if self.options.bias == RnnBias::Two {
                    calls.rnn_bias_amd(rnn, layer, x, id, second.handle(), &mut bias)?;
                }
            }
            return Ok((matrix, bias));
        }
        // cuDNN answers with addresses: of an array of that size that is there for as long as the call.
        let array = self.dnn.binding().alloc::<u8>(self.weight_bytes)?;
        let (start, bytes) = (self.dnn.binding().input(&array.all())?, self.weight_bytes);
        let (mut matrix, mut bias) = (0, 0);
        // SAFETY: live descriptors and valid out pointers; memory of the size that the library asked for.
        unsafe {
            let (handle, shape, second) = (self.dnn.handle(), shape.handle(), second.handle());
            calls.rnn_part_nvidia(handle, rnn, layer, bytes, start, id, shape, &mut matrix, second, &mut bias)
        }?;
        let element = |at: Address| (at.saturating_sub(start) as usize) / size_of::<T>();
        Ok((element(matrix), element(bias)))
    }

    /// y and the last states, for what is not trained.
    #[track_caller]
    pub fn forward(
        &self,
        weights: Slice<'_, T>,
        x: Slice<'_, T>,
        initial: Option<RnnState<'_, T>>,
        y: SliceMut<'_, T>,
        last: Option<RnnStateMut<'_, T>>,
    ) -> Result<()> {
        self.run(RnnPass::Inference, weights, x, initial, y, last).map(drop)
    }

    /// As [`Self::forward`], and what the gradients need.
    #[track_caller]
    pub fn forward_training(
        &self,
        weights: Slice<'_, T>,
        x: Slice<'_, T>,
        initial: Option<RnnState<'_, T>>,
        y: SliceMut<'_, T>,
        last: Option<RnnStateMut<'_, T>>,
    ) -> Result<RnnSaved> {
        let kept = self.run(RnnPass::Training, weights, x, initial, y, last)?;
        Ok(RnnSaved { owner: self.identity.clone(), kept })
    }

    #[track_caller]
    fn run(
        &self,
        pass: RnnPass,
        weights: Slice<'_, T>,
        x: Slice<'_, T>,
        initial: Option<RnnState<'_, T>>,
        y: SliceMut<'_, T>,
        last: Option<RnnStateMut<'_, T>>,
    ) -> Result<Buffer<u8>> {
        let (w, w_bytes) = (self.weights_at(&weights)?, self.weight_bytes);
        let at_x = self.input("x", &x, self.steps * self.batch * self.options.input)?;
        let at_y = self.target("y", &y, self.steps * self.batch * self.options.output())?;
        let ((hx, cx), (hy, cy)) = (self.state(initial)?, self.state_mut(last.as_ref())?);
        let is_training = pass == RnnPass::Training;
        let (bytes, mut kept_bytes) = self.bytes(pass)?;
        let kept = self.dnn.binding().alloc::<u8>(if is_training { kept_bytes } else { 0 })?;
        let (work, kept_at) = if is_training {
            (self.dnn.workspace(CALL, bytes)?, self.dnn.binding().input(&kept.all())?)
        } else if self.dnn.vendor() == Vendor::Amd {
            // MIOpen says that inference keeps nothing, and refuses to run without room for all that training keeps.
            kept_bytes = self.bytes(RnnPass::Training)?.1;
            let start = bytes.next_multiple_of(256);
            let work = self.dnn.workspace(CALL, start + kept_bytes)?;
            (work, work + start as Address)
        } else {
            (self.dnn.workspace(CALL, bytes)?, 0)
        };
        let (calls, handle, rnn) = (self.dnn.calls(), self.dnn.handle(), self.rnn.handle());
        let (x, y, s, pass) = (self.x.handle(), self.y.handle(), self.state.handle(), pass.number(self.dnn.vendor()));
        self.dnn.enter()?;
        // SAFETY: memory of this queue, as large as the descriptors say or null where the libraries allow it; workspace
        // and reserve are as large as was asked for.
        unsafe {
            match self.dnn.vendor() {
                Vendor::Amd => calls.rnn_amd(
                    handle, rnn, pass, x, at_x, s, hx, hy, s, cx, cy, y, at_y, w, w_bytes, work, bytes, kept_at,
                    kept_bytes,
                ),
                Vendor::Nvidia => calls.rnn_nvidia(
                    handle, rnn, pass, 0, x, at_x, y, at_y, s, hx, hy, s, cx, cy, w_bytes, w, bytes, work, kept_bytes,
                    kept_at,
                ),
            }
        }?;
        Ok(kept)
    }

    /// The gradients of the input, the initial states and the weights, from what a training pass has read, written and
    /// saved.
    #[track_caller]
    pub fn backward(
        &self,
        saved: RnnSaved,
        weights: Slice<'_, T>,
        RnnTensors { x, initial, y }: RnnTensors<'_, T>,
        from: RnnOutputGradients<'_, T>,
        mut to: RnnGradients<'_, T>,
    ) -> Result<()> {
        ensure(CALL, Rc::ptr_eq(&self.identity, &saved.owner), || "saved by another network".into())?;
        let (x_len, y_len) =
            (self.steps * self.batch * self.options.input, self.steps * self.batch * self.options.output());
        let (w, w_bytes) = (self.weights_at(&weights)?, self.weight_bytes);
        let (at_x, at_y) = (self.input("x", &x, x_len)?, self.input("y", &y, y_len)?);
        let (dy, dx) = (self.input("y's gradient", &from.y, y_len)?, self.target("x's gradient", &to.x, x_len)?);
        let ((hx, cx), (dhy, dcy)) = (self.state(initial)?, self.state(from.last)?);
        let (dhx, dcx) = self.state_mut(to.initial.as_ref())?;
        let dw = match &mut to.weights {
            Some(dw) => {
                let at = self.target("the weights' gradient", dw, self.weights())?;
                if self.dnn.vendor() == Vendor::Nvidia {
                    // cuDNN adds to what is there, MIOpen replaces it.
                    self.dnn.binding().zero(dw.reborrow())?;
                }
                Some(at)
            }
            None => None,
        };
        let (bytes, kept_bytes) = (self.bytes(RnnPass::Training)?.0, saved.kept.len());
        let (kept, work) = (self.dnn.binding().input(&saved.kept.all())?, self.dnn.workspace(CALL, bytes)?);
        let (calls, handle, rnn) = (self.dnn.calls(), self.dnn.handle(), self.rnn.handle());
        let (x, y, s) = (self.x.handle(), self.y.handle(), self.state.handle());
        self.dnn.enter()?;
        // SAFETY: as for `run`. MIOpen's second call reads what the first has left in the workspace, which nothing else
        // is given in between; the reserve's end waits for both.
        unsafe {
            match self.dnn.vendor() {
                Vendor::Amd => {
                    calls.rnn_back_amd(
                        handle, rnn, y, at_y, dy, s, hx, dhy, dhx, s, cx, dcy, dcx, x, dx, w, w_bytes, work, bytes,
                        kept, kept_bytes,
                    )?;
                    let Some(dw) = dw else { return Ok(()) };
                    calls.rnn_weights_amd(
                        handle, rnn, x, at_x, s, hx, y, at_y, dw, w_bytes, work, bytes, kept, kept_bytes,
                    )
                }
                Vendor::Nvidia => {
                    calls.rnn_back_nvidia(
                        handle, rnn, 0, y, at_y, dy, x, dx, s, hx, dhy, dhx, s, cx, dcy, dcx, w_bytes, w, bytes, work,
                        kept_bytes, kept,
                    )?;
                    let Some(dw) = dw else { return Ok(()) };
                    let add = WeightGradient::Add.number(Vendor::Nvidia);
                    calls.rnn_weights_nvidia(
                        handle, rnn, add, 0, x, at_x, s, hx, y, at_y, w_bytes, dw, bytes, work, kept_bytes, kept,
                    )
                }
            }
        }
    }

    /// Bytes of workspace and of what is kept for the gradients.
    #[track_caller]
    fn bytes(&self, pass: RnnPass) -> Result<(usize, usize)> {
        let (calls, handle, rnn) = (self.dnn.calls(), self.dnn.handle(), self.rnn.handle());
        let (x, pass, mut work, mut kept) = (self.x.handle(), pass.number(self.dnn.vendor()), 0, 0);
        // SAFETY: live descriptors and valid out pointers.
        unsafe {
            match self.dnn.vendor() {
                Vendor::Amd => calls.rnn_bytes_amd(handle, rnn, x, pass, &mut work, &mut kept),
                Vendor::Nvidia => calls.rnn_bytes_nvidia(handle, rnn, pass, x, &mut work, &mut kept),
            }
        }?;
        Ok((work, kept))
    }

    #[track_caller]
    fn weights_at(&self, weights: &Slice<'_, T>) -> Result<Address> {
        self.input("the weights", weights, self.weights())
    }

    #[track_caller]
    fn input(&self, what: &str, slice: &Slice<'_, T>, len: usize) -> Result<Address> {
        due(what, slice.len(), len)?;
        Ok(self.dnn.binding().input(slice)?)
    }

    #[track_caller]
    fn target(&self, what: &str, slice: &SliceMut<'_, T>, len: usize) -> Result<Address> {
        due(what, slice.len(), len)?;
        Ok(self.dnn.binding().output(slice)?)
    }

    #[track_caller]
    fn state(&self, state: Option<RnnState<'_, T>>) -> Result<StateAt> {
        let Some(RnnState { hidden, cell }) = state else { return Ok((0, 0)) };
        self.has_cells(cell.is_some())?;
        let cell = cell.map_or(Ok(0), |cell| self.input("the cells", &cell, self.states()))?;
        Ok((self.input("the states", &hidden, self.states())?, cell))
    }

    #[track_caller]
    fn state_mut(&self, state: Option<&RnnStateMut<'_, T>>) -> Result<StateAt> {
        let Some(RnnStateMut { hidden, cell }) = state else { return Ok((0, 0)) };
        self.has_cells(cell.is_some())?;
        let cell = cell.as_ref().map_or(Ok(0), |cell| self.target("the cells", cell, self.states()))?;
        Ok((self.target("the states", hidden, self.states())?, cell))
    }

    #[track_caller]
    fn has_cells(&self, is_given: bool) -> Result<()> {
        let cell = self.options.cell;
        let words = if is_given { "cells are given" } else { "no cells are given" };
        ensure(CALL, is_given == (cell == RnnCell::Lstm), || format!("{words} for a state of {cell:?}"))
    }
}

#[track_caller]
fn due(what: &str, found: usize, due: usize) -> Result<()> {
    ensure(CALL, found == due, || format!("{what}: {found} elements where {due} are due"))
}

/// The network's descriptor, and cuDNN's of a dropout that drops nothing.
#[track_caller]
fn describe(dnn: &Dnn, options: RnnOptions, number: DataType) -> Result<(Descriptor, Option<Descriptor>)> {
    let rnn = Descriptor::make(dnn, Calls::rnn_create, Calls::rnn_destroy)?;
    let (calls, vendor, handle) = (dnn.calls(), dnn.vendor(), rnn.handle());
    let (hidden, layers) = (int(CALL, "the state", options.hidden)?, int(CALL, "layers", options.layers)?);
    let input = int(CALL, "the input", options.input)?;
    let (linear, algorithm) = (RnnInput::Linear.number(vendor), RnnAlgorithm::Default.number(vendor));
    let (direction, cell) = (options.direction.number(vendor), options.cell.number(vendor));
    let (bias, data, padded) = (options.bias.number(vendor), number.number(vendor), RnnPadding::Padded.number(vendor));
    if vendor == Vendor::Amd {
        // SAFETY: a live descriptor.
        unsafe {
            calls.rnn_set_amd(handle, hidden, layers, linear, direction, cell, bias, algorithm, data)?;
            calls.rnn_padding(handle, padded)?;
        }
        return Ok((rnn, None));
    }
    let dropout = Descriptor::make(dnn, Calls::dropout_create, Calls::dropout_destroy)?;
    // f32 stays f32, as for convolutions.
    let math = if number == DataType::F32 { MathType::Fma } else { MathType::Default }.number(vendor);
    let (sum, none) = (DataType::F32.number(vendor), dropout.handle());
    // SAFETY: live descriptors; a dropout of nothing needs no states.
    unsafe {
        calls.dropout_set_nvidia(none, dnn.handle(), 0.0, 0, 0, 0)?;
        calls.rnn_set_nvidia(
            handle,
            algorithm,
            cell,
            bias,
            direction,
            linear,
            data,
            sum,
            math,
            input,
            hidden,
            hidden,
            layers,
            none,
            padded as u32,
        )?;
    }
    Ok((rnn, Some(dropout)))
}

/// Sequences of `[steps, batch, size]`.
#[track_caller]
fn sequence(dnn: &Dnn, number: DataType, shape: [usize; 3], lengths: &[Int]) -> Result<Descriptor> {
    let made = Descriptor::make(dnn, Calls::sequence_create, Calls::sequence_destroy)?;
    let (vendor, handle): (Vendor, Handle) = (dnn.vendor(), made.handle());
    let [steps, batch, size] = shape.map(|n| int(CALL, "a length", n));
    let (steps, batch, size) = (steps?, batch?, size?);
    let (number, layout) = (number.number(vendor), RnnLayout::StepsFirst.number(vendor));
    // A zero of any type, in which both libraries fill the ends of shorter sequences.
    let mut zero = 0u64;
    let padding = std::ptr::from_mut(&mut zero).cast();
    // SAFETY: a live descriptor; a length for each sequence and a zero, which the libraries copy.
    unsafe {
        dnn.calls().sequence_set(handle, number, layout, steps, batch, size, lengths.as_ptr(), padding)?;
    }
    Ok(made)
}
