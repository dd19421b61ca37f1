#!/usr/bin/env python3
"""Candle's own tests for a CUDA device, unmodified, over our crates on the software GPU, file by file.

    scripts/candle_tests.py [--chip CHIP]... [--way WAY]... [--file FILE]... [--again] [--results FILE]
    scripts/candle_tests.py --write      only writes the table of docs/user/candle.md from the results there are

Ways: plain, sanitized (reads of unwritten memory, LDS races, every tensor an allocation of its own), seed1, seed2, seed3
(hostile orders of packets). Every result is kept as a line `file, test, chip, way, result, sources`, as soon as it is known,
and what has a result of the present sources is not run again: a run that was broken off goes on where it was. Ends with 1
where a test failed that is not among the exceptions below.

Sources are what is Candle's own here: the kernels a file's tests use, and our cudarc. The device layer and the software GPU
are not among them: both are shared with everything else, have tests of their own, and change daily.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "crates" / "candle" / "test-results.tsv"
PAGE = ROOT / "docs" / "user" / "candle.md"
MARKS = ("<!-- written by scripts/candle_tests.py -->\n", "<!-- end -->\n")
CHIPS = ["gfx1100", "gfx942"]
WAYS = {
    "plain": {},
    # Blocks from the pool look written, and have room behind their end.
    "sanitized": {"GFX_SANITIZE": "1", "ROCI_CANDLE_POOL": "off"},
    "seed1": {"GFX_SEED": "1"},
    "seed2": {"GFX_SEED": "2"},
    "seed3": {"GFX_SEED": "3"},
}
# Package, target and how many tests of it run on a CUDA device.
FEATURES = {"conv-cudnn": "cuda,cudnn"}
# AMD's library beside its runtime.
PACKAGES = {"conv-cudnn": "libmiopen1"}
FILES = {
    "unit": ("candle-core", "candle_core", 4),
    "bilinear": ("candle-core", "bilinear_tests", 12),
    "conv": ("candle-core", "conv_tests", 9),
    "grad": ("candle-core", "grad_tests", 9),
    "layout": ("candle-core", "layout_tests", 1),
    "matmul": ("candle-core", "matmul_tests", 10),
    "pool": ("candle-core", "pool_tests", 4),
    "quantized": ("candle-core", "quantized_tests", 26),
    "tensor": ("candle-core", "tensor_tests", 39),
    "nn-ops": ("candle-nn", "ops", 10),
    # The 9 of `conv` again, with Candle's feature cudnn on AMD's real MIOpen: only by name, and in no sum.
    "conv-cudnn": ("candle-core", "conv_tests", 9),
}
USUAL = [name for name in FILES if name != "conv-cudnn"]
# One test has neither `gpu` nor `cuda` in its name.
IS_OURS = re.compile(r"gpu|cuda|allocates_twice")
# Tests that demand more than a device of another make can give, with the reason. At most three.
EXCEPTIONS = {}


def fail(message, hint=None):
    print(f"candle_tests: error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    sys.exit(1)


def sources(file):
    """What the results of a file of tests depend on of ours, in eight digits."""
    digest = hashlib.sha256()
    candle = ROOT / "crates" / "candle"
    files = [ROOT / "crates" / "ops" / "kernels" / "prelude.h", *candle.glob("candle-kernels/kernels/*")]
    files += candle.glob("cudarc/src/driver/*")
    files += [candle / "cudarc/src" / name for name in ("cublas.rs", "curand.rs", "nvrtc.rs", "gemm.hip", "random.hip")]
    # Kernels and launchers that only quantised tensors use.
    quantized = {*candle.glob("candle-kernels/kernels/quantized*"), candle / "candle-kernels/src/ffi.rs"}
    files = set(files) | quantized if file in ("unit", "quantized") else set(files) - quantized
    if file == "conv-cudnn":
        files |= {candle / "cudarc/src" / name for name in ("cudnn.rs", "pack.hip")}
    for path in sorted(files):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def build(folder, files):
    """The test programs, by file."""
    together = {}
    for name in files:
        together.setdefault((FILES[name][0], FEATURES.get(name, "cuda")), []).append(name)
    programs = {}
    for (package, features), names in together.items():
        targets = {FILES[name][1]: name for name in names}
        wanted = [word for target in targets for word in (["--lib"] if target == "candle_core" else ["--test", target])]
        command = ["cargo", "test", "--manifest-path", f"{folder}/Cargo.toml", "-p", package, "--features", features]
        done = subprocess.run([*command, *wanted, "--no-run", "--message-format=json"], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            fail(f"{package} does not build")
        for line in done.stdout.splitlines():
            message = json.loads(line)
            if message.get("executable") and message["profile"]["test"]:
                programs[targets[message["target"]["name"]]] = message["executable"]
    return programs


def run(file, program, chip, way, tests, on_result, log):
    """Runs tests one after another; a process that ends early failed the test it was in, and another takes the rest."""
    environment = {**os.environ, **WAYS[way], **({"GFX_WITH": PACKAGES[file]} if file in PACKAGES else {})}
    while tests:
        command = [str(ROOT / "crates/gfx/run"), "--chip", chip, program, "--exact", "--test-threads=1", *tests]
        running, done = None, set()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment) as child:
            text = ""
            # A name comes before its test runs and the result after it, with whatever the test prints in between.
            while chunk := os.read(child.stdout.fileno(), 1 << 16).decode(errors="replace"):
                text += chunk
                log.write(chunk.encode())
                while match := re.search(r"test (\S+) \.\.\. (?:.*?)(ok|FAILED|ignored[^\n]*)\n", text, re.S):
                    on_result(match[1], "passed" if match[2] == "ok" else match[2].split()[0].lower())
                    done.add(match[1])
                    text = text[match.end() :]
                started = re.search(r"test (\S+) \.\.\. ", text)
                running = started[1] if started else None
        tests = [test for test in tests if test not in done]
        if tests and not running:
            fail(f"{program} ended with {child.returncode} before its tests", f"see {log.name}")
        if tests:
            on_result(running, f"died {child.returncode}")
            tests.remove(running)


def tests_in(file, program):
    """A program's tests for a CUDA device."""
    listed = subprocess.run([program, "--list", "--format=terse"], stdout=subprocess.PIPE, text=True, check=True)
    tests = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
    tests = [test for test in tests if IS_OURS.search(test)]
    if len(tests) != FILES[file][2]:
        fail(f"{file} has {len(tests)} tests for a CUDA device, not {FILES[file][2]}", "another release of Candle?")
    return tests


