#!/usr/bin/env python3
"""What an engine in a process of its own costs: `roci serve` with and without --in-process, turn about, the same requests.
Each round is a pair; what is told is the median of the pairs' ratios, because the machine's speed changes between rounds.
That ratio needs a quiet machine. The processor time of the threads that do not compute needs none: what they take more with
a process is what passing requests and tokens between the two costs.

  bench/engine_process.py [--roci PROGRAM] [--model GGUF] [--rounds 5] [--streams 1,16] [--tokens 64]
"""

import argparse
import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "scripts")]
import fetch  # noqa: E402
import serve as bench  # noqa: E402

#: Threads that compute: the engine's own, where it is not a process that only waits, and its helpers.
COMPUTING = ("engine", "ops-")
N_SINGLE = 8  #: requests one after the other, where one stream is measured


def measure(roci: Path, model: Path, arguments: list[str], streams: list[int], n_tokens: int) -> dict:
    """By streams: tokens a second, the median first token in ms, and microseconds a token of threads that do not compute."""
    with tempfile.NamedTemporaryFile("w+") as log:
        command = [roci, "serve", f"m={model}", "--port", "0", "--log-level", "warn", "--context", "1024", *arguments]
        process = subprocess.Popen([str(part) for part in command], stderr=log)
        try:
            while not (found := re.search(r"listening on (\S+)", Path(log.name).read_text())):
                assert process.poll() is None, Path(log.name).read_text()
                time.sleep(0.05)
            asyncio.run(bench.together(found[1], 4, 8, 900_000))
            return {n: load(found[1], process.pid, n, n_tokens) for n in streams}
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def passing_us(pid: int) -> float:
    """Processor time so far of all threads but those that compute, in the server and its children."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    total = 0.0
    for process in [str(pid), *children]:
        for task in Path(f"/proc/{process}/task").iterdir():
            name = (task / "comm").read_text().strip()
            # In a server whose engine is a process, the thread of that name passes requests on.
            is_passing = not name.startswith(COMPUTING) or name == "engine" and process == str(pid) and children
            if is_passing or name == "engine-life":
                total += int((task / "schedstat").read_text().split()[0]) / 1000
    return total


def load(url: str, pid: int, n_streams: int, n_tokens: int) -> tuple[float, float, float]:
    outcomes, seconds, before = [], 0.0, passing_us(pid)
    for i in range(N_SINGLE if n_streams == 1 else 2):
        some, took = asyncio.run(bench.together(url, n_streams, n_tokens, 1000 * n_streams + i * n_streams))
        outcomes, seconds = outcomes + some, seconds + took
    assert not any(outcome.error for outcome in outcomes), [outcome.error for outcome in outcomes]
    tokens = sum(outcome.n_tokens for outcome in outcomes)
    passing = (passing_us(pid) - before) / tokens
    return tokens / seconds, 1000 * statistics.median(outcome.first for outcome in outcomes), passing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    parser.add_argument("--roci", type=Path, default=target / "release/roci")
    parser.add_argument("--model", type=Path, default=os.environ.get("ROCI_SMOLLM2"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    model, streams = args.model or fetch.smollm2(), [int(n) for n in args.streams.split(",")]
    pairs = []
    for i in range(args.rounds):
        found = {}
        for name in ["process", "thread"] if i % 2 == 0 else ["thread", "process"]:
            found[name] = measure(args.roci, model, [] if name == "process" else ["--in-process"], streams, args.tokens)
        pairs.append(found)
        print(f"round {i + 1}: {found}", flush=True)
    print("| streams | tokens/s, process / thread | median ratio | first token ms, process / thread | median difference "
          "| us a token beside computing, process / thread |")
    print("|---|---|---|---|---|---|")
    for n in streams:
        speed = {name: statistics.median(pair[name][n][0] for pair in pairs) for name in ["process", "thread"]}
        first = {name: statistics.median(pair[name][n][1] for pair in pairs) for name in ["process", "thread"]}
        passing = {name: statistics.median(pair[name][n][2] for pair in pairs) for name in ["process", "thread"]}
        ratio = statistics.median(pair["process"][n][0] / pair["thread"][n][0] for pair in pairs)
        later = statistics.median(pair["process"][n][1] - pair["thread"][n][1] for pair in pairs)
        print(f"| {n} | {speed['process']:.1f} / {speed['thread']:.1f} | {ratio:.3f} "
              f"| {first['process']:.1f} / {first['thread']:.1f} | {later:+.1f} "
              f"| {passing['process']:.0f} / {passing['thread']:.0f} |")


if __name__ == "__main__":
    main()
