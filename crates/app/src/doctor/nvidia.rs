//! Checks of one NVIDIA card: the kernel driver and its device nodes.

use super::cards::Card;
use super::system::System;
use super::{Finding, Severity, container};

pub fn check_card(system: &System, card: &Card) -> Vec<Finding> {
    let mut findings = vec![driver(system, card)];
    if card.driver.as_deref() == Some("nvidia") {
        findings.extend(nodes(system));
    }
    findings
}

fn driver(system: &System, card: &Card) -> Finding {
    match card.driver.as_deref() {
        Some("nvidia") => {
            let text = system.read("/proc/driver/nvidia/version").unwrap_or_default();
            Finding::good(format!("driver nvidia {}", version(&text).unwrap_or("of unknown version")))
        }
        Some("nouveau") => Finding::new(Severity::Problem, "the driver nouveau holds the card: it cannot compute")
            .fix("install NVIDIA's driver (Debian and Ubuntu: nvidia-driver), then restart"),
        Some("vfio-pci") => {
            Finding::new(Severity::Problem, "the card is reserved for a virtual machine (driver vfio-pci)")
                .fix("release it from the virtual machine, or run roci inside that machine")
        }
        Some(other) => Finding::new(Severity::Problem, format!("the driver `{other}` holds the card, not nvidia"))
            .fix("install NVIDIA's driver (Debian and Ubuntu: nvidia-driver), then restart"),
        None => Finding::new(Severity::Problem, "no kernel driver is bound to the card")
            .fix("install NVIDIA's driver (Debian and Ubuntu: nvidia-driver); after a kernel update: dkms autoinstall"),
    }
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  ...` -> `580.159.04`
fn version(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    line.split_whitespace().find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
}

fn nodes(system: &System) -> Vec<Finding> {
    let user = system.user();
    let check = |path: &str| match system.node(path) {
        Some(node) if node.opens_for(&user) => Finding::good(format!("{path} opens for this user")),
        Some(node) => Finding::new(Severity::Problem, format!("{path} does not open (mode {:04o})", node.mode))
            .fix("sudo nvidia-modprobe -u -c=0, or look at NVreg_DeviceFileMode under /etc/modprobe.d"),
        None if container(system).is_some() => {
            Finding::new(Severity::Problem, format!("{path} was not given to this container"))
                .fix("install nvidia-container-toolkit and start the container with --gpus all")
        }
        None => Finding::new(Severity::Problem, format!("{path} is missing")).fix("sudo nvidia-modprobe -u -c=0"),
    };
    ["/dev/nvidiactl", "/dev/nvidia-uvm"].into_iter().map(check).collect()
}
