"""Makes the golden blocks that PyPI's `gguf` has no code for, and the errors of ggml's encoders, with ggml's own library (built from llama-cpp-python
0.3.36's source package: cmake -S vendor/llama.cpp -B build -DBUILD_SHARED_LIBS=ON && cmake --build build).

    python make_ggml.py build/bin/libggml-base.so
"""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
# name: (elements in a block, bytes of a block); the f16 scale stands first in both.
TYPES = {"Q1_0": (128, 18), "Q2_0": (64, 18)}
EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF]


# Numbers of all types that ggml encodes, and how many elements and bytes their blocks have.
ENCODED = {"Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
           "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
           "Q6_K": (14, 256, 210), "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74), "IQ3_XXS": (18, 256, 98),
           "IQ1_S": (19, 256, 50), "IQ4_NL": (20, 32, 18), "IQ3_S": (21, 256, 110), "IQ2_S": (22, 256, 82),
           "IQ4_XS": (23, 256, 136), "IQ1_M": (29, 256, 56), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66),
           "MXFP4": (39, 32, 17), "NVFP4": (40, 64, 36), "Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18)}
NEED_IMPORTANCE = ["IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M", "IQ2_S"]


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def errors(ggml):
    """Encodes 8 rows of 1,024 numbers as weights are spread, and says how far off ggml is, plain and by importance."""
    rng = np.random.default_rng(8)
    x = (rng.standard_t(6, (8, 1024)) * 0.02).astype(np.float32)
    importance = np.exp(rng.standard_normal(1024)).astype(np.float32)
    x.tofile(HERE / "errors_x.f32")
    importance.tofile(HERE / "errors_importance.f32")
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    found = {}
    for name, (number, block_len, block_bytes) in ENCODED.items():
        found[name] = {}
        for what, weights in [("plain", np.ones_like(importance)), ("importance", importance)]:
            if what == "plain" and name in NEED_IMPORTANCE:
                continue
            packed = np.zeros(x.size // block_len * block_bytes, dtype=np.uint8)
            given = pointer(importance) if what == "importance" else None
            ggml.ggml_quantize_chunk(ctypes.c_int(number), pointer(x), pointer(packed), ctypes.c_int64(0), ctypes.c_int64(8),
                                     ctypes.c_int64(1024), given)
            out = np.zeros_like(x)
            getattr(ggml, f"dequantize_row_{name.lower() if name[-1] not in 'K' else name[0].lower() + name[1:]}")(
                pointer(packed), pointer(out), ctypes.c_int64(x.size))
            found[name][what] = float((weights * (out.astype(np.float64) - x) ** 2).sum() / (weights * x.astype(np.float64) ** 2).sum())
    (HERE / "errors.json").write_text(json.dumps(found, indent=1) + "\n")


def main():
    ggml = ctypes.CDLL(sys.argv[1])
    errors(ggml)
    rng = np.random.default_rng(5)
    for name, (block_len, block_bytes) in TYPES.items():
        blocks = rng.integers(0, 256, (20, block_bytes), dtype=np.uint8)
        scales = (rng.standard_normal(20) * 0.01).astype(np.float16).view(np.uint16)
        scales[: len(EDGES)] = EDGES
        blocks[:, :2] = scales.reshape(20, 1).view(np.uint8)
        out = np.zeros(20 * block_len, dtype=np.float32)
        decode = getattr(ggml, f"dequantize_row_{name.lower()}")
        decode(blocks.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(out.size))
        (HERE / f"dequant_{name}.bin").write_bytes(blocks.tobytes())
        (HERE / f"dequant_{name}.f32").write_bytes(out.tobytes())


main()
