//! Checks of one AMD card: the kernel driver, who may open it, memory, firmware, and whether our kernels cover the chip.

use super::cards::Card;
use super::system::{DeviceNode, System, User};
use super::{Finding, Severity, container, gib};

/// The chips that every kernel is compiled for by `scripts/compile_matrix.py`.
pub(super) const COMPILED_FOR: &[&str] = &[
    "gfx803", "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1010", "gfx1012", "gfx1030", "gfx1031",
    "gfx1032", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1200", "gfx1201",
];
/// The chips whose kernels run in every check, on AMD's runtime over the software GPU.
pub(super) const RUN_ON: &[&str] = &["gfx1100", "gfx942"];
/// The first Linux release whose amdgpu drives these chips well.
const FIRST_KERNEL: &[(&str, (u32, u32))] =
    &[("gfx1200", (6, 12)), ("gfx1201", (6, 12)), ("gfx1150", (6, 11)), ("gfx1151", (6, 11)), ("gfx1152", (6, 12))];
/// Less visible memory than this share of all of it means that the BAR was not enlarged.
const LARGE_BAR_SHARE: f64 = 0.9;

pub fn check_card(system: &System, card: &Card, all: &[Card]) -> Vec<Finding> {
    let mut findings = vec![driver(system, card)];
    if card.driver.as_deref() == Some("amdgpu") {
        findings.extend(kernel_release(system, card));
        findings.extend(nodes(system, card));
        findings.extend(memory(system, card));
        findings.extend(firmware(card));
    }
    findings.extend(coverage(card, all));
    findings
}

fn driver(system: &System, card: &Card) -> Finding {
    match card.driver.as_deref() {
        Some("amdgpu") => {
            let version = system.read("/sys/module/amdgpu/version").filter(|version| !version.is_empty());
            match version {
                Some(version) => Finding::good(format!("driver amdgpu {version} (from AMD's packages)")),
                None => Finding::good("driver amdgpu (the kernel's own)"),
            }
        }
        Some("vfio-pci") => {
            Finding::new(Severity::Problem, "the card is reserved for a virtual machine (driver vfio-pci)")
                .fix("release it from the virtual machine, or run roci inside that machine")
        }
        Some("radeon") => Finding::new(Severity::Problem, "the old driver `radeon` holds the card: it cannot compute")
            .fix("boot with radeon.si_support=0 radeon.cik_support=0 amdgpu.si_support=1 amdgpu.cik_support=1"),
        Some(other) => Finding::new(Severity::Problem, format!("the driver `{other}` holds the card, not amdgpu"))
            .fix(format!("{}look for a blacklist of amdgpu under /etc/modprobe.d, then restart", on_host(system))),
        None => Finding::new(Severity::Problem, "no kernel driver is bound to the card").fix(format!(
            "{}sudo modprobe amdgpu; if that fails, `sudo dmesg | grep amdgpu` says why (missing firmware: install \
             firmware-amd-graphics or linux-firmware)",
            on_host(system)
        )),
    }
}

/// Drivers are loaded outside of a container.
fn on_host(system: &System) -> &'static str {
    if container(system).is_some() { "on the host, not in this container: " } else { "" }
}