def read(path):
    rows = {}
    if path.exists():
        for line in path.read_text().splitlines():
            if not line.startswith("#"):
                file, test, chip, way, result, of = line.split("\t")
                rows[file, test, chip, way] = (result, of)
    return rows


def save(path, rows):
    lines = ["# file, test, chip, way, result, sources: written by scripts/candle_tests.py"]
    lines += ["\t".join([*key, *value]) for key, value in sorted(rows.items())]
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(lines) + "\n")
    fresh.replace(path)


def table(rows):
    """Passed tests of each file, by chip and way; with a star where some ran with earlier sources."""
    titles = [f"{chip} {way}" for chip in CHIPS for way in WAYS]
    lines = ["| tests | of | " + " | ".join(titles) + " |", "|---|--:|" + "--:|" * len(titles)]
    sums, is_old, failed = [0] * len(titles), False, []
    for file in USUAL:
        cells, of = [], sources(file)
        for i, (chip, way) in enumerate((chip, way) for chip in CHIPS for way in WAYS):
            here = {key: value for key, value in rows.items() if key[0] == file and key[2:] == (chip, way)}
            passed = [value for value in here.values() if value[0] == "passed"]
            old = any(value[1] != of for value in passed)
            failed += [(key[1], chip, way, value[0]) for key, value in here.items() if value[0] != "passed"]
            sums[i] += len(passed)
            is_old |= old
            cells.append(f"{len(passed)}{'*' if old else ''}" if here else "-")
        lines.append(f"| {file} | {FILES[file][2]} | " + " | ".join(cells) + " |")
    lines.append(f"| all | {sum(FILES[file][2] for file in USUAL)} | " + " | ".join(map(str, sums)) + " |")
    if any(" - |" in line for line in lines):
        lines += ["", "-: not run"]
    if is_old:
        lines += ["", "\\* some of them ran before the last change of their kernels, of `cudarc` or of `prelude.h`"]
    for file in (file for file in FILES if file not in USUAL):
        by_run = {}
        for key, value in rows.items():
            if key[0] == file:
                by_run.setdefault(key[2:], []).append(value[0] == "passed")
        runs = [f"{sum(passed)} on {' '.join(run)}" for run, passed in sorted(by_run.items())]
        lines += ["", f"{file}, of {FILES[file][2]}: {', '.join(runs) or 'not run'}"]
    if failed:
        lines += ["", "Not passed:"]
        lines += [f"- `{test}` on {chip}, {way}: {result}. {EXCEPTIONS.get(test, '')}".rstrip() for test, chip, way, result in failed]
    return "\n".join(lines) + "\n"


def write(rows):
    page = PAGE.read_text()
    if not all(mark in page for mark in MARKS):
        fail(f"{PAGE} has no place for the table")
    head, rest = page.split(MARKS[0])
    PAGE.write_text(head + MARKS[0] + table(rows) + MARKS[1] + rest.split(MARKS[1])[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chip", action="append", choices=CHIPS)
    parser.add_argument("--way", action="append", choices=list(WAYS))
    parser.add_argument("--file", action="append", choices=list(FILES))
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--write", action="store_true", help="only write the table")
    options = parser.parse_args()
    rows = read(options.results)
    if options.write:
        return write(rows)
    folder = subprocess.run([ROOT / "crates/candle/unmodified"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    files = options.file or USUAL
    # Before they are built: what changes from here on is not in the programs.
    sources_now = {file: sources(file) for file in files}
    programs = build(folder, files)
    n_bad = 0
    with open(f"{folder}/tests.log", "ab") as log:
        for chip in options.chip or CHIPS:
            for way in options.way or WAYS:
                for file in files:
                    tests, of, start = tests_in(file, programs[file]), sources_now[file], time.monotonic()
                    has_one = lambda test: rows.get((file, test, chip, way), ("", ""))[1] == of
                    left = [test for test in tests if options.again or not has_one(test)]

                    def on_result(test, result):
                        rows[file, test, chip, way] = (result, of)
                        save(options.results, rows)
                        if result != "passed":
                            print(f"{file}: {test} on {chip}, {way}: {result}", flush=True)

                    run(file, programs[file], chip, way, left, on_result, log)
                    results = [rows[file, test, chip, way][0] for test in tests]
                    n_bad += sum(rows[file, test, chip, way][0] != "passed" and test not in EXCEPTIONS for test in tests)
                    told = f"{chip} {way} {file}: {results.count('passed')} of {len(tests)}, {len(left)} of them now"
                    print(f"{told}, {time.monotonic() - start:.0f} s", flush=True)
    sys.exit(n_bad > 0)


if __name__ == "__main__":
    main()
