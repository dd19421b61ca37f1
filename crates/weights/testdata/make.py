"""Makes the golden files of `weights` and of `ops/testdata/quant` with PyPI's gguf package (made with 0.19.0).

    python -m venv venv && venv/bin/pip install gguf==0.19.0 && venv/bin/python crates/weights/testdata/make.py

Files are written by gguf.GGUFWriter; the expected values beside them are what gguf.GGUFReader reads back. Floats stand
in the json as their bit patterns. `make.py --read FILE` only prints that json for a file. Decoded blocks come from gguf.quants. Same package, same bytes: everything is seeded.
"""

import json
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V

HERE = Path(__file__).resolve().parent
QUANT = HERE.parents[1] / "ops" / "testdata" / "quant"
NAMES = {V.UINT8: "u8", V.INT8: "i8", V.UINT16: "u16", V.INT16: "i16", V.UINT32: "u32", V.INT32: "i32", V.UINT64: "u64",
         V.INT64: "i64", V.FLOAT32: "f32", V.FLOAT64: "f64", V.BOOL: "bool", V.STRING: "string", V.ARRAY: "array"}
# Types of sums inside ggml; no file holds them.
NOT_WEIGHTS = [T.Q8_1, T.Q8_K]
NESTED = {"nested": [[1, 2, 3], [-4]], "nested.strings": [["a", ""], ["ü"]], "nested.deep": [[[1], [2, 3]], [[4]]]}


def plain(kind, part):
    """One value of a reader's field, floats as bits."""
    if kind == V.STRING:
        return bytes(part).decode()
    if kind in (V.FLOAT32, V.FLOAT64):
        return int(part.view(np.uint32 if kind == V.FLOAT32 else np.uint64)[0])
    return part.tolist()[0]


def nested(values):
    inner = [nested(v) for v in values] if isinstance(values[0], list) else None
    if inner is not None:
        return {"type": "array", "element": "array", "value": inner}
    return {"type": "array", "element": "string" if isinstance(values[0], str) else "i32", "value": values}


def expect(path):
    """What gguf.GGUFReader sees in a file, as json."""
    reader = gguf.GGUFReader(path)
    metadata = []
    for field in reader.fields.values():
        if field.name.startswith("GGUF."):
            continue
        row = {"key": field.name, "type": NAMES[field.types[0]]}
        if field.name in NESTED:
            # The reader flattens these, so it can only vouch for the innermost values.
            flat = NESTED[field.name]
            while isinstance(flat[0], list):
                flat = [value for values in flat for value in values]
            assert flat == [plain(field.types[-1], field.parts[i]) for i in field.data], field.name
            row |= nested(NESTED[field.name])
        elif field.types[0] == V.ARRAY:
            # After the key's length, text and type; `field.types` does not say it for empty arrays.
            element = V(field.parts[3][0])
            row["element"] = NAMES[element]
            row["value"] = [plain(element, field.parts[i]) for i in field.data]
        else:
            row["value"] = plain(field.types[0], field.parts[field.data[0]])
        metadata.append(row)
    tensors = [{"name": t.name, "type": t.tensor_type.name, "ggml_id": int(t.tensor_type),
                "shape": [int(n) for n in reversed(t.shape)], "n_bytes": int(t.n_bytes), "hex": t.data.tobytes().hex()}
               for t in reader.tensors]
    version = int(reader.fields["GGUF.version"].parts[0][0])
    expected = {"version": version, "alignment": int(reader.alignment), "data_offset": int(reader.data_offset),
                "metadata": metadata, "tensors": tensors}
    return json.dumps(expected, indent=1, ensure_ascii=False) + "\n"


def finish(writer, path):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".json").write_text(expect(path))


