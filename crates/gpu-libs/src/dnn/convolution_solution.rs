//! What a library offers for a pass of a convolution.

use std::rc::Rc;

use super::descriptor::Descriptor;
use super::{Int, Pass};

/// One way to compute one pass of one convolution.
#[derive(Clone)]
pub struct ConvolutionSolution {
    /// The convolution that it was listed for: its workspace is right for those shapes alone.
    pub(super) owner: Rc<()>,
    pub(super) pass: Pass,
    /// Memory it works in.
    pub workspace_bytes: usize,
    /// Milliseconds, where the library has measured or estimated them.
    pub ms: Option<f32>,
    pub(super) method: Method,
}

impl std::fmt::Debug for ConvolutionSolution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match &self.method {
            Method::Immediate(id) => format!("solution {id}"),
            Method::Found(_) => "a measured solution".to_owned(),
            Method::Algorithm { number, .. } => format!("algorithm {number}"),
        };
        write!(f, "{:?}: {name}, {} bytes, {:?} ms", self.pass, self.workspace_bytes, self.ms)
    }
}

#[derive(Clone)]
pub(super) enum Method {
    /// A solution of MIOpen's immediate mode.
    Immediate(u64),
    /// An object that MIOpen's measurement made.
    Found(Rc<Descriptor>),
    /// One of cuDNN's algorithms, with the arithmetic it was listed for.
    Algorithm { number: Int, math: Int },
}
