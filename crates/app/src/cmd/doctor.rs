//! `roci doctor`: what stands between this machine and a GPU that works, and how to fix it.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use model::DeviceChoice;
use rocinante::HostMemory;

use crate::doctor::selftest::{self, DeviceTest, Types};
use crate::doctor::{self, Section, Severity, System};
use crate::machine::Cpu;
use crate::options::{ReportFormat, print_json};
use crate::report::{HintExt, counted, human_bytes};

/// Diagnose and test GPUs
#[derive(clap::Args)]
#[command(after_help = "\
Reads the PCI bus, drivers, device nodes, groups, libraries and environment variables, says what is wrong and how to \
fix it, then tests every working GPU with known answers. Nothing is sent anywhere; the text can be pasted into a bug \
report. The exit status is 1 if there is a problem, 0 otherwise, even with warnings.

Examples:
  roci doctor                          examine and test this machine
  roci doctor --no-test                only examine it
  roci doctor --record machine.txt     save everything that was read
  roci doctor --machine machine.txt    examine a recording of another machine")]
pub struct Args {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: ReportFormat,
    /// Only examine the machine; run nothing on a GPU
    #[arg(long)]
    no_test: bool,
    /// Test every weight type instead of the common ones (a first run compiles for minutes)
    #[arg(long, conflicts_with = "no_test")]
    all_types: bool,
    /// Save everything that was read to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Examine a recorded machine instead of this one
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    machine: Option<PathBuf>,
    /// Test one device in this process and write the result as one line
    #[arg(long, hide = true, value_name = "DEVICE", value_parser = parse_gpu)]
    test_device: Option<DeviceChoice>,
}

impl Args {
    fn types(&self) -> Types {
        if self.all_types { Types::All } else { Types::Common }
    }
}

fn parse_gpu(text: &str) -> Result<DeviceChoice, String> {
    let (word, ordinal) = text.split_once(':').ok_or("a device such as rocm:0")?;
    let vendor = gpu::Vendor::from_word(word).ok_or("a device such as rocm:0")?;
    Ok(DeviceChoice::Gpu { vendor, ordinal: ordinal.parse().map_err(|_| "a device such as rocm:0")? })
}

/// What the exit status says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Nothing, or warnings at most.
    Well,
    /// At least one problem.
    Ill,
}

pub fn main(args: &Args) -> Result<Health> {
    if let Some(device) = args.test_device {
        let DeviceChoice::Gpu { vendor, ordinal } = device else { return Ok(Health::Well) };
        let tested = selftest::run(device, &format!("{}:{ordinal}", vendor.word()), args.types());
        println!("{}", serde_json::to_string(&tested)?);
        return Ok(Health::Well);
    }
    let system = match &args.machine {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("`{}`", path.display()))?;
            System::recorded(&text).hint("`roci doctor --record FILE` writes recordings")?
        }
        None => System::live(),
    };
    let sections = doctor::examine(&system);
    if let Some(path) = &args.record {
        std::fs::write(path, system.recording()).with_context(|| format!("`{}`", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    let gpus = (system.is_live() && !args.no_test).then(|| test_gpus(args.types()));
    match args.output {
        ReportFormat::Json => print_json(&as_json(&sections, gpus.as_ref()))?,
        ReportFormat::Text => print_text(&sections, gpus.as_ref(), &system)?,
    }
    Ok(if n_problems(&sections, gpus.as_ref()) > 0 { Health::Ill } else { Health::Well })
}

/// What the drivers say themselves, and how each usable device did.
struct Gpus {
    found: gpu::discovery::Discovery,
    tested: Vec<DeviceTest>,
}

fn test_gpus(types: Types) -> Gpus {
    eprintln!("testing GPUs (a first run compiles kernels)...");
    let found = gpu::discovery::Discovery::here();
    let patience = std::env::var("ROCI_GPU_PATIENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let usable = found.devices.iter().filter(|device| device.refused.is_none());
    let tested = usable.map(|device| selftest::in_child(device, types, patience)).collect();
    Gpus { found, tested }
}

fn as_json(sections: &[Section], gpus: Option<&Gpus>) -> serde_json::Value {
    let cpu = Cpu::detect();
    let devices = gpus.map(|gpus| {
        let found = gpus.found.devices.iter().map(|device| {
            let name = format!("{}:{}", device.vendor.word(), device.ordinal);
            let tested = gpus.tested.iter().find(|tested| tested.device == name);
            serde_json::json!({
                "device": name,
                "name": device.name,
                "architecture": device.arch,
                "driver": device.driver,
                "refused": device.refused,
                "is_right": tested.map(DeviceTest::is_right),
                "self_test": tested,
            })
        });
        found.collect::<Vec<_>>()
    });
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cpu": {"name": cpu.name, "cores": cpu.n_cores, "features": cpu.features},
        "sections": sections,
        "devices": devices,
        "n_problems": n_problems(sections, gpus),
    })
}

fn n_problems(sections: &[Section], gpus: Option<&Gpus>) -> usize {
    let findings = sections.iter().flat_map(|section| &section.findings);
    let n_wrong = gpus.map_or(0, |gpus| {
        let n_refused = gpus.found.devices.iter().filter(|device| device.refused.is_some()).count();
        n_refused + gpus.tested.iter().filter(|tested| !tested.is_right()).count()
    });
    findings.filter(|finding| finding.severity == Severity::Problem).count() + n_wrong
}

fn print_text(sections: &[Section], gpus: Option<&Gpus>, system: &System) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "roci {} doctor", env!("CARGO_PKG_VERSION"))?;
    if system.is_live() {
        let cpu = Cpu::detect();
        let memory =
            HostMemory::read().map_or_else(String::new, |memory| format!(", {}", human_bytes(memory.total_bytes)));
        let name = cpu.name.as_deref().unwrap_or(std::env::consts::ARCH);
        writeln!(out, "{name}, {}{memory}", counted(cpu.n_cores, "core"))?;
    }
    for section in sections.iter().filter(|section| !section.findings.is_empty()) {
        writeln!(out, "\n{}", section.title)?;
        for finding in &section.findings {
            writeln!(out, "  {:<8} {}", mark(finding.severity), finding.what)?;
            if let Some(fix) = &finding.fix {
                writeln!(out, "           fix: {fix}")?;
            }
        }
    }
    if let Some(gpus) = gpus {
        print_tests(&mut out, gpus)?;
    }
    writeln!(out, "\n{}", verdict(sections, gpus))?;
    Ok(())
}

