//! Where an op runs. An op never chooses: it is told, and it has a correct kernel for every place.

use crate::{Gpu, Pool};

#[derive(Copy, Clone)]
pub enum Exec<'a> {
    Cpu(&'a Pool),
    Gpu(&'a Gpu<'a>),
}
