//! Would a wrong emulator be noticed? Code with one opcode changed must fail a kernel's check.
//!
//! Each arithmetic, memory and LDS instruction of three kernels is turned, one at a time, into its neighbours in the
//! opcode table. It counts as watched when one of them makes the run fault or any output bit differ. A few mean the
//! same whatever stands there (a push for a pull over a symmetric pattern, a carry that is never set), so the bar is
//! not 100 %.

use gfx_model::bare::{Arg, Device};
use gfx_model::code_object::CodeObject;
use gfx_model::dispatch::Options;
use gfx_model::isa::{self, Encoding, Family};

use crate::tools::{self, Dice};

/// The lowest opcode bit of each encoding that is mutated.
fn opcode_bit(encoding: Encoding) -> Option<u32> {
    Some(match encoding {
        Encoding::Sop1 => 8,
        Encoding::Sop2 => 23,
        Encoding::Vop1 => 9,
        Encoding::Vop2 => 25,
        Encoding::Vopc => 17,
        Encoding::Vop3 | Encoding::Vop3sd | Encoding::Vop3p => 16,
        Encoding::Vopd => 22,
        Encoding::Ds | Encoding::Global => 18,
        _ => return None,
    })
}

/// Runs one kernel on fixed data; the output bytes, or the error's text.
fn run(object: CodeObject, kernel: &str) -> Result<Vec<u8>, String> {
    let options = Options { n_threads: 1, is_checked: true, max_instructions: 100_000 };
    let device = Device::new("gfx1100", options).map_err(|e| e.to_string())?;
    let module = device.load_object(object);
    let mut dice = Dice(77);
    let x: Vec<f32> = (0..2048).map(|_| dice.unit() * 3.0).collect();
    let bytes: Vec<u8> = (0..34 * 64 * 16).map(|k| if k % 34 == 1 { 0x2c } else { dice.next() as u8 & 0x3f }).collect();
    let (a, b, out) = (device.upload_f32(&x), device.upload(&bytes), device.alloc(2048 * 4));
    let buffers = [Arg::Buffer(&a), Arg::Buffer(&b), Arg::Buffer(&out)];
    let mut args: Vec<Arg<'_>> = Vec::new();
    match kernel {
        "rmsnorm" => args.extend([buffers[0], buffers[0], buffers[2], Arg::I32(700), Arg::F32(1e-5)]),
        "matvec_q8_0" => args.extend([buffers[1], buffers[1], buffers[2], Arg::I32(13), Arg::I32(37)]),
        _ => args.extend([buffers[0], buffers[1], buffers[1], buffers[2], Arg::I32(45), Arg::F32(0.1)]),
    }
    device.launch(&module, kernel, [2, 1, 1], [256, 1, 1], &args).map_err(|e| e.to_string())?;
    Ok(out.bytes())
}

#[test]
fn one_changed_opcode_is_noticed() {
    let Some(file) = tools::clang(&tools::crate_dir().join("testdata/kernels.hip"), "gfx1100", 32) else { return };
    let object = CodeObject::parse(&file).expect("clang's code object");
    for kernel in ["rmsnorm", "matvec_q8_0", "attention"] {
        let right = run(object.clone(), kernel).expect("the unchanged kernel runs");
        let symbol = object.symbols.iter().find(|s| s.name == kernel).expect("the kernel's code");
        let (mut at, end) = (symbol.address as usize, (symbol.address + symbol.n_bytes) as usize);
        let (mut n, mut survivors) = (0, Vec::new());
        while at < end {
            let words: Vec<u32> =
                object.image[at..end].as_chunks::<4>().0.iter().take(3).map(|b| u32::from_le_bytes(*b)).collect();
            let d = isa::decode(Family::Rdna3, &words).expect("clang's code decodes");
            if let Some(bit) = opcode_bit(d.encoding) {
                // Whether this neighbour is noticed; `None` when it is no instruction of the same length.
                let is_noticed = |flip: u32| {
                    let mut changed = words.clone();
                    changed[0] ^= flip << bit;
                    let neighbour = isa::decode(Family::Rdna3, &changed).ok()?;
                    if neighbour.op == d.op || neighbour.n_words != d.n_words {
                        return None;
                    }
                    let mut mutant = object.clone();
                    mutant.image[at..at + 4].copy_from_slice(&changed[0].to_le_bytes());
                    Some(run(mutant, kernel) != Ok(right.clone()))
                };
                let tried: Vec<bool> = (1..8).filter_map(is_noticed).collect();
                n += !tried.is_empty() as usize;
                if !tried.is_empty() && !tried.contains(&true) {
                    survivors.push(format!("{} at +{:#x}", d.op, at - symbol.address as usize));
                }
            }
            at += 4 * d.n_words as usize;
        }
        eprintln!("{kernel}: {} of {n} instructions watched; not: {survivors:?}", n - survivors.len());
        assert!(n > 20, "only {n} instructions of {kernel}");
        assert!(survivors.len() * 12 < n, "{kernel}: {} of {n} unwatched: {survivors:#?}", survivors.len());
    }
}
