//! The compiler as a child process: `core` for a vendor, the kernel library and a file of kernels for a chip.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::target::matrix_units;
use crate::{Error, Target, create};

/// Language features that kernels and the library use, allowed without a word in the user's source.
const FEATURES: [&str; 8] = [
    "no_std",
    "allow(internal_features, unused_features, unused_macros, improper_gpu_kernel_arg)",
    "feature(abi_gpu_kernel)",
    "feature(core_intrinsics)",
    "feature(gpu_intrinsics)",
    "feature(asm_experimental_arch)",
    "feature(f16)",
    "allow(stable_features)",
];

/// `-C` and `-Z` flags of an AMD code object: the kernels, the library and the bitcode are optimized together by rust-lld;
/// rustc names a kernel's descriptor before it exists, hence `--undefined-version`.
const AMD_LINK: [&str; 4] =
    ["--emit=link", "-Clinker-plugin-lto", "-Clink-arg=--undefined-version", "-Clink-arg=--no-undefined"];

const PTX_HEADER_END: &str = ".address_size 64";
/// Shared memory, as much as the launch asks for.
const PTX_SHARED: &str = ".extern .shared .align 16 .b8 gpu_shared[];";

pub(crate) struct Rustc {
    program: String,
    scratch: PathBuf,
    optimize: bool,
    /// Threads of a block at most, and blocks that are to fit a multiprocessor at once.
    pub(crate) launch_bounds: Option<(u32, u32)>,
    /// Nightly keeps barriers where they are by itself.
    is_nightly: bool,
    core_source: PathBuf,
}

