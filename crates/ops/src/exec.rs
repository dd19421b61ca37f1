//! Where an op runs. An op never chooses: it is told, and it has a correct kernel for every place, or refuses.

use crate::{Error, Gpu, Numerics, Pool};

#[derive(Copy, Clone)]
pub enum Exec<'a> {
    Cpu(&'a Pool),
    Gpu(&'a Gpu<'a>),
}

impl<'a> Exec<'a> {
    pub fn numerics(self) -> Numerics {
        match self {
            Self::Cpu(pool) => pool.numerics(),
            Self::Gpu(gpu) => gpu.kernels.numerics(),
        }
    }

    /// For ops that only GPUs have.
    pub(crate) fn gpu_only(self, op: &'static str) -> Result<&'a Gpu<'a>, Error> {
        match self {
            Self::Gpu(gpu) => Ok(gpu),
            Self::Cpu(_) => Err(Error::Argument { op, what: "only on a GPU".into() }),
        }
    }

    /// For ops that have no kernel for GPUs yet. Models look at what they need before they load, so nobody meets this
    /// in a step.
    pub(crate) fn cpu_only(self, op: &'static str) -> Result<&'a Pool, Error> {
        match self {
            Self::Cpu(pool) => Ok(pool),
            Self::Gpu(_) => Err(Error::Argument { op, what: "not yet on a GPU".into() }),
        }
    }
}
