//! What stands between a person and their GPU, with the fix for each finding. Facts are read from the machine (or from
//! a recording of one) by `system`, `cards` and `libraries`; the checks are pure functions of those facts. The
//! self-test, which runs kernels, is in `selftest`.

mod amd;
mod cards;
mod libraries;
mod nvidia;
mod overrides;
pub mod selftest;
mod system;

use gpu::Vendor;
use serde::Serialize;

use cards::Card;
pub use system::System;

/// The musl archives are linked statically; such a program has no loader.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// Works, but slower or less than it could.
    Warning,
    /// This GPU cannot be used until it is fixed.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    pub severity: Severity,
    pub what: String,
    /// A command to run or a setting to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn new(severity: Severity, what: impl Into<String>) -> Self {
        Self { severity, what: what.into(), fix: None }
    }

    fn good(what: impl Into<String>) -> Self {
        Self::new(Severity::Good, what)
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// Findings about one thing: the machine as a whole, or one card.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Section {
    pub title: String,
    pub findings: Vec<Finding>,
}

/// The whole diagnosis, without the self-test.
pub fn examine(system: &System) -> Vec<Section> {
    let cards = cards::read(system);
    let mut sections = vec![Section { title: "This machine".into(), findings: machine(system, &cards) }];
    for card in &cards {
        let findings = match card.vendor {
            Vendor::Amd => amd::check_card(system, card, &cards),
            Vendor::Nvidia => nvidia::check_card(system, card),
        };
        sections.push(Section { title: title(card), findings });
    }
    let has = |vendor| cards.iter().any(|card| card.vendor == vendor);
    if has(Vendor::Amd) {
        sections.push(Section { title: "ROCm".into(), findings: libraries::check(system, Vendor::Amd, &cards) });
    }
    if has(Vendor::Nvidia) {
        sections.push(Section { title: "CUDA".into(), findings: libraries::check(system, Vendor::Nvidia, &cards) });
    }
    sections
}

/// `Radeon RX 7900 XT/XTX/GRE (gfx1100, 24.0 GiB) at 0000:03:00.0`
fn title(card: &Card) -> String {
    let mut parts: Vec<String> = card.arch.iter().cloned().collect();
    if card.is_integrated {
        parts.push("integrated".into());
    }
    parts.extend(card.memory.vram.map(gib));
    let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    format!("{}{parts} at {}", card.name, card.pci)
}

/// What concerns every card.
fn machine(system: &System, cards: &[Card]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(kernel) = system.read("/proc/sys/kernel/osrelease") {
        let os = os_name(system).map_or_else(String::new, |name| format!(", {name}"));
        findings.push(Finding::good(format!("Linux {kernel}{os}")));
    }
    let is_container = container(system);
    if let Some(kind) = is_container {
        findings.push(Finding::new(Severity::Note, format!("this is a container ({kind})")));
    }
    if IS_STATIC && !cards.is_empty() {
        let what = "this build of roci is static, so it cannot open a GPU's driver library";
        findings.push(Finding::new(Severity::Problem, what).fix("install the gnu archive of the same release instead"));
    }
    if cards.is_empty() {
        let finding = Finding::new(Severity::Warning, "the PCI bus shows no AMD or NVIDIA GPU: models run on the CPU");
        findings.push(match system.exists("/proc/sys/fs/binfmt_misc/WSLInterop") {
            true => finding.fix("under WSL 2 GPUs are not on the PCI bus: `roci devices` asks the drivers themselves"),
            false => finding,
        });
    }
    let (discrete, integrated): (Vec<&Card>, Vec<&Card>) = cards.iter().partition(|card| !card.is_integrated);
    if let ([first, ..], [small, ..]) = (&discrete[..], &integrated[..]) {
        findings.push(Finding::new(
            Severity::Note,
            format!("{} sits beside {}: --device auto takes the discrete card", small.name, first.name),
        ));
    }
    if cards.iter().filter(|card| card.vendor == Vendor::Amd && !card.is_integrated).count() > 1 {
        findings.extend(iommu(system));
    }
    findings.extend(overrides::check(system));
    findings
}

/// Copies between cards go wrong or hang where the IOMMU translates them.
fn iommu(system: &System) -> Option<Finding> {
    let command_line = system.read("/proc/cmdline")?;
    let is_on = !system.list("/sys/class/iommu").is_empty();
    let is_passed = command_line.split(' ').any(|word| word == "iommu=pt" || word == "amd_iommu=off");
    (is_on && !is_passed).then(|| {
        Finding::new(
            Severity::Warning,
            "the IOMMU translates the GPUs' addresses: copies between two cards can hang or arrive damaged",
        )
        .fix("add iommu=pt to the kernel's command line and restart")
    })
}

fn os_name(system: &System) -> Option<String> {
    let text = system.read("/etc/os-release")?;
    let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(line.trim_matches('"').to_owned())
}

/// The kind of container this process runs in.
fn container(system: &System) -> Option<&'static str> {
    if system.exists("/.dockerenv") {
        Some("Docker")
    } else if system.exists("/run/.containerenv") {
        Some("Podman")
    } else if system.variable("KUBERNETES_SERVICE_HOST").is_some() {
        Some("Kubernetes")
    } else {
        None
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / 2f64.powi(30))
}

#[cfg(test)]
mod tests;
