//! Recurrent networks: results, last states and all gradients.

use gpu::{Buffer, Queue};
use gpu_libs::Result;
use gpu_libs::dnn::{
    Dnn, Rnn, RnnBias, RnnCell, RnnDirection, RnnGate, RnnGradients, RnnOptions, RnnOutputGradients, RnnSource,
    RnnState, RnnStateMut, RnnTensors, RnnWay,
};
use half::f16;

use super::super::{on_each, read, refused, upload};
use super::{Case, From32};

/// PyTorch's order of a cell's gates.
fn gates(cell: RnnCell) -> &'static [RnnGate] {
    match cell {
        RnnCell::Relu | RnnCell::Tanh => &[RnnGate::Cell],
        RnnCell::Lstm => &[RnnGate::Input, RnnGate::Forget, RnnGate::Cell, RnnGate::Output],
        RnnCell::Gru => &[RnnGate::Reset, RnnGate::Update, RnnGate::Cell],
    }
}

/// A golden network on a device.
struct Network<'a, T: From32> {
    case: Case,
    queue: &'a Queue,
    options: RnnOptions,
    rnn: Rnn<T>,
}

impl<'a, T: From32> Network<'a, T> {
    fn new(queue: &'a Queue, name: &str, cell: RnnCell) -> Result<Self> {
        let case = Case::named(name);
        let both = case.number("directions") == 2;
        let options = RnnOptions {
            layers: case.number("layers"),
            direction: if both { RnnDirection::BothWays } else { RnnDirection::OneWay },
            ..RnnOptions::new(cell, case.number("input"), case.number("hidden"))
        };
        let rnn = Rnn::<T>::new(&Dnn::new(queue)?, options, &case.numbers("lengths"))?;
        Ok(Self { case, queue, options, rnn })
    }

    /// Goes through PyTorch's arrays of all gates of a layer, one way, from one source: `each` is given where a gate's
    /// rows lie in ours and in PyTorch's matrix, and the same for the bias.
    fn parts(&self, mut each: impl FnMut(&str, std::ops::Range<usize>, usize)) -> Result<()> {
        for layer in 0..self.options.layers {
            for way in [RnnWay::Forwards, RnnWay::Backwards].into_iter().take(self.case.number("directions")) {
                for (source, letters) in [(RnnSource::Input, "ih"), (RnnSource::Hidden, "hh")] {
                    let suffix = if way == RnnWay::Forwards { "" } else { "_reverse" };
                    for (i, gate) in gates(self.options.cell).iter().enumerate() {
                        let part = self.rnn.part(layer, way, *gate, source)?;
                        let elements = part.rows * part.columns;
                        each(&format!("weight_{letters}_l{layer}{suffix}"), part.matrix, i * elements);
                        let bias = part.bias.expect("a network with biases");
                        each(&format!("bias_{letters}_l{layer}{suffix}"), bias, i * part.rows);
                    }
                }
            }
        }
        Ok(())
    }

    /// All of PyTorch's arrays of this prefix in our order.
    fn weights(&self, prefix: &str) -> Result<Vec<f64>> {
        let mut all = vec![0.0; self.rnn.weights()];
        self.parts(|name, ours, from| {
            let theirs = self.case.tensor(&format!("{prefix}{name}")).data;
            all[ours.clone()].copy_from_slice(&theirs[from..from + ours.len()]);
        })?;
        Ok(all)
    }

    fn state(&self, hidden: &str, cell: &str) -> [Option<Buffer<T>>; 2] {
        let is_lstm = self.options.cell == RnnCell::Lstm;
        let upload = |key: &str| self.case.tensor(key).upload::<T>(self.queue);
        [Some(upload(hidden)), is_lstm.then(|| upload(cell))]
    }

    fn room(&self) -> [Option<Buffer<T>>; 2] {
        let is_lstm = self.options.cell == RnnCell::Lstm;
        [Some(self.case.tensor("h").room(self.queue)), is_lstm.then(|| self.case.tensor("h").room(self.queue))]
    }

    fn check(&self, bound: f64) -> Result<()> {
        let (case, queue) = (&self.case, self.queue);
        let narrow = |values: &[f64]| values.iter().map(|x| T::from_f32(*x as f32)).collect::<Vec<T>>();
        let weights = upload(queue, &narrow(&self.weights("")?));
        let (x, mut y) = (case.tensor("x").upload::<T>(queue), case.tensor("y").room::<T>(queue));
        let (before, mut last) = (self.state("h", "c"), self.room());
        self.rnn.forward(weights.all(), x.all(), Some(read_only(&before)), y.all_mut(), Some(writable(&mut last)))?;
        case.tensor("y").check(queue, &y, bound);
        self.check_states(&last, ["hy", "cy"], bound);

        let (mut y, mut last) = (case.tensor("y").room::<T>(queue), self.room());
        let initial = Some(read_only(&before));
        let saved =
            self.rnn.forward_training(weights.all(), x.all(), initial, y.all_mut(), Some(writable(&mut last)))?;
        case.tensor("y").check(queue, &y, bound);
        self.check_states(&last, ["hy", "cy"], bound);

        let (dy, after) = (case.tensor("dy").upload::<T>(queue), self.state("dhy", "dcy"));
        let (mut dx, mut before_gradient) = (case.tensor("x").room::<T>(queue), self.room());
        // Something, which the gradient replaces.
        let mut dw = upload(queue, &vec![T::from_f32(77.0); self.rnn.weights()]);
        let from = RnnOutputGradients { y: dy.all(), last: Some(read_only(&after)) };
        let initial_gradient = Some(writable(&mut before_gradient));
        let to = RnnGradients { x: dx.all_mut(), initial: initial_gradient, weights: Some(dw.all_mut()) };
        let tensors = RnnTensors { x: x.all(), initial, y: y.all() };
        self.rnn.backward(saved, weights.all(), tensors, from, to)?;
        case.tensor("dx").check(queue, &dx, 4.0 * bound);
        self.check_states(&before_gradient, ["dh", "dc"], 4.0 * bound);
        let found: Vec<f32> = read(queue, dw.all()).into_iter().map(T::to_f32).collect();
        super::super::close(&found, &self.weights("d")?, 8.0 * bound);
        Ok(())
    }

