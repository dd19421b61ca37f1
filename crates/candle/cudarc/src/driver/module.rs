//! Kernel source and the kernels compiled from it.
//!
//! A text may hold templates alone and say, in lines that start with `//@`, how each kernel is made from
//! them; then only the kernel asked for is compiled, in a second or less:
//!
//! ```text
//! //@ affine_$T = AFFINE($T) ; T: f32 f64
//! ```
//!
//! makes `affine_f32` from `AFFINE(f32)` and `affine_f64` from `AFFINE(f64)`. `$T` and `$U` stand for the
//! words listed behind their colons. A text without such lines is compiled as a whole. `//@ any-grid` says that the
//! kernels loop over their elements, so that a grid of one thread for each may be made smaller.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use gpu::unchecked::{Kernel, load_image};
use gpu::{Cache, Module, Program, Vendor};

use super::{CudaContext, DriverError};
use crate::nvrtc::{Ptx, PtxKind};

/// What every text may include: the dialect that both vendors' compilers read.
const PRELUDE: &str = include_str!("../../../../ops/kernels/prelude.h");

pub struct CudaModule {
    context: Arc<CudaContext>,
    text: String,
    kernels: Mutex<HashMap<String, CudaFunction>>,
    /// All of a text that has no table of kernels, once compiled.
    whole: Mutex<Option<Module>>,
}

#[derive(Clone)]
pub struct CudaFunction {
    kernel: Kernel,
    takes_any_grid: bool,
}

impl CudaModule {
    pub(crate) fn load(context: &Arc<CudaContext>, source: Ptx) -> Result<Arc<Self>, DriverError> {
        let text = match source.0 {
            PtxKind::Source(text) => text,
            PtxKind::File(path) => std::fs::read_to_string(&path)
                .map_err(|error| DriverError::new(format!("{}: {error}", path.display())))?,
        };
        if is_ptx(&text) && context.device().vendor() == Vendor::Amd {
            let label = context.device().label();
            return Err(DriverError::new(format!("{label}: this module is PTX, which only NVIDIA GPUs run")));
        }
        Ok(Arc::new(Self { context: context.clone(), text, kernels: Mutex::default(), whole: Mutex::default() }))
    }

    /// A kernel by name: compiled now, or taken from this module, or from the cache on disk.
    pub fn load_function(self: &Arc<Self>, name: &str) -> Result<CudaFunction, DriverError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = kernels.get(name) {
            return Ok(function.clone());
        }
        let module = self.compile(name)?;
        let kernel = Kernel::find(&module, name)
            .map_err(|error| DriverError::new(format!("no kernel `{name}` in this module: {error}")))?;
        let function = CudaFunction { kernel, takes_any_grid: takes_any_grid(&self.text) };
        kernels.insert(name.to_owned(), function.clone());
        Ok(function)
    }

    fn compile(&self, name: &str) -> Result<Module, DriverError> {
        let device = self.context.device();
        if has_table(&self.text) {
            let Some(instance) = instance(&self.text, name) else {
                return Err(DriverError::new(format!("no kernel `{name}` in this module")));
            };
            let program = Program::new(&format!("candle-{name}"), &format!("{}\n{instance}\n", self.text));
            return Ok(Module::load(device, &program.header("prelude.h", PRELUDE), &Cache::of_user())?);
        }
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = &*whole {
            return Ok(module.clone());
        }
        let module = if is_ptx(&self.text) {
            let mut text = self.text.clone().into_bytes();
            text.push(0);
            // SAFETY: text that ends with a NUL, for a driver that reads PTX.
            unsafe { load_image(device, &text)? }
        } else {
            let program = Program::new("candle-module", &self.text).header("prelude.h", PRELUDE);
            Module::load(device, &program, &Cache::of_user())?
        };
        Ok(whole.insert(module).clone())
    }
}

impl CudaFunction {
    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Whether its threads take elements until there are no more.
    pub(crate) fn takes_any_grid(&self) -> bool {
        self.takes_any_grid
    }
}

impl fmt::Debug for CudaFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaFunction({})", self.kernel.name())
    }
}

/// Whether a text is an assembler listing of NVIDIA's and not source.
fn is_ptx(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.next().is_some_and(|line| line.starts_with(".version"))
}

fn has_table(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("//@"))
}

fn takes_any_grid(text: &str) -> bool {
    text.lines().any(|line| line == "//@ any-grid")
}

/// The line of source that makes a kernel of this name.
fn instance(text: &str, name: &str) -> Option<String> {
    text.lines().filter_map(|line| line.strip_prefix("//@")).find_map(|row| {
        let mut parts = row.split(';').map(str::trim);
        let (pattern, body) = parts.next()?.split_once('=')?;
        let words: Vec<(String, Vec<&str>)> = parts
            .filter_map(|part| part.split_once(':'))
            .map(|(variable, words)| (format!("${}", variable.trim()), words.split_whitespace().collect()))
            .collect();
        expand(pattern.trim(), body.trim(), &words, name)
    })
}

/// Tries every choice of words; the body with the choice whose pattern is the name.
fn expand(pattern: &str, body: &str, words: &[(String, Vec<&str>)], name: &str) -> Option<String> {
    let Some(((variable, choices), rest)) = words.split_first() else {
        return (pattern == name).then(|| body.to_owned());
    };
    choices.iter().find_map(|word| expand(&pattern.replace(variable, word), &body.replace(variable, word), rest, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_kernels() {
        let text = "templates\n//@ cast_$T_$U = CAST($T, $U) ; T: u8 f32 ; U: f32 f64\n//@ one = ONE()\n";
        assert!(has_table(text) && !has_table("// none"));
        assert!(!takes_any_grid(text) && takes_any_grid("//@ any-grid\n//@ one = ONE()\n"));
        assert_eq!(instance(text, "cast_u8_f64").as_deref(), Some("CAST(u8, f64)"));
        assert_eq!(instance(text, "one").as_deref(), Some("ONE()"));
        assert_eq!(instance(text, "cast_f64_f32"), None);
    }

    #[test]
    fn ptx_is_told_from_source() {
        assert!(is_ptx("//\n// Generated by NVIDIA NVVM Compiler\n//\n\n.version 8.4\n.target sm_80\n"));
        assert!(!is_ptx("#include \"prelude.h\"\n") && !is_ptx(""));
    }
}
