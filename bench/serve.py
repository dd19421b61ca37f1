#!/usr/bin/env python3
"""Many clients at once, against `roci serve` and, side by side in one run, against llama-cpp-python's server.

  bench/serve.py                        both servers: 16 streams together, then arrivals by chance; roci alone: 64 streams
  bench/serve.py --only roci            without the peer
  bench/serve.py --url URL              a server that runs already
  bench/serve.py --rate 2 --requests 40 arrivals a second, and how many
  bench/serve.py --json FILE            all figures

Open loop: requests arrive by a Poisson process, whether or not earlier ones are done, so that a slow server cannot slow
its own load down. Goodput counts the requests whose first token and whose later tokens came in time. Both servers read
the same file, use the same threads and get the same requests. Standard library only.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts"))
import fetch  # noqa: E402
import machine  # noqa: E402

SUBJECTS = "the sea,a small town,winter,an old clock,bread,a long train,music,the first snow,a lighthouse,bees".split(",")
KINDS = "a story,a short poem,three facts,a letter,advice,a recipe,a riddle,a news report,a joke,a song".split(",")


def question(i: int) -> list[dict]:
    """A conversation that no other request has."""
    text = f"Write {KINDS[i % 10]} about {SUBJECTS[i // 10 % 10]}. Number {i}. Be brief but complete."
    return [{"role": "user", "content": text}]


class Outcome:
    """What one request saw, in seconds since it was sent."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.first: float | None = None
        self.gaps: list[float] = []
        self.n_tokens = 0
        self.end = 0.0


