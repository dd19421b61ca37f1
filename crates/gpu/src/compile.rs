//! From kernel source to machine code: hiprtc or nvrtc at run time, with a cache on disk.
//!
//! A `Program` is one translation unit: its text, its headers, its defines and the kernels it must
//! hold, each with the signature its host side expects. An unknown architecture makes hiprtc abort the
//! process, so a `Target` comes from a device's own report, or from a probe in a child process.

use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use sha2::{Digest, Sha256};

use crate::args::Args;
use crate::cache::Cache;
use crate::device::Device;
use crate::driver::{Reply, Rtc};
use crate::error::{Error, Result};
use crate::raw;
use crate::vendor::{Vendor, text};

/// One translation unit.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    source: String,
    headers: Vec<(String, String)>,
    defines: Vec<(String, String)>,
    kernels: Vec<(String, String)>,
    is_overlapping: bool,
}

/// What to compile for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    vendor: Vendor,
    arch: String,
    wave_width: u32,
}

/// Machine code for one target, ready to load.
#[derive(Clone, PartialEq, Eq)]
pub struct Code {
    /// The machine code, as the driver loads it.
    pub bytes: Vec<u8>,
    /// Whether the cache had it.
    pub is_cached: bool,
}

impl Code {
    fn cached(bytes: Vec<u8>) -> Self {
        Self { bytes, is_cached: true }
    }
}

impl Target {
    /// The device's own architecture.
    pub fn of(device: &Device) -> Self {
        let properties = device.properties();
        Self { vendor: device.vendor(), arch: properties.arch.clone(), wave_width: properties.wave_width }
    }

    /// A target without a device. For AMD, only in a process that may die: an architecture that
    /// hiprtc does not know aborts it (`discovery::Probe::knows_arch` asks in a child).
    pub fn without_device(vendor: Vendor, arch: &str, wave_width: u32) -> Self {
        Self { vendor, arch: arch.to_owned(), wave_width }
    }

    /// Whose compiler it takes.
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// As the compiler takes it: `gfx1100`, `sm_90`.
    pub fn arch(&self) -> &str {
        &self.arch
    }
}

impl Program {
    /// A program of one C++ source; the name is for errors and the cache.
    pub fn new(name: &str, source: &str) -> Self {
        let (headers, defines, kernels) = (Vec::new(), Vec::new(), Vec::new());
        Self { name: name.to_owned(), source: source.to_owned(), headers, defines, kernels, is_overlapping: false }
    }

    /// Every kernel of this program calls `wait_for_inputs` before it touches what earlier work made, so it may be
    /// launched early where the driver can.
    #[must_use]
    pub fn overlapping(mut self) -> Self {
        self.is_overlapping = true;
        self
    }

    pub(crate) fn is_overlapping(&self) -> bool {
        self.is_overlapping
    }

