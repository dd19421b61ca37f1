//! AMD code objects: ELF files with one symbol per kernel descriptor.
//!
//! `CodeObject` reads a file and lays its segments out as the loader would, for tests that run kernels with no HIP
//! runtime. `name_in_memory` finds a kernel's name from what AMD's loader left in device memory.

use crate::error::Error;
use crate::kernel::Descriptor;
use crate::memory::Memory;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    pub name: String,
    pub address: u64,
    pub n_bytes: u64,
}

#[derive(Debug, Clone)]
pub struct CodeObject {
    /// Loaded image; offset 0 is virtual address 0.
    pub image: Vec<u8>,
    pub symbols: Vec<Symbol>,
}

fn number(bytes: &[u8], at: u64, n: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let part = bytes.get(at..at.checked_add(n)?)?;
    Some(part.iter().rev().fold(0, |acc, b| acc << 8 | *b as u64))
}

/// No code object of one module comes near this; a lying header must not make us allocate.
const MAX_IMAGE: u64 = 1 << 30;

impl CodeObject {
    pub fn parse(file: &[u8]) -> Result<Self, Error> {
        let bad = |what: &str| Error::CodeObject(what.to_string());
        if file.get(..5) != Some(b"\x7fELF\x02") || number(file, 18, 2) != Some(224) {
            return Err(bad("no 64-bit ELF file for AMD GPUs"));
        }
        let cut = || bad("a header points past the end of the file");
        let (phoff, phsize, n_ph) = (
            number(file, 32, 8).ok_or_else(cut)?,
            number(file, 54, 2).ok_or_else(cut)?,
            number(file, 56, 2).ok_or_else(cut)?,
        );
        let mut image = Vec::new();
        for n in 0..n_ph {
            let at = phoff + n * phsize;
            let field = |offset: u64, n: usize| number(file, at + offset, n).ok_or_else(cut);
            const PT_LOAD: u64 = 1;
            if field(0, 4)? != PT_LOAD {
                continue;
            }
            let (offset, vaddr, n_file, n_mem) = (field(8, 8)?, field(16, 8)?, field(32, 8)?, field(40, 8)?);
            let end = vaddr.checked_add(n_mem).filter(|e| *e < MAX_IMAGE && n_file <= n_mem).ok_or_else(cut)?;
            let from = usize::try_from(offset)
                .ok()
                .and_then(|o| file.get(o..o.checked_add(n_file as usize)?))
                .ok_or_else(cut)?;
            if image.len() < end as usize {
                image.resize(end as usize, 0);
            }
            image[vaddr as usize..(vaddr + n_file) as usize].copy_from_slice(from);
        }
        let symbols = dynamic_symbols(&image, 0).ok_or_else(|| bad("no dynamic symbols"))?;
        Ok(CodeObject { image, symbols })
    }

    /// Kernel names and the image offsets of their descriptors.
    pub fn kernels(&self) -> Vec<(String, u64)> {
        let kd = |s: &Symbol| Some((s.name.strip_suffix(".kd")?.to_string(), s.address));
        self.symbols.iter().filter_map(kd).collect()
    }

    pub fn kernel(&self, name: &str) -> Result<u64, Error> {
        self.kernels().into_iter().find(|(n, _)| n == name).map(|(_, at)| at).ok_or_else(|| Error::NoKernel {
            name: name.to_string(),
            found: self.kernels().into_iter().map(|(n, _)| n).collect::<Vec<_>>().join(", "),
        })
    }

    pub fn descriptor(&self, name: &str) -> Result<Descriptor, Error> {
        let at = self.kernel(name)? as usize;
        let bytes = self.image.get(at..at + Descriptor::BYTES);
        bytes.and_then(Descriptor::parse).ok_or_else(|| Error::CodeObject(format!("{name}.kd lies outside the image")))
    }
}

/// Symbols through the dynamic section, which loaders keep in memory. `base` is the image's load address.
fn dynamic_symbols(image: &[u8], base: u64) -> Option<Vec<Symbol>> {
    const PT_DYNAMIC: u64 = 2;
    let (phoff, phsize, n_ph) = (number(image, 32, 8)?, number(image, 54, 2)?, number(image, 56, 2)?);
    let dynamic = (0..n_ph).map(|n| phoff + n * phsize).find(|at| number(image, *at, 4) == Some(PT_DYNAMIC))?;
    let mut at = number(image, dynamic + 16, 8)?;
    let (mut symtab, mut strtab, mut hash) = (None, None, None);
    loop {
        let (tag, value) = (number(image, at, 8)?, number(image, at + 8, 8)?);
        // A loader may have rewritten these to absolute addresses.
        let value = if value >= base && base != 0 { value - base } else { value };
        match tag {
            0 => break,
            4 => hash = Some(value),
            5 => strtab = Some(value),
            6 => symtab = Some(value),
            _ => {}
        }
        at += 16;
    }
    let (symtab, strtab) = (symtab?, strtab?);
    let n_symbols = match hash {
        Some(hash) => number(image, hash + 4, 4)?,
        None => strtab.checked_sub(symtab)? / 24,
    };
    let symbol = |n: u64| {
        let at = symtab + 24 * n;
        let name_at = usize::try_from(strtab + number(image, at, 4)?).ok()?;
        let name = image.get(name_at..)?.split(|b| *b == 0).next()?;
        Some(Symbol {
            name: String::from_utf8_lossy(name).into_owned(),
            address: number(image, at + 8, 8)?,
            n_bytes: number(image, at + 16, 8)?,
        })
    };
    Some((1..n_symbols.min(1 << 20)).filter_map(symbol).collect())
}

/// The name of the kernel whose descriptor lies at `descriptor_at`, from the ELF image around it.
pub fn name_in_memory(memory: &Memory, descriptor_at: u64) -> Option<String> {
    const PAGE: u64 = 4096;
    let found = memory.find(descriptor_at, descriptor_at + 64)?;
    // The image starts on a page, or where the allocation does.
    let pages = (found.start / PAGE..=descriptor_at / PAGE).rev().map(|n| n * PAGE).filter(|at| *at >= found.start);
    let start = pages.chain([found.start]).find(|at| memory.read_bytes(*at, 4).as_deref() == Some(b"\x7fELF"))?;
    let image = memory.read_bytes(start, (found.start + found.n_bytes - start).min(16 << 20) as usize)?;
    let symbols = dynamic_symbols(&image, start)?;
    let kd = symbols.into_iter().find(|s| s.address == descriptor_at - start)?;
    Some(kd.name.trim_end_matches(".kd").to_string())
}