fn kernel_release(system: &System, card: &Card) -> Option<Finding> {
    let release = system.read("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let running = (numbers.next()?, numbers.next()?);
    let (_, first) = FIRST_KERNEL.iter().find(|(arch, _)| card.arch.as_deref() == Some(arch))?;
    // AMD's own driver packages bring support to older kernels.
    let is_packaged = system.read("/sys/module/amdgpu/version").is_some_and(|version| !version.is_empty());
    (running < *first && !is_packaged).then(|| {
        let what = format!(
            "Linux {}.{} is older than this chip: its driver needs {}.{} or AMD's driver package",
            running.0, running.1, first.0, first.1
        );
        Finding::new(Severity::Warning, what).fix("install a newer kernel (Debian: from backports) or amdgpu-dkms")
    })
}

/// Whether this user may open what computing needs: /dev/kfd and the card's render node.
fn nodes(system: &System, card: &Card) -> Vec<Finding> {
    let user = system.user();
    let render = card.render.as_ref().map(|name| format!("/dev/dri/{name}"));
    let mut findings = Vec::new();
    match system.node("/dev/kfd") {
        Some(node) => findings.push(access(system, "/dev/kfd", node, &user)),
        None if container(system).is_some() => findings.push(missing_in_container("/dev/kfd")),
        None if card.has_compute => findings.push(
            Finding::new(Severity::Problem, "/dev/kfd is missing though the driver offers it")
                .fix("sudo udevadm trigger; is /dev managed by udev here?"),
        ),
        None => findings.push(
            Finding::new(
                Severity::Problem,
                "/dev/kfd is missing: this kernel's amdgpu was built without compute support",
            )
            .fix("use a kernel with CONFIG_HSA_AMD=y, as all distributions' have it"),
        ),
    }
    match render.as_ref().map(|path| (path, system.node(path))) {
        Some((path, Some(node))) => findings.push(access(system, path, node, &user)),
        Some((path, None)) if container(system).is_some() => findings.push(missing_in_container(path)),
        Some((path, None)) => {
            findings.push(Finding::new(Severity::Problem, format!("{path} is missing")).fix("sudo udevadm trigger"))
        }
        None => findings.push(
            Finding::new(Severity::Problem, "the driver made no render node for the card")
                .fix("`sudo dmesg | grep amdgpu` says why its start failed"),
        ),
    }
    findings
}

fn access(system: &System, path: &str, node: DeviceNode, user: &User) -> Finding {
    if node.opens_for(user) {
        return Finding::good(format!("{path} opens for this user"));
    }
    let group = system.group_name(node.gid);
    let finding = Finding::new(
        Severity::Problem,
        format!("{path} belongs to the group {group} (mode {:04o}), and you are not in it", node.mode),
    );
    match node.mode & 0o060 == 0o060 && node.gid != 0 {
        true if container(system).is_some() => {
            finding.fix(format!("start the container with --group-add {}", node.gid))
        }
        true => finding.fix(format!("sudo usermod -aG {group} $USER, then log out and in again")),
        false => finding.fix(
            "give it to the group render: echo 'KERNEL==\"kfd\", GROUP=\"render\", MODE=\"0660\"' | sudo tee \
             /etc/udev/rules.d/70-kfd.rules && sudo udevadm control --reload && sudo udevadm trigger",
        ),
    }
}

/// What a container needs; docs/user/amd.md says the same. A group is named by its number: the image may not know it.
pub(super) const CONTAINER_FLAGS: &str =
    "--device /dev/kfd --device /dev/dri --group-add \"$(getent group render | cut -d: -f3)\"";

fn missing_in_container(path: &str) -> Finding {
    Finding::new(Severity::Problem, format!("{path} was not given to this container"))
        .fix(format!("start it with {CONTAINER_FLAGS}"))
}

fn memory(system: &System, card: &Card) -> Vec<Finding> {
    let mut findings = Vec::new();
    let memory = card.memory;
    if let (Some(all), Some(visible), false) = (memory.vram, memory.visible_vram, card.is_integrated)
        && (visible as f64) < all as f64 * LARGE_BAR_SHARE
    {
        let what = format!("the CPU sees {} of the card's {}: Resizable BAR is off", gib(visible), gib(all));
        let fix = "turn on \"Above 4G decoding\" and \"Resizable BAR\" (Smart Access Memory) in the firmware's setup";
        findings.push(Finding::new(Severity::Warning, what).fix(fix));
    }
    if let (Some(carve_out), Some(gtt), true) = (memory.vram, memory.gtt, card.is_integrated) {
        findings.push(Finding::good(format!(
            "it may use {} of its own (carve-out) and {} of the machine's memory (GTT)",
            gib(carve_out),
            gib(gtt)
        )));
        findings.extend(small_gtt(system, carve_out, gtt));
    }
    findings
}

/// An integrated GPU that may map only half of the memory, as the kernel has it by default.
fn small_gtt(system: &System, carve_out: u64, gtt: u64) -> Option<Finding> {
    let info = system.read("/proc/meminfo")?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)?;
    let is_worth_it = total >= 24 << 30 && gtt + carve_out < (total + carve_out) / 10 * 7;
    is_worth_it.then(|| {
        let pages = total / 4 * 3 / 4096;
        Finding::new(
            Severity::Note,
            format!("models larger than {} do not fit, though the machine has {}", gib(gtt.max(carve_out)), gib(total)),
        )
        .fix(format!(
            "add ttm.pages_limit={pages} to the kernel's command line (three quarters of the memory), restart"
        ))
    })
}

fn firmware(card: &Card) -> Option<Finding> {
    let versions: Vec<String> = card.firmware.iter().map(|(part, version)| format!("{part} {version}")).collect();
    (!versions.is_empty()).then(|| Finding::good(format!("firmware: {}", versions.join(", "))))
}

/// Whether our kernels know the chip.
fn coverage(card: &Card, all: &[Card]) -> Vec<Finding> {
    let Some(arch) = &card.arch else {
        let what = format!("device {:#06x} is not in our table and the driver names no chip", card.device_id);
        return vec![Finding::new(Severity::Note, what).fix("`roci devices` asks HIP itself")];
    };
    let is = |list: &[&str]| list.contains(&arch.as_str());
    let mut findings = vec![if is(RUN_ON) {
        Finding::good(format!(
            "{arch}: our tests compile the kernels for this chip and run them on a software model of it"
        ))
    } else if is(COMPILED_FOR) {
        Finding::good(format!("{arch}: our tests compile the kernels for this chip but have never run them on it"))
    } else {
        Finding::new(Severity::Note, format!("{arch}: our kernels have not been compiled for it before"))
            .fix("try it: they are compiled at run time for the chip that is there; `roci doctor` tests them")
    }];
    if gpu::Vendor::Amd.has_matrix_units(arch) {
        findings.push(Finding::good("prompts use the matrix units"));
    } else {
        findings.push(Finding::new(
            Severity::Note,
            format!("{arch} has no matrix units: prompts run on the vector units and are slower"),
        ));
    }
    let others = all.iter().filter(|other| other.vendor == card.vendor && other.arch != card.arch).count();
    if others > 0 && card.is_integrated {
        findings.push(Finding::new(
            Severity::Note,
            "an integrated GPU slows others down where programs pick it by accident; roci picks the discrete one",
        ));
    }
    findings
}
