//! The page `docs/user/doctor.md`: what `roci doctor` says on every machine of `testdata/doctor`. `ROCI_WRITE_DOCS=1` writes
//! the page; without it the test fails if the page says something else.

use crate::roci::Roci;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# What `roci doctor` says

`roci doctor` examines this machine, lists what keeps a GPU from working, with a fix for each problem, and tests every
working GPU. It sends nothing anywhere. `--output json` is for programs, `--no-test` skips the tests, and `--record FILE`
saves everything that was read, to attach to a report; `--machine FILE` examines such a recording. The exit status is 1 if
there is a problem.

Below is its output for the machines that the tests keep. They were **constructed** from the kernel's documentation and
public reports, not recorded, because no such card was available. The self-test is missing here, because it needs the machine
itself. This page is written by a test (`doctor_page`).
";

/// Each machine, in the order of the page.
const MACHINES: [(&str, &str); 12] = [
    ("rx7900xtx", "Radeon RX 7900 XTX, as it should be"),
    ("rx7900xtx-beside-igpu", "Radeon RX 7900 XTX beside an integrated GPU, with an override set"),
    ("rx9070xt-old-kernel", "Radeon RX 9070 XT under an old kernel and an old ROCm"),
    ("strix-halo", "Strix Halo"),
    ("mi300x-two", "Two Instinct MI300X"),
    ("vega64", "Radeon RX Vega 64 without ROCm, and a user without groups"),
    ("no-groups", "A user who is not in the group `render`"),
    ("container", "A container that was given no devices"),
    ("no-driver", "A card without a driver"),
    ("nvidia-laptop", "A laptop with an NVIDIA GPU beside AMD's integrated one"),
    ("nvidia-nouveau", "NVIDIA under nouveau"),
    ("no-gpu", "No GPU"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/doctor")
}

#[test]
fn the_page_is_what_doctor_says() {
    let roci = Roci::new();
    let mut page = HEAD.to_owned();
    for (name, title) in MACHINES {
        let file = folder().join(format!("{name}.txt"));
        let said = roci.run(&["doctor", "--machine", file.to_str().unwrap()]);
        // The first line is the version.
        let (_, findings) = said.stdout.split_once("\n\n").unwrap_or_else(|| panic!("{name}: {}", said.stderr));
        page.push_str(&format!("\n## {title}\n\n```text\n{}\n```\n", findings.trim_end()));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/user/doctor.md");
    if test_support::is_required("ROCI_WRITE_DOCS") {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, page, "docs/user/doctor.md differs from what doctor says; ROCI_WRITE_DOCS=1 writes it");
}

#[test]
fn every_machine_is_on_the_page() {
    let mut kept: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let mut shown = MACHINES.map(|(name, _)| name.to_owned());
    kept.sort();
    shown.sort();
    assert_eq!(kept, shown);
}
