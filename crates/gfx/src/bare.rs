//! A device with no runtime above it: code objects, buffers and launches straight on the emulator.
//!
//! For tests of the emulator itself and for looking at one kernel's counters. Device addresses are host addresses.

use std::sync::Arc;

use crate::chip::Chip;
use crate::code_object::CodeObject;
use crate::dispatch::{Launch, Options};
use crate::emulator::{Emulator, Report};
use crate::error::Error;
use crate::memory::{Memory, Origin};

pub struct Device {
    emulator: Emulator,
}

/// Memory that kernels of one device may touch; gone when dropped.
pub struct Buffer {
    words: Box<[u64]>,
    n_bytes: usize,
    memory: Arc<Memory>,
}

impl Buffer {
    pub fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The contents now. Kernels have ended whenever a caller can ask.
    pub fn bytes(&self) -> Vec<u8> {
        // Volatile: the emulator writes through addresses the compiler does not connect with this box.
        let word = |w: &u64| {
            // SAFETY: `w` is a live element of the box.
            unsafe { std::ptr::read_volatile(w) }.to_le_bytes()
        };
        let mut bytes: Vec<u8> = self.words.iter().flat_map(word).collect();
        bytes.truncate(self.n_bytes);
        bytes
    }

    pub fn f32s(&self) -> Vec<f32> {
        self.bytes().as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)).collect()
    }

    pub fn u32s(&self) -> Vec<u32> {
        self.bytes().as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.memory.release(self.address());
    }
}

/// A loaded code object.
pub struct Module {
    object: CodeObject,
    image: Buffer,
}

/// A kernel parameter.
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    Buffer(&'a Buffer),
    /// A raw device address.
    Address(u64),
    I32(i32),
    F32(f32),
}

impl Device {
    pub fn new(chip: &str, options: Options) -> Result<Self, Error> {
        Ok(Device { emulator: Emulator::new(Chip::find(chip)?, options)? })
    }

    fn place(&self, bytes: &[u8], n_bytes: usize, origin: Origin) -> Buffer {
        let mut words = vec![0u64; n_bytes.div_ceil(8).max(1)].into_boxed_slice();
        for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut full = [0; 8];
            full[..part.len()].copy_from_slice(part);
            *word = u64::from_le_bytes(full);
        }
        let memory = self.emulator.memory.clone();
        // SAFETY: the box lives as long as the buffer, whose drop releases the range before freeing it; launches
        // borrow the device and end before they return.
        unsafe { memory.insert(words.as_ptr() as u64, n_bytes as u64, origin) };
        Buffer { words, n_bytes, memory }
    }

    /// A buffer the host filled.
    pub fn upload(&self, bytes: &[u8]) -> Buffer {
        self.place(bytes, bytes.len(), Origin::Host)
    }

    pub fn upload_f32(&self, values: &[f32]) -> Buffer {
        self.upload(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn upload_u32(&self, values: &[u32]) -> Buffer {
        self.upload(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A buffer that nobody wrote yet.
    pub fn alloc(&self, n_bytes: usize) -> Buffer {
        self.place(&[], n_bytes, Origin::Device)
    }

    pub fn load(&self, file: &[u8]) -> Result<Module, Error> {
        Ok(self.load_object(CodeObject::parse(file)?))
    }

    /// Loads an object that was parsed (and perhaps changed) before.
    pub fn load_object(&self, object: CodeObject) -> Module {
        let image = self.upload(&object.image);
        Module { object, image }
    }

    /// Launches `groups` workgroups of `threads` and waits for the end.
    pub fn launch(
        &self,
        module: &Module,
        kernel: &str,
        groups: [u32; 3],
        threads: [u32; 3],
        args: &[Arg<'_>],
    ) -> Result<Report, Error> {
        let at = module.object.kernel(kernel)?;
        let descriptor = module.object.descriptor(kernel)?;
        let mut kernarg = Vec::new();
        let mut push = |bytes: &[u8]| {
            // Parameters are aligned to their size.
            kernarg.resize(kernarg.len().next_multiple_of(bytes.len()), 0);
            kernarg.extend_from_slice(bytes);
        };
        for arg in args {
            match arg {
                Arg::Buffer(b) => push(&b.address().to_le_bytes()),
                Arg::Address(a) => push(&a.to_le_bytes()),
                Arg::I32(v) => push(&v.to_le_bytes()),
                Arg::F32(v) => push(&v.to_le_bytes()),
            }
        }
        // Hidden parameters of code object version 5: workgroup counts, then workgroup sizes.
        kernarg.resize(kernarg.len().next_multiple_of(8), 0);
        groups.iter().for_each(|n| kernarg.extend_from_slice(&n.to_le_bytes()));
        threads.iter().for_each(|n| kernarg.extend_from_slice(&(*n as u16).to_le_bytes()));
        kernarg.resize(kernarg.len().max(descriptor.kernarg_bytes as usize).max(256), 0);
        let kernarg = self.upload(&kernarg);
        let packet = self.upload(&[0; 64]);
        let launch = Launch {
            grid: std::array::from_fn(|d| groups[d] * threads[d]),
            workgroup: threads,
            kernarg: kernarg.address(),
            packet: packet.address(),
            ..Launch::default()
        };
        let kernel = self.emulator.kernel(module.image.address() + at)?;
        self.emulator.dispatch(&kernel, launch)
    }
}