/// The last line: what a person who reads nothing else should know.
fn verdict(sections: &[Section], gpus: Option<&Gpus>) -> String {
    let findings = sections.iter().flat_map(|section| &section.findings);
    let n_warnings = findings.filter(|finding| finding.severity == Severity::Warning).count();
    let mut text = match (n_problems(sections, gpus), n_warnings) {
        (0, 0) => "no problem found".to_owned(),
        (0, warnings) => format!("no problem found, {}", counted(warnings, "warning")),
        (problems, 0) => format!("{} found", counted(problems, "problem")),
        (problems, warnings) => format!("{} and {} found", counted(problems, "problem"), counted(warnings, "warning")),
    };
    if gpus.is_some_and(|gpus| gpus.found.devices.iter().all(|device| device.refused.is_some())) {
        text += "; no GPU is usable, so models run on the CPU";
    }
    text
}

fn print_tests(out: &mut impl Write, gpus: &Gpus) -> Result<()> {
    writeln!(out, "\nSelf-test")?;
    for device in &gpus.found.devices {
        let name = format!("{}:{}", device.vendor.word(), device.ordinal);
        writeln!(out, "  {device}")?;
        let Some(tested) = gpus.tested.iter().find(|tested| tested.device == name) else { continue };
        for result in &tested.types {
            let show = |error: Option<f32>| error.map_or("not a number".to_owned(), |error| format!("{error:.1e}"));
            let (prompt, token) = (show(result.prompt_error), show(result.token_error));
            let mark = mark(if result.is_right() { Severity::Good } else { Severity::Problem });
            writeln!(out, "    {mark:<8} {:<8} against the CPU: prompt {prompt}, token {token}", result.weights)?;
        }
        if let Some(bandwidth) = tested.bandwidth {
            writeln!(out, "    {:<8} memory bandwidth {:.0} GB/s", mark(Severity::Good), bandwidth / 1e9)?;
        }
        if let Some(failure) = &tested.failure {
            writeln!(out, "    {:<8} {failure}", mark(Severity::Problem))?;
        }
    }
    for (vendor, why) in &gpus.found.absent {
        writeln!(out, "  no {vendor} GPU: {why}")?;
    }
    Ok(())
}

fn mark(severity: Severity) -> &'static str {
    match severity {
        Severity::Good => "ok",
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Problem => "PROBLEM",
    }
}
