//! A machine without GPUs gets clear answers, never a panic. These run everywhere.

use gpu::discovery::Probe;
use gpu::{Device, Error, Vendor};

#[test]
fn a_device_that_is_not_there_is_an_error_that_says_so() {
    for vendor in Vendor::ALL {
        let error = Device::open(vendor, 999).expect_err("nobody has a thousand GPUs");
        let is_clear = matches!(error, Error::NoLibrary { .. } | Error::NoDevice { .. } | Error::NoSuchDevice { .. });
        assert!(is_clear, "{error}");
        assert!(error.to_string().contains(&vendor.to_string()), "{error}");
    }
}

#[test]
fn the_missing_library_is_named() {
    for vendor in Vendor::ALL {
        if let Err(error @ Error::NoLibrary { .. }) = Device::count(vendor) {
            let words = error.to_string();
            assert!(words.contains(vendor_library(vendor)), "{words}");
        }
    }
}

fn vendor_library(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Amd => "libamdhip64.so",
        Vendor::Nvidia => "libcuda.so",
    }
}

#[test]
fn discovery_accounts_for_every_vendor() {
    let (program, arguments) = crate::child_command();
    let mut probe = Probe::through(program, arguments.into_iter().map(Into::into));
    probe.list_limit = std::time::Duration::from_secs(60);
    probe.selftest_limit = std::time::Duration::from_secs(120);
    let found = probe.discover();
    for vendor in Vendor::ALL {
        let is_found = found.devices.iter().any(|device| device.vendor == vendor);
        let reason = found.absent.iter().find(|(absent, _)| *absent == vendor);
        assert!(is_found || reason.is_some_and(|(_, why)| !why.is_empty()), "{vendor} is in neither list: {found:?}");
    }
}

#[test]
fn a_probe_that_cannot_start_or_says_nothing_is_an_error() {
    let probe = Probe::through("/nonexistent/program".into(), []);
    assert!(probe.list(Vendor::Amd).unwrap_err().to_string().contains("does not start"));
    let probe = Probe::through("/bin/true".into(), []);
    assert!(probe.list(Vendor::Amd).unwrap_err().to_string().contains("ended the process"));
    let mut probe = Probe::through("/bin/sleep".into(), ["60".into()]);
    probe.list_limit = std::time::Duration::from_millis(100);
    assert!(probe.list(Vendor::Nvidia).unwrap_err().to_string().contains("no answer within 0.1 s"));
}
