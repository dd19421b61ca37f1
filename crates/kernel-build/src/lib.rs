//! Compiles a file of kernels (see `roci-kernel`) for AMD and NVIDIA chips, with the toolchain that builds the crate.
//!
//! A build script says
//!
//! ```no_run
//! fn main() -> Result<(), kernel_build::Error> {
//!     kernel_build::Build::new("src/kernels.rs").amd(["gfx11-generic"]).nvidia(["sm_70"]).in_build_script()
//! }
//! ```
//!
//! and the crate `static OBJECTS: kernel::Objects = kernel::objects!("kernels");`. Of the toolchain it needs the component
//! rust-src. Nightly is not needed: the compiler's unstable flags are allowed for these child processes alone. A published
//! crate ships what `roci-kernel-build FILE --out FOLDER` wrote, so that its users need neither this crate nor rust-src.
//!
//! How: `core` is compiled once per vendor with every function left to the crates that call it, so one `core` fits all
//! chips; then `roci-kernel`'s device side and the kernels, once per chip. AMD: rust-lld links and optimizes them together
//! with a little bitcode. NVIDIA: the assembly is the PTX.
#![forbid(unsafe_code)]

mod rustc;
mod target;

use std::path::{Path, PathBuf};
use std::{env, fs};

use rustc::Rustc;
pub use target::{Target, UnknownChip};

/// What can go wrong, each with what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("`core` has no source in this toolchain\nhint: rustup component add rust-src")]
    NoCore,
    #[error("the compiler failed for {chip}:\n{stderr}")]
    Compiler { chip: String, stderr: String },
    #[error("cannot run the compiler `{rustc}`: {source}")]
    NoCompiler { rustc: String, source: std::io::Error },
    #[error(transparent)]
    Chip(#[from] UnknownChip),
    #[error("{0} is not set: this is for build scripts; elsewhere use `write`")]
    NotABuildScript(&'static str),
}

/// A file of kernels and the chips it is for.
pub struct Build {
    source: PathBuf,
    chips: Vec<String>,
    optimize: bool,
    launch_bounds: Option<(u32, u32)>,
}

impl Build {
    /// `source` is the root of the kernels, a file with `kernel::kernels!` in it.
    pub fn new(source: impl Into<PathBuf>) -> Self {
        Self { source: source.into(), chips: Vec::new(), optimize: true, launch_bounds: None }
    }

    /// AMD chips (`gfx1100`) or families of chips (`gfx11-generic`, from HIP 6 on).
    #[must_use]
    pub fn amd<S: Into<String>>(mut self, chips: impl IntoIterator<Item = S>) -> Self {
        self.chips.extend(chips.into_iter().map(Into::into));
        self
    }

    /// NVIDIA chips (`sm_70`). PTX for one runs on all after it.
    #[must_use]
    pub fn nvidia<S: Into<String>>(self, chips: impl IntoIterator<Item = S>) -> Self {
        self.amd(chips)
    }

    /// Keep assertions, overflow checks and line tables, at opt-level 1.
    #[must_use]
    pub fn debug(mut self) -> Self {
        self.optimize = false;
        self
    }

    /// NVIDIA: no kernel is launched with more than `threads` threads a block, and `blocks` of these are to fit a
    /// multiprocessor at once, which bounds their registers. AMD's compiler decides by itself.
    #[must_use]
    pub fn launch_bounds(mut self, threads: u32, blocks: u32) -> Self {
        self.launch_bounds = Some((threads, blocks));
        self
    }

    /// Compile into cargo's OUT_DIR, where `kernel::objects!` finds it.
    pub fn in_build_script(&self) -> Result<(), Error> {
        let out = env::var_os("OUT_DIR").ok_or(Error::NotABuildScript("OUT_DIR"))?;
        println!("cargo::rerun-if-changed={}", self.source.parent().unwrap_or(&self.source).display());
        let out = PathBuf::from(out);
        self.write(&out.join(self.name()), &out.join("gpu-core"))
    }

    /// Compile into `folder`: an object for each chip, and `objects.rs`, which names them. `scratch` holds `core`, compiled
    /// once for several calls.
    pub fn write(&self, folder: &Path, scratch: &Path) -> Result<(), Error> {
        let mut rustc = Rustc::new(scratch, self.optimize)?;
        rustc.launch_bounds = self.launch_bounds;
        create(folder)?;
        let mut list = String::new();
        for chip in &self.chips {
            let target: Target = chip.parse()?;
            let file = format!("{chip}.{}.deflate", target.extension());
            let code = rustc.kernels(target, chip, &self.source)?;
            write(&folder.join(&file), &miniz_oxide::deflate::compress_to_vec(&code, DEFLATE_LEVEL))?;
            list += &format!("    ::kernel::Object {{ chip: \"{chip}\", code: include_bytes!(\"{file}\") }},\n");
        }
        let objects = format!("::kernel::Objects {{ name: \"{}\", all: &[\n{list}] }}\n", self.name());
        write(&folder.join("objects.rs"), objects.as_bytes())?;
        write(&folder.join("fingerprint"), format!("{:016x}\n", self.fingerprint()?).as_bytes())
    }

    /// A number for the text that the objects are made from: the source, the files of the folder with its name, and
    /// `roci-kernel`'s device side. `write` keeps it beside the objects, so that a test can say when they are stale.
    pub fn fingerprint(&self) -> Result<u64, Error> {
        let mut files = vec![self.source.clone()];
        let folder = self.source.with_extension("");
        if folder.is_dir() {
            let listed = fs::read_dir(&folder).map_err(|source| Error::Io { action: "list", path: folder, source })?;
            files.extend(
                listed.flatten().map(|entry| entry.path()).filter(|path| path.extension() == Some("rs".as_ref())),
            );
            files[1..].sort();
        }
        let mut hash = Fnv::default();
        for path in files {
            hash.write(&fs::read(&path).map_err(|source| Error::Io { action: "read", path, source })?);
        }
        for (_, text) in kernel::DEVICE_SOURCES {
            hash.write(text.as_bytes());
        }
        hash.write(kernel::AMD_BITCODE);
        Ok(hash.0)
    }

    fn name(&self) -> String {
        self.source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// FNV-1a: the same number in every build and on every machine, which the standard library's hashers do not promise.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Unrolled loops repeat themselves: objects get to a quarter of their size.
const DEFLATE_LEVEL: u8 = 9;

fn write(path: &Path, contents: &[u8]) -> Result<(), Error> {
    fs::write(path, contents).map_err(|source| Error::Io { action: "write", path: path.into(), source })
}

fn create(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::Io { action: "create", path: folder.into(), source })
}