async def ask(url: str, body: dict, timeout: float = 600) -> Outcome:
    """One streamed chat completion over a connection of its own."""
    outcome, start = Outcome(), time.perf_counter()
    where = urlsplit(url)
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            data = json.dumps(body).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
            status = (await reader.readline()).split(b" ")[1].decode()
            if status != "200":
                outcome.error = f"status {status}: {(await reader.read(2000))[-300:]!r}"
            last = None
            while not outcome.error and (line := await reader.readline()):
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    outcome.error = str(chunk["error"])
                    break
                delta = chunk["choices"][0]["delta"] if chunk.get("choices") else {}
                if delta.get("content"):
                    now = time.perf_counter()
                    if last is None:
                        outcome.first = now - start
                    else:
                        outcome.gaps.append(now - last)
                    last, outcome.n_tokens = now, outcome.n_tokens + 1
            writer.close()
    except (OSError, TimeoutError, ValueError, IndexError, KeyError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.end = time.perf_counter() - start
    if not outcome.error and outcome.first is None:
        outcome.error = "no token came"
    return outcome


def body(i: int, n_tokens: int) -> dict:
    return {"model": "m", "messages": question(i), "max_tokens": n_tokens, "temperature": 0, "stream": True}


async def together(url: str, n_streams: int, n_tokens: int, first: int) -> tuple[list[Outcome], float]:
    """All at once."""
    start = time.perf_counter()
    outcomes = await asyncio.gather(*(ask(url, body(first + i, n_tokens)) for i in range(n_streams)))
    return outcomes, time.perf_counter() - start


async def by_chance(url: str, rate: float, n_requests: int, n_tokens: int, seed: int) -> tuple[list[Outcome], float]:
    """Arrivals by a Poisson process."""
    chance, tasks, start = random.Random(seed), [], time.perf_counter()
    for i in range(n_requests):
        tasks.append(asyncio.create_task(ask(url, body(10_000 + i, n_tokens))))
        await asyncio.sleep(chance.expovariate(rate))
    outcomes = await asyncio.gather(*tasks)
    return outcomes, time.perf_counter() - start


def percentile(values: list[float], q: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None


def figures(outcomes: list[Outcome], seconds: float, limits: tuple[float, float]) -> dict:
    good = [o for o in outcomes if not o.error]
    gaps = [gap for o in good for gap in o.gaps]
    in_time = [o for o in good if o.first <= limits[0] and (percentile(o.gaps, 0.95) or 0) <= limits[1]]
    return {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(good),
        "errors": sorted({o.error for o in outcomes if o.error})[:5],
        "seconds": seconds,
        "tokens": sum(o.n_tokens for o in good),
        "tokens_per_s": sum(o.n_tokens for o in good) / seconds,
        "requests_per_s": len(good) / seconds,
        "goodput_per_s": len(in_time) / seconds,
        "ttft_s": {f"p{int(q * 100)}": percentile([o.first for o in good], q) for q in (0.5, 0.9, 0.99)},
        "inter_token_s": {f"p{int(q * 100)}": percentile(gaps, q) for q in (0.5, 0.9, 0.99)},
    }


class Server:
    """A server of ours or of a peer, started and stopped here."""

    def __init__(self, name: str, command: list, port: int, env: dict | None = None) -> None:
        self.name, self.command, self.port, self.env = name, [str(part) for part in command], port, env
        self.url = f"http://127.0.0.1:{port}"

    def __enter__(self) -> "Server":
        self.log = open(Path(tempfile.gettempdir()) / f"roci-bench-{self.name}.log", "wb")
        self.process = subprocess.Popen(
            self.command, stdout=self.log, stderr=self.log, env={**os.environ, **(self.env or {})}
        )
        for _ in range(600):
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended: see {self.log.name}")
            outcome = asyncio.run(ask(self.url, body(99_999, 2), 60))
            if not outcome.error:
                return self
            time.sleep(0.5)
        raise SystemExit(f"{self.name} did not start: see {self.log.name}")

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def llama_cpp_python(model: Path, threads: int, port: int, libraries: Path | None) -> Server:
    import llama_cpp

    package = fetch.llama_cpp_python()
    programs = libraries or llama_cpp.build()
    needs = ["numpy", "fastapi", "uvicorn", "pydantic-settings", "sse-starlette", "starlette-context", "diskcache"]
    python = fetch.python([*needs, "jinja2", "pyyaml", "typing-extensions"])
    env = {"LLAMA_CPP_LIB_PATH": str(programs), "LD_LIBRARY_PATH": str(programs), "PYTHONPATH": str(package)}
    command = [python, "-m", "llama_cpp.server", "--model", model, "--port", port, "--n_threads", threads]
    # Without the last one a new request would cut the one that is being answered.
    command += ["--n_threads_batch", threads, "--n_ctx", 2048, "--interrupt_requests", "false"]
    return Server("llama-cpp-python", command, port, env)


def show(name: str, what: str, result: dict) -> None:
    ms = lambda value: "-" if value is None else f"{value * 1000:.0f}"  # noqa: E731
    ttft, gap = result["ttft_s"], result["inter_token_s"]
    print(
        f"{name:18} {what:22} {result['tokens_per_s']:7.1f} tok/s {result['requests_per_s']:6.2f} req/s "
        f"good {result['goodput_per_s']:5.2f}/s  TTFT ms {ms(ttft['p50'])}/{ms(ttft['p90'])}/{ms(ttft['p99'])}  "
        f"between ms {ms(gap['p50'])}/{ms(gap['p90'])}/{ms(gap['p99'])}  failed {result['failed']}",
        flush=True,
    )
    for error in result["errors"]:
        print(f"    {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--only", choices=["roci", "peer"])
    parser.add_argument("--roci", default=HERE.parent / "target/release/roci", type=Path, help="our program")
    parser.add_argument("--model", type=Path, help="a GGUF file [default: SmolLM2, fetched]")
    parser.add_argument("--llama-cpp-libraries", type=Path, help="folder of libllama.so [default: built here]")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--many", type=int, default=64, help="streams of the test in which none may fail")
    parser.add_argument("--tokens", type=int, default=48, help="longest answer")
    parser.add_argument("--rate", type=float, default=1.0, help="arrivals a second")
    parser.add_argument("--requests", type=int, default=24, help="arrivals in all")
    parser.add_argument("--rounds", type=int, default=2, help="times the servers take turns")
    parser.add_argument("--ttft", type=float, default=2.0, help="seconds to the first token that count as good")
    parser.add_argument("--gap", type=float, default=0.2, help="seconds between tokens that count as good")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    limits = (args.ttft, args.gap)
    results: dict = {"machine": machine.describe(), "arguments": {k: str(v) for k, v in vars(args).items()}, "runs": []}

    def note(name: str, what: str, outcomes: list[Outcome], seconds: float) -> dict:
        result = figures(outcomes, seconds, limits)
        results["runs"].append({"server": name, "what": what, **result})
        show(name, what, result)
        return result

    def measure(server: Server | None, name: str, url: str, first: int) -> float:
        outcomes, seconds = asyncio.run(together(url, args.streams, args.tokens, first))
        speed = note(name, f"{args.streams} together", outcomes, seconds)["tokens_per_s"]
        outcomes, seconds = asyncio.run(by_chance(url, args.rate, args.requests, args.tokens, first))
        note(name, f"{args.rate:g} arrivals/s", outcomes, seconds)
        return speed

    if args.url:
        measure(None, "server", args.url, 0)
        return 0
    model = args.model or fetch.smollm2()
    ours = [args.roci, "serve", model, "--port", 18080, "--threads", args.threads, "--log-level", "warn"]
    servers = []
    if args.only != "peer":
        servers.append(Server("roci", ours, 18080))
    if args.only != "roci":
        servers.append(llama_cpp_python(model, args.threads, 18081, args.llama_cpp_libraries))
    speeds: dict[str, list[float]] = {server.name: [] for server in servers}
    for turn in range(args.rounds):
        for server in servers:
            with server:
                speeds[server.name].append(measure(server, server.name, server.url, 100 * (turn + 1)))
    n_failed = 0
    if args.only != "peer":
        with servers[0] as server:
            outcomes, seconds = asyncio.run(together(server.url, args.many, args.tokens, 5000))
            n_failed = note("roci", f"{args.many} together", outcomes, seconds)["failed"]
    best = {name: sorted(values)[len(values) // 2] for name, values in speeds.items() if values}
    if len(best) == 2:
        ratio = best["roci"] / best["llama-cpp-python"]
        results["ratio"] = ratio
        print(f"{args.streams} streams: roci does {ratio:.2f} times the tokens of llama-cpp-python's server")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
