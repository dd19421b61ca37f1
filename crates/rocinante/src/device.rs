//! Where a model computes: what was asked for, what `auto` chooses, and why it rejected the others.
//!
//! Drivers hang and abort, so `auto` probes them in a child process that is this same program: its `main` calls
//! [`answer_if_asked`] first. A program that does not call it never starts a child, and `auto` chooses the CPU.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use ::model::{BlasUse, DeviceChoice};
use gpu::Vendor;
use gpu::discovery::{Discovery, Probe};

use crate::{Error, HostMemory};

/// Whether this program answers probes, so that it may start itself as one.
static ANSWERS_PROBES: AtomicBool = AtomicBool::new(false);

/// Answers and exits if this process was started to probe a GPU's driver. Call it first in `main`: [`Device::Auto`]
/// finds GPUs only in programs that do.
pub fn answer_if_asked() {
    gpu::discovery::answer_if_asked();
    ANSWERS_PROBES.store(true, Ordering::Relaxed);
}

/// Where a model is to compute. Reads and writes as `auto`, `cpu`, `cuda:0`, `rocm:1`.
///
/// ```
/// use rocinante::Device;
/// assert_eq!("cpu".parse::<Device>()?, Device::Cpu);
/// assert_eq!("rocm".parse::<Device>()?.to_string(), "rocm:0");
/// assert!("tpu".parse::<Device>().is_err());
/// # Ok::<(), rocinante::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// The best GPU that passes its self-test, else the CPU.
    #[default]
    Auto,
    /// The CPU, whatever else there is.
    Cpu,
    /// This GPU and no other.
    Gpu {
        /// Whose driver it is.
        vendor: Vendor,
        /// Which of that driver's devices.
        ordinal: u32,
    },
}

/// The device a model will use, and what [`Device::Auto`] passed over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenDevice {
    /// Where the model will be loaded.
    pub choice: DeviceChoice,
    /// GPUs that are present and were not taken because they do not work here, each with the reason.
    pub refused: Vec<String>,
    /// Why [`Device::Auto`] took the CPU for this model although a GPU works here.
    pub unsuited: Option<String>,
    /// Why there is no GPU of a vendor at all, or none could be looked for.
    pub absent: Vec<String>,
}

impl Device {
    /// The device that was chosen, by its name.
    pub(crate) fn of(choice: DeviceChoice) -> Self {
        match choice {
            DeviceChoice::Cpu => Self::Cpu,
            DeviceChoice::Gpu { vendor, ordinal } => Self::Gpu { vendor, ordinal },
        }
    }

    /// Decides. Only `auto` looks at the machine; what was named is taken at its word and may fail to load.
    pub fn choose(self) -> ChosenDevice {
        match self {
            Self::Cpu => ChosenDevice::default(),
            Self::Gpu { vendor, ordinal } => {
                ChosenDevice { choice: DeviceChoice::Gpu { vendor, ordinal }, ..ChosenDevice::default() }
            }
            Self::Auto if !ANSWERS_PROBES.load(Ordering::Relaxed) => {
                let why = "GPUs were not looked for: this program does not call rocinante::answer_if_asked in main";
                ChosenDevice { absent: vec![why.to_owned()], ..ChosenDevice::default() }
            }
            Self::Auto => ChosenDevice::of(&Discovery::here()),
        }
    }
}

/// Memory that a model's weights may fill, and whose it is: that of the best GPU, else what is available of main memory;
/// `None` where the system does not say. Asks drivers as [`Device::Auto`] does.
pub fn model_memory() -> Option<(u64, String)> {
    let found = if ANSWERS_PROBES.load(Ordering::Relaxed) { Discovery::here() } else { Discovery::default() };
    let gpu = found.best(None).map(|best| (best.memory_bytes as u64, best.name.clone()));
    gpu.or_else(|| HostMemory::read().map(|memory| (memory.available_bytes, "free on this machine".to_owned())))
}

/// Why the vendor's library for products is not to be touched on a device: because nobody wants it, or because it ended
/// the child process that tried it. rocBLAS aborts where the kernels it looks for were not installed; cuBLAS reports.
pub(crate) fn blas_refused(choice: DeviceChoice, blas: BlasUse) -> Option<String> {
    let DeviceChoice::Gpu { vendor, ordinal } = choice else { return None };
    if blas == BlasUse::Off {
        return Some("large batches do not use the vendor's library: it is turned off".to_owned());
    }
    if !vendor.may_abort_in_blas() || !ANSWERS_PROBES.load(Ordering::Relaxed) {
        return None;
    }
    match Probe::this_program().and_then(|probe| probe.blas(vendor, ordinal)) {
        Ok(_) => None,
        // What the child could report, this process is told just as well.
        Err(gpu::Error::Reported(_)) => None,
        Err(error) => Some(format!("large batches do not use the vendor's library: {error}")),
    }
}

impl ChosenDevice {
    /// The device by its name, so that choosing again gives the same.
    pub fn device(&self) -> Device {
        Device::of(self.choice)
    }

