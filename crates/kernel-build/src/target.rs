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

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn chips_are_known_by_their_names() {
        assert_eq!("gfx9-4-generic".parse::<Target>().unwrap(), Target::Amd);
        assert_eq!("sm_90".parse::<Target>().unwrap(), Target::Nvidia);
        for wrong in ["", "rtx4090", "gfx1100 -Cfoo", "sm_90;rm"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
