//! Each field of a GGUF file, lying: the error names the field and the numbers.

use weights::{Bytes, Checkpoint, Dtype, Error, Metadata, Tensor};

use crate::raw::Raw;
use crate::{scratch, testdata};

fn check(raw: Raw, expected: &str) {
    assert_eq!(raw.open().unwrap_err().to_string(), expected);
}

/// One key, `k`, up to its value type.
fn key(kind: u32) -> Raw {
    Raw::header(3, 0, 1).str("k").u32(kind)
}

fn tensor(dims: &[u64], ggml_id: u32, offset: u64) -> Raw {
    Raw::header(3, 1, 0).tensor("t", dims, ggml_id, offset)
}

#[test]
fn preamble() {
    check(Raw(vec![]), "magic: needs 4 bytes at byte 0, the file has 0 left");
    check(Raw(b"GG".to_vec()), "magic: needs 4 bytes at byte 0, the file has 2 left");
    check(Raw(b"PK\x03\x04".to_vec()), "neither GGUF nor safetensors: it starts with [50, 4b, 03, 04]");
    check(Raw(b"GGUF\x03".to_vec()), "version: needs 4 bytes at byte 4, the file has 1 left");
    check(Raw::header(0, 0, 0), "GGUF version 0: only versions 1 to 3 are read");
    check(Raw::header(4, 0, 0), "GGUF version 4: only versions 1 to 3 are read");
    check(Raw::header(3 << 24, 0, 0), "big-endian GGUF (version field 0x03000000): only little-endian files are read");
}

#[test]
fn counts() {
    check(
        Raw::header(3, u64::MAX, 0),
        "tensor count: says 18446744073709551615, but the 8 bytes left in the file hold at most 0",
    );
    check(Raw::header(3, 0, 2).data(0), "metadata key count: says 2, but the 8 bytes left in the file hold at most 0");
    check(
        key(9).u32(8).u64(1 << 60).u64(0),
        "length of metadata key `k`: says 1152921504606846976, but the 8 bytes left in the file hold at most 1",
    );
    check(
        key(9).u32(10).u64(1 << 61).u64(0),
        "length of metadata key `k`: says 2305843009213693952, but the 8 bytes left in the file hold at most 1",
    );
    check(
        key(9).u32(7).u64(3).u8(1),
        "length of metadata key `k`: says 3, but the 1 bytes left in the file hold at most 1",
    );
}

#[test]
fn strings() {
    let cut = Raw::header(3, 0, 1).u64(u64::MAX).bytes(&[0; 8]);
    check(cut, "metadata key 0: needs 18446744073709551615 bytes at byte 32, the file has 8 left");
    let bad = Raw::header(3, 0, 1).u64(2).bytes(b"a\xff").u32(0).u8(0);
    check(bad, "metadata key 0: not UTF-8: byte 0xff at byte 33");
    // A character cut in half at the end of its string.
    check(key(8).u64(1).bytes("ü".as_bytes()), "metadata key `k`: not UTF-8: byte 0xc3 at byte 45");
    let second = key(9).u32(8).u64(2).str("fine").u64(100).bytes(&[0; 8]);
    check(second, "metadata key `k` [1]: needs 100 bytes at byte 69, the file has 8 left");
    let name = Raw::header(3, 1, 0).u64(1).bytes(&[0xff; 30]);
    check(name, "name of tensor 0: not UTF-8: byte 0xff at byte 32");
}

#[test]
fn values() {
    check(key(13).u64(0), "metadata key `k`: value type 13 is none of 0 to 12");
    check(key(9).u32(99).u64(0), "metadata key `k`: element type 99 is none of 0 to 12");
    check(key(7).u8(2), "metadata key `k`: a bool is 0 or 1, this is 2");
    check(key(9).u32(7).u64(2).u8(1).u8(7), "metadata key `k`: a bool is 0 or 1, this is 7");
    check(key(12).u32(0), "metadata key `k`: needs 8 bytes at byte 37, the file has 4 left");
    let twice = Raw::header(3, 0, 2).str("k").u32(0).u8(1).str("k").u32(0).u8(2);
    check(twice, "metadata key `k`: stands twice, the second time as key 1");
    let deep = (0..5).fold(key(9), |raw, _| raw.u32(9).u64(1)).data(64);
    check(deep, "metadata key `k` [0] [0] [0]: arrays nest deeper than 4");
}