    #[track_caller]
    fn check_states(&self, found: &[Option<Buffer<T>>; 2], keys: [&str; 2], bound: f64) {
        for (found, key) in found.iter().zip(keys) {
            if let Some(found) = found {
                self.case.tensor(key).check(self.queue, found, bound);
            }
        }
    }
}

fn read_only<T: From32>([hidden, cell]: &[Option<Buffer<T>>; 2]) -> RnnState<'_, T> {
    RnnState { hidden: hidden.as_ref().unwrap().all(), cell: cell.as_ref().map(Buffer::all) }
}

fn writable<T: From32>([hidden, cell]: &mut [Option<Buffer<T>>; 2]) -> RnnStateMut<'_, T> {
    RnnStateMut { hidden: hidden.as_mut().unwrap().all_mut(), cell: cell.as_mut().map(Buffer::all_mut) }
}

fn check<T: From32>(name: &str, cell: RnnCell, bound: f64) {
    on_each(|queue| Network::<T>::new(queue, name, cell)?.check(bound));
}

#[test]
fn plain_networks() {
    check::<f32>("rnn_relu", RnnCell::Relu, 2e-6);
    check::<f32>("rnn_tanh", RnnCell::Tanh, 2e-6);
}

#[test]
fn lstm() {
    check::<f32>("lstm", RnnCell::Lstm, 2e-6);
}

#[test]
fn lstm_in_half_precision() {
    on_each(|queue| Network::<f16>::new(queue, "lstm", RnnCell::Lstm)?.check(2e-3));
}

#[test]
fn lstm_of_two_layers_both_ways() {
    check::<f32>("lstm_deep", RnnCell::Lstm, 2e-6);
}

#[test]
fn lstm_of_unequal_sequences() {
    check::<f32>("lstm_unequal", RnnCell::Lstm, 2e-6);
}

#[test]
fn gru() {
    check::<f32>("gru", RnnCell::Gru, 2e-6);
}

#[test]
fn gru_of_two_layers_both_ways() {
    check::<f32>("gru_deep", RnnCell::Gru, 2e-6);
}

#[test]
fn recurrent_misuse() {
    on_each(|queue| {
        let dnn = Dnn::new(queue)?;
        let options = RnnOptions { bias: RnnBias::None, ..RnnOptions::new(RnnCell::Gru, 3, 4) };
        refused(Rnn::<f32>::new(&dnn, options, &[]), "sequences of []");
        refused(Rnn::<f32>::new(&dnn, options, &[2, 0]), "sequences of [2, 0]");
        refused(Rnn::<f32>::new(&dnn, RnnOptions { layers: 0, ..options }, &[2]), "has nothing in it");
        let rnn = Rnn::<f32>::new(&dnn, options, &[2, 2])?;
        refused(rnn.part(1, RnnWay::Forwards, RnnGate::Reset, RnnSource::Input), "layer 1");
        refused(rnn.part(0, RnnWay::Backwards, RnnGate::Reset, RnnSource::Input), "Backwards");
        refused(rnn.part(0, RnnWay::Forwards, RnnGate::Forget, RnnSource::Input), "Gru has no gate Forget");
        assert_eq!(rnn.part(0, RnnWay::Forwards, RnnGate::Reset, RnnSource::Input)?.bias, None);
        let weights = queue.alloc_zeroed::<f32>(rnn.weights())?;
        let (x, mut y, h) = (queue.alloc_zeroed(12)?, queue.alloc_zeroed(16)?, queue.alloc_zeroed(8)?);
        refused(rnn.forward(weights.all(), h.all(), None, y.all_mut(), None), "x: 8 elements where 12 are due");
        let state = RnnState { hidden: h.all(), cell: Some(h.all()) };
        refused(rnn.forward(weights.all(), x.all(), Some(state), y.all_mut(), None), "cells are given");
        let other = Queue::new(queue.device())?;
        let foreign = other.alloc_zeroed::<f32>(12)?;
        refused(rnn.forward(weights.all(), foreign.all(), None, y.all_mut(), None), "belongs to queue");
        Ok(())
    });
}
