//! What the left side of a product is on a GPU; `cpu/left.rs` has the CPU's.

use crate::{Activation, View};

/// What the left side of a product is made from, where nothing else reads it.
#[derive(Copy, Clone)]
pub(crate) enum DeviceLeft<'a> {
    Rows(View<'a>),
    Norm {
        x: View<'a>,
        weight: View<'a>,
        eps: f32,
    },
    /// Never with [`Activation::Xielu`], which takes no gate.
    Gated {
        activation: Activation,
        gate: View<'a>,
        up: View<'a>,
    },
}

impl DeviceLeft<'_> {
    pub(crate) fn shape(&self) -> [usize; 2] {
        match self {
            DeviceLeft::Rows(x) | DeviceLeft::Norm { x, .. } | DeviceLeft::Gated { gate: x, .. } => x.shape,
        }
    }
}
