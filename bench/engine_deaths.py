#!/usr/bin/env python3
"""How long a stream is silent when its engine is killed: the seconds between the tokens before and after the death, by how
many tokens the answer had, and, from the server's log, when the next process was up.

  bench/engine_deaths.py [--roci PROGRAM] [--model GGUF] [--deaths 5] [--tokens 20,150,500] [SERVE-ARGUMENT...]
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "scripts")]
import fetch  # noqa: E402

#: Tokens after the death.
N_AFTER = 16
PROMPT = "Write a long story about an old horse, a mill and the road between them."


def engine(pid: int) -> int | None:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "engine"], capture_output=True, text=True).stdout.split()
    return int(found[0]) if found else None


def disturbed(url: str, pid: int, n_tokens: int) -> float:
    """The longest silence of a stream whose engine is killed after so many tokens."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "stream": True, "temperature": 0, "ignore_eos": True,
            "max_tokens": n_tokens + N_AFTER}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    times = []
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            assert b'"error"' not in line, line
            if b'"content":"' not in line:
                continue
            times.append(time.monotonic())
            if len(times) == n_tokens:
                os.kill(engine(pid), signal.SIGKILL)
    return max(b - a for a, b in zip(times, times[1:]))


def measure(roci: Path, model: Path, lengths: list[int], n_deaths: int, arguments: list[str]) -> tuple[dict, list[float]]:
    with tempfile.NamedTemporaryFile("w+") as log:
        command = [roci, "serve", f"m={model}", "--port", "0", "--context", "4096", "--max-engine-deaths", "1000", *arguments]
        process = subprocess.Popen([str(part) for part in command], stderr=log)
        try:
            while not (found := re.search(r"listening on (\S+)", Path(log.name).read_text())):
                assert process.poll() is None, Path(log.name).read_text()
                time.sleep(0.05)
            silences = {n: [disturbed(found[1], process.pid, n) for _ in range(n_deaths)] for n in lengths}
            text = re.sub(r"\x1b\[[0-9;]*m", "", Path(log.name).read_text())
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    return silences, [float(s) for s in re.findall(r"took over \d+ requests after ([\d.]+) s", text)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    parser.add_argument("--roci", type=Path, default=target / "release/roci")
    parser.add_argument("--model", type=Path, default=os.environ.get("ROCI_SMOLLM2"))
    parser.add_argument("--deaths", type=int, default=5)
    parser.add_argument("--tokens", default="20,150,500")
    args, arguments = parser.parse_known_args()
    lengths = [int(n) for n in args.tokens.split(",")]
    silences, ups = measure(args.roci, args.model or fetch.smollm2(), lengths, args.deaths, arguments)
    for name, values in [*((f"silence after {n} tokens", silences[n]) for n in lengths), ("next process up", ups)]:
        print(f"{name}: median {statistics.median(values):.2f} s, {min(values):.2f} to {max(values):.2f} ({len(values)} deaths)")


if __name__ == "__main__":
    main()
