#!/usr/bin/env python3
"""Compiles every kernel for AMD chips with no GPU: by Debian's clang-19 and by AMD's own hiprtc.

  scripts/compile_matrix.py [--all] [--arch gfx1100,...] [--compiler clang,7.2,...] [--table FILE] [KERNEL ...]

Reports vector and scalar registers, LDS and spills per kernel, from the metadata of the code objects; fails where one
does not compile, spills, or uses scratch memory. The options are those of crates/gpu/src/vendor.rs; what each kernel
file is compiled with is in crates/ops/kernels/variants.txt. hiprtc comes from crates/gfx/fetch-rocm, 7.2's and with
--all those of HIP 6.4, 5.7 and 5.2 too; an architecture it does not know aborts the process, so each runs in a child.
With --keep what was compiled before from the same sources is not compiled again: a run of --all may be broken off.
"""

import argparse
import concurrent.futures
import ctypes
import hashlib
import itertools
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "crates/ops/kernels"
DEFAULT = "gfx1100 gfx942".split()
MORE = (
    "gfx1201 gfx90a gfx803 gfx900 gfx906 gfx908 gfx950 gfx1010 gfx1012 gfx1030 gfx1031 gfx1032 gfx1101 gfx1102 gfx1103 "
    "gfx1150 gfx1151 gfx1152 gfx1200"
).split()
# HIP versions whose hiprtc compiles: Debian's suite, and the library that holds it.
HIPRTC = {
    "7.2": (None, "libhiprtc.so.7"),
    "6.4": ("sid", "libamdhip64.so.6"),
    "5.7": ("trixie", "libamdhip64.so.5"),
    "5.2": ("bookworm", "libamdhip64.so.5"),
}
EMPTY = 'extern "C" __attribute__((global)) void nothing() {}\n'


def wave(arch: str) -> int:
    return 64 if arch.startswith(("gfx8", "gfx9")) else 32


# What is compiled.


def read_variants(folder: Path) -> dict[str, list[list[str]]]:
    """Kernel file -> every list of NAME=value it is compiled with."""
    found: dict[str, list[list[str]]] = {}
    path = folder / "variants.txt"
    for line in path.read_text().splitlines() if path.exists() else []:
        words = line.split("#")[0].split()
        if not words:
            continue
        choices = []
        for word in words[1:]:
            name, _, values = word.partition("=")
            # `-` leaves the name undefined.
            choices.append([[] if value == "-" else [f"{name}={value}"] for value in values.split(",")])
        found.setdefault(words[0], []).extend(sum(choice, []) for choice in itertools.product(*choices))
    return found


# Weight formats below this number (kernels/formats.h) are compiled by default, the others with --all.
COMMON_FORMATS = 16


def is_common(defines: list[str]) -> bool:
    """Whether a variant is compiled without --all: common formats, and of those that came later one size each."""
    values = dict(define.split("=") for define in defines)
    number = int(values.get("FORMAT", 0))
    return number < 8 or number < COMMON_FORMATS and values.get("OUTS", "2") == "2" and values.get("TILES", "8") == "8"


def units(folder: Path, wanted: list[str], is_all: bool) -> list[tuple[str, list[str]]]:
    """Every translation unit: kernel file and defines, in a stable order."""
    variants = read_variants(folder)
    if not is_all and not wanted:
        variants = {stem: [one for one in sets if is_common(one)] for stem, sets in variants.items()}
    stems = sorted(path.stem for path in folder.glob("*.hip"))
    for stem in sorted(set(variants) - set(stems)):
        print(f"note: variants.txt names {stem}.hip, which is not there")
    for stem in set(wanted) - set(stems):
        sys.exit(f"compile_matrix: error: no {stem}.hip in {folder}")
    return [(stem, defines) for stem in stems if not wanted or stem in wanted for defines in variants.get(stem, [[]])]


# What came out.