    /// What a person should know about the choice, a sentence each: GPUs that were passed over, and why the CPU stands in
    /// for them where it does.
    pub fn notes(&self) -> Vec<String> {
        if let Some(why) = &self.unsuited {
            return self.refused.iter().chain([why]).cloned().collect();
        }
        match self.choice {
            DeviceChoice::Cpu if !self.refused.is_empty() => {
                vec![format!("no GPU is usable, so the model runs on the CPU: {}", self.refused.join("; "))]
            }
            _ => self.refused.clone(),
        }
    }

    /// The CPU in place of the GPU that was chosen: the model needs what our GPU kernels lack.
    pub(crate) fn on_the_cpu(self, missing: &str) -> Self {
        let why = format!(
            "the model runs on the CPU: it needs {missing}, which roci's GPU kernels do not support yet ({} itself works)",
            self.device()
        );
        Self { choice: DeviceChoice::Cpu, unsuited: Some(why), ..self }
    }

    fn of(found: &Discovery) -> Self {
        let best = found.best(None);
        Self {
            choice: best
                .map_or(DeviceChoice::Cpu, |best| DeviceChoice::Gpu { vendor: best.vendor, ordinal: best.ordinal }),
            unsuited: None,
            refused: found.devices.iter().filter(|found| found.refused.is_some()).map(ToString::to_string).collect(),
            absent: found.absent.iter().map(|(vendor, why)| format!("no {vendor} GPU: {why}")).collect(),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu { vendor, ordinal } => write!(f, "{}:{ordinal}", vendor.word()),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let gpu = || {
            let (word, ordinal) = text.split_once(':').unwrap_or((text, "0"));
            Some(Self::Gpu { vendor: Vendor::from_word(word)?, ordinal: ordinal.parse().ok()? })
        };
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            _ => gpu().ok_or_else(|| Error::Device(text.to_owned())),
        }
    }
}

/// The names that [`Device`] takes, for messages: `auto, cpu, rocm[:N], cuda[:N]`.
pub fn device_names() -> String {
    let words = Vendor::ALL.map(|vendor| format!("{}[:N]", vendor.word())).join(", ");
    format!("auto, cpu, {words}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu::discovery::FoundGpu;

    fn found(ordinal: u32, refused: Option<&str>) -> FoundGpu {
        FoundGpu {
            vendor: Vendor::ALL[0],
            ordinal,
            name: "card".to_owned(),
            arch: "x".to_owned(),
            memory_bytes: 1 << 30,
            is_integrated: false,
            pci: String::new(),
            driver: "1.0".to_owned(),
            refused: refused.map(str::to_owned),
        }
    }

    #[test]
    fn names_come_back() {
        for name in ["auto", "cpu", "cuda:3", "rocm:0"] {
            assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
        }
        for bad in ["", "gpu", "cuda:x", "cpu:1"] {
            assert!(matches!(bad.parse::<Device>(), Err(Error::Device(name)) if name == bad), "{bad}");
        }
    }

    #[test]
    fn auto_takes_the_best_and_says_why_not_the_others() {
        let discovery = Discovery {
            devices: vec![found(1, None), found(0, Some("its self-test gave wrong numbers"))],
            absent: vec![(Vendor::ALL[1], "its library is not installed".to_owned())],
        };
        let chosen = ChosenDevice::of(&discovery);
        assert_eq!(chosen.choice, DeviceChoice::Gpu { vendor: Vendor::ALL[0], ordinal: 1 });
        assert!(chosen.refused.len() == 1 && chosen.refused[0].contains("wrong numbers"), "{chosen:?}");
        assert!(chosen.absent[0].contains("not installed"));
        let none = ChosenDevice::of(&Discovery { devices: vec![found(0, Some("hangs"))], absent: Vec::new() });
        assert_eq!((none.choice, none.refused.len()), (DeviceChoice::Cpu, 1));
        let [note] = &none.notes()[..] else { panic!("{none:?}") };
        assert!(
            note.starts_with("no GPU is usable, so the model runs on the CPU: ") && note.ends_with("hangs"),
            "{note}"
        );
        let moved = chosen.clone().on_the_cpu("something new");
        assert_eq!((moved.choice, moved.refused.len(), moved.notes().len()), (DeviceChoice::Cpu, 1, 2));
        let why = &moved.notes()[1];
        assert!(why.contains("it needs something new") && why.ends_with(":1 itself works)"), "{moved:?}");
        assert!(chosen.notes()[0].contains("refused") && !chosen.notes()[0].contains("CPU"), "{chosen:?}");
        assert!(Device::Cpu.choose().notes().is_empty());
    }

    /// Nobody calls `answer_if_asked` in a test program: starting it again as a probe would run all its tests.
    #[test]
    fn a_program_that_does_not_answer_is_not_started_again() {
        let chosen = Device::Auto.choose();
        assert_eq!(chosen.choice, DeviceChoice::Cpu);
        assert!(chosen.absent[0].contains("answer_if_asked"));
    }
}
