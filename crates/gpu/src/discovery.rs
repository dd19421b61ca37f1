//! Which GPUs are there, and which of them work.
//!
//! Drivers hang, abort and page-fault; so the asking is done by a child process with a time limit: 2 s
//! to load the driver and list its devices, then 20 s per device for a self-test kernel that is
//! compiled, run and checked. What fails is refused with a reason. The child is this same program: its
//! `main` calls `answer_if_asked` first.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::buffer::{Slice, SliceMut};
use crate::cache::Cache;
use crate::compile::{Program, Target};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::module::{Grid, Module};
use crate::queue::Queue;
use crate::vendor::Vendor;

const ASK: &str = "ROCI_GPU_PROBE";
/// Multiplies both limits.
const PATIENCE: &str = "ROCI_GPU_PATIENCE";
/// Every line of an answer starts with this, since drivers print to the same place.
const MARK: &str = "roci-probe\t";

/// How to start a child that answers, and how long it may take.
#[derive(Clone, Debug)]
pub struct Probe {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// For the list of devices.
    pub list_limit: Duration,
    /// For the test of one device.
    pub selftest_limit: Duration,
}

/// A GPU that the driver reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundGpu {
    /// Whose driver reports it.
    pub vendor: Vendor,
    /// Which of that driver's devices.
    pub ordinal: u32,
    /// The card's name, as the driver has it.
    pub name: String,
    /// What kernels are compiled for: `gfx1100`, `sm_90`.
    pub arch: String,
    /// All of its memory, used or not.
    pub memory_bytes: usize,
    /// Whether it shares the system's memory.
    pub is_integrated: bool,
    /// Its address on the PCI bus.
    pub pci: String,
    /// The driver's generation: `HIP 7.2`, `CUDA 12.9`.
    pub driver: String,
    /// Why it is not used, if it is not.
    pub refused: Option<String>,
}

/// The machine's GPUs, best first, and the vendors without any, with the reason.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Discovery {
    /// Usable or not.
    pub devices: Vec<FoundGpu>,
    /// Vendors without a device, each with the reason.
    pub absent: Vec<(Vendor, String)>,
}

impl fmt::Display for FoundGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, gib) = (if self.is_integrated { "integrated" } else { "discrete" }, self.memory_bytes as f64);
        let name = if self.name.is_empty() { "unnamed" } else { &self.name };
        write!(
            f,
            "{}:{} {name} ({}, {kind}, {:.1} GiB, {})",
            self.vendor.word(),
            self.ordinal,
            self.arch,
            gib / 2f64.powi(30),
            self.driver
        )?;
        self.refused.as_ref().map_or(Ok(()), |why| write!(f, ": refused, {why}"))
    }
}

impl Discovery {
    /// What this program finds. Where it cannot start itself again (no `/proc`), it finds nothing, and says why.
    pub fn here() -> Self {
        match Probe::this_program() {
            Ok(probe) => probe.discover(),
            Err(error) => {
                let absent = Vendor::ALL.map(|vendor| (vendor, error.to_string())).to_vec();
                Self { devices: Vec::new(), absent }
            }
        }
    }

    /// Order: usable before refused, discrete before integrated, more memory first.
    fn sort(&mut self) {
        self.devices.sort_by_key(|found| {
            (found.refused.is_some(), found.is_integrated, std::cmp::Reverse(found.memory_bytes), found.ordinal)
        });
    }

    /// The best usable device, of one vendor or of any.
    pub fn best(&self, vendor: Option<Vendor>) -> Option<&FoundGpu> {
        self.devices.iter().find(|found| found.refused.is_none() && vendor.is_none_or(|wanted| wanted == found.vendor))
    }
}

impl Probe {
    /// Ask through this very program.
    pub fn this_program() -> Result<Self> {
        let program = std::env::current_exe()
            .map_err(|error| Error::Probe { what: "finding this program's file".into(), why: error.to_string() })?;
        Ok(Self::through(program, []))
    }

