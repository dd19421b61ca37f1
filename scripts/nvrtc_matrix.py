#!/usr/bin/env python3
"""Compiles every kernel for every NVIDIA architecture with nvrtc, which needs no GPU.

  scripts/nvrtc_matrix.py [--nvrtc LIBRARY] [--arch sm_75,sm_90,...] [KERNEL.hip ...]

Run it with a Python that has PyPI's nvidia-cuda-nvrtc-cu12 (scripts/fetch.py python nvidia-cuda-nvrtc-cu12), or
name the library. The options are those of crates/gpu/src/vendor.rs, the defines those of
crates/ops/kernels/variants.txt. Prints registers and spills per unit and architecture; fails where one does not
compile.
"""

import argparse
import ctypes
import importlib.util
import multiprocessing
import re
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave nothing beside the sources
import compile_matrix  # noqa: E402

KERNELS = Path(__file__).resolve().parent.parent / "crates/ops/kernels"
OLDEST, NEWEST = 75, 120


def find_library() -> str:
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            return str(path)
    return "libnvrtc.so.12"


class Nvrtc:
    def __init__(self, path: str):
        self.library = ctypes.CDLL(path)
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments) -> None:
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: {self.library.nvrtcGetErrorString(status).decode()}")

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def architectures(self) -> list[str]:
        count = ctypes.c_int()
        self.call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self.call("nvrtcGetSupportedArchs", numbers)
        return [f"sm_{number}" for number in numbers if OLDEST <= number <= NEWEST]

    def text(self, program, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def compile(self, source: Path, defines: list[str], headers: dict[str, bytes], arch: str) -> tuple[bool, str]:
        """Whether it made machine code, and what the compiler said."""
        options = [f"--gpu-architecture={arch}", "-std=c++17", "-DGPU_WAVE=32", "--extra-device-vectorization"]
        options.append("--ptxas-options=-v")
        options += [f"-D{define}" for define in defines]
        program = ctypes.c_void_p()
        n = len(headers)
        texts, names = (ctypes.c_char_p * n)(*headers.values()), (ctypes.c_char_p * n)(*map(str.encode, headers))
        name = source.name.encode()
        self.call("nvrtcCreateProgram", ctypes.byref(program), source.read_bytes(), name, n, texts, names)
        try:
            encoded = (ctypes.c_char_p * len(options))(*map(str.encode, options))
            status = self.library.nvrtcCompileProgram(program, len(options), encoded)
            log = self.text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            is_elf = status == 0 and self.text(program, "CUBIN").startswith(b"\x7fELF")
            return is_elf, log
        finally:
            self.call("nvrtcDestroyProgram", ctypes.byref(program))


def summary(log: str) -> str:
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", log))
    return f"{len(registers)} kernels, up to {max(registers, default=0)} registers, {spilled} bytes spilled"


def compile_unit(job) -> tuple[bool, str, str, str]:
    """One unit for one architecture, in a process of its own: (is made, unit, arch, log)."""
    library, stem, defines, arch = job
    headers = {path.name: path.read_bytes() for path in sorted(KERNELS.glob("*.h"))}
    is_made, log = Nvrtc(library).compile(KERNELS / f"{stem}.hip", defines, headers, arch)
    return is_made, " ".join([stem, *defines]), arch, log


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvrtc", default=None, metavar="LIBRARY")
    parser.add_argument("--arch", default=None, help="comma-separated, with the common weight formats; default: all from sm_75 to sm_120, with every format")
    parser.add_argument("kernels", nargs="*", help="names of kernel files, without .hip; default: all")
    args = parser.parse_args()
    library = args.nvrtc or find_library()
    try:
        nvrtc = Nvrtc(library)
    except OSError as error:
        print(f"nvrtc_matrix: error: {error}\nhint: name the library with --nvrtc", file=sys.stderr)
        return 1
    units = compile_matrix.units(KERNELS, args.kernels, args.arch is None)
    archs = args.arch.split(",") if args.arch else nvrtc.architectures()
    print(f"nvrtc {nvrtc.version()}: {len(units)} units for {' '.join(archs)}")
    start, n_failed = time.monotonic(), 0
    jobs = [(library, stem, defines, arch) for stem, defines in units for arch in archs]
    with multiprocessing.Pool() as pool:
        for is_made, unit, arch, log in pool.imap(compile_unit, jobs):
            n_failed += not is_made
            print(f"{unit:36} {arch:7} {summary(log)}" if is_made else f"{unit:36} {arch:7} FAILED\n{log}")
    print(f"{len(jobs) - n_failed} compiled, {n_failed} failed, {time.monotonic() - start:.0f} s")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