def write_metadata():
    path = HERE / "metadata_v3.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    extremes = {V.UINT8: [0, 255], V.INT8: [-128, 127], V.UINT16: [0, 65535], V.INT16: [-32768, 32767],
                V.UINT32: [0, 2**32 - 1], V.INT32: [-2**31, 2**31 - 1], V.UINT64: [0, 2**64 - 1],
                V.INT64: [-2**63, 2**63 - 1], V.FLOAT32: [-0.0, 1e-45, 3.4028234663852886e38, float("inf"), 0.1],
                V.FLOAT64: [-0.0, 5e-324, 1.7976931348623157e308, float("-inf"), 0.1], V.BOOL: [False, True],
                V.STRING: ["", "plain", "ütf-8 \U0001f40e 中", "a\0b", "line\nline"]}
    for kind, values in extremes.items():
        for idx, value in enumerate(values):
            writer.add_key_value(f"scalar.{NAMES[kind]}.{idx}", value, kind)
        writer.add_key_value(f"array.{NAMES[kind]}", values, V.ARRAY, sub_type=kind)
    writer.add_key_value("schlüssel.\U0001f511", "a key that is not ASCII", V.STRING)
    finish(writer, path)

    path = HERE / "nested_v3.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, values in NESTED.items():
        writer.add_key_value(key, values, V.ARRAY)
    finish(writer, path)


def write_tensors():
    rng = np.random.default_rng(1)
    path = HERE / "tensors_v3.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_tensor("one", np.array([1.5], np.float32))
    writer.add_tensor("cube", rng.standard_normal((2, 3, 5)).astype(np.float16))
    writer.add_tensor("four", rng.standard_normal((2, 1, 2, 3)).astype(np.float32))
    add_blocks(writer, rng, [t for t in gguf.GGML_QUANT_SIZES if t not in NOT_WEIGHTS])
    finish(writer, path)

    path = HERE / "unsupported_v3.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_blocks(writer, rng, [T.Q8_K, T.F32, T.Q8_0])
    finish(writer, path)


def add_blocks(writer, rng, types):
    for kind in types:
        block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        # 3 rows of one block, or of 7 elements: no data but the last ends on the alignment by luck.
        row_bytes = block_bytes if block_len > 1 else 7 * block_bytes
        rows = rng.integers(0, 256, (3, row_bytes), dtype=np.uint8)
        writer.add_tensor(f"blk.0.{kind.name}.weight", rows, raw_dtype=kind)


def write_v2():
    """Version 2 has version 3's layout, and the package writes version 3 only: change the number, let it read that."""
    for stem in ["metadata", "tensors"]:
        data = bytearray((HERE / f"{stem}_v3.gguf").read_bytes())
        data[4:8] = struct.pack("<I", 2)
        path = HERE / f"{stem}_v2.gguf"
        path.write_bytes(data)
        path.with_suffix(".json").write_text(expect(path))


def write_types():
    rows = [{"ggml_id": int(t), "name": t.name, "block_len": n, "block_bytes": b}
            for t, (n, b) in gguf.GGML_QUANT_SIZES.items()]
    (HERE / "ggml_types.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


# Where the f16 scales stand in a block.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q6_K: [208]}
MORE_SCALES = {T.Q5_0: [0], T.Q5_1: [0, 2], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q5_K: [0, 2], T.IQ1_S: [0], T.IQ1_M: [],
               T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0], T.IQ3_S: [0], T.IQ4_NL: [0], T.IQ4_XS: [0],
               T.TQ1_0: [52], T.TQ2_0: [64], T.MXFP4: [], T.NVFP4: []}
# Zeros, the subnormal ends, the least normal, one, the greatest; both signs.
EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF]


def finite_halves(rng, n):
    """Random f16 bit patterns, all finite: every exponent but the highest."""
    return (rng.integers(0, 2, n) << 15 | rng.integers(0, 31, n) << 10 | rng.integers(0, 1024, n)).astype(np.uint16)


