//! The two compilers' targets, by a chip's name.

use std::str::FromStr;

/// Which back end compiles for a chip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    Amd,
    Nvidia,
}

#[derive(Debug, thiserror::Error)]
#[error("this compiler does not know the chip `{0}`\nhint: AMD's are called gfx1100 or gfx11-generic, NVIDIA's sm_70")]
pub struct UnknownChip(String);

impl FromStr for Target {
    type Err = UnknownChip;

    fn from_str(chip: &str) -> Result<Self, UnknownChip> {
        let is_plain = chip.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        match chip {
            _ if is_plain && chip.starts_with("gfx") => Ok(Self::Amd),
            _ if is_plain && chip.starts_with("sm_") => Ok(Self::Nvidia),
            _ => Err(UnknownChip(chip.to_owned())),
        }
    }
}

impl Target {
    pub(crate) fn triple(self) -> &'static str {
        match self {
            Self::Amd => "amdgcn-amd-amdhsa",
            Self::Nvidia => "nvptx64-nvidia-cuda",
        }
    }

    /// A chip whose `core` fits all of the vendor's: nothing but tables is generated in it.
    pub(crate) fn core_chip(self) -> &'static str {
        match self {
            Self::Amd => "gfx1100",
            Self::Nvidia => "sm_70",
        }
    }

    /// What its objects' files are called.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Amd => "hsaco",
            Self::Nvidia => "ptx",
        }
    }
}

/// What multiplies matrices on a chip, as the device library's `units.rs` calls it, and whether its waves have 64 lanes.
pub(crate) fn matrix_units(target: Target, chip: &str) -> (&'static str, bool) {
    let starts = |stems: &[&str]| stems.iter().any(|stem| chip.starts_with(stem));
    match target {
        Target::Nvidia => {
            let number = chip.trim_start_matches("sm_").trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let has_it = number.parse::<u32>().is_ok_and(|number| number >= 80);
            (if has_it { "mma" } else { "lanes" }, false)
        }
        Target::Amd if starts(&["gfx908", "gfx90a", "gfx94", "gfx95", "gfx9-4"]) => ("mfma", true),
        Target::Amd if starts(&["gfx11"]) => ("wmma", false),
        Target::Amd if starts(&["gfx120", "gfx12-generic"]) => ("wmma12", false),
        // Before RDNA all waves have 64 lanes.
        Target::Amd => ("lanes", starts(&["gfx6", "gfx7", "gfx8", "gfx9"])),
    }
}

#[cfg(test)]
mod tests {
    use super::{Target, matrix_units};

    #[test]
    fn chips_have_their_matrix_units() {
        for (chip, expected) in [
            ("gfx1100", ("wmma", false)),
            ("gfx11-generic", ("wmma", false)),
            ("gfx1201", ("wmma12", false)),
            ("gfx942", ("mfma", true)),
            ("gfx9-4-generic", ("mfma", true)),
            ("gfx906", ("lanes", true)),
            ("gfx9-generic", ("lanes", true)),
            ("gfx1030", ("lanes", false)),
            ("gfx1250", ("lanes", false)),
            ("sm_70", ("lanes", false)),
            ("sm_90a", ("mma", false)),
        ] {
            assert_eq!(matrix_units(chip.parse().unwrap(), chip), expected, "{chip}");
        }
    }

    #[test]
    fn chips_are_known_by_their_names() {
        assert_eq!("gfx9-4-generic".parse::<Target>().unwrap(), Target::Amd);
        assert_eq!("sm_90".parse::<Target>().unwrap(), Target::Nvidia);
        for wrong in ["", "rtx4090", "gfx1100 -Cfoo", "sm_90;rm"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