#[test]
fn alignment() {
    let aligned = |alignment: u32| Raw::header(3, 0, 1).str("general.alignment").u32(4).u32(alignment);
    check(aligned(0), "metadata key `general.alignment`: 0 is not a power of two");
    check(aligned(48), "metadata key `general.alignment`: 48 is not a power of two");
    assert!(aligned(1 << 31).open().is_ok(), "no tensors, so nothing needs to be there");
    let wrong = Raw::header(3, 0, 1).str("general.alignment").u32(10).u64(32);
    check(wrong, "metadata key `general.alignment`: expected u32, found u64 32");
    let offset = tensor(&[1], 0, 31).data(64);
    check(offset, "tensor `t`: offset 31 is not a multiple of the alignment 32");
}

#[test]
fn tensors() {
    let twice = Raw::header(3, 2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 6, 0).data(64);
    check(twice, "tensor `t`: the name stands twice, the second time at tensor 1");
    check(tensor(&[1; 5], 0, 0), "tensor `t`: 5 dimensions, at most 4 are possible");
    check(tensor(&[33], 2, 0).data(64), "tensor `t`: rows of 33 are not a whole number of Q4_0 blocks of 32");
    check(tensor(&[255], 10, 0).data(99), "tensor `t`: rows of 255 are not a whole number of Q2_K blocks of 256");
    let cut = Raw::header(3, 1, 0).str("t").u32(4).u64(1).u64(1);
    check(cut, "dimension 2 of tensor `t`: needs 8 bytes at byte 53, the file has 0 left");
}

#[test]
fn dimensions_that_overflow() {
    for dims in [&[u64::MAX, 2][..], &[1 << 32, 1 << 32], &[1 << 62], &[1 << 40, 1 << 40, 0], &[0, 1 << 40, 1 << 40]] {
        let error = tensor(dims, 0, 0).data(64).open().unwrap_err().to_string();
        let shape: Vec<_> = dims.iter().rev().collect();
        assert_eq!(error, format!("tensor `t`: shape {shape:?} overflows"));
    }
}

#[test]
fn data_past_the_end() {
    check(
        tensor(&[64, 2], 2, 32).data(32 + 71),
        "tensor `t`: 72 bytes of Q4_0 at offset 32 of the data, which starts at byte 96, \
         lie past the end of the file of 199 bytes",
    );
    assert!(tensor(&[64, 2], 2, 32).data(32 + 72).open().is_ok());
    // Types we do not compute with lie no better.
    let error = tensor(&[32], 6, 32).data(32 + 21).open().unwrap_err().to_string();
    assert!(error.starts_with("tensor `t`: 22 bytes of Q5_0 at offset 32"), "{error}");
    for offset in [1 << 20, u64::MAX - 31] {
        let error = tensor(&[1], 0, offset).data(64).open().unwrap_err().to_string();
        assert!(error.starts_with(&format!("tensor `t`: 4 bytes of F32 at offset {offset} of the data")), "{error}");
        let error = tensor(&[1], 77, offset).data(64).open().unwrap_err().to_string();
        assert!(error.starts_with(&format!("tensor `t`: data of an unknown type at offset {offset}")), "{error}");
    }
}

#[test]
fn a_cut_file_is_called_incomplete() {
    let two = || Raw::header(2, 2, 0).tensor("a", &[8], 0, 32).tensor("b", &[8], 0, 0);
    assert!(two().data(64).open().is_ok());
    for n_bytes in [0, 31, 63] {
        let error = two().data(n_bytes).open().unwrap_err();
        let n_here = 96 + n_bytes as u64;
        assert!(matches!(error, Error::Incomplete { has, needs: 160 } if has == n_here), "{n_bytes}: {error}");
    }
}

