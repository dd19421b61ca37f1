//! The diagnosis on constructed machines: each must name what is wrong there, and nothing that is not.

use super::{Finding, Severity, System, amd, cards, examine};

fn findings(text: &str) -> Vec<Finding> {
    let system = System::recorded(text).expect("a recording");
    examine(&system).into_iter().flat_map(|section| section.findings).collect()
}

/// Every problem and warning of a machine, each found by a part of its text, in order.
fn check(text: &str, expected: &[(Severity, &str)]) {
    let found = findings(text);
    let bad: Vec<&Finding> = found.iter().filter(|finding| finding.severity >= Severity::Warning).collect();
    assert_eq!(bad.len(), expected.len(), "{bad:#?}");
    for (finding, (severity, part)) in bad.iter().zip(expected) {
        assert_eq!(finding.severity, *severity, "{finding:?}");
        assert!(finding.what.contains(part), "{finding:?} says nothing of `{part}`");
        assert!(finding.fix.is_some(), "{finding:?} has no fix");
    }
}

macro_rules! machine {
    ($name:literal) => {
        include_str!(concat!("../../testdata/doctor/", $name, ".txt"))
    };
}

use Severity::{Problem, Warning};

#[test]
fn a_machine_that_is_well_has_no_problem() {
    check(machine!("rx7900xtx"), &[]);
}

#[test]
fn an_override_is_a_problem_and_the_integrated_gpu_is_named() {
    let text = machine!("rx7900xtx-beside-igpu");
    check(text, &[(Problem, "HSA_OVERRIDE_GFX_VERSION=11.0.0")]);
    assert!(findings(text).iter().any(|finding| finding.what.contains("--device auto takes the discrete card")));
}

#[test]
fn a_new_card_under_an_old_kernel_with_a_small_bar() {
    check(
        machine!("rx9070xt-old-kernel"),
        &[
            (Warning, "Linux 6.1 is older"),
            (Warning, "Resizable BAR is off"),
            (Problem, "HIP 5 does not compile for gfx1201"),
        ],
    );
}

#[test]
fn strix_halo_is_told_how_to_use_its_memory() {
    let text = machine!("strix-halo");
    check(text, &[]);
    let found = findings(text);
    let gtt = found.iter().find(|finding| finding.what.contains("do not fit")).expect("a note on GTT");
    assert!(gtt.fix.as_ref().is_some_and(|fix| fix.contains("ttm.pages_limit=")), "{gtt:?}");
}

#[test]
fn two_instincts_behind_an_iommu() {
    check(machine!("mi300x-two"), &[(Warning, "the IOMMU translates")]);
}

#[test]
fn vega_without_rocm() {
    check(
        machine!("vega64"),
        &[
            (Problem, "/dev/kfd belongs to the group render"),
            (Problem, "/dev/dri/renderD128 belongs to the group render"),
            (Warning, "Resizable BAR is off"),
            (Problem, "no AMD driver and run-time compiler library"),
        ],
    );
}

#[test]
fn a_user_without_groups_gets_the_command() {
    let text = machine!("no-groups");
    check(text, &[(Problem, "/dev/kfd belongs"), (Problem, "renderD128 belongs")]);
    let fix = findings(text).into_iter().find_map(|finding| finding.fix.filter(|fix| fix.contains("usermod")));
    assert_eq!(fix.as_deref(), Some("sudo usermod -aG render $USER, then log out and in again"));
}

#[test]
fn a_container_without_devices() {
    check(
        machine!("container"),
        &[(Problem, "/dev/kfd was not given to this container"), (Problem, "renderD128 was not given")],
    );
}

#[test]
fn a_card_without_a_driver() {
    let fix = |text: &str| {
        check(text, &[(Problem, "no kernel driver is bound to the card")]);
        findings(text).into_iter().filter(|finding| finding.severity == Problem).find_map(|finding| finding.fix)
    };
    assert!(fix(machine!("no-driver")).unwrap().starts_with("sudo modprobe amdgpu; "));
    // A container cannot load it.
    let in_container = format!("{}\n/.dockerenv =\n", machine!("no-driver").trim_end());
    assert!(fix(&in_container).unwrap().starts_with("on the host, not in this container: sudo modprobe"));
}

#[test]
fn nvidia_with_its_driver_and_without() {
    check(
        machine!("nvidia-laptop"),
        &[(Problem, "no AMD driver and run-time compiler"), (Problem, "no NVIDIA run-time compiler")],
    );
    check(
        machine!("nvidia-nouveau"),
        &[(Problem, "nouveau"), (Problem, "no NVIDIA driver library"), (Problem, "no NVIDIA run-time compiler")],
    );
}

#[test]
fn no_gpu_at_all() {
    let found = findings(machine!("no-gpu"));
    assert!(found.iter().any(|finding| finding.what.contains("models run on the CPU")), "{found:?}");
}

#[test]
fn a_live_machine_can_be_recorded_and_read_back() {
    let system = System::live();
    let sections = examine(&system);
    let again = System::recorded(&system.recording()).expect("our own recording");
    assert_eq!(examine(&again), sections);
}

/// The guide's table of cards is the one in the code: rows come from `cards::KNOWN`, the last column from what the kernels
/// are compiled for and run on. A mistake prints the table to paste.
#[test]
fn the_guide_lists_the_cards_that_are_known() {
    let covered = |arch: &str| match (amd::RUN_ON.contains(&arch), amd::COMPILED_FOR.contains(&arch)) {
        (true, _) => "compiled and run on a software model of the chip",
        (false, true) => "compiled",
        (false, false) => "not compiled in tests: compiled on your machine, untried",
    };
    let rows = cards::KNOWN.iter().map(|(_, name, arch, _)| format!("| {name} | `{arch}` | {} |\n", covered(arch)));
    let table = format!("| card | target | our kernels |\n|---|---|---|\n{}", rows.collect::<String>());
    let guide = include_str!("../../../../docs/user/amd.md");
    assert!(guide.contains(&table), "docs/user/amd.md should have this table:\n{table}");
    assert!(
        guide.contains(amd::CONTAINER_FLAGS),
        "docs/user/amd.md should start containers with {}",
        amd::CONTAINER_FLAGS
    );
}