def unpack(data: bytes, at: int = 0):
    """One MessagePack value and where it ends; the kinds that code object metadata uses."""
    kind = data[at]
    at += 1
    if kind < 0x80 or kind >= 0xE0:
        return (kind if kind < 0x80 else kind - 256), at
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    if 0xCC <= kind <= 0xD3:
        code = "BHIQbhiq"[kind - 0xCC]
        return struct.unpack_from(">" + code, data, at)[0], at + struct.calcsize(code)
    wide = {0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I", 0xDE: "H", 0xDF: "I"}
    if kind in wide:
        n = struct.unpack_from(">" + wide[kind], data, at)[0]
        at += struct.calcsize(wide[kind])
    else:
        n = kind & (0x1F if 0xA0 <= kind <= 0xBF else 0x0F)
    if 0xA0 <= kind <= 0xBF or 0xD9 <= kind <= 0xDB:
        return data[at : at + n].decode(), at + n
    if 0x90 <= kind <= 0x9F or kind in (0xDC, 0xDD):
        items = []
        for _ in range(n):
            item, at = unpack(data, at)
            items.append(item)
        return items, at
    if 0x80 <= kind <= 0x8F or kind in (0xDE, 0xDF):
        pairs = {}
        for _ in range(n):
            key, at = unpack(data, at)
            pairs[key], at = unpack(data, at)
        return pairs, at
    raise ValueError(f"MessagePack kind {kind:#x}")


def resources(code: bytes) -> dict[str, dict[str, int]]:
    """Kernel -> what it uses, from the metadata note of a code object."""
    if not code.startswith(b"\x7fELF"):
        raise ValueError("no ELF file")
    offset, size, count = struct.unpack_from("<Q", code, 32)[0], *struct.unpack_from("<HH", code, 54)
    for index in range(count):
        kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", code, offset + index * size)
        while kind == 4 and length > 12:
            n_name, n_data, note = struct.unpack_from("<III", code, start)
            data = start + 12 + (n_name + 3 & ~3)
            if note == 32 and code[start + 12 :].startswith(b"AMDGPU\0"):
                metadata = unpack(code[data : data + n_data])[0]
                return {one[".name"]: uses(one) for one in metadata.get("amdhsa.kernels", [])}
            step = data + (n_data + 3 & ~3) - start
            start, length = start + step, length - step
    raise ValueError("no metadata note")


def uses(kernel: dict) -> dict[str, int]:
    return {
        "vgprs": kernel[".vgpr_count"],
        "agprs": kernel.get(".agpr_count", 0),
        "sgprs": kernel[".sgpr_count"],
        "lds": kernel[".group_segment_fixed_size"],
        "scratch": kernel[".private_segment_fixed_size"],
        "spilled": kernel[".vgpr_spill_count"] + kernel[".sgpr_spill_count"],
    }


# The compilers. Each answers, per unit, ("made", kernels) or ("failed", log).


class Clang:
    name = "clang"
    knows_today = True

    def __init__(self, program: str):
        self.program = program
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        self.version = re.search(r"version (\S+?)[ (+]", version + " ").group(1)

    def one(self, source: Path, arch: str, defines: list[str]) -> tuple[str, object]:
        flags = "-x hip --offload-device-only --no-gpu-bundle-output -nogpuinc -nogpulib -O3 -fno-math-errno -std=c++17"
        # A format that nobody gave would read as 0 in `#if`.
        command = [self.program, *flags.split(), "-Werror=undef", f"--offload-arch={arch}", f"-DGPU_WAVE={wave(arch)}"]
        with tempfile.TemporaryDirectory() as folder:
            to = Path(folder) / "code"
            done = subprocess.run(
                [*command, *(f"-D{define}" for define in defines), str(source), "-o", str(to)],
                capture_output=True,
                text=True,
            )
            return ("failed", done.stderr) if done.returncode else ("made", resources(to.read_bytes()))

    def knows(self, arch: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "empty.hip"
            source.write_text(EMPTY)
            return self.one(source, arch, [])[0] == "made"

    def all(self, folder: Path, arch: str, what: list) -> list[tuple[str, object]] | None:
        if not self.knows(arch):
            return None
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda unit: self.one(folder / f"{unit[0]}.hip", arch, unit[1]), what))


