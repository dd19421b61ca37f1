//! Machine code for several chips, and which of it fits a device.

use gpu::{Device, Error, Vendor};

use crate::launch::Loaded;

/// Code for one chip (`gfx1100`), a family of chips (`gfx11-generic`) or, as PTX, an NVIDIA chip and all after it (`sm_70`).
#[derive(Clone, Copy, Debug)]
pub struct Object {
    pub chip: &'static str,
    /// Deflated.
    pub code: &'static [u8],
}

/// All that was built of one file of kernels. `roci-kernel-build` writes one; `objects!` includes it.
#[derive(Clone, Copy, Debug)]
pub struct Objects {
    pub name: &'static str,
    pub all: &'static [Object],
}

impl Objects {
    /// Loads what fits the device.
    ///
    /// # Safety
    /// The objects were built from the file whose `kernels!` gives the calls that will be launched.
    #[track_caller]
    pub unsafe fn load(&self, device: &Device) -> gpu::Result<Loaded> {
        let arch = &device.properties().arch;
        let Some(object) = self.for_chip(device.vendor(), arch) else {
            let chips: Vec<&str> = self.all.iter().map(|object| object.chip).collect();
            let why = format!("it has code for {}, not for {arch}; build it for this chip, too", chips.join(", "));
            return Err(Error::Launch { kernel: self.name.into(), why, at: std::panic::Location::caller() });
        };
        let code = miniz_oxide::inflate::decompress_to_vec(object.code).map_err(|error| {
            let why = format!("its code for {} is damaged: {error}", object.chip);
            Error::Launch { kernel: self.name.into(), why, at: std::panic::Location::caller() }
        })?;
        // SAFETY: the caller's; PTX is stored with its NUL.
        unsafe { Loaded::new(device, &code) }
    }

    fn for_chip(&self, vendor: Vendor, arch: &str) -> Option<&Object> {
        match vendor {
            Vendor::Amd => {
                // `gfx90a:sramecc+:xnack-`
                let chip = arch.split(':').next().unwrap_or(arch);
                let find = |name: &str| self.all.iter().find(|object| object.chip == name);
                find(chip).or_else(|| find(generic(chip)?))
            }
            Vendor::Nvidia => {
                let ours = sm(arch)?;
                let fits = self.all.iter().filter_map(|object| Some((sm(object.chip)?, object)));
                fits.filter(|(made_for, _)| *made_for <= ours)
                    .max_by_key(|(made_for, _)| *made_for)
                    .map(|(_, object)| object)
            }
        }
    }
}

fn sm(chip: &str) -> Option<u32> {
    chip.strip_prefix("sm_")?.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()
}

/// LLVM's generic target that covers the chip, if one does.
fn generic(chip: &str) -> Option<&'static str> {
    Some(match chip {
        "gfx900" | "gfx902" | "gfx904" | "gfx906" | "gfx909" | "gfx90c" => "gfx9-generic",
        "gfx940" | "gfx941" | "gfx942" | "gfx950" => "gfx9-4-generic",
        "gfx1010" | "gfx1011" | "gfx1012" | "gfx1013" => "gfx10-1-generic",
        _ if chip.starts_with("gfx103") => "gfx10-3-generic",
        _ if chip.starts_with("gfx110") || chip.starts_with("gfx115") => "gfx11-generic",
        _ if chip.starts_with("gfx120") => "gfx12-generic",
        _ => return None,
    })
}

/// The objects that the build script made of a file of kernels: `kernel::objects!("saxpy")`, where `saxpy.rs` was its name.
#[macro_export]
macro_rules! objects {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, "/objects.rs"))
    };
}

#[cfg(test)]
mod tests {
    use super::{Object, Objects};
    use gpu::Vendor;

    #[test]
    fn the_closest_object_is_taken() {
        const CODE: &[u8] = &[];
        let all = &["gfx1100", "gfx11-generic", "gfx9-4-generic", "sm_70", "sm_90"];
        let all: Vec<Object> = all.iter().map(|chip| Object { chip, code: CODE }).collect();
        let objects = Objects { name: "test", all: all.leak() };
        let found = |vendor, arch| objects.for_chip(vendor, arch).map(|object| object.chip);
        assert_eq!(found(Vendor::Amd, "gfx1100"), Some("gfx1100"));
        assert_eq!(found(Vendor::Amd, "gfx1151"), Some("gfx11-generic"));
        assert_eq!(found(Vendor::Amd, "gfx942:sramecc+:xnack-"), Some("gfx9-4-generic"));
        assert_eq!(found(Vendor::Amd, "gfx803"), None);
        assert_eq!(found(Vendor::Nvidia, "sm_89"), Some("sm_70"));
        assert_eq!(found(Vendor::Nvidia, "sm_90a"), Some("sm_90"));
        assert_eq!(found(Vendor::Nvidia, "sm_61"), None);
    }
}
