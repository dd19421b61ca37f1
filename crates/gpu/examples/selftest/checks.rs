//! Every public feature of the device layer, checked on a real device. The same list is the example
//! program `selftest` (a table for a person) and the crate's device tests (one test each).

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpu::{Cache, Device, Error, Queue};

#[path = "compiling.rs"]
pub mod compiling;
#[path = "faults.rs"]
pub mod faults;
#[path = "kernels.rs"]
pub mod kernels;
#[path = "memory.rs"]
pub mod memory;
#[path = "products.rs"]
pub mod products;
#[path = "working.rs"]
pub mod working;

/// What a check is given.
pub struct Bench {
    pub device: Device,
    pub cache: Cache,
    /// How this program starts a child of itself that calls `child`.
    pub child: (PathBuf, Vec<String>),
}

/// A check's good end: what it saw, or why it had nothing to do here.
#[derive(Debug)]
pub enum Outcome {
    Passed(String),
    Skipped(String),
}

pub type Check = fn(&Bench) -> Result<Outcome, Failure>;

#[derive(Debug)]
pub struct Failure(pub String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure(error.to_string())
    }
}

pub fn passed(what: impl Into<String>) -> Result<Outcome, Failure> {
    Ok(Outcome::Passed(what.into()))
}

/// Fail with a message unless a claim holds.
#[macro_export]
macro_rules! ensure {
    ($claim:expr, $($words:tt)*) => {
        let holds: bool = $claim;
        if !holds {
            return Err($crate::checks::Failure(format!($($words)*)));
        }
    };
}

/// Hand the list of checks to a macro: `name = function`.
#[macro_export]
macro_rules! for_each_check {
    ($callback:ident) => {
        $callback! {
            properties = memory::properties,
            round_trip = memory::round_trip,
            fill_and_copy = memory::fill_and_copy,
            slices = memory::slices,
            pool = memory::pool,
            out_of_memory = memory::out_of_memory,
            foreign_memory = memory::foreign_memory,
            hand_over = memory::hand_over,
            rmsnorm = compiling::rmsnorm,
            prelude = compiling::prelude,
            wrong_host_side = compiling::wrong_host_side,
            compile_error = compiling::compile_error,
            kernel_cache = compiling::kernel_cache,
            optional_argument = compiling::optional_argument,
            launch_bounds = working::launch_bounds,
            shared_memory = working::shared_memory,
            events = working::events,
            graph = working::graph,
            graph_keeps_memory = working::graph_keeps_memory,
            graph_errors = working::graph_errors,
            step_cost = working::step_cost,
            threads = working::threads,
            profile = working::profile,
            debug_sync = working::debug_sync,
            blas = products::blas,
            blas_in_graph = products::blas_in_graph,
            discovery = faults::discovery,
            stall = faults::stall,
            fault = faults::fault,
        }
    };
}

/// A small generator of numbers, the same on every run.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next_u32(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// In -4..4.
    pub fn next_f32(&mut self) -> f32 {
        self.next_u32() as f32 / u32::MAX as f32 * 8.0 - 4.0
    }

    pub fn f32s(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next_f32()).collect()
    }
}

impl Bench {
    pub fn queue(&self) -> Result<Queue, Failure> {
        Ok(Queue::new(&self.device)?)
    }

    /// Run a scene in a child process and give back what it printed. The child is killed afterwards: its
    /// GPU may be hung.
    pub fn in_child(&self, scene: &str, limit: Duration) -> Result<String, Failure> {
        let name = format!("{} {} {scene}", self.device.vendor().word(), self.device.ordinal());
        let (program, arguments) = &self.child;
        let mut child = Command::new(program)
            .args(arguments)
            .env(SCENE, name)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| Failure(format!("no child: {error}")))?;
        let stdout = child.stdout.take();
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            use std::io::BufRead;
            for line in std::io::BufReader::new(stdout.expect("piped")).lines().map_while(Result::ok) {
                if let Some(at) = line.find("scene: ") {
                    let _ = send.send(line[at + 7..].to_owned());
                }
            }
        });
        let began = Instant::now();
        let mut said = Vec::new();
        let ended = loop {
            match receive.recv_timeout(limit.saturating_sub(began.elapsed())) {
                Ok(line) if line == "end" => break Ok(said.join("\n")),
                Ok(line) => said.push(line),
                Err(_) => break Err(Failure(format!("the child did not finish; it said {said:?}"))),
            }
        };
        let _ = child.kill();
        let _ = child.wait();
        ended
    }
}

const SCENE: &str = "GPU_SELFTEST_SCENE";

/// If this process is a child of `Bench::in_child`: play the scene and exit.
pub fn play_if_asked() {
    let Ok(asked) = std::env::var(SCENE) else { return };
    let words: Vec<&str> = asked.split(' ').collect();
    let vendor = gpu::Vendor::from_word(words[0]).expect("a vendor");
    let device = Device::open(vendor, words[1].parse().expect("a number")).expect("the parent has this device");
    let bench = Bench { device, cache: Cache::of_user(), child: Default::default() };
    let played = match words[2] {
        "stall" => faults::stall_scene(&bench),
        "fault" => faults::fault_scene(&bench),
        other => Err(Failure(format!("no scene {other}"))),
    };
    match played {
        Ok(()) => println!("scene: good"),
        Err(Failure(why)) => println!("scene: bad {why}"),
    }
    println!("scene: end");
    // The parent ends this process: leaving by itself would wait for a device that may never answer.
    loop {
        std::thread::park();
    }
}