class Hiprtc:
    name = "hiprtc"

    @property
    def knows_today(self) -> bool:
        """Whether it must know every chip that is tested every day; older ones know the chips of their time."""
        return self.soname == HIPRTC["7.2"][1]

    def __init__(self, libraries: Path, soname: str):
        self.libraries, self.soname = libraries, soname
        # The package's version; hiprtcVersion has a count of its own.
        self.version = (libraries / soname).resolve().name.partition(".so.")[2]

    def child(self, job: dict) -> subprocess.CompletedProcess:
        loader = [str(self.libraries / "ld-linux-x86-64.so.2"), "--library-path", str(self.libraries)]
        python = os.path.realpath(sys.executable)
        environment = os.environ | {"COMPILE_MATRIX_JOB": self.soname}
        command = [*loader, python, __file__]
        return subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, env=environment)

    def all(self, folder: Path, arch: str, what: list) -> list[tuple[str, object]] | None:
        parts = [what[k :: os.cpu_count()] for k in range(os.cpu_count())]
        job = {"folder": str(folder), "arch": arch}
        with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
            done = list(pool.map(lambda units: self.child(job | {"units": units}), parts))
        results: list = [None] * len(what)
        for k, child in enumerate(done):
            lines = [json.loads(line) for line in child.stdout.splitlines()]
            if not lines:  # it died on the empty kernel
                return None
            died = ("failed", f"hiprtc ended with {child.returncode}: {child.stderr[-2000:]}")
            answers = [tuple(line) for line in lines[1:]]
            answers += [died] * (len(parts[k]) - len(answers))
            results[k :: len(parts)] = answers
        return results


