//! Every GPU of this machine, real or emulated. None is a skip with the vendors' reasons, or a failure with
//! `ROCI_REQUIRE_GPU=1`. Tests that use one are serial under nextest (`.config/nextest.toml`).

use crate::skip::skip;
use gpu::{Device, Vendor};

/// The GPUs that are here.
#[track_caller]
pub fn all() -> Vec<(Vendor, u32)> {
    let (mut found, mut reasons) = (Vec::new(), Vec::new());
    for vendor in Vendor::ALL {
        match Device::count(vendor) {
            Ok(n) => found.extend((0..n).map(|ordinal| (vendor, ordinal))),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    if found.is_empty() {
        skip(&format!("on GPUs: {}", reasons.join("; ")), "ROCI_REQUIRE_GPU");
    }
    found
}

/// The same, opened.
#[track_caller]
pub fn open() -> Vec<Device> {
    let open = |(vendor, ordinal)| Device::open(vendor, ordinal).unwrap_or_else(|error| panic!("{error}"));
    all().into_iter().map(open).collect()
}