    /// Ask through a program that calls `answer_if_asked`, started with these arguments.
    pub fn through(program: PathBuf, arguments: impl IntoIterator<Item = OsString>) -> Self {
        let arguments = arguments.into_iter().collect();
        // A software model of a GPU on a busy machine may need longer than any card.
        let stretch = std::env::var(PATIENCE).ok().and_then(|value| value.parse().ok()).unwrap_or(1u32).clamp(1, 1000);
        let (list_limit, selftest_limit) = (Duration::from_secs(2) * stretch, Duration::from_secs(20) * stretch);
        Self { program, arguments, list_limit, selftest_limit }
    }

    /// List and test every GPU of both vendors.
    pub fn discover(&self) -> Discovery {
        let mut discovery = Discovery::default();
        for vendor in Vendor::ALL {
            match self.list(vendor) {
                Ok(devices) if devices.is_empty() => {
                    discovery.absent.push((vendor, Error::NoDevice { vendor }.to_string()));
                }
                Ok(devices) => discovery.devices.extend(devices),
                Err(error) => discovery.absent.push((vendor, error.to_string())),
            }
        }
        for found in &mut discovery.devices {
            let question = format!("selftest {} {}", found.vendor.word(), found.ordinal);
            let tested = self.ask(&question, "self-test", self.selftest_limit);
            found.refused = tested.err().map(|error| error.to_string());
        }
        discovery.sort();
        discovery
    }

    /// The vendor's devices, untested.
    pub fn list(&self, vendor: Vendor) -> Result<Vec<FoundGpu>> {
        let task = format!("listing {vendor} GPUs");
        let lines = self.ask(&format!("list {}", vendor.word()), &task, self.list_limit)?;
        let broken = |line: &str| Error::Probe { what: task.clone(), why: format!("unexpected answer `{line}`") };
        lines.iter().map(|line| parse(vendor, line).ok_or_else(|| broken(line))).collect()
    }

    /// Whether the run-time compiler can compile for an architecture. AMD's aborts the process on a name
    /// it does not know, which is why this asks a child.
    pub fn knows_arch(&self, vendor: Vendor, arch: &str) -> Result<()> {
        let task = format!("compiling for {arch}");
        self.ask(&format!("arch {} {arch}", vendor.word()), &task, self.selftest_limit).map(drop)
    }

    /// Whether the vendor's BLAS works on a device (it too may abort: missing Tensile files).
    pub fn blas(&self, vendor: Vendor, ordinal: u32) -> Result<String> {
        let lines = self.ask(&format!("blas {} {ordinal}", vendor.word()), "BLAS test", self.selftest_limit)?;
        Ok(lines.join("; "))
    }

    /// Puts a question to a child process; `task` names it in errors that the child could not report itself.
    fn ask(&self, question: &str, task: &str, limit: Duration) -> Result<Vec<String>> {
        let fail = |why: String| Error::Probe { what: task.to_owned(), why };
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .env(ASK, question)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| fail(format!("{} does not start: {error}", self.program.display())))?;
        let answer = read_answer(&mut child, limit);
        let status = stop(&mut child);
        match answer {
            Ok(Ok(lines)) => Ok(lines),
            Ok(Err(why)) => Err(Error::Reported(why)),
            Err(Unanswered::Late) => Err(fail(format!("no answer within {:.1} s", limit.as_secs_f64()))),
            Err(Unanswered::Ended(words)) => {
                let words = telling_line(&words).map(|line| format!(": {line}")).unwrap_or_default();
                Err(fail(format!("the driver ended the process ({status}){words}")))
            }
        }
    }
}

/// The line of a driver's last words that says what went wrong. rocBLAS, for one, lists files after its error.
fn telling_line(words: &str) -> Option<&str> {
    let lines = || words.lines().map(str::trim).filter(|line| !line.is_empty());
    lines().rfind(|line| line.to_ascii_lowercase().contains("error")).or_else(|| lines().next_back())
}

enum Unanswered {
    Late,
    /// With what it wrote to stderr.
    Ended(String),
}

