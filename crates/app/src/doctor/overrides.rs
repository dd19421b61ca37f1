//! Environment variables that change what a GPU driver does. People find them in forum threads for other programs, leave
//! them in a profile, and wonder a year later.

use super::system::System;
use super::{Finding, Severity};

/// Name, when it matters (`None`: whatever its value), what it does, what to do.
const OVERRIDES: &[(&str, Option<&str>, Severity, &str, &str)] = &[
    (
        "HSA_OVERRIDE_GFX_VERSION",
        None,
        Severity::Problem,
        "makes the driver run code for another chip than the one that is there: wrong results, hangs or `invalid device \
         function`. roci compiles its kernels for the real chip and never needs it",
        "unset HSA_OVERRIDE_GFX_VERSION",
    ),
    (
        "HIP_VISIBLE_DEVICES",
        None,
        Severity::Note,
        "hides GPUs from HIP and renumbers the others: rocm:0 may be another card than you think",
        "unset HIP_VISIBLE_DEVICES to see every card; choose one with --device",
    ),
    (
        "ROCR_VISIBLE_DEVICES",
        None,
        Severity::Note,
        "hides GPUs from ROCm and renumbers the others",
        "unset ROCR_VISIBLE_DEVICES to see every card; choose one with --device",
    ),
    (
        "CUDA_VISIBLE_DEVICES",
        None,
        Severity::Note,
        "hides GPUs from CUDA, and from HIP as well, and renumbers the others",
        "unset CUDA_VISIBLE_DEVICES to see every card; choose one with --device",
    ),
    (
        "HSA_ENABLE_SDMA",
        Some("0"),
        Severity::Warning,
        "turns the copy engines off: every copy takes compute units, and loading a model is slower",
        "unset HSA_ENABLE_SDMA unless copies hang without it",
    ),
    (
        "HIP_LAUNCH_BLOCKING",
        Some("1"),
        Severity::Warning,
        "waits for every kernel: several times slower",
        "unset HIP_LAUNCH_BLOCKING; `--debug-sync` does the same for one run",
    ),
    (
        "AMD_SERIALIZE_KERNEL",
        None,
        Severity::Warning,
        "runs kernels one at a time: several times slower",
        "unset AMD_SERIALIZE_KERNEL",
    ),
    (
        "CUDA_LAUNCH_BLOCKING",
        Some("1"),
        Severity::Warning,
        "waits for every kernel: several times slower",
        "unset CUDA_LAUNCH_BLOCKING; `--debug-sync` does the same for one run",
    ),
    (
        "HSA_XNACK",
        Some("1"),
        Severity::Note,
        "lets kernels wait for pages: slower on the chips that support it, ignored by the others",
        "unset HSA_XNACK",
    ),
    (
        "HSA_TOOLS_LIB",
        None,
        Severity::Note,
        "loads a profiler or debugger into every ROCm program",
        "unset HSA_TOOLS_LIB unless you are profiling",
    ),
    (
        "HSA_MODEL_LIB",
        None,
        Severity::Note,
        "replaces the GPU by a software model: right numbers, thousands of times slower",
        "unset HSA_MODEL_LIB and HSA_MODEL_TOPOLOGY to use a real card",
    ),
];

/// What is set, and what it does.
pub fn check(system: &System) -> Vec<Finding> {
    let findings = OVERRIDES.iter().filter_map(|&(name, only, severity, what, fix)| {
        let value = system.variable(name)?;
        (!value.is_empty() && only.is_none_or(|only| only == value))
            .then(|| Finding::new(severity, format!("{name}={value} {what}")).fix(fix))
    });
    findings.collect()
}
