"""llama.cpp as a peer: built here from PyPI's llama-cpp-python for this very CPU, with the model files made by its
own quantiser, so that both engines read the same bytes. Everything lies in the cache of scripts/fetch.py."""

import hashlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import fetch  # noqa: E402
from machine import cpu_flags  # noqa: E402

TOOLS = ["llama-bench", "llama-batched-bench", "llama-quantize", "llama-perplexity"]
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "GGML_CCACHE": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_MTMD": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}


# What a build for less than this CPU has changes: an AVX2 machine's instructions on a newer one.
ISAS = {
    "native": {},
    "avx2": {"GGML_NATIVE": "OFF", "GGML_AVX": "ON", "GGML_AVX2": "ON", "GGML_FMA": "ON", "GGML_F16C": "ON",
             "GGML_BMI2": "ON"},
}


def build(isa: str = "native") -> Path:
    """The folder of llama.cpp's programs; the first time this takes some 8 minutes on 2 cores."""
    options = {**OPTIONS, **ISAS[isa]}
    # A native build serves one kind of CPU, and a cache may outlive its machine.
    key = hashlib.sha256(repr((cpu_flags(), options)).encode()).hexdigest()[:12]
    source = fetch.llama_cpp()
    folder = fetch.cache() / f"build-{source.name.removeprefix('llama.cpp-')}-{key}"
    programs = folder / "bin"
    if all((programs / tool).exists() for tool in TOOLS):
        return programs
    bin_folder = fetch.python(["cmake", "ninja"]).parent
    ninja = bin_folder / "ninja"
    defines = [f"-D{name}={value}" for name, value in options.items()]
    print(f"building llama.cpp in {folder}, once; this takes minutes", file=sys.stderr)
    with fetch.lock("build"):
        where = ["-S", source, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        fetch.run([bin_folder / "cmake", *where, *defines])
        fetch.run([ninja, "-C", folder, *TOOLS])
    return programs


def smollm2(programs: Path, kind: str, shipped: Path) -> Path:
    """The shipped file's weights in another type; the shipped file itself for its own."""
    if kind == "q4_1":
        return shipped
    target = fetch.cache() / f"smollm2-{kind}.gguf"
    if not target.exists():
        with fetch.scratch() as folder:
            fresh = folder / target.name
            fetch.run([programs / "llama-quantize", "--allow-requantize", shipped, fresh, kind.upper()])
            os.replace(fresh, target)
    return target
