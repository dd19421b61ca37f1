#!/usr/bin/env python3
"""roci against llama.cpp on this machine: the same files, the same threads, in turns, medians and ratios.

Builds llama.cpp from PyPI's llama-cpp-python for this CPU (some 8 minutes the first time) and roci with cargo. Each
round measures every row once with each engine, one right after the other, and every other round the other one goes
first: a machine that gets slower hits both alike. Run it on a machine that does nothing else.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.dont_write_bytecode = True  # leave nothing beside the sources
import llama_cpp  # noqa: E402
import machine  # noqa: E402
from engines import Failed, LlamaCpp, Roci, Test  # noqa: E402

fetch = llama_cpp.fetch
ROOT = Path(__file__).resolve().parent.parent

# Required ratios: (prompt, generation). None: measured, not required.
SMOLLM2 = {
    "q4_1": (2.0, 1.2),
    "q4_0": (1.3, 1.2),
    "q8_0": (1.3, 1.2),
    "f16": (1.15, 1.2),
    "f32": (None, None),
}
# SmolLM2's rows of 576 hold no blocks of 256, so K-quants are measured on a shape that does.
LLAMA_1B = {"q4_k_m": (1.2, 1.0), "q6_k": (1.2, 1.0)}
# Every other type that a file may hold: `--models all`.
OTHER_SMOLLM2 = {name: (1.2, 1.0) for name in ["q5_0", "q5_1", "iq4_nl"]}
OTHER_LLAMA_1B = {name: (1.2, 1.0) for name in [
    "q2_k", "q3_k", "q5_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs", "tq1_0",
    "tq2_0", "mxfp4", "nvfp4", "q1_0", "q2_0"]}
ON_SMOLLM2 = {**SMOLLM2, **OTHER_SMOLLM2}
ON_LLAMA_1B = {**LLAMA_1B, **OTHER_LLAMA_1B}
# The long context and the batch are about attention and scheduling; two types are enough.
WITH_DEPTH_AND_BATCH = ["q4_1", "q4_0"]
DEPTH_RATIO, BATCH_RATIO = 2.0, 1.5

PROMPT = "The quick brown fox jumps over the lazy dog."
N_PROMPT = 10
START_CONTEXT = 512
START_LIMIT_S = 0.3
MEMORY_ROOM = 100_000_000
# SmolLM2-135M: 30 layers x (K and V) x 3 heads x 64 numbers x 2 bytes.
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2


@dataclass
class Row:
    model: str
    file: Path
    test: Test
    required: float | None
    samples: dict[str, list[float]] = field(default_factory=lambda: {"roci": [], "llama.cpp": []})

    def median(self, engine: str) -> float:
        return statistics.median(self.samples[engine])

    def ratio(self) -> float:
        return self.median("roci") / self.median("llama.cpp")

    def is_ok(self) -> bool:
        return self.required is None or self.ratio() >= self.required

    def report(self, bandwidth: float) -> dict:
        pairs = [a / b for a, b in zip(self.samples["roci"], self.samples["llama.cpp"])]
        report = {
            "model": self.model,
            "test": self.test.name,
            "file_bytes": self.file.stat().st_size,
            "roci": self.median("roci"),
            "llama_cpp": self.median("llama.cpp"),
            "ratio": self.ratio(),
            "ratio_per_round": [min(pairs), max(pairs)],
            "required": self.required,
            "ok": self.is_ok(),
            "samples": self.samples,
        }
        if self.test.generate and self.test.batch == 1 and not self.test.depth:
            # Every weight is read once a token (the embedding is tied to the output in all of these).
            report["limit"] = bandwidth / report["file_bytes"]
        return report


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*ON_SMOLLM2, *ON_LLAMA_1B]
    parser.add_argument("--output", choices=["text", "json"], default="text")
    default = [name for name in [*SMOLLM2, *LLAMA_1B] if name != "f32"]
    parser.add_argument("--models", "--types", default=",".join(default),
                        help=f"of {','.join(names)}, or all (default: {','.join(default)})")
    parser.add_argument("--isa", choices=[*llama_cpp.ISAS], default="native",
                        help="what both engines may use: all this CPU has, or AVX2 alone")
    parser.add_argument("--tests", default="prompt,generate,depth,batch,start", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=None, help="default: 5, or 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and generated tokens: a look, no proof")
    parser.add_argument("--realtime", action="store_true", help="measure with real-time priority, where permitted (one such program at a time)")
    parser.add_argument("--no-gate", action="store_true", help="exit with 0 even if a required ratio is missed")
    parser.add_argument("--roci", type=Path, default=None, help="a built roci (default: cargo build --release)")
    parser.add_argument("--smollm2", type=Path, default=None, help="SmolLM2-135M-Instruct.Q4_1.gguf (default: fetched)")
    args = parser.parse_args()
    args.models = names if args.models == "all" else args.models.split(",")
    args.tests = args.tests.split(",")
    if unknown := [name for name in args.models if name not in names]:
        parser.error(f"unknown model {unknown[0]}; there are {', '.join(names)}")
    args.rounds = args.rounds or (2 if args.quick else 5)
    return args


def build_roci() -> Path:
    command = ["cargo", "build", "--release", "--bin", "roci", "--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise fetch.Failure("cargo build --release failed")
    artifacts = map(json.loads, done.stdout.splitlines())
    return next(Path(a["executable"]) for a in artifacts if a.get("executable"))


def llama_1b(roci: Path, kind: str) -> Path:
    """Random weights written by roci; the prompt and generation lengths of 0 measure nothing."""
    target = fetch.cache() / f"llama-1b-{kind}.gguf"
    if not target.exists():
        with fetch.scratch() as folder:
            fresh = folder / target.name
            make = ["bench", "--synthetic", "llama-1b", "--weights", kind.upper(), "--save", fresh]
            fetch.run([roci, *make, "--prompt", 0, "--generate", 0])
            fresh.replace(target)
    return target


def plan(args: argparse.Namespace, files: dict[str, Path]) -> list[Row]:
    n_gen = 32 if args.quick else 128
    prompt, generate = Test("prompt 512", prompt=512), Test(f"generate {n_gen}", generate=n_gen)
    n_deep, n_together = (16, 16) if args.quick else (64, 64)
    depth = Test(f"generate {n_deep} at depth 4096", generate=n_deep, depth=4096)
    batch = Test(f"generate {n_together} x 16 at depth 128", generate=n_together, depth=128, batch=16)
    rows = []
    for name, file in files.items():
        for_prompt, for_generate = {**ON_SMOLLM2, **ON_LLAMA_1B}[name]
        label = f"SmolLM2 {name.upper()}" if name in ON_SMOLLM2 else f"llama-1b {name.upper()}"
        wanted = [("prompt", prompt, for_prompt), ("generate", generate, for_generate)]
        if name in WITH_DEPTH_AND_BATCH:
            wanted += [("depth", depth, DEPTH_RATIO), ("batch", batch, BATCH_RATIO)]
        rows += [Row(label, file, test, required) for kind, test, required in wanted if kind in args.tests]
    return rows


def measure(rows: list[Row], engines: list, n_rounds: int) -> None:
    for round_idx in range(n_rounds):
        for row in rows:
            for engine in engines if round_idx % 2 == 0 else reversed(engines):
                row.samples[engine.name].append(engine.speed(row.file, row.test))
            last = " ".join(f"{name} {values[-1]:.1f}" for name, values in row.samples.items())
            print(f"round {round_idx + 1}/{n_rounds}: {row.model}, {row.test.name}: {last}", file=sys.stderr)


def measure_start(file: Path, roci: Roci, peer: LlamaCpp, n_rounds: int) -> dict:
    """Time and memory of a whole process, after one of each that brings the file into the page cache."""
    ours, theirs = [], []
    for _ in range(n_rounds + 1):
        ours.append(roci.start(file, PROMPT, START_CONTEXT))
        theirs.append(peer.start(file, N_PROMPT))
    n_prompt = len(ours[0].answer["prompt_tokens"])
    if n_prompt != N_PROMPT:
        raise Failed(f"the prompt has {n_prompt} tokens, not {N_PROMPT}")
    ours, theirs = ours[1:], theirs[1:]
    median = lambda starts, figure: statistics.median(map(figure, starts))  # noqa: E731
    allowed = file.stat().st_size + START_CONTEXT * KV_BYTES_PER_TOKEN + MEMORY_ROOM
    report = {
        "file": str(file),
        "process_s": median(ours, lambda s: s.wall_s),
        "load_s": median(ours, lambda s: s.answer["timings"]["load_s"]),
        "first_token_s": median(ours, lambda s: s.answer["timings"]["first_token_s"]),
        "required_s": START_LIMIT_S,
        "peak_bytes": max(s.peak_bytes for s in ours),
        "allowed_bytes": allowed,
        "llama_cpp_process_s": median(theirs, lambda s: s.wall_s),
        "llama_cpp_peak_bytes": max(s.peak_bytes for s in theirs),
        "samples": {"roci_s": [s.wall_s for s in ours], "llama_cpp_s": [s.wall_s for s in theirs]},
        "commands": [show(roci.start_command(file, PROMPT, START_CONTEXT)), show(peer.start_command(file, N_PROMPT))],
    }
    # The process's whole life, from spawn to exit: a little more than load to first token.
    report["is_quick"] = report["process_s"] < START_LIMIT_S
    report["is_small"] = report["peak_bytes"] <= allowed
    return report


def show(command: list) -> str:
    return shlex.join(map(str, command))


def verdict(required, is_ok: bool) -> str:
    return "" if required is None else "pass" if is_ok else "FAIL"


def print_text(report: dict) -> None:
    host, versions = report["machine"], report["versions"]
    print(f"{host['date']}  {host['cpu']}, {host['cores']} cores, {' '.join(host['cpu_flags'])}")
    print(f"{report['isa']} instructions, {report['threads']} threads, {report['rounds']} rounds, medians; load before: {host['load_before']:.2f}")
    print(f"{versions['roci']}; llama.cpp {versions['llama_cpp']}; {host['compiler']}; {host['rustc']}")
    print(f"main memory is read at {report['read_bytes_per_s'] / 1e9:.1f} GB/s\n")
    columns = "{:18} {:32} {:>9} {:>9} {:>7} {:>8} {:5} {:>12}"
    if report["rows"]:
        print(columns.format("tokens/s", "", "roci", "llama.cpp", "ratio", "required", "", "of the limit"))
    for row in report["rows"]:
        required = "" if row["required"] is None else f"{row['required']:.2f}x"
        limit = f"{row['roci'] / row['limit']:.0%} of {row['limit']:.0f}" if "limit" in row else ""
        figures = [f"{row['roci']:.1f}", f"{row['llama_cpp']:.1f}", f"{row['ratio']:.2f}x"]
        print(columns.format(row["model"], row["test"], *figures, required, verdict(row["required"], row["ok"]), limit).rstrip())
    if start := report["start"]:
        mb = lambda n: f"{n / 1e6:.0f} MB"  # noqa: E731
        print(f"\nload to first token of {N_PROMPT}: {start['process_s']:.3f} s (loading {start['load_s']:.3f} s), under "
              f"{START_LIMIT_S} s required: {verdict(1, start['is_quick'])}; llama.cpp {start['llama_cpp_process_s']:.3f} s")
        print(f"peak memory: {mb(start['peak_bytes'])}, at most {mb(start['allowed_bytes'])} (file + KV + 100 MB): "
              f"{verdict(1, start['is_small'])}; llama.cpp {mb(start['llama_cpp_peak_bytes'])}")
    print("\ncommands:", *report["commands"], sep="\n  ")


def main() -> int:
    args = parse_args()
    programs = llama_cpp.build(args.isa)
    binary = args.roci or build_roci()
    shipped = args.smollm2 or fetch.smollm2()
    if args.isa != "native":
        os.environ["ROCI_ISA"] = args.isa
    files = {name: llama_1b(binary, name) if name in ON_LLAMA_1B else llama_cpp.smollm2(programs, name, shipped)
             for name in args.models}
    # Round robin: under plain FIFO two programs that spin at their barriers can starve each other.
    prefix = ["chrt", "-r", "10"] if args.realtime else []
    if prefix and subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        print("real-time priority is not permitted here: measuring without", file=sys.stderr)
        prefix = []
    roci, peer = Roci(binary, args.threads, prefix), LlamaCpp(programs, args.threads, prefix)
    host = machine.describe()
    bandwidth = machine.read_bandwidth(args.threads, prefix)
    rows = plan(args, files)
    measure(rows, [roci, peer], args.rounds)
    start = measure_start(shipped, roci, peer, 2 * args.rounds + 1) if "start" in args.tests else None
    commands = [show(engine.command(row.file, row.test)) for row in rows for engine in (roci, peer)]
    report = {
        "machine": host,
        "versions": {"roci": f"{machine.first_line([binary, '--version'])} at {host['commit']}",
                     "llama_cpp": f"{peer.build} of {fetch.SDIST}"},
        "isa": args.isa,
        "threads": args.threads,
        "rounds": args.rounds,
        "quick": args.quick,
        "realtime": bool(prefix),
        "read_bytes_per_s": bandwidth,
        "rows": [row.report(bandwidth) for row in rows],
        "start": start,
        "commands": commands + (start["commands"] if start else []),
    }
    report["ok"] = all(row.is_ok() for row in rows) and (not start or start["is_quick"] and start["is_small"])
    if args.output == "json":
        print(json.dumps(report, indent=2))
    else:
        print_text(report)
    return 0 if report["ok"] or args.no_gate else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (fetch.Failure, Failed, OSError, subprocess.CalledProcessError) as error:
        print(f"peers.py: error: {error}", file=sys.stderr)
        sys.exit(2)
