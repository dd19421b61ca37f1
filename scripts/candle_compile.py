#!/usr/bin/env python3
"""Compiles Candle's kernels (crates/candle) for GPUs that are not there: by AMD's hiprtc and by NVIDIA's nvrtc.

    scripts/candle_compile.py [--arch sm_90,gfx1030,...] [--family quantized] [--only TEXT]
    scripts/candle_compile.py --times [--arch sm_90] [--only TEXT]    one by one by nvrtc: what the first use of each costs

Every row of every table of kernels, as cudarc's `module.rs` makes it. An `sm_` architecture needs a Python with PyPI's
nvidia-cuda-nvrtc-cu12 (see nvrtc_matrix.py). Prints registers and spills; ends with 1 where a kernel does not compile.
"""

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave nothing beside the sources
import candle_names  # noqa: E402
import compile_matrix  # noqa: E402
import nvrtc_matrix  # noqa: E402

KERNELS = candle_names.OURS / "kernels"
# Without matrix units, with waves of 64, the newest, and NVIDIA's.
DEFAULT = "gfx1030 gfx906 gfx1201 sm_75 sm_90".split()
# Kernels to a unit: many, since a unit begins with all templates, and few enough for two cores to share them.
PER_UNIT = 40


def write_units(folder: Path, family: str, only: str) -> list[str]:
    """Units as files of a folder beside the prelude; their names, and how many kernels there are."""
    (folder / "prelude.h").write_text((candle_names.PRELUDE / "prelude.h").read_text())
    numbers, stems = (KERNELS / "numbers.h").read_text(), []
    for name, text in candle_names.families():
        if family not in ("", name):
            continue
        rows = [line for kernel, line in candle_names.table(text) if only in kernel]
        for start in range(0, len(rows), PER_UNIT):
            stems.append(f"{name}_{start // PER_UNIT}")
            (folder / f"{stems[-1]}.hip").write_text("\n".join([numbers, text, *rows[start : start + PER_UNIT]]) + "\n")
    return stems


def nvidia(library: str, folder: Path, arch: str, stems: list[str]) -> int:
    headers = {"prelude.h": (folder / "prelude.h").read_bytes()}
    with multiprocessing.Pool() as pool:
        answers = pool.starmap(nvidia_unit, [(library, folder / f"{stem}.hip", headers, arch) for stem in stems])
    n_failed, n_kernels, most, spilling = 0, 0, 0, []
    for stem, (is_made, log) in zip(stems, answers):
        if not is_made:
            n_failed += 1
            print(f"FAILED {arch} {stem}\n{log[:4000]}")
        used = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
        n_kernels, most = n_kernels + len(used), max([most, *used])
        for kernel, part in re.findall(r"Compiling entry function '(\w+)'(.*?)Used", log, re.S):
            spilling += [f"{kernel} ({n} bytes)" for n in re.findall(r"([1-9]\d*) bytes spill stores", part)]
    print(f"nvrtc   {arch:8} {n_kernels:4} kernels, up to {most} registers, spilling: {', '.join(spilling) or 'none'}", flush=True)
    return n_failed


def nvidia_unit(library: str, source: Path, headers: dict[str, bytes], arch: str) -> tuple[bool, str]:
    return nvrtc_matrix.Nvrtc(library).compile(source, [], headers, arch)


def times(library: str, folder: Path, arch: str, only: str) -> int:
    """Processor time of one kernel after another, each by itself as at its first use."""
    headers = {"prelude.h": (candle_names.PRELUDE / "prelude.h").read_bytes()}
    numbers, nvrtc, taken, n_failed = (KERNELS / "numbers.h").read_text(), nvrtc_matrix.Nvrtc(library), [], 0
    source = folder / "one.hip"
    for _, text in candle_names.families():
        for kernel, line in candle_names.table(text):
            if only in kernel:
                source.write_text(f"{numbers}\n{text}\n{line}\n")
                start = time.process_time()
                is_made, _ = nvrtc.compile(source, [], headers, arch)
                taken.append((time.process_time() - start, kernel))
                n_failed += not is_made
    taken.sort(reverse=True)
    print(f"nvrtc   {arch:8} {len(taken):4} kernels: {taken[len(taken) // 2][0]:.3f} s in the middle, most: "
          + ", ".join(f"{kernel} {seconds:.3f} s" for seconds, kernel in taken[:5]))
    return n_failed


def amd(compiler, folder: Path, arch: str, stems: list[str]) -> int:
    answers = compiler.all(folder, arch, [(stem, []) for stem in stems])
    if answers is None:
        print(f"FAILED {arch}: hiprtc does not know it")
        return 1
    n_failed, kernels = 0, {}
    for stem, (status, answer) in zip(stems, answers):
        if status != "made":
            n_failed += 1
            print(f"FAILED {arch} {stem}\n{answer[:4000]}")
            continue
        kernels.update(answer)
    spilling = [f"{name} ({use['spilled']})" for name, use in kernels.items() if use["spilled"]]
    most = {what: max((use[what] for use in kernels.values()), default=0) for what in ("vgprs", "lds")}
    print(f"hiprtc  {arch:8} {len(kernels):4} kernels, up to {most['vgprs']} VGPRs, {most['lds']} bytes of LDS, "
          f"spilling: {', '.join(spilling) or 'none'}", flush=True)
    return n_failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default=",".join(DEFAULT), help=f"comma-separated; default: {','.join(DEFAULT)}")
    parser.add_argument("--family", default="", help="one file of kernels, such as quantized")
    parser.add_argument("--only", default="", help="kernels with this in their name")
    parser.add_argument("--times", action="store_true", help="compile one by one, by nvrtc")
    options = parser.parse_args()
    start, n_failed, hiprtc = time.monotonic(), 0, None
    with tempfile.TemporaryDirectory() as folder:
        if options.times:
            archs = [arch for arch in options.arch.split(",") if arch.startswith("sm_")]
            return 1 if sum(times(nvrtc_matrix.find_library(), Path(folder), arch, options.only) for arch in archs) else 0
        stems = write_units(Path(folder), options.family, options.only)
        if not stems:
            sys.exit("candle_compile: error: no kernel of that name")
        for arch in options.arch.split(","):
            if arch.startswith("sm_"):
                n_failed += nvidia(nvrtc_matrix.find_library(), Path(folder), arch, stems)
                continue
            if hiprtc is None:
                found, missing = compile_matrix.compilers(["7.2"], "")
                if missing:
                    sys.exit(f"candle_compile: error: {missing[0]}")
                hiprtc = found[0]
            n_failed += amd(hiprtc, Path(folder), arch, stems)
    print(f"{len(stems)} units, {time.monotonic() - start:.0f} s")
    return 1 if n_failed else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
