//! Launch parameters that differ between chips: small TOML files under `tuning/`, from the general to the particular. What
//! each means is explained in `tuning/README.md`.

/// Name and text of each file.
const FILES: &[(&str, &str)] = &[
    ("default", include_str!("../../tuning/default.toml")),
    ("rocm", include_str!("../../tuning/rocm.toml")),
    ("gfx1100", include_str!("../../tuning/gfx1100.toml")),
    ("gfx1151", include_str!("../../tuning/gfx1151.toml")),
    ("gfx1201", include_str!("../../tuning/gfx1201.toml")),
    ("gfx90a", include_str!("../../tuning/gfx90a.toml")),
    ("gfx942", include_str!("../../tuning/gfx942.toml")),
    ("sm_90", include_str!("../../tuning/sm_90.toml")),
];

const ENV: &str = "ROCI_TUNING";

#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Tuning {
    pub waves: u32,
    pub packed_outs: u32,
    pub plain_outs: u32,
    pub units_rows: u32,
    pub mma_from: usize,
    pub mma_to: usize,
    pub mma_f16_from: usize,
    pub mma_f16_to: usize,
    pub mma_blocks: usize,
    pub experts_from: usize,
    pub few_queries_from: usize,
    pub few_shaped: bool,
    pub few_quantized: bool,
    pub blas_rows: u32,
    pub memory_gb_s: u32,
    pub matrix_tflops: u32,
}

impl Tuning {
    /// For a device, with what the environment overrides; overrides that make no sense are left out, with the reason.
    pub(crate) fn of(device: &gpu::Device) -> (Self, Option<String>) {
        let (vendor, arch) = (device.vendor().word(), device.properties().arch.as_str());
        let overrides = std::env::var(ENV).unwrap_or_default();
        match Self::with(vendor, arch, &overrides) {
            Ok(tuning) => (tuning, None),
            Err(why) => (Self::with(vendor, arch, "").expect("the program's own files were tested"), Some(why)),
        }
    }

    /// `arch` as a device reports it: `gfx942:sramecc+`, `sm_90`.
    pub(crate) fn with(vendor: &str, arch: &str, overrides: &str) -> Result<Self, String> {
        let arch = arch.split(':').next().unwrap_or(arch);
        // gfx1100 -> gfx11, gfx942 -> gfx9: the last two digits are the chip.
        let family = arch.len().checked_sub(2).and_then(|end| arch.get(..end)).unwrap_or(arch);
        let mut tuning = Self::default();
        for name in ["default", vendor, family, arch] {
            let Some((_, text)) = FILES.iter().find(|(file, _)| *file == name) else { continue };
            tuning.read(text).map_err(|what| format!("tuning/{name}.toml: {what}"))?;
        }
        tuning.read(&overrides.replace(',', "\n")).map_err(|what| format!("{ENV}: {what}"))?;
        Ok(tuning)
    }

    /// Takes every `name = number` of a TOML document.
    fn read(&mut self, text: &str) -> Result<(), String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        for (name, value) in table {
            let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
            let number = number.ok_or_else(|| format!("`{name} = {value}`: a number from 0 on is expected"))?;
            self.set(&name, number)?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, number: u32) -> Result<(), String> {
        let small = |number| match number {
            1..=16 => Ok(number),
            _ => Err(format!("`{name} = {number}`: a number from 1 to 16 is expected")),
        };
        let switch = |number| match number {
            0 | 1 => Ok(number == 1),
            _ => Err(format!("`{name} = {number}`: 0 or 1 is expected")),
        };
        match name {
            "waves" => self.waves = small(number)?,
            "packed_outs" => self.packed_outs = small(number)?,
            "plain_outs" => self.plain_outs = small(number)?,
            "units_rows" => self.units_rows = number,
            "mma_from" => self.mma_from = number as usize,
            "mma_to" => self.mma_to = number as usize,
            "mma_f16_from" => self.mma_f16_from = number as usize,
            "mma_f16_to" => self.mma_f16_to = number as usize,
            "mma_blocks" => self.mma_blocks = small(number)? as usize,
            "experts_from" => self.experts_from = number as usize,
            "few_queries_from" => self.few_queries_from = number as usize,
            "few_shaped" => self.few_shaped = switch(number)?,
            "few_quantized" => self.few_quantized = switch(number)?,
            "blas_rows" => self.blas_rows = number,
            "memory_gb_s" => self.memory_gb_s = number,
            "matrix_tflops" => self.matrix_tflops = number,
            _ => return Err(format!("`{name}` is not a launch parameter")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_the_particular_wins() {
        for (name, _) in FILES {
            Tuning::with(name, "none", "").unwrap();
        }
        let (card, h200) = (Tuning::with("rocm", "gfx1100", "").unwrap(), Tuning::with("cuda", "sm_90", "").unwrap());
        assert_eq!((card.blas_rows, card.memory_gb_s, card.waves), (2048, 960, 4));
        assert_eq!((h200.blas_rows, h200.matrix_tflops), (17, 800));
        let cdna = Tuning::with("rocm", "gfx942:sramecc+:xnack-", "").unwrap();
        assert_eq!(cdna.blas_rows, 256);
        let unknown = Tuning::with("rocm", "gfx9999", "").unwrap();
        assert_eq!((unknown.waves, unknown.memory_gb_s), (4, 0));
    }

    #[test]
    fn the_environment_wins_and_nonsense_is_refused() {
        let tuning = Tuning::with("rocm", "gfx1100", "waves=8, units_rows=1").unwrap();
        assert_eq!((tuning.waves, tuning.units_rows, tuning.packed_outs), (8, 1, 2));
        for wrong in ["waves", "waves=many", "waves=0", "waves=17", "speed=9", "waves=-1", "waves=1.5", "few_shaped=2"]
        {
            assert!(Tuning::with("rocm", "gfx1100", wrong).is_err(), "{wrong}");
        }
    }
}
