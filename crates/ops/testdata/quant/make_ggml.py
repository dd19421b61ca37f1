"""Makes the golden blocks that PyPI's `gguf` has no code for, with ggml's own library (built from llama-cpp-python
0.3.36's source package: cmake -S vendor/llama.cpp -B build -DBUILD_SHARED_LIBS=ON && cmake --build build).

    python make_ggml.py build/bin/libggml-base.so
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
# name: (elements in a block, bytes of a block); the f16 scale stands first in both.
TYPES = {"Q1_0": (128, 18), "Q2_0": (64, 18)}
EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF]


def main():
    ggml = ctypes.CDLL(sys.argv[1])
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
