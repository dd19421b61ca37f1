//! The GPUs that the PCI bus shows, whatever the drivers make of them: vendor, model, kernel driver, memory, the name of
//! the instruction set. Everything comes from sysfs, so a card whose driver is missing is listed too.

use gpu::Vendor;

use super::system::System;

const PCI: &str = "/sys/bus/pci/devices";
const KFD_NODES: &str = "/sys/class/kfd/kfd/topology/nodes";

/// PCI classes of display controllers (0x03) and processing accelerators (0x12, as Instinct cards have it).
const CLASSES: [u64; 2] = [0x03, 0x12];

/// AMD's device ids, for cards that no driver describes: id, name, instruction set, whether it is part of the CPU.
pub(super) const KNOWN: &[(u64, &str, &str, bool)] = &[
    (0x67df, "Radeon RX 470/480/570/580/590", "gfx803", false),
    (0x687f, "Radeon RX Vega 56/64", "gfx900", false),
    (0x66a1, "Radeon Pro VII / Instinct MI50", "gfx906", false),
    (0x66af, "Radeon VII", "gfx906", false),
    (0x738c, "Instinct MI100", "gfx908", false),
    (0x7408, "Instinct MI250X", "gfx90a", false),
    (0x740c, "Instinct MI250X/MI250", "gfx90a", false),
    (0x740f, "Instinct MI210", "gfx90a", false),
    (0x74a0, "Instinct MI300A", "gfx942", true),
    (0x74a1, "Instinct MI300X", "gfx942", false),
    (0x731f, "Radeon RX 5600/5700", "gfx1010", false),
    (0x73bf, "Radeon RX 6800/6900", "gfx1030", false),
    (0x73df, "Radeon RX 6700/6750", "gfx1031", false),
    (0x73ff, "Radeon RX 6600", "gfx1032", false),
    (0x1681, "Radeon 680M", "gfx1035", true),
    (0x164e, "Radeon Graphics (Ryzen 7000)", "gfx1036", true),
    (0x744c, "Radeon RX 7900 XT/XTX/GRE", "gfx1100", false),
    (0x747e, "Radeon RX 7700 XT/7800 XT", "gfx1101", false),
    (0x7480, "Radeon RX 7600", "gfx1102", false),
    (0x15bf, "Radeon 780M", "gfx1103", true),
    (0x150e, "Radeon 880M/890M", "gfx1150", true),
    (0x1586, "Radeon 8050S/8060S (Strix Halo)", "gfx1151", true),
    (0x7590, "Radeon RX 9060 XT", "gfx1200", false),
    (0x7550, "Radeon RX 9070/9070 XT", "gfx1201", false),
];

/// One GPU on the bus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Card {
    /// `0000:03:00.0`
    pub pci: String,
    pub vendor: Vendor,
    pub device_id: u64,
    pub name: String,
    /// The kernel driver that holds it.
    pub driver: Option<String>,
    /// AMD: `gfx1100`, from the compute driver or from the table above.
    pub arch: Option<String>,
    pub is_integrated: bool,
    /// `renderD128`
    pub render: Option<String>,
    pub memory: CardMemory,
    /// Whether the compute driver (KFD) lists it.
    pub has_compute: bool,
    /// Versions of the firmware that the driver loaded.
    pub firmware: Vec<(String, String)>,
}

/// What amdgpu says of a card's memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CardMemory {
    pub vram: Option<u64>,
    /// What the CPU can see of it through the PCI bar.
    pub visible_vram: Option<u64>,
    /// System memory the GPU may map.
    pub gtt: Option<u64>,
}

/// The compute driver's own entry for a GPU.
struct ComputeNode {
    arch: String,
    /// `renderD128`
    render: String,
}

/// Every GPU on the bus, in the bus's order.
pub fn read(system: &System) -> Vec<Card> {
    let nodes = compute_nodes(system);
    let all = system.list(PCI);
    all.into_iter().filter_map(|pci| read_card(system, pci, &nodes)).collect()
}

fn read_card(system: &System, pci: String, nodes: &[ComputeNode]) -> Option<Card> {
    let folder = format!("{PCI}/{pci}");
    let class = system.number(&format!("{folder}/class"))? >> 16;
    let vendor = match system.number(&format!("{folder}/vendor"))? {
        0x1002 => Vendor::Amd,
        0x10de => Vendor::Nvidia,
        _ => return None,
    };
    if !CLASSES.contains(&class) {
        return None;
    }
    let device_id = system.number(&format!("{folder}/device"))?;
    let render = system.list(&format!("{folder}/drm")).into_iter().find(|name| name.starts_with("renderD"));
    let node = nodes.iter().find(|node| render.as_ref() == Some(&node.render));
    let known = KNOWN.iter().find(|row| vendor == Vendor::Amd && row.0 == device_id);
    let bytes = |name: &str| system.number(&format!("{folder}/{name}"));
    let memory = CardMemory {
        vram: bytes("mem_info_vram_total"),
        visible_vram: bytes("mem_info_vis_vram_total"),
        gtt: bytes("mem_info_gtt_total"),
    };
    let product = system.read(&format!("{folder}/product_name")).filter(|name| !name.is_empty());
    let name = product.or(known.map(|row| row.1.to_owned())).or_else(|| nvidia_name(system, vendor, &pci));
    let firmware = match vendor {
        Vendor::Amd => firmware(system, &folder),
        Vendor::Nvidia => Vec::new(),
    };
    Some(Card {
        name: name.unwrap_or_else(|| format!("{vendor} device {device_id:#06x}")),
        driver: system.link_name(&format!("{folder}/driver")),
        arch: node.map(|node| node.arch.clone()).or(known.map(|row| row.2.to_owned())),
        is_integrated: known.is_some_and(|row| row.3),
        has_compute: node.is_some(),
        pci,
        vendor,
        device_id,
        render,
        memory,
        firmware,
    })
}

/// The firmware of the compute engines and of power management: what bug reports ask for.
fn firmware(system: &System, folder: &str) -> Vec<(String, String)> {
    let versions = ["mec", "smc", "sos", "vcn"].into_iter().filter_map(|part| {
        let version = system.read(&format!("{folder}/fw_version/{part}_fw_version"))?;
        (version != "0x00000000").then(|| (part.to_owned(), version))
    });
    versions.collect()
}

/// NVIDIA's driver names its cards under /proc.
fn nvidia_name(system: &System, vendor: Vendor, pci: &str) -> Option<String> {
    if vendor != Vendor::Nvidia {
        return None;
    }
    let text = system.read(&format!("/proc/driver/nvidia/gpus/{pci}/information"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
    Some(line.trim().to_owned())
}

fn compute_nodes(system: &System) -> Vec<ComputeNode> {
    let nodes = system.list(KFD_NODES).into_iter().filter_map(|node| {
        let text = system.read(&format!("{KFD_NODES}/{node}/properties"))?;
        let field = |name: &str| -> Option<u64> {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value?.trim().parse().ok()
        };
        let version = field("gfx_target_version").filter(|version| *version > 0)?;
        Some(ComputeNode { arch: arch_name(version), render: format!("renderD{}", field("drm_render_minor")?) })
    });
    nodes.collect()
}

/// 110001 -> `gfx1101`, 90402 -> `gfx942`, 90010 -> `gfx90a`.
fn arch_name(version: u64) -> String {
    format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_become_names() {
        for (version, name) in [(110_000, "gfx1100"), (90_402, "gfx942"), (90_010, "gfx90a"), (120_001, "gfx1201")] {
            assert_eq!(super::arch_name(version), name);
        }
    }
}
