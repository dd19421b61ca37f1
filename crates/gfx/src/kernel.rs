//! A kernel as the hardware sees it: the 64-byte descriptor, and the program its entry leads to.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::{Cause, Error};
use crate::isa::Family;
use crate::memory::Memory;
use crate::program::Program;

/// The kernel descriptor (`<name>.kd`), by AMD's code-object documentation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub lds_bytes: u32,
    pub private_bytes: u32,
    pub kernarg_bytes: u32,
    pub entry_offset: i64,
    pub rsrc1: u32,
    pub rsrc2: u32,
    pub rsrc3: u32,
    pub properties: u16,
    pub kernarg_preload: u16,
}

/// Bits of `properties`.
const WAVE32: u16 = 1 << 10;

impl Descriptor {
    pub const BYTES: usize = 64;

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let u32_at = |o: usize| Some(u32::from_le_bytes(bytes.get(o..o + 4)?.try_into().ok()?));
        let u16_at = |o: usize| Some(u16::from_le_bytes(bytes.get(o..o + 2)?.try_into().ok()?));
        Some(Descriptor {
            lds_bytes: u32_at(0)?,
            private_bytes: u32_at(4)?,
            kernarg_bytes: u32_at(8)?,
            entry_offset: u32_at(16)? as i64 | (u32_at(20)? as i64) << 32,
            rsrc3: u32_at(44)?,
            rsrc1: u32_at(48)?,
            rsrc2: u32_at(52)?,
            properties: u16_at(56)?,
            kernarg_preload: u16_at(58)?,
        })
    }

    pub fn wave_lanes(&self, family: Family) -> u32 {
        if family.is_rdna() && self.properties & WAVE32 != 0 { 32 } else { 64 }
    }

    pub fn n_user_sgprs(&self) -> u32 {
        self.rsrc2 >> 1 & 31
    }

    /// Vector and accumulation registers per lane.
    pub fn n_vgprs(&self, family: Family) -> (u32, u32) {
        let granules = (self.rsrc1 & 63) + 1;
        match family {
            Family::Rdna3 | Family::Rdna4 if self.properties & WAVE32 != 0 => (granules * 8, 0),
            Family::Rdna3 | Family::Rdna4 => (granules * 4, 0),
            Family::Cdna3 => {
                let total = granules * 8;
                let vector = ((self.rsrc3 & 63) + 1) * 4;
                (vector.min(total), total.saturating_sub(vector))
            }
        }
    }
}

/// A kernel ready to run on waves of `N` lanes.
pub struct Kernel<const N: usize> {
    pub name: String,
    pub family: Family,
    pub descriptor: Descriptor,
    pub entry: u64,
    programs: RwLock<HashMap<u64, Arc<Program<N>>>>,
}

impl<const N: usize> Kernel<N> {
    /// Decodes from the entry on. Far calls are decoded when they happen.
    pub fn load(
        name: String,
        family: Family,
        descriptor: Descriptor,
        entry: u64,
        memory: &Memory,
    ) -> Result<Self, Error> {
        let program = Program::load(family, entry, memory)
            .map_err(|what| Error::Launch { kernel: name.clone(), what: what.to_string() })?;
        let programs = RwLock::new(HashMap::from([(entry, Arc::new(program))]));
        Ok(Kernel { name, family, descriptor, entry, programs })
    }

    pub fn main(&self) -> Arc<Program<N>> {
        let programs = self.programs.read().unwrap_or_else(PoisonError::into_inner);
        programs[&self.entry].clone()
    }

    /// The program and instruction at an address reached by an indirect jump.
    pub fn jump(&self, address: u64, memory: &Memory) -> Result<(Arc<Program<N>>, u32), Cause> {
        {
            let programs = self.programs.read().unwrap_or_else(PoisonError::into_inner);
            for program in programs.values() {
                if let Some(idx) = program.index(address) {
                    return Ok((program.clone(), idx));
                }
            }
        }
        let program = Arc::new(Program::load(self.family, address, memory)?);
        let mut programs = self.programs.write().unwrap_or_else(PoisonError::into_inner);
        programs.insert(address, program.clone());
        Ok((program, 0))
    }

    /// Whether memory still holds the code this was decoded from: another module may have taken its place.
    pub fn is_current(&self, memory: &Memory) -> bool {
        let programs = self.programs.read().unwrap_or_else(PoisonError::into_inner);
        programs.values().all(|p| p.is_current(memory))
    }
}
