//! Memory for what a library needs while it computes. What a queue runs runs in order, so a handle needs one.

use std::cell::RefCell;

use gpu::Buffer;
use gpu::foreign::{Address, Binding};

use crate::error::{Error, Result};

pub(crate) struct Workspace {
    buffer: RefCell<Buffer<u8>>,
    /// It came from the caller and never grows.
    is_fixed: bool,
}

impl Workspace {
    /// One that grows with what is asked of it.
    #[track_caller]
    pub fn growing(binding: &Binding) -> Result<Self> {
        Ok(Self { buffer: RefCell::new(binding.alloc(0)?), is_fixed: false })
    }

    /// The caller's.
    #[track_caller]
    pub fn fixed(binding: &Binding, buffer: Buffer<u8>) -> Result<Self> {
        binding.input(&buffer.all())?;
        Ok(Self { buffer: RefCell::new(buffer), is_fixed: true })
    }

    /// The most bytes an operation may work in, if there is a limit.
    pub fn limit(&self) -> Option<usize> {
        self.is_fixed.then(|| self.buffer.borrow().len())
    }

    /// At least `bytes` of memory, valid for what is enqueued before the next call of this.
    #[track_caller]
    pub fn at_least(&self, binding: &Binding, call: &'static str, bytes: usize) -> Result<Address> {
        let mut buffer = self.buffer.borrow_mut();
        if buffer.len() < bytes {
            if self.is_fixed {
                let len = buffer.len();
                return Err(Error::shape(call, format!("needs a workspace of {bytes} bytes, was given {len}")));
            }
            // The old one's end waits for what uses it.
            *buffer = binding.alloc(bytes)?;
        }
        Ok(binding.input(&buffer.all())?)
    }
}