/// The lines of an answer, or what the child says went wrong.
fn read_answer(child: &mut Child, limit: Duration) -> Result<Result<Vec<String>, String>, Unanswered> {
    let began = Instant::now();
    let (send, lines) = mpsc::channel::<String>();
    let (send_words, words) = mpsc::channel::<String>();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // libtest and drivers may write on the same line before the mark.
                if let Some(at) = line.find(MARK) {
                    let _ = send.send(line[at + MARK.len()..].to_owned());
                }
            }
        });
    }
    if let Some(mut stderr) = child.stderr.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stderr.read_to_end(&mut bytes);
            let _ = send_words.send(String::from_utf8_lossy(&bytes).into_owned());
        });
    }
    let mut answer = Vec::new();
    loop {
        match lines.recv_timeout(limit.saturating_sub(began.elapsed())) {
            Ok(line) if line == "end" => return Ok(Ok(answer)),
            Ok(line) => match line.strip_prefix("failed\t") {
                Some(why) => return Ok(Err(why.to_owned())),
                None => answer.push(line),
            },
            Err(RecvTimeoutError::Timeout) => return Err(Unanswered::Late),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Unanswered::Ended(words.recv_timeout(Duration::from_millis(200)).unwrap_or_default()));
            }
        }
    }
}

/// End the child, whatever it is doing. One that even SIGKILL does not end (stuck in the kernel's driver)
/// is left behind after a moment: it must not hold this process up.
fn stop(child: &mut Child) -> String {
    for attempt in 0..50 {
        if let Ok(Some(status)) = child.try_wait() {
            return status.to_string();
        }
        if attempt == 2 {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    "it does not end".into()
}

fn parse(vendor: Vendor, line: &str) -> Option<FoundGpu> {
    let mut fields = line.split('\t');
    let found = FoundGpu {
        vendor,
        ordinal: fields.next()?.parse().ok()?,
        arch: fields.next()?.to_owned(),
        memory_bytes: fields.next()?.parse().ok()?,
        is_integrated: fields.next()?.parse().ok()?,
        pci: fields.next()?.to_owned(),
        driver: fields.next()?.to_owned(),
        name: fields.next()?.to_owned(),
        refused: None,
    };
    fields.next().is_none().then_some(found)
}

/// If this process was started as a probe: answer and exit. Call it first in `main`.
pub fn answer_if_asked() {
    let Ok(question) = std::env::var(ASK) else { return };
    let say = |line: &str| {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{MARK}{}", line.replace('\n', " "));
        let _ = out.flush();
    };
    match answer(&question) {
        Ok(lines) => {
            lines.iter().for_each(|line| say(line));
            say("end");
        }
        Err(error) => say(&format!("failed\t{}", error.to_string().replace('\t', " "))),
    }
    std::process::exit(0);
}

fn answer(question: &str) -> Result<Vec<String>> {
    let unknown = || Error::Probe { what: question.to_owned(), why: "not a question".into() };
    let mut words = question.split(' ');
    let (verb, vendor) = (words.next(), words.next().and_then(Vendor::from_word).ok_or_else(unknown)?);
    let operand = words.next().unwrap_or("");
    let ordinal = || operand.parse::<u32>().map_err(|_| unknown());
    match verb {
        Some("list") => (0..Device::count(vendor)?).map(|ordinal| describe(vendor, ordinal)).collect(),
        Some("selftest") => self_test(&Device::open(vendor, ordinal()?)?).map(|()| Vec::new()),
        Some("arch") => {
            let source = "extern \"C\" __global__ void empty(float* x) { x[0] = 1.0f; }";
            let target = Target::without_device(vendor, operand, 32);
            Program::new("empty", source).compile(&target, &Cache::off()).map(|_| Vec::new())
        }
        Some("blas") => {
            let queue = Queue::new(&Device::open(vendor, ordinal()?)?)?;
            let blas = queue.blas(queue.alloc(4 << 20)?, &crate::blas::ProductTypes::ALL)?;
            let dropped = blas.dropped().into_iter().map(|(kinds, why)| format!("{kinds:?} dropped: {why}"));
            Ok([blas.library()].into_iter().chain(dropped).collect())
        }
        _ => Err(unknown()),
    }
}

fn describe(vendor: Vendor, ordinal: u32) -> Result<String> {
    let device = Device::open(vendor, ordinal)?;
    let p = device.properties();
    let name = p.name.replace('\t', " ");
    let driver = vendor.driver_words(device.driver_version().1);
    Ok(format!("{ordinal}\t{}\t{}\t{}\t{}\t{driver}\t{name}", p.arch, p.memory_bytes, p.is_integrated, p.pci))
}

crate::args! {
    struct SelfTest<'a> {
        x: Slice<'a, f32>,
        y: SliceMut<'a, f32>,
        n: u32,
    }
}

/// Each block turns its numbers round through shared memory: wrong lanes, barriers or copies show.
const SELF_TEST: &str = r#"
extern "C" __global__ void __launch_bounds__(64) selftest(const float* __restrict__ x, float* __restrict__ y, unsigned int n) {
    __shared__ float tile[64];
    unsigned int t = threadIdx.x, i = blockIdx.x * 64 + t;
    tile[t] = i < n ? x[i] * 3.0f : 0.0f;
    __syncthreads();
    if (i < n) y[i] = tile[63 - t] + (float)i;
}
"#;

/// Compile, run and check one kernel on a device.
pub fn self_test(device: &Device) -> Result<()> {
    const N: usize = 64 * 40;
    let program = Program::new("selftest", SELF_TEST).kernel::<SelfTest>("selftest");
    let kernel = Module::load(device, &program, &Cache::of_user())?.kernel::<SelfTest>("selftest")?;
    let queue = Queue::new(device)?;
    queue.set_deadline(Duration::from_secs(15));
    let x: Vec<f32> = (0..N).map(|i| (i * 37 % 101) as f32).collect();
    let (from, mut to) = (queue.buffer_from(&x)?, queue.alloc_zeroed::<f32>(N)?);
    let args = SelfTest { x: from.all(), y: to.all_mut(), n: N as u32 };
    queue.launcher().launch(&kernel, Grid::line(N as u32 / 64, 64), &args)?;
    for (i, got) in queue.read(to.all())?.into_iter().enumerate() {
        let want = x[i / 64 * 64 + 63 - i % 64] * 3.0 + i as f32;
        if got != want {
            let why = format!("the self-test kernel gave {got} for element {i}, not {want}");
            return Err(Error::Probe { what: device.label().to_owned(), why });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ordinal: u32, gib: usize, is_integrated: bool, refused: Option<&str>) -> FoundGpu {
        FoundGpu {
            vendor: Vendor::Amd,
            ordinal,
            name: "a".into(),
            arch: "gfx1100".into(),
            memory_bytes: gib << 30,
            is_integrated,
            pci: String::new(),
            driver: "HIP 7.2".into(),
            refused: refused.map(str::to_owned),
        }
    }

    #[test]
    fn discrete_before_integrated_and_refused_last() {
        let mut discovery = Discovery {
            devices: vec![
                found(0, 96, true, None),
                found(1, 16, false, None),
                found(2, 48, false, Some("hangs")),
                found(3, 24, false, None),
            ],
            absent: Vec::new(),
        };
        discovery.sort();
        assert_eq!(discovery.devices.iter().map(|f| f.ordinal).collect::<Vec<_>>(), [3, 1, 0, 2]);
        assert_eq!(discovery.best(None).unwrap().ordinal, 3);
        assert!(discovery.best(Some(Vendor::Nvidia)).is_none());
    }

    #[test]
    fn a_drivers_last_words_are_told_by_their_error() {
        let words = "\nrocBLAS error: Cannot read /x/TensileLibrary.dat: No such file for GPU arch : gfx1100\n List of files :\n";
        assert_eq!(telling_line(words).map(|line| &line[..20]), Some("rocBLAS error: Canno"));
        assert_eq!(telling_line("warning: slow\n aborting\n\n"), Some("aborting"));
        assert_eq!(telling_line(" \n"), None);
    }

    #[test]
    fn a_broken_answer_is_no_device() {
        assert!(parse(Vendor::Amd, "0\tgfx1100\t17\tfalse\t0000:03:00.0\tHIP 7.2\tRadeon").is_some());
        for line in ["", "0", "x\tg\t17\tfalse\tp\td\tn", "0\tg\t17\tmaybe\tp\td\tn", "0\tg\t17\ttrue\tp\td\tn\textra"]
        {
            assert!(parse(Vendor::Amd, line).is_none(), "{line:?}");
        }
    }
}
