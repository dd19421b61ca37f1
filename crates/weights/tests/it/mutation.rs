//! Honest files, damaged at random: nothing may panic, allocate beyond what the file's size allows, or hand out a
//! tensor whose bytes do not fit it. Seeded, so a failure names the file and the round that shows it again.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use weights::{Bytes, Checkpoint, Error};

use crate::heap::peak_bytes;
use crate::raw::Raw;
use crate::testdata;

const N_ROUNDS: u64 = 15_000;
const FILES: [&str; 8] = [
    "metadata_v2.gguf",
    "metadata_v3.gguf",
    "tensors_v2.gguf",
    "tensors_v3.gguf",
    "nested_v3.gguf",
    "unsupported_v3.gguf",
    "old_v1.gguf",
    "hub_one/model.safetensors",
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number that a careless parser would trip over.
    fn extreme(&mut self) -> u64 {
        let near = self.next() % 5;
        match self.next() % 6 {
            0 => near,
            1 => u64::MAX - near,
            2 => (1u64 << (self.next() % 64)).wrapping_sub(2).wrapping_add(near),
            3 => u64::from(u32::MAX) - 2 + near,
            4 => self.next() % 4096,
            _ => self.next(),
        }
    }
}

fn mutate(file: &[u8], header_bytes: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            break;
        }
        // Most damage goes to the header, where there is something to misread.
        let reach = if random.below(8) == 0 { bytes.len() } else { bytes.len().min(header_bytes) };
        let at = random.below(reach);
        match random.next() % 8 {
            0 | 1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = random.next() as u8,
            3 => overwrite(&mut bytes, at, &random.extreme().to_le_bytes()),
            4 => overwrite(&mut bytes, at, &(random.extreme() as u32).to_le_bytes()),
            5 => bytes.truncate(at),
            6 => drop(bytes.drain(at..(at + random.below(16)).min(reach))),
            _ => {
                // Part of the file again, elsewhere: doubled keys and names, shifted fields.
                let from = random.below(bytes.len());
                let part = bytes[from..(from + random.below(64)).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    let n_bytes = with.len().min(bytes.len() - at);
    bytes[at..at + n_bytes].copy_from_slice(&with[..n_bytes]);
}

/// Opens a file, and looks at everything in it.
fn exercise(bytes: Bytes) -> &'static str {
    let checkpoint = match Checkpoint::from_bytes(bytes) {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return kind(&error);
        }
    };
    for tensor in checkpoint.tensors() {
        let row_bytes = tensor.dtype.row_bytes(tensor.n_cols()).unwrap();
        assert_eq!(tensor.bytes.len(), tensor.n_rows() * row_bytes, "{tensor:?}");
        // Reading every byte is the point: a range outside the file would fault here.
        std::hint::black_box(tensor.bytes.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte)));
        assert!(std::ptr::eq(checkpoint.tensor(&tensor.name).unwrap(), tensor));
    }
    for tensor in checkpoint.unsupported() {
        assert!(matches!(checkpoint.tensor(&tensor.name), Err(Error::UnsupportedType { .. })));
    }
    for (key, value) in checkpoint.metadata().iter() {
        assert!(std::ptr::eq(checkpoint.metadata().get(key).unwrap(), value));
        std::hint::black_box((checkpoint.metadata().u32(key).ok(), checkpoint.metadata().i32s(key).ok()));
    }
    "opened"
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Magic { .. } => "magic",
        Error::Version { .. } | Error::BigEndian { .. } => "version",
        Error::Truncated { .. } => "truncated",
        Error::Incomplete { .. } => "incomplete",
        Error::Count { .. } => "count",
        Error::Invalid { .. } => "invalid",
        Error::WrongType { .. } => "wrong type",
        Error::TensorBytes { .. } => "tensor bytes",
        other => panic!("not an error of reading: {other}"),
    }
}

/// The densest things in a file are short keys and empty tensors: some 20 bytes there, up to 250 here while the lists
/// and maps they are put in grow.
fn memory_limit(n_bytes: usize) -> usize {
    16 * n_bytes + 4096
}

#[test]
fn honest_files_of_the_densest_kind_keep_the_memory_limit() {
    const N: u64 = 70_000;
    let name = |idx: u64| char::from_u32(idx as u32 + 0x1_0000).unwrap().to_string();
    let keys = (0..N).fold(Raw::header(3, 0, N), |raw, idx| raw.str(&name(idx)).u32(0).u8(0));
    let tensors = (0..N).fold(Raw::header(3, N, 0), |raw, idx| raw.tensor(&name(idx), &[0], 0, 0));
    let strings = (0..N).fold(Raw::header(3, 0, 1).str("k").u32(9).u32(8).u64(N), |raw, _| raw.u64(0));
    let arrays = (0..N).fold(Raw::header(3, 0, 1).str("k").u32(9).u32(9).u64(N), |raw, _| raw.u32(0).u64(0));
    for (what, raw) in [("keys", keys), ("tensors", tensors), ("strings", strings), ("arrays", arrays)] {
        let bytes = Bytes::from_vec(raw.0);
        let n_bytes = bytes.len();
        let (peak, checkpoint) = peak_bytes(|| Checkpoint::from_bytes(bytes));
        assert!(checkpoint.is_ok());
        println!("{what}: {:.1} bytes allocated per byte of file", peak as f64 / n_bytes as f64);
        assert!(peak <= memory_limit(n_bytes), "{what}: {peak} bytes allocated for a file of {n_bytes}");
    }
}

#[test]
fn damaged_files_neither_panic_nor_swallow_memory() {
    let mut outcomes = BTreeMap::new();
    for (file_idx, name) in FILES.into_iter().enumerate() {
        let file = std::fs::read(testdata(name)).unwrap();
        let header_bytes = match weights::gguf::parse(&Bytes::from_vec(file.clone())) {
            Ok(header) => header.data_offset as usize,
            // Of safetensors: a length and that many bytes.
            Err(_) => 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize,
        };
        for round in 0..N_ROUNDS {
            let mut random = Random((file_idx as u64) << 32 | round);
            let bytes = mutate(&file, header_bytes, &mut random);
            let n_bytes = bytes.len();
            let bytes = Bytes::from_vec(bytes);
            let (peak, outcome) = peak_bytes(|| catch_unwind(AssertUnwindSafe(|| exercise(bytes))));
            let outcome = outcome.unwrap_or_else(|_| panic!("{name}, round {round}: panicked, see above"));
            let limit = memory_limit(n_bytes);
            assert!(peak <= limit, "{name}, round {round}: {peak} bytes allocated for a file of {n_bytes} ({outcome})");
            *outcomes.entry(outcome).or_insert(0u64) += 1;
        }
    }
    // Damage that never opens, or is never caught by one of the checks, would test less than it says.
    println!("{outcomes:?}");
    assert_eq!(outcomes.values().sum::<u64>(), N_ROUNDS * FILES.len() as u64);
    for kind in ["opened", "magic", "version", "truncated", "count", "invalid", "wrong type"] {
        assert!(outcomes.get(kind).is_some_and(|&n| n >= 5), "{kind}: {outcomes:?}");
    }
}