    /// A header the source includes by this name.
    #[must_use]
    pub fn header(mut self, name: &str, text: &str) -> Self {
        self.headers.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Defines a macro, as `-DNAME=value` does.
    #[must_use]
    pub fn define(mut self, name: &str, value: impl ToString) -> Self {
        self.defines.push((name.to_owned(), value.to_string()));
        self
    }

    /// Declare a kernel the source holds. The compiler checks its parameters against `A`.
    #[must_use]
    pub fn kernel<A: Args>(mut self, name: &str) -> Self {
        self.kernels.push((name.to_owned(), A::signature()));
        self
    }

    /// What it was called in [`Program::new`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The signature a kernel was declared with.
    pub(crate) fn signature(&self, kernel: &str) -> Option<&str> {
        self.kernels.iter().find(|(name, _)| name == kernel).map(|(_, signature)| signature.as_str())
    }

    /// The source with one check per kernel behind it: a host side that disagrees does not compile.
    fn checked_source(&self) -> String {
        let mut text = self.source.clone();
        text.push_str("\ntemplate <class A, class B> struct roci_same { static constexpr bool value = false; };\n");
        text.push_str("template <class A> struct roci_same<A, A> { static constexpr bool value = true; };\n");
        for (name, signature) in &self.kernels {
            text.push_str(&format!(
                "static_assert(roci_same<decltype({name}), void({signature})>::value, \
                 \"kernel {name}: its parameters are not the host's ({signature})\");\n"
            ));
        }
        text
    }

    fn options(&self, target: &Target, spelling: &str) -> Vec<String> {
        let mut options = target.vendor.compile_options(spelling, target.wave_width);
        options.extend(self.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        // For tests and experiments: `-U__gfx942__` makes an older chip of it.
        let more = std::env::var("ROCI_COMPILE_OPTIONS").unwrap_or_default();
        options.extend(more.split_whitespace().map(str::to_owned));
        options
    }

    /// Source, headers, flags, architecture and compiler version, as one digest.
    fn key(&self, target: &Target, rtc: &Rtc) -> String {
        let mut digest = Sha256::new();
        // Lengths go in first, so that no two different lists of parts read the same.
        let mut part = |text: &str| {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text.as_bytes());
        };
        part("rocinante kernel cache 1");
        part(&self.checked_source());
        for (name, text) in &self.headers {
            part(name);
            part(text);
        }
        for spelling in target.vendor.arch_spellings(&target.arch) {
            self.options(target, &spelling).iter().for_each(|option| part(option));
        }
        part(&target.arch);
        part(&compiler_version(rtc));
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Machine code from the cache, or compiled now and put there.
    pub fn compile(&self, target: &Target, cache: &Cache) -> Result<Code> {
        let rtc = Rtc::get(target.vendor)?;
        let (bytes, is_cached) = cache.get_or_make(&self.stem(target, rtc), || self.compile_now(target, rtc))?;
        Ok(Code { bytes, is_cached })
    }

    /// Its name in the cache.
    fn stem(&self, target: &Target, rtc: &Rtc) -> String {
        format!("{}-{}-{}", self.name, target.arch.replace(':', "_"), self.key(target, rtc))
    }

    fn compile_now(&self, target: &Target, rtc: &Rtc) -> Result<Vec<u8>> {
        let mut last = self.failed(target, "no spelling of the architecture to try".into());
        for spelling in target.vendor.arch_spellings(&target.arch) {
            match self.compile_spelled(target, &spelling, rtc) {
                Ok(code) => return Ok(code),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn compile_spelled(&self, target: &Target, spelling: &str, rtc: &Rtc) -> Result<Vec<u8>> {
        let c_text = |text: &str| {
            CString::new(text).map_err(|_| self.failed(target, "a NUL byte in the source or its options".into()))
        };
        let c_texts = |texts: &mut dyn Iterator<Item = &str>| texts.map(c_text).collect::<Result<Vec<CString>>>();
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<*const c_char>>();

        let source = c_text(&self.checked_source())?;
        let name = c_text(&format!("{}.hip", self.name))?;
        let header_names = c_texts(&mut self.headers.iter().map(|(name, _)| name.as_str()))?;
        let header_texts = c_texts(&mut self.headers.iter().map(|(_, text)| text.as_str()))?;
        let options = c_texts(&mut self.options(target, spelling).iter().map(String::as_str))?;

        let mut program = ProgramGuard { rtc, program: raw::Program::NULL };
        let (names, texts) = (pointers(&header_names), pointers(&header_texts));
        // SAFETY: every pointer is to a NUL-terminated string that outlives the call; the counts are the
        // arrays' lengths.
        let reply = unsafe {
            rtc.program_create(
                &mut program.program,
                source.as_ptr(),
                name.as_ptr(),
                self.headers.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check(target, rtc, reply, "")?;
        let options = pointers(&options);
        // SAFETY: a program made above and not yet destroyed; options as above.
        let reply = unsafe { rtc.program_compile(program.program, options.len() as c_int, options.as_ptr()) };
        self.check(target, rtc, reply, &program.log())?;

        let mut bytes = 0usize;
        // SAFETY: a compiled program and a valid out pointer.
        self.check(target, rtc, unsafe { rtc.code_bytes(program.program, &mut bytes) }, "")?;
        let mut code = vec![0u8; bytes];
        // SAFETY: the block has the size the compiler just named.
        self.check(target, rtc, unsafe { rtc.code(program.program, code.as_mut_ptr().cast()) }, "")?;
        if code.is_empty() {
            return Err(self.failed(target, "the compiler gave no machine code".into()));
        }
        Ok(code)
    }

    fn check(&self, target: &Target, rtc: &Rtc, reply: Reply<c_int>, log: &str) -> Result<()> {
        if reply.value == 0 {
            return Ok(());
        }
        // SAFETY: the call takes any number and returns a static string or null.
        let words = unsafe { text(rtc.error_text(reply.value).value) };
        Err(self.failed(target, format!("{} answered {} ({words})\n{log}", reply.call, reply.value)))
    }

    fn failed(&self, target: &Target, log: String) -> Error {
        Error::Compile { program: self.name.clone(), arch: target.arch.clone(), log }
    }
}

/// How far `build` is, of the programs that no cache had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BuildProgress {
    /// Programs that are compiled or came from the cache.
    pub n_done: usize,
    /// Programs in all.
    pub n_programs: usize,
}

/// Compiles many programs on as many threads as there are cores. `tell` hears how far it is, first with none done, and
/// nothing where the cache had all of them: a first run takes a while.
pub fn build(
    programs: &[Program],
    target: &Target,
    cache: &Cache,
    mut tell: impl FnMut(BuildProgress),
) -> Result<Vec<Code>> {
    let rtc = Rtc::get(target.vendor)?;
    let stems: Vec<String> = programs.iter().map(|program| program.stem(target, rtc)).collect();
    let mut codes: Vec<Option<Code>> = stems.iter().map(|stem| cache.get(stem).map(Code::cached)).collect();
    let missing: Vec<usize> = (0..programs.len()).filter(|i| codes[*i].is_none()).collect();
    let n_programs = missing.len();
    if n_programs > 0 {
        tell(BuildProgress { n_done: 0, n_programs });
    }
    let next = AtomicUsize::new(0);
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(n_programs);
    let (sender, made) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..n_threads {
            let (sender, next, missing) = (sender.clone(), &next, &missing);
            scope.spawn(move || {
                while let Some(i) = missing.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
                    // Nobody listens any more after the first failure.
                    if sender.send((i, programs[i].compile(target, cache))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (n_before, (i, code)) in made.into_iter().enumerate() {
            codes[i] = Some(code?);
            tell(BuildProgress { n_done: n_before + 1, n_programs });
        }
        Ok(())
    })?;
    Ok(codes.into_iter().map(|code| code.expect("every program was compiled or found")).collect())
}

/// Destroys the compiler's program on every way out.
struct ProgramGuard<'a> {
    rtc: &'a Rtc,
    program: raw::Program,
}

impl ProgramGuard<'_> {
    fn log(&self) -> String {
        let mut bytes = 0usize;
        // SAFETY: a live program and a valid out pointer.
        if unsafe { self.rtc.log_bytes(self.program, &mut bytes) }.value != 0 || bytes == 0 {
            return String::new();
        }
        let mut text = vec![0u8; bytes];
        // SAFETY: the block has the size the compiler just named.
        if unsafe { self.rtc.log(self.program, text.as_mut_ptr().cast()) }.value != 0 {
            return String::new();
        }
        String::from_utf8_lossy(&text).trim_end_matches(['\0', '\n']).to_owned()
    }
}

impl Drop for ProgramGuard<'_> {
    fn drop(&mut self) {
        if self.program != raw::Program::NULL {
            // SAFETY: made by `program_create`, destroyed once.
            let _ = unsafe { self.rtc.program_destroy(&mut self.program) };
        }
    }
}

/// The run-time compiler's library and version, for reports.
pub fn compiler(vendor: Vendor) -> Result<String> {
    let rtc = Rtc::get(vendor)?;
    Ok(format!("{}: {}", rtc.library, compiler_version(rtc)))
}

/// The compiler's version as it reports it, with the names and sizes of the files that are mapped: the
/// report has no patch level, and Linux file names do.
fn compiler_version(rtc: &Rtc) -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: valid out pointers.
    let _ = unsafe { rtc.version(&mut major, &mut minor) };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files: Vec<String> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|start| &line[start..]))
        .filter(|path| ["hiprtc", "comgr", "nvrtc"].iter().any(|stem| path.contains(stem)))
        .map(|path| {
            let bytes = std::fs::metadata(path).map(|file| file.len()).unwrap_or(0);
            format!("{} {bytes}", path.rsplit('/').next().unwrap_or(path))
        })
        .collect();
    files.sort();
    files.dedup();
    format!("{} {major}.{minor} [{}]", rtc.vendor.pick("hiprtc", "nvrtc"), files.join(", "))
}
