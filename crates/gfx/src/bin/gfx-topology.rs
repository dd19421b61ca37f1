//! `gfx-topology CHIP DIR [GPUS]`: writes the folder for `HSA_MODEL_TOPOLOGY`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let n_gpus = args.get(2).map_or(Some(1), |n| n.parse().ok().filter(|n| (1..=8).contains(n)));
    let ([chip, dir] | [chip, dir, _], Some(n_gpus)) = (args.as_slice(), n_gpus) else {
        eprintln!("usage: gfx-topology CHIP DIR [GPUS]   (chips: {}; 1 to 8 GPUs)", gfx_model::chip::known());
        return ExitCode::from(2);
    };
    match gfx_model::chip::Chip::find(chip).and_then(|c| gfx_model::topology::write(c, n_gpus, Path::new(dir))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gfx-topology: {e}");
            ExitCode::FAILURE
        }
    }
}
