//! What can go wrong, shaped by what a reader of a failing test needs: the kernel, the instruction, the lane, the
//! address. A GPU that guesses is worse than none, so everything unknown ends here.

use crate::isa::DecodeError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("this CPU lacks AVX2 or FMA, which the emulator is built for")]
    Cpu,
    #[error("unknown chip `{0}`; known: {known}", known = crate::chip::known())]
    Chip(String),
    #[error("code object: {0}")]
    CodeObject(String),
    #[error("no kernel `{name}` in the code object; it has: {found}")]
    NoKernel { name: String, found: String },
    #[error("kernel `{kernel}` at +{offset:#x}: {source}")]
    Decode { kernel: String, offset: u64, source: DecodeError },
    #[error("kernel `{kernel}`: {what}")]
    Launch { kernel: String, what: String },
    #[error("kernel `{kernel}`: {fault}")]
    Fault { kernel: String, fault: Box<Fault> },
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
}

/// A wave stopped: where, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    /// Byte offset of the instruction from the kernel's entry.
    pub offset: i64,
    pub op: &'static str,
    pub words: Vec<u32>,
    pub workgroup: [u32; 3],
    pub wave: u32,
    pub cause: Cause,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [x, y, z] = self.workgroup;
        write!(f, "{} in {} at +{:#x} (", self.cause, self.op, self.offset)?;
        for (i, w) in self.words.iter().enumerate() {
            write!(f, "{}{w:08x}", if i > 0 { " " } else { "" })?;
        }
        write!(f, "), workgroup {x},{y},{z}, wave {}", self.wave)
    }
}

/// The reason itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    UnknownOpcode(String),
    Unsupported(String),
    Global { lane: u32, address: u64, n_bytes: u32, is_write: bool, nearest: String },
    Lds { lane: u32, address: u32, n_bytes: u32, is_write: bool, lds_bytes: u32 },
    Scratch { lane: u32, address: i64, n_bytes: u32, is_write: bool, scratch_bytes: u32 },
    Uninitialised { space: &'static str, lane: u32, address: u64, n_bytes: u32, nearest: String },
    LdsRace { lane: u32, address: u32, other: String, is_write: bool },
    Trap(u16),
    BarrierDivergence { waiting: u32, ended: u32 },
    Endless { n_instructions: u64 },
    BadJump(u64),
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verb = |w: &bool| if *w { "write" } else { "read" };
        match self {
            Cause::UnknownOpcode(why) => write!(f, "unknown instruction: {why}"),
            Cause::Unsupported(what) => write!(f, "not emulated: {what}"),
            Cause::Global { lane, address, n_bytes, is_write, nearest } => write!(
                f,
                "memory access fault: {} of {n_bytes} bytes at {address:#x} by lane {lane}, outside every allocation; {nearest}",
                verb(is_write)
            ),
            Cause::Lds { lane, address, n_bytes, is_write, lds_bytes } => write!(
                f,
                "LDS {} of {n_bytes} bytes at {address:#x} by lane {lane}, the workgroup has {lds_bytes:#x}",
                verb(is_write)
            ),
            Cause::Scratch { lane, address, n_bytes, is_write, scratch_bytes } => write!(
                f,
                "scratch {} of {n_bytes} bytes at {address:#x} by lane {lane}, a lane has {scratch_bytes:#x}",
                verb(is_write)
            ),
            Cause::Uninitialised { space, lane, address, n_bytes, nearest } => {
                write!(f, "read of {n_bytes} bytes of {space} nobody wrote at {address:#x} by lane {lane}; {nearest}")
            }
            Cause::LdsRace { lane, address, other, is_write } => {
                write!(f, "LDS race: {} at {address:#x} by lane {lane} with no barrier since {other}", verb(is_write))
            }
            Cause::Trap(id) => write!(f, "the kernel trapped (s_trap {id})"),
            Cause::BarrierDivergence { waiting, ended } => {
                write!(f, "{waiting} waves wait at a barrier that {ended} ended waves will never reach")
            }
            Cause::Endless { n_instructions } => write!(f, "no end after {n_instructions} instructions of one wave"),
            Cause::BadJump(pc) => write!(f, "jump to {pc:#x}, which is no code"),
        }
    }
}
