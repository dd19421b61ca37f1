"""Long load on `roci serve` with everything that goes wrong in earnest mixed in: clients that leave, clients that read
slowly, engines that are killed, two models that take turns in memory, settings that are read again. Nothing may fail, and
the memory of the server stays flat. Run by scripts/check_serve.py.

  scripts/serve_soak.py ROCI MODEL SECONDS
"""

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "bench")]
import serve as bench  # noqa: E402

N_STREAMS = 12
#: Of the requests: those that leave early, read slowly, ask for the other model.
LEAVING, SLOW, OTHER = 0.1, 0.05, 0.1
KILL_EVERY, RELOAD_EVERY = 20.0, 13.0
#: A request that is told to come back later (429) does, after so many seconds and so often.
COME_BACK, MAX_TRIES = 5.0, 12


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def engines(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "engine"], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


class Soak:
    def __init__(self, url: str, pid: int, seconds: float) -> None:
        self.url, self.pid, self.end = url, pid, time.monotonic() + seconds
        self.chance = random.Random(7)
        self.memory: list[float] = []
        self.errors: list[str] = []
        self.counts = dict.fromkeys(["whole", "left", "slow", "other", "came back", "kills", "reloads"], 0)

    def is_over(self) -> bool:
        return time.monotonic() > self.end

    async def slow(self, body: dict) -> str | None:
        """Reads a few bytes at a time; the whole answer must come."""
        where = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1024)
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        answer = b""
        while piece := await reader.read(512):
            answer += piece
            await asyncio.sleep(0.02)
        writer.close()
        if answer.startswith(b"HTTP/1.1 429"):
            return "status 429"
        return None if b"data: [DONE]" in answer and b'"error"' not in answer else f"a slow reader got {answer[-300:]!r}"

    async def patient(self, ask) -> str | None:
        """Comes back when it is told to, as clients do: one model at a time is in memory here."""
        for _ in range(MAX_TRIES):
            error = await ask()
            if not error or not error.startswith("status 429"):
                return error
            self.counts["came back"] += 1
            await asyncio.sleep(COME_BACK)
        return error

    async def one(self, i: int) -> None:
        body = bench.body(i, self.chance.choice([4, 16, 48]))
        is_other = self.chance.random() < OTHER
        body["model"] = "b" if is_other else "a"
        fate = self.chance.random()
        try:
            if fate < LEAVING:
                try:
                    await asyncio.wait_for(bench.ask(self.url, body), self.chance.random())
                except TimeoutError:
                    pass
                kind, error = "left", None
            elif fate < LEAVING + SLOW:
                kind, error = "slow", await self.patient(lambda: self.slow(body))
            else:
                async def plain() -> str | None:
                    return (await bench.ask(self.url, body)).error

                kind, error = "other" if is_other else "whole", await self.patient(plain)
        except OSError as failed:
            kind, error = "whole", f"{type(failed).__name__}: {failed}"
        self.counts[kind] += 1
        if error:
            self.errors.append(error)
            print(error, flush=True)

    async def stream(self, n: int) -> None:
        i = n
        while not self.is_over():
            await self.one(i)
            i += N_STREAMS

    async def disturb(self) -> None:
        next_kill, next_reload = time.monotonic() + KILL_EVERY, time.monotonic() + RELOAD_EVERY
        while not self.is_over():
            await asyncio.sleep(1)
            self.memory.append(resident_mib(self.pid))
            if len(self.memory) % 300 == 0:
                print(f"{self.counts}; {len(self.errors)} failed, peak {max(self.memory[-300:]):.0f} MiB", flush=True)
            now = time.monotonic()
            if now > next_kill and (alive := engines(self.pid)):
                os.kill(self.chance.choice(alive), signal.SIGKILL)
                self.counts["kills"] += 1
                next_kill = now + KILL_EVERY * (0.5 + self.chance.random())
            if now > next_reload:
                os.kill(self.pid, signal.SIGHUP)
                self.counts["reloads"] += 1
                next_reload = now + RELOAD_EVERY

    async def run(self) -> None:
        await asyncio.gather(self.disturb(), *(self.stream(n) for n in range(N_STREAMS)))


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[ {{]", line))


def main() -> int:
    roci, model, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        # Names of one file would share an engine.
        other = Path(folder) / "b.gguf"
        shutil.copy(model, other)
        command = [roci, "serve", f"a={model}", f"b={other}", "--port", "0", "--log-level", "error", "--context", "1024"]
        # A small pool, so that memory is flat once all of it was touched.
        command += ["--kv-tokens", "4096", "--max-loaded", "1", "--max-engine-deaths", "1000000"]
        log = open(Path(folder) / "log", "w+")
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "ROCI_HOME": folder})
        while not (found := re.search(r"listening on (\S+)", Path(log.name).read_text())):
            if process.poll() is not None:
                raise SystemExit(Path(log.name).read_text())
            time.sleep(0.1)
        soak = Soak(found[1], process.pid, seconds)
        asyncio.run(soak.run())
        deaths, resumed = metric(soak.url, "roci_engine_deaths_total"), metric(soak.url, "roci_engine_requests_resumed_total")
        loads = metric(soak.url, "roci_models_loaded")
        n_files = len(os.listdir(f"/proc/{process.pid}/fd"))
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
        # A model that comes or goes takes its vocabulary along, so memory moves by tens of MiB: peaks are compared.
        length = max(len(soak.memory) // 4, 1)
        peaks = [max(soak.memory[i * length : (i + 1) * length], default=0) for i in range(4)]
        print(f"{soak.counts}; {len(soak.errors)} failed, {deaths:.0f} deaths, {resumed:.0f} requests resumed, {n_files} files open")
        shown = ", ".join(f"{peak:.0f}" for peak in peaks)
        print(f"server's resident MiB, peaks of the quarters: {shown}; at the end {soak.memory[-1]:.0f}")
        is_flat = peaks[3] - peaks[1] < 32
        if soak.errors or not is_flat or status != 0 or loads > 1:
            print(Path(log.name).read_text()[-4000:])
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