impl Rustc {
    pub(crate) fn new(scratch: &Path, optimize: bool) -> Result<Self, Error> {
        let program = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let text = |arg: &str| -> Result<String, Error> {
            let output = Command::new(&program).arg(arg).output();
            let output = output.map_err(|source| Error::NoCompiler { rustc: program.clone(), source })?;
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let version = text("--version")?;
        let core_source = Path::new(&text("--print=sysroot")?).join("lib/rustlib/src/rust/library/core/src/lib.rs");
        if !core_source.exists() {
            return Err(Error::NoCore);
        }
        // Another compiler's `core` is of no use.
        let scratch = scratch.join(version.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        create(&scratch)?;
        let is_nightly = version.contains("nightly");
        Ok(Self { program, scratch, optimize, launch_bounds: None, is_nightly, core_source })
    }

    /// `source` compiled for a chip: a code object, or PTX with a NUL at its end, as the driver takes it.
    pub(crate) fn kernels(&self, target: Target, chip: &str, source: &Path) -> Result<Vec<u8>, Error> {
        let to = self.scratch.join(format!("kernels-{chip}.{}", target.extension()));
        let core = self.core(target)?;
        let library = self.library(target, chip, &core)?;
        let mut command = self.command(target, chip);
        command.args([
            "--crate-name=kernels",
            "--crate-type=cdylib",
            "-Ccodegen-units=1",
            "--cfg=gpu",
            "--cap-lints=warn",
        ]);
        for attribute in FEATURES {
            command.arg(format!("-Zcrate-attr={attribute}"));
        }
        if self.optimize {
            command.arg("-Copt-level=3");
        } else {
            command.args(["-Copt-level=1", "-Cdebug-assertions=yes", "-Cdebuginfo=1"]);
        }
        match target {
            Target::Amd => {
                let bitcode = self.put("amdgpu.bc", kernel::AMD_BITCODE)?;
                command.args(AMD_LINK).arg(format!("-Clink-arg={}", bitcode.display()));
                // Version 5 is for HIP 5.7 on; families of chips need 6, rustc's own default.
                if !chip.ends_with("-generic") {
                    command.arg("-Zllvm-module-flag=amdhsa_code_object_version:u32:500:error");
                }
            }
            Target::Nvidia => {
                // Arrays that a loop indexes stay in registers only if the loop is unrolled; AMD's back end knows.
                command.args(["--emit=asm", "-Cllvm-args=-unroll-threshold=8000"]);
            }
        }
        command.arg("--extern").arg(format!("noprelude:core={}", core.join("libcore.rlib").display()));
        command.arg("--extern").arg(format!("kernel={}", library.join("libkernel.rlib").display()));
        command.arg("-L").arg(&core).arg("-L").arg(&library).arg("-o").arg(&to).arg(source);
        self.run(command, chip)?;
        let read = |source| Error::Io { action: "read", path: to.clone(), source };
        match target {
            Target::Amd => fs::read(&to).map_err(read),
            Target::Nvidia => {
                // A declaration that Rust cannot make; its place is after the header.
                let text = fs::read_to_string(&to).map_err(read)?;
                let text = text.replacen(PTX_HEADER_END, &format!("{PTX_HEADER_END}\n{PTX_SHARED}"), 1);
                Ok((self.with_launch_bounds(&text) + "\0").into_bytes())
            }
        }
    }

    /// PTX with what its kernels are launched with said at each of them, so that registers do not limit the blocks.
    fn with_launch_bounds(&self, text: &str) -> String {
        let Some((threads, blocks)) = self.launch_bounds else { return text.to_owned() };
        let bounds = format!("\n)\n.maxntid {threads}, 1, 1\n.minnctapersm {blocks}\n{{");
        let mut parts = text.split(".visible .entry");
        let head = parts.next().unwrap_or_default().to_owned();
        parts.fold(head, |whole, entry| whole + ".visible .entry" + &entry.replacen("\n)\n{", &bounds, 1))
    }

    /// `core` for a vendor, once. `compiler_builtins` is empty: everything is expanded in place for GPUs.
    fn core(&self, target: Target) -> Result<PathBuf, Error> {
        let folder = self.scratch.join(target.triple());
        if folder.join("libcompiler_builtins.rlib").exists() {
            return Ok(folder);
        }
        create(&folder)?;
        let builtins = self.put("builtins.rs", b"#![feature(compiler_builtins)]#![compiler_builtins]#![no_std]")?;
        for (name, source) in [("core", &self.core_source), ("compiler_builtins", &builtins)] {
            let mut command = self.command(target, target.core_chip());
            command.args(["--crate-type=rlib", "-Copt-level=3", "-Zcross-crate-inline-threshold=always"]);
            command.args(["-Zforce-unstable-if-unmarked", "--cap-lints=allow"]).arg(format!("--crate-name={name}"));
            command.arg("--out-dir").arg(&folder).arg(source);
            if name != "core" {
                command.arg("--extern").arg(format!("noprelude:core={}", folder.join("libcore.rlib").display()));
            }
            self.run(command, target.core_chip())?;
        }
        Ok(folder)
    }

    /// `roci-kernel`'s device side for a chip.
    fn library(&self, target: Target, chip: &str, core: &Path) -> Result<PathBuf, Error> {
        let sources = self.scratch.join("kernel");
        create(&sources)?;
        for (name, text) in kernel::DEVICE_SOURCES {
            self.put(&format!("kernel/{name}"), text.as_bytes())?;
        }
        let folder = self.scratch.join(format!("kernel-{chip}"));
        create(&folder)?;
        let mut command = self.command(target, chip);
        command.args(["--crate-name=kernel", "--crate-type=rlib", "-Copt-level=3", "--cfg=gpu", "--cap-lints=warn"]);
        command.arg("-Zcross-crate-inline-threshold=always");
        for attribute in FEATURES {
            command.arg(format!("-Zcrate-attr={attribute}"));
        }
        command.arg(match target {
            // The matrix units are intrinsics of LLVM that take vectors.
            Target::Amd => {
                "-Zcrate-attr=feature(stdarch_amdgpu, link_llvm_intrinsics, abi_unadjusted, repr_simd, simd_ffi)"
            }
            Target::Nvidia => "-Zcrate-attr=feature(stdarch_nvptx)",
        });
        let (units, has_wide_waves) = matrix_units(target, chip);
        command.arg(format!("--cfg=matrix=\"{units}\""));
        if has_wide_waves {
            command.arg("--cfg=wave64");
        }
        command.arg("--extern").arg(format!("noprelude:core={}", core.join("libcore.rlib").display()));
        command.arg("-L").arg(core).arg("--out-dir").arg(&folder).arg(sources.join("mod.rs"));
        self.run(command, chip)?;
        Ok(folder)
    }

    fn command(&self, target: Target, chip: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--edition=2024", "-Zunstable-options", "-Cpanic=immediate-abort", "--target", target.triple()]);
        command.arg(format!("-Ctarget-cpu={chip}")).env("RUSTC_BOOTSTRAP", "1");
        // Stable copies a barrier into both sides of a branch, where half of the threads never meet the other half
        // (rust-lang/rust#137086, #149637, #153995).
        if !self.is_nightly {
            command.args(["-Zmir-enable-passes=-JumpThreading", "-Cllvm-args=-force-attribute=convergent"]);
        }
        command
    }

    fn run(&self, mut command: Command, chip: &str) -> Result<(), Error> {
        let output = command.output().map_err(|source| Error::NoCompiler { rustc: self.program.clone(), source })?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            eprint!("{stderr}");
            return Ok(());
        }
        Err(Error::Compiler { chip: chip.to_owned(), stderr: format!("{stderr}\n{command:?}") })
    }

    /// A file in the scratch folder, written only if it differs.
    fn put(&self, name: &str, contents: &[u8]) -> Result<PathBuf, Error> {
        let path = self.scratch.join(name);
        if fs::read(&path).is_ok_and(|is| is == contents) {
            return Ok(path);
        }
        fs::write(&path, contents).map_err(|source| Error::Io { action: "write", path: path.clone(), source })?;
        Ok(path)
    }
}
