//! The vendors' libraries that roci opens at run time: where they are and which version. None is linked, and only the
//! driver's own and the run-time compiler are needed.

use gpu::Vendor;

use super::cards::Card;
use super::system::System;
use super::{Finding, Severity};

/// Chips that HIP's compiler knows from 6.4 on; docs/user/amd.md has the whole table.
const FROM_HIP_6: &[&str] = &["gfx950", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1152", "gfx1200", "gfx1201"];

/// Those that it knows from 5.7 on.
const FROM_HIP_5_7: &[&str] = &["gfx942", "gfx1100", "gfx1151"];

/// Where distributions keep libraries; AMD's own packages add /opt/rocm.
const FOLDERS: &[&str] =
    &["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/lib64"];

pub fn check(system: &System, vendor: Vendor, cards: &[Card]) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(releases(system, vendor));
    findings.extend(needed(system, vendor, cards));
    if vendor == Vendor::Amd {
        findings.extend(cards.iter().filter_map(|card| too_old(system, card)));
    }
    let blas = vendor.pick(["librocblas.so.5", "librocblas.so.4"], ["libcublas.so.13", "libcublas.so.12"]);
    findings.push(match find(system, vendor, &blas) {
        Some(path) => Finding::good(format!("{path}: used for large products where it works on this chip")),
        None => Finding::good(format!("no {}: our own kernels do its work", vendor.pick("rocBLAS", "cuBLAS"))),
    });
    findings
}

fn driver_names(vendor: Vendor) -> Vec<&'static str> {
    vendor.pick(vec!["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"], vec!["libcuda.so.1"])
}

fn compiler_names(vendor: Vendor) -> Vec<&'static str> {
    vendor.pick(
        vec!["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libamdhip64.so.6", "libamdhip64.so.5"],
        vec!["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"],
    )
}

/// The two libraries that every GPU needs. Where one package brings both, their absence is one problem.
fn needed(system: &System, vendor: Vendor, cards: &[Card]) -> Vec<Finding> {
    let needed = [("driver", driver_names(vendor)), ("run-time compiler", compiler_names(vendor))];
    let fix = |role: &str| remedy(system, vendor, cards, role);
    let missing = |role: &str, names: &[&str]| {
        let what = format!("no {vendor} {role} library ({})", names.join(", "));
        Finding::new(Severity::Problem, what).fix(fix(role))
    };
    let found = needed.each_ref().map(|(_, names)| find(system, vendor, names));
    if found.iter().all(Option::is_none) && fix(needed[0].0) == fix(needed[1].0) {
        // The compiler's own names; an old driver's library holds the compiler too.
        let mut names = driver_names(vendor);
        names.extend(compiler_names(vendor).into_iter().filter(|name| !driver_names(vendor).contains(name)));
        return vec![missing("driver and run-time compiler", &names)];
    }
    let told = |((role, names), found): (&(&str, Vec<&str>), Option<String>)| match found {
        Some(path) => Finding::good(format!("{role}: {path}")),
        None => missing(role, names),
    };
    needed.iter().zip(found).map(told).collect()
}

/// A HIP that is older than the card cannot compile for it.
fn too_old(system: &System, card: &Card) -> Option<Finding> {
    let arch = card.arch.as_deref().filter(|arch| FROM_HIP_6.contains(arch))?;
    let path = find(system, Vendor::Amd, &driver_names(Vendor::Amd))?;
    let major: u32 = path.rsplit('.').next()?.parse().ok()?;
    (major < 6).then(|| {
        Finding::new(
            Severity::Problem,
            format!("HIP {major} does not compile for {arch}, which needs HIP 6.4 or newer"),
        )
        .fix(FROM_AMD)
    })
}

const FROM_AMD: &str =
    "install hip-runtime-amd from AMD's own repository; docs/user/amd.md says which version a card needs";

/// The package that brings the library on this distribution, where what it brings knows these cards.
fn remedy(system: &System, vendor: Vendor, cards: &[Card], role: &str) -> String {
    let os = system.read("/etc/os-release").unwrap_or_default();
    let is_any =
        |archs: &[&str]| cards.iter().any(|card| card.arch.as_deref().is_some_and(|arch| archs.contains(&arch)));
    // Debian 12 has HIP 5.2, Debian 13 has 5.7.
    let is_bookworm = os.lines().any(|line| line.replace('"', "") == "VERSION_ID=12");
    let is_newer_than_debian = is_any(FROM_HIP_6) || is_bookworm && is_any(FROM_HIP_5_7);
    let is = |name: &str| os.lines().any(|line| line.starts_with("ID") && line.contains(name));
    let is_driver = role == "driver";
    let package = match vendor {
        Vendor::Amd if is("ubuntu") || is("debian") && is_newer_than_debian => FROM_AMD,
        Vendor::Amd if is("debian") => "sudo apt install libamdhip64-5",
        Vendor::Amd if is("fedora") => "sudo dnf install rocm-hip",
        Vendor::Amd if is("arch") => "sudo pacman -S hip-runtime-amd",
        Vendor::Amd if is("suse") => "sudo zypper install hip-runtime-amd (from AMD's repository)",
        Vendor::Amd => "install ROCm's HIP runtime (package names: rocm-hip, hip-runtime-amd, libamdhip64)",
        Vendor::Nvidia if is_driver => "install NVIDIA's driver package: libcuda.so.1 is part of it",
        Vendor::Nvidia if is("debian") || is("ubuntu") => {
            "sudo apt install libnvrtc12, or pip install nvidia-cuda-nvrtc-cu12 and add its lib folder to LD_LIBRARY_PATH"
        }
        Vendor::Nvidia => "install CUDA's run-time compiler (package names: cuda-nvrtc-12, nvidia-cuda-nvrtc-cu12)",
    };
    package.to_owned()
}

/// The first of these libraries that is there, newest first.
fn find(system: &System, vendor: Vendor, names: &[&str]) -> Option<String> {
    let mut folders: Vec<String> = Vec::new();
    let variables = vendor.pick(["ROCM_PATH", "HIP_PATH"], ["CUDA_PATH", "CUDA_HOME"]);
    folders.extend(variables.iter().filter_map(|name| system.variable(name)).map(|root| format!("{root}/lib")));
    folders.extend(
        vendor
            .pick(["/opt/rocm/lib", "/opt/rocm/lib64"], ["/usr/local/cuda/lib64", "/usr/local/nvidia/lib64"])
            .map(str::to_owned),
    );
    folders.extend(system.variable("LD_LIBRARY_PATH").iter().flat_map(|path| path.split(':')).map(str::to_owned));
    folders.extend(FOLDERS.iter().map(|folder| (*folder).to_owned()));
    let paths = names.iter().flat_map(|name| folders.iter().map(move |folder| format!("{folder}/{name}")));
    paths.into_iter().find(|path| system.exists(path))
}

/// Releases of ROCm that AMD's packages installed under /opt. Several at once are a usual cause of trouble.
fn releases(system: &System, vendor: Vendor) -> Option<Finding> {
    if vendor != Vendor::Amd {
        return None;
    }
    let folders = system.list("/opt").into_iter().filter(|name| name.starts_with("rocm-"));
    let versions: Vec<String> =
        folders.filter_map(|name| system.read(&format!("/opt/{name}/.info/version")).or(Some(name))).collect();
    match &versions[..] {
        [] => None,
        [one] => Some(Finding::good(format!("ROCm {one} under /opt"))),
        several => Some(
            Finding::new(Severity::Note, format!("several releases of ROCm under /opt: {}", several.join(", ")))
                .fix("roci takes /opt/rocm first; ROCM_PATH names another"),
        ),
    }
}