def write_dequantized():
    rng = np.random.default_rng(2)
    for kind, places in SCALES.items():
        blocks = rng.integers(0, 256, (64, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        blocks[60], blocks[61], blocks[62], blocks[63] = 0x00, 0xFF, 0x80, 0x7F
        for place_idx, place in enumerate(places):
            scales = finite_halves(rng, 64)
            # The second scale walks the edges backwards, so that the pairs differ.
            scales[: len(EDGES)] = EDGES[:: -1 if place_idx else 1]
            # As in real models.
            scales[32:] = (rng.standard_normal(32) * 0.01).astype(np.float16).view(np.uint16)
            blocks[:, place : place + 2] = scales.reshape(64, 1).view(np.uint8)
        save("dequant", kind, blocks, gguf.quants.dequantize(blocks, kind))
    halves = np.concatenate([finite_halves(rng, 2036), EDGES, [0x7C00]]).astype(np.uint16)
    save("dequant", T.F16, halves, gguf.quants.dequantize(halves, T.F16))
    brains = np.concatenate([rng.integers(0, 0x7F80, 1020), rng.integers(0x8000, 0xFF80, 1020),
                             [0x0000, 0x8000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x7F7F, 0x7F80]]).astype(np.uint16)
    save("dequant", T.BF16, brains, gguf.quants.dequantize(brains.view(np.uint8), T.BF16))


def write_more_dequantized():
    """As above with 20 blocks a type: edges, random scales, scales as in real models, extreme quants."""
    rng = np.random.default_rng(4)
    for kind, places in MORE_SCALES.items():
        blocks = rng.integers(0, 256, (20, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        blocks[18], blocks[19] = 0x00, 0xFF
        for place_idx, place in enumerate(places):
            scales = finite_halves(rng, 20)
            scales[: len(EDGES)] = EDGES[:: -1 if place_idx else 1]
            scales[14:] = (rng.standard_normal(6) * 0.01).astype(np.float16).view(np.uint16)
            blocks[:, place : place + 2] = scales.reshape(20, 1).view(np.uint8)
        if kind == T.IQ1_M:
            # Its scale lies in the top nibbles of four 16-bit words; keep it finite.
            blocks[:, 55] &= 0xBF
        if kind == T.MXFP4:
            blocks[:8, 0] = [0, 1, 2, 3, 127, 128, 200, 250]
            blocks[8:, 0] = rng.integers(0, 250, 12)
        if kind == T.NVFP4:
            blocks[:8, :4] = np.arange(0x60, 0x80, dtype=np.uint8).reshape(8, 4)
            blocks[8, :4] = [0, 1, 7, 8]
        save("dequant", kind, blocks, gguf.quants.dequantize(blocks, kind))


def write_quantized():
    rng = np.random.default_rng(3)
    blocks = (rng.standard_normal((64, 32)) * np.exp(rng.uniform(-8, 4, (64, 1)))).astype(np.float32)
    blocks[0] = 0.0
    blocks[1] = -0.0
    blocks[2] = 1.0
    blocks[3] = -1.0
    blocks[4] = 0.0
    blocks[4, 17] = -3.0
    blocks[5] = np.arange(-16, 16)
    blocks[6] = np.arange(32) / 2
    blocks[7, ::2], blocks[7, 1::2] = 5.0, -5.0
    blocks[8] *= np.float32(1e-7) / abs(blocks[8]).max()
    blocks[9] *= np.float32(60000) / abs(blocks[9]).max()
    blocks[10] = 2.5 + blocks[10] * 1e-3
    for kind in [T.Q4_0, T.Q4_1, T.Q8_0, T.Q5_0, T.Q5_1, T.MXFP4]:
        save("quant", kind, gguf.quants.quantize(blocks, kind), blocks)
    wide = blocks.reshape(8, 256)
    for kind in [T.TQ1_0, T.TQ2_0]:
        save("quant", kind, gguf.quants.quantize(wide, kind), wide)
    # Rounding to 16 bits: random values of any size, ties, and what overflows to infinity.
    bits = np.concatenate([rng.integers(0, 0x7F800000, 1020), rng.integers(0x80000000, 0xFF800000, 1020),
                           [0x3F808000, 0x3F818000, 0x3F801000, 0x3F803000, 0x477FF000, 0x477FEFFF, 0x33000000, 0x7F7FFFFF]])
    values = bits.astype(np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        save("quant", T.F16, gguf.quants.quantize(values, T.F16), values)
    save("quant", T.BF16, gguf.quants.quantize(values, T.BF16), values)


def save(stem, kind, packed, floats):
    assert stem == "quant" or not np.isnan(floats).any()
    (QUANT / f"{stem}_{kind.name}.bin").write_bytes(packed.tobytes())
    (QUANT / f"{stem}_{kind.name}.f32").write_bytes(floats.astype("<f4").tobytes())


def main():
    if sys.argv[1:2] == ["--read"]:
        print(expect(sys.argv[2]))
        return
    QUANT.mkdir(parents=True, exist_ok=True)
    write_metadata()
    write_tensors()
    write_v2()
    write_types()
    write_dequantized()
    write_more_dequantized()
    write_quantized()


main()