#[test]
fn overlapping_tensors() {
    let overlapping = Raw::header(2, 2, 0).tensor("a", &[16], 0, 0).tensor("b", &[4], 0, 32).data(64);
    check(overlapping, "tensor `b`: starts at byte 128, inside tensor `a`, which ends at byte 160");
}

#[test]
fn odd_but_true() {
    let side_by_side = Raw::header(2, 2, 0).tensor("a", &[8], 0, 32).tensor("b", &[8], 0, 0).data(64);
    assert_eq!(side_by_side.open().unwrap().tensors().len(), 2);
    let scalar = tensor(&[], 0, 0).data(4).open().unwrap();
    assert_eq!((scalar.tensors()[0].n_elements(), scalar.tensors()[0].bytes.len()), (1, 4));
    let empty = tensor(&[0, 3], 0, 0).open().unwrap();
    assert_eq!((&empty.tensors()[0].shape, empty.tensors()[0].bytes.len()), (&vec![3, 0], 0));
    let array = key(9).u32(8).u64(0).open().unwrap();
    assert_eq!(array.metadata().strings("k").unwrap(), Some(&[][..]));
    let foreign = tensor(&[7], 77, 0).data(1).open().unwrap();
    assert_eq!(
        foreign.tensor("t").unwrap_err().to_string(),
        "tensor `t` has type unknown (ggml type 77), which is not supported yet"
    );
}

#[test]
fn every_cut_of_a_header_is_an_error() {
    for name in ["metadata_v3.gguf", "tensors_v2.gguf", "nested_v3.gguf"] {
        let whole = std::fs::read(testdata(name)).unwrap();
        let header = weights::gguf::parse(&Bytes::from_vec(whole.clone())).unwrap();
        // The writer pads the header, so cuts in the padding lose nothing unless tensors follow.
        let end = if header.tensors.is_empty() { header.data_offset - 31 } else { header.data_offset };
        for n_bytes in 0..end as usize {
            let error = Raw(whole[..n_bytes].to_vec()).open().unwrap_err();
            let is_expected = matches!(
                error,
                Error::Truncated { .. } | Error::Count { .. } | Error::Invalid { .. } | Error::Incomplete { .. }
            );
            assert!(is_expected, "{name} cut to {n_bytes} bytes: {error}");
        }
    }
}

#[test]
fn paths_that_are_no_file() {
    let folder = scratch("paths_that_are_no_file");
    let missing = Checkpoint::open(&folder.join("missing.gguf")).unwrap_err();
    assert!(matches!(&missing, Error::Io { action: "open", .. }), "{missing}");
    let is_folder = Checkpoint::open(&folder).unwrap_err().to_string();
    let nothing = "no model in this folder: it holds neither .safetensors nor .gguf files";
    assert_eq!(is_folder, format!("{}: {nothing}", folder.display()));
    let empty = folder.join("empty.gguf");
    std::fs::write(&empty, []).unwrap();
    let error = Checkpoint::open(&empty).unwrap_err();
    assert!(matches!(error.cause(), Error::Truncated { needs: 4, left: 0, .. }), "{error}");
}

#[test]
fn parts_that_do_not_fit() {
    let tensor = |name: &str, n_bytes| Tensor {
        name: name.to_owned(),
        dtype: Dtype::Q8_0,
        shape: vec![2, 32],
        bytes: Bytes::from_vec(vec![0; n_bytes]),
    };
    let parts = |tensors| Checkpoint::from_parts(Metadata::new(), tensors).map_err(|error| error.to_string());
    assert_eq!(parts(vec![tensor("a", 68), tensor("b", 68)]).unwrap().file_bytes(), 136);
    assert_eq!(parts(vec![tensor("a", 67)]).unwrap_err(), "tensor `a`: needs 68 bytes, but has 67");
    assert_eq!(
        parts(vec![tensor("a", 68), tensor("a", 68)]).unwrap_err(),
        "tensor `a`: the name stands twice, at tensors 0 and 1"
    );
    let bytes = Bytes::from_vec(vec![0; 4]);
    assert!(Tensor::new("s", Dtype::F32, vec![], bytes.clone()).is_ok());
    assert!(Tensor::new("s", Dtype::F32, vec![2], bytes).is_err());
}