def hiprtc_child() -> None:
    """In AMD's loader: compiles what the parent names, one line of answer each, an empty kernel first."""
    library = ctypes.CDLL(os.environ["COMPILE_MATRIX_JOB"])
    job = json.load(sys.stdin)
    folder, arch = Path(job["folder"]), job["arch"]
    headers = {path.name.encode(): path.read_bytes() for path in sorted(folder.glob("*.h"))}
    names, texts = ((ctypes.c_char_p * len(headers))(*part) for part in (headers.keys(), headers.values()))

    def get(program, size_name: str, name: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(library, size_name)(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        getattr(library, name)(program, buffer)
        return buffer.raw[: size.value]

    def compile(name: str, source: bytes, defines: list[str]) -> tuple[str, object]:
        program = ctypes.c_void_p()
        options = [f"--gpu-architecture={arch}", "-std=c++17", f"-DGPU_WAVE={wave(arch)}", "-O3"]
        options += [f"-D{define}" for define in defines]
        encoded = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        library.hiprtcCreateProgram(ctypes.byref(program), source, name.encode(), len(headers), texts, names)
        status = library.hiprtcCompileProgram(program, len(options), encoded)
        if status:
            log = get(program, "hiprtcGetProgramLogSize", "hiprtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
            return "failed", f"hiprtc answered {status}\n{log}"
        code = get(program, "hiprtcGetCodeSize", "hiprtcGetCode")
        library.hiprtcDestroyProgram(ctypes.byref(program))
        return "made", resources(code)

    status, answer = compile("empty.hip", EMPTY.encode(), [])
    if status != "made":
        return
    print(json.dumps([status, answer]), flush=True)
    for stem, defines in job["units"]:
        source = (folder / f"{stem}.hip").read_bytes()
        print(json.dumps(compile(f"{stem}.hip", source, defines)), flush=True)


# The report.


def cell(use: dict | None) -> str:
    if use is None:
        return "-"
    registers = f"{use['vgprs']}" + (f"+{use['agprs']}" if use["agprs"] else "")
    return f"{registers} / {use['sgprs']} / {use['lds']}"


LEGEND = "The most that any kernel uses. `-`: this compiler does not know the chip; empty: not compiled.\n"

# Chips of one table, so that a row stays readable.
N_COLUMNS = 7


def summary(archs: list[str], found: dict, absent: dict) -> str:
    """What is most in any kernel, chip by compiler."""
    names = list(found)
    lines = ["\n## Every chip, every compiler\n", LEGEND]
    lines += ["| chip | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for arch in archs:
        cells = []
        for name, results in found.items():
            uses = [use for status, kernels in results.get(arch, []) if status == "made" for use in kernels.values()]
            most = {key: max(use[key] for use in uses) for key in uses[0]} if uses else None
            cells.append(f"{cell(most)} ({len(uses)} kernels)" if most else absent[name].get(arch, "-"))
        lines.append(f"| {arch} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def tables(compiler, what: list, results: dict) -> str:
    archs = list(results)
    parts = [archs[k : k + N_COLUMNS] for k in range(0, len(archs), N_COLUMNS)]
    return f"\n## {compiler.name} {compiler.version}\n" + "".join(table(part, what, results) for part in parts)


def table(archs: list[str], what: list, results: dict) -> str:
    lines = [""]
    lines += ["| file | defines | kernel | " + " | ".join(archs) + " |", "|---|---|---|" + "---|" * len(archs)]
    for index, (stem, defines) in enumerate(what):
        found = {arch: results[arch][index][1] for arch in archs if results[arch][index][0] == "made"}
        for kernel in dict.fromkeys(itertools.chain.from_iterable(found.values())):
            cells = [cell(found.get(arch, {}).get(kernel)) for arch in archs]
            lines.append(f"| {stem} | {' '.join(defines)} | {kernel} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def judge(compiler, arch: str, what: list, answers: list) -> int:
    """Prints one line per architecture, and each failure; how many there were."""
    n_failed, kernels = 0, []
    for (stem, defines), (status, answer) in zip(what, answers):
        name = " ".join([f"{stem}.hip", *defines])
        if status != "made":
            n_failed += 1
            print(f"FAILED {compiler.name} {arch} {name}\n{answer}")
            continue
        kernels += answer.values()
        for kernel, use in answer.items():
            if use["spilled"] or use["scratch"]:
                n_failed += 1
                print(f"FAILED {compiler.name} {arch} {name}: {kernel} spills {use['spilled']} registers, "
                      f"{use['scratch']} bytes of scratch a lane")
    if not kernels:
        n_failed += 1
        print(f"FAILED {compiler.name} {arch}: no kernel in any code object")
    most = {key: max((use[key] for use in kernels), default=0) for key in ("vgprs", "sgprs", "lds")}
    print(f"{compiler.name:7} {arch:8} {len(kernels):4} kernels, up to {most['vgprs']} VGPRs, {most['sgprs']} SGPRs, "
          f"{most['lds']} bytes of LDS", flush=True)
    return n_failed


def compilers(words: list[str], clang: str) -> tuple[list, list[str]]:
    found, missing = [], []
    if "clang" in words:
        try:
            found.append(Clang(clang))
        except OSError as error:
            missing.append(f"{clang}: {error.strerror} (apt-get install clang-19 lld-19)")
    for version in words:
        if version == "clang":
            continue
        if version not in HIPRTC:
            sys.exit(f"compile_matrix: error: no compiler {version}; clang, {', '.join(HIPRTC)}")
        suite, soname = HIPRTC[version]
        command = [ROOT / "crates/gfx/fetch-rocm", *(["--suite", suite] if suite else [])]
        fetched = subprocess.run(command, capture_output=True, text=True)
        if fetched.returncode:
            missing.append(f"AMD's packages of HIP {version}: {fetched.stderr.strip()}")
        else:
            found.append(Hiprtc(Path(fetched.stdout.splitlines()[-1]), soname))
    return found, missing


class Kept:
    """Answers of earlier runs, in a folder: one file a compiler and chip, one entry for what a unit is made of.
    With `is_only` nothing is compiled, and a chip with anything missing has no answers."""

    def __init__(self, folder: Path | None, is_only: bool):
        self.folder, self.is_only = folder, is_only

    def all(self, compiler, kernels: Path, arch: str, what: list) -> list[tuple[str, object]] | None:
        if not self.folder:
            return compiler.all(kernels, arch, what)
        path = self.folder / f"{compiler.name}-{compiler.version}-{arch}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        keys = [key(kernels, *unit) for unit in what]
        # Taken once, before anything is compiled: a source that changes meanwhile keeps nothing under its new text.
        missing = [(unit, one) for unit, one in zip(what, keys) if one not in known]
        if missing and self.is_only:
            return []
        if missing:
            answers = compiler.all(kernels, arch, [unit for unit, _ in missing])
            # A compiler that does not know the chip says so for every unit.
            known |= zip((one for _, one in missing), answers or [None] * len(missing))
            self.folder.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(known))
            fresh.rename(path)
        answers = [known[one] for one in keys]
        return None if None in answers else answers


def key(kernels: Path, stem: str, defines: list[str]) -> str:
    """What a unit is made of: its text, the headers it includes, its defines."""
    texts, names = [], [f"{stem}.hip"]
    for name in names:
        texts.append((kernels / name).read_text())
        names += [one for one in re.findall(r'#include "([^"]+)"', texts[-1]) if one not in names]
    return hashlib.sha256("\0".join(texts + defines).encode()).hexdigest()[:24]


HEAD = """# What the kernels use on AMD chips

Made by `scripts/compile_matrix.py --all --table FILE`; not for editing. Each cell: VGPRs (+ AGPRs) / SGPRs /
bytes of LDS. Nothing spills and nothing uses scratch memory: the script fails otherwise.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every architecture named by the project, every weight format")
    parser.add_argument("--arch", default=None, help=f"comma-separated; default: {','.join(DEFAULT)}")
    parser.add_argument("--compiler", default=None, help=f"of clang,{','.join(HIPRTC)}; default: clang,7.2, or all with --all")
    parser.add_argument("--keep", default=None, type=Path, metavar="FOLDER", help="keep answers there, and use those kept")
    parser.add_argument("--kept-only", action="store_true", help="compile nothing: report what --keep has")
    parser.add_argument("--clang", default="clang-19", metavar="PROGRAM")
    parser.add_argument("--kernels", default=KERNELS, type=Path, metavar="FOLDER")
    parser.add_argument("--table", default=None, type=Path, metavar="FILE", help="write registers and LDS as Markdown")
    parser.add_argument("kernel", nargs="*", help="names without .hip; default: all")
    args = parser.parse_args()
    archs = args.arch.split(",") if args.arch else DEFAULT + (MORE if args.all else [])
    what = units(args.kernels, [Path(name).stem for name in args.kernel], args.all)
    words = args.compiler.split(",") if args.compiler else ["clang", *(HIPRTC if args.all else ["7.2"])]
    found, missing = compilers(words, args.clang)
    kept = Kept(args.keep, args.kept_only)
    for reason in missing:
        print(f"skipped: {reason}")
    if not found:
        return 3
    start, n_failed, details, by_compiler, by_absence = time.monotonic(), 0, "", {}, {}
    for compiler in found:
        print(f"{compiler.name} {compiler.version}: {len(what)} units")
        results, absent = {}, by_absence.setdefault(f"{compiler.name} {compiler.version}", {})
        for arch in archs:
            answers = kept.all(compiler, args.kernels, arch, what)
            if answers == []:
                print(f"{compiler.name:7} {arch:8} not compiled yet")
                absent[arch] = " "
            elif answers is not None:
                results[arch] = answers
                n_failed += judge(compiler, arch, what, answers)
            elif arch in DEFAULT and compiler.knows_today:
                n_failed += 1
                print(f"FAILED {compiler.name} does not know {arch}")
            else:
                print(f"{compiler.name:7} {arch:8} skipped: this compiler does not know it")
        by_compiler[f"{compiler.name} {compiler.version}"] = results
        if compiler.knows_today:
            details += tables(compiler, what, results)
    for arch in archs if not args.kept_only else []:
        if any(arch in results for results in by_compiler.values()):
            continue
        n_failed += 1
        print(f"FAILED no compiler knows {arch}")
    if args.table:
        args.table.write_text(HEAD + summary(archs, by_compiler, by_absence) + details)
    print(f"{n_failed} failed, {time.monotonic() - start:.0f} s")
    return 1 if n_failed else 3 if missing else 0


if __name__ == "__main__":
    if os.environ.get("COMPILE_MATRIX_JOB"):
        hiprtc_child()
    else:
        sys.exit(main())
