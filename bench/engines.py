"""One measurement by one engine in a process of its own: tokens per second, or time and memory of a cold start.
Settings are each engine's defaults; only file, threads and lengths are given."""

import json
import os
import shlex
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Test:
    """What is timed: a prompt, or generation with `depth` tokens before it in each of `batch` sequences."""

    name: str
    prompt: int = 0
    generate: int = 0
    depth: int = 0
    batch: int = 1


@dataclass
class Start:
    """A whole process: load, a short prompt, one token."""

    wall_s: float
    peak_bytes: int
    answer: dict


class Failed(Exception):
    pass


def finish(command: list, prefix: list) -> tuple[str, float, int]:
    """Runs to the end: standard output, seconds, peak memory in bytes."""
    command = [*prefix, *map(str, command)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        start = time.monotonic()
        child = subprocess.Popen(command, stdout=out, stderr=errors, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), errors.seek(0)
        if child.returncode != 0:
            tail = errors.read().decode(errors="replace")[-2000:]
            raise Failed(f"`{shlex.join(command)}` ended with {child.returncode}\n{tail}")
        return out.read().decode(), wall_s, usage.ru_maxrss * 1024


class Engine:
    def __init__(self, threads: int, prefix: list):
        self.threads, self.prefix = threads, prefix

    def speed(self, model: Path, test: Test) -> float:
        out, _, _ = finish(self.command(model, test), self.prefix)
        return self.parse(out, test)


class Roci(Engine):
    name = "roci"

    def __init__(self, binary: Path, threads: int, prefix: list):
        super().__init__(threads, prefix)
        self.binary = binary

    def command(self, model: Path, test: Test) -> list:
        lengths = ["--prompt", test.prompt, "--generate", test.generate, "--depth", test.depth, "--batch", test.batch]
        device = ["--device", "cpu", "--threads", self.threads]
        return [self.binary, "bench", model, *device, *lengths, "--repetitions", 1, "--output", "json"]

    def parse(self, out: str, test: Test) -> float:
        [result] = json.loads(out)["results"]
        return result["tokens_per_second"]

    def start_command(self, model: Path, prompt: str, context: int) -> list:
        limits = ["--device", "cpu", "--threads", self.threads, "--context", context, "--max-tokens", 1]
        return [self.binary, "run", model, prompt, "--raw", "--temperature", 0, *limits, "--output", "json"]

    def start(self, model: Path, prompt: str, context: int) -> Start:
        out, wall_s, peak = finish(self.start_command(model, prompt, context), self.prefix)
        return Start(wall_s, peak, json.loads(out))


class LlamaCpp(Engine):
    name = "llama.cpp"

    def __init__(self, programs: Path, threads: int, prefix: list):
        super().__init__(threads, prefix)
        self.programs = programs
        self.build = None

    def command(self, model: Path, test: Test) -> list:
        if test.batch == 1:
            lengths = ["-p", test.prompt, "-n", test.generate, "-d", test.depth]
            return [self.programs / "llama-bench", "-m", model, "-t", self.threads, *lengths, "-r", 1, "-o", "json"]
        context = test.batch * (test.depth + test.generate)
        threads = ["-t", self.threads, "-tb", self.threads]
        lengths = ["-c", context, "-npp", test.depth, "-ntg", test.generate, "-npl", test.batch]
        return [self.programs / "llama-batched-bench", "-m", model, *threads, *lengths, "--output-format", "jsonl"]

    def parse(self, out: str, test: Test) -> float:
        if test.batch == 1:
            return self.result(out)["avg_ts"]
        [result] = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return result["speed_tg"]

    def result(self, out: str) -> dict:
        [result] = json.loads(out)
        self.build = f"{result['build_commit']} ({result['build_number']})"
        return result

    def start_command(self, model: Path, n_prompt: int) -> list:
        lengths = ["-p", n_prompt, "-n", 0, "-r", 1, "--no-warmup"]
        return [self.programs / "llama-bench", "-m", model, "-t", self.threads, *lengths, "-o", "json"]

    def start(self, model: Path, n_prompt: int) -> Start:
        """The nearest thing: a made-up prompt, and the logits for its first token."""
        out, wall_s, peak = finish(self.start_command(model, n_prompt), self.prefix)
        return Start(wall_s, peak, self.result(out))
