//! What a recurrent network is made of, and the names of its weights.

use std::ops::Range;

use gpu::Vendor;

use super::{RnnBias, RnnCell, RnnDirection};

/// What a recurrent network is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RnnOptions {
    pub cell: RnnCell,
    pub direction: RnnDirection,
    pub bias: RnnBias,
    /// Numbers of each step of the input.
    pub input: usize,
    /// Numbers of the state of each layer and direction.
    pub hidden: usize,
    pub layers: usize,
}

impl RnnOptions {
    /// One layer, one way, with biases.
    pub fn new(cell: RnnCell, input: usize, hidden: usize) -> Self {
        Self { cell, direction: RnnDirection::OneWay, bias: RnnBias::Two, input, hidden, layers: 1 }
    }

    pub(super) fn directions(&self) -> usize {
        if self.direction == RnnDirection::BothWays { 2 } else { 1 }
    }

    /// Numbers of each step of the output.
    pub fn output(&self) -> usize {
        self.hidden * self.directions()
    }

    pub(super) fn gates(&self) -> usize {
        match self.cell {
            RnnCell::Relu | RnnCell::Tanh => 1,
            RnnCell::Lstm => 4,
            RnnCell::Gru => 3,
        }
    }
}

/// Which of a cell's sums a weight belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RnnGate {
    /// What is new: the only one of plain networks, tanh's argument in the others.
    Cell,
    /// How much of what is new is taken (LSTM).
    Input,
    /// How much is kept (LSTM).
    Forget,
    /// How much is shown (LSTM).
    Output,
    /// How much of the old state what is new sees (GRU).
    Reset,
    /// How much is kept (GRU).
    Update,
}

impl RnnGate {
    /// Its place among the gates of a cell, if it has such a gate.
    pub(super) fn index(self, vendor: Vendor, cell: RnnCell) -> Option<usize> {
        let place = |amd, nvidia| Some(vendor.pick(amd, nvidia));
        match (cell, self) {
            (RnnCell::Relu | RnnCell::Tanh, RnnGate::Cell) => Some(0),
            (RnnCell::Lstm, RnnGate::Input) => Some(0),
            (RnnCell::Lstm, RnnGate::Forget) => Some(1),
            (RnnCell::Lstm, RnnGate::Output) => place(2, 3),
            (RnnCell::Lstm, RnnGate::Cell) => place(3, 2),
            (RnnCell::Gru, RnnGate::Update) => place(0, 1),
            (RnnCell::Gru, RnnGate::Reset) => place(1, 0),
            (RnnCell::Gru, RnnGate::Cell) => Some(2),
            _ => None,
        }
    }
}

/// What a weight is multiplied with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RnnSource {
    /// The input, or the layer below.
    Input,
    /// The state of the step before.
    Hidden,
}

/// The direction that a weight belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RnnWay {
    Forwards,
    Backwards,
}

/// Where one matrix and its bias lie in the array of all weights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RnnPart {
    /// Row after row.
    pub matrix: Range<usize>,
    /// As many as the state has numbers.
    pub rows: usize,
    pub columns: usize,
    pub bias: Option<Range<usize>>,
}
