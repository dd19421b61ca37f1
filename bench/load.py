#!/usr/bin/env python3
"""Loads `roci serve` as many clients would and reports what they get: tokens per second and time to first token.

  bench/load.py --roci target/release/roci --model model.gguf --streams 1,16,64,128,256
  bench/load.py --synthetic llama-8b --weights Q4_K_M --vocab ggml-vocab-llama-bpe.gguf   random weights, no model needed
  bench/load.py ... --prompt 2048 --tokens 16 --streams 32                                  long prompts
  bench/load.py ... --odd '{"frequency_penalty": 0.5}' --n-odd 1                            one unusual request among plain ones
  bench/load.py ... --all '{"logprobs": 5}'                                                 a field in every request

Prompts are random token ids, different in every request, so nothing is shared or cached. Clients are spread over
several processes: one Python process cannot read ten thousand events per second. Standard library only, so that it
runs on a machine with nothing but Python and a GPU.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PORT = 18090
# Bytes of a fixed-size value, by GGUF's type number; 8 is a string, 9 an array.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Header:
    """The key-value pairs of a GGUF file as raw bytes, and where its tensor descriptions begin and end."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.data = file.read(64 << 20)
        magic, self.version, self.n_tensors, n_pairs = struct.unpack_from("<4sIQQ", self.data)
        if magic != b"GGUF":
            raise SystemExit(f"load: error: {path} is not a GGUF file")
        self.at, self.pairs, self.alignment = 24, {}, 32
        for _ in range(n_pairs):
            start, name = self.at, self.string()
            kind = self.number("<I")
            if name == "general.alignment":
                self.alignment = struct.unpack_from("<I", self.data, self.at)[0]
            self.skip(kind)
            self.pairs[name] = self.data[start : self.at]
        self.infos = self.at
        for _ in range(self.n_tensors):
            self.string()
            n_dims = self.number("<I")
            self.at += 8 * n_dims + 4 + 8
        self.infos_end = self.at

    def number(self, form: str) -> int:
        value = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def string(self) -> str:
        length = self.number("<Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def skip(self, kind: int) -> None:
        if kind == 8:
            self.string()
        elif kind == 9:
            kind, n = self.number("<I"), self.number("<Q")
            if kind == 8:
                for _ in range(n):
                    length = self.number("<Q")
                    self.at += length
            else:
                self.at += SIZES[kind] * n
        else:
            self.at += SIZES[kind]


def add_vocabulary(model: Path, vocab: Path, out: Path) -> None:
    """Writes `model` with the `tokenizer.*` keys of `vocab`."""
    ours, theirs = Header(model), Header(vocab)
    pairs = {name: raw for name, raw in ours.pairs.items() if not name.startswith("tokenizer.")}
    pairs |= {name: raw for name, raw in theirs.pairs.items() if name.startswith("tokenizer.")}
    padded = lambda at: -(-at // ours.alignment) * ours.alignment  # noqa: E731
    with model.open("rb") as source, out.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", ours.version, ours.n_tensors, len(pairs)))
        file.write(b"".join(pairs.values()))
        file.write(ours.data[ours.infos : ours.infos_end])
        file.write(bytes(padded(file.tell()) - file.tell()))
        source.seek(padded(ours.infos_end))
        shutil.copyfileobj(source, file, 16 << 20)


async def ask(port: int, body: dict, result: dict) -> None:
    """One streamed completion over a connection of its own."""
    data = json.dumps(body).encode()
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {result['path']} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    status = (await reader.readline()).split(b" ")[1]
    if status != b"200":
        result["error"] = f"status {status.decode()}: {(await reader.read(2000))[-300:]!r}"
        return
    last = None
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        # Only the few lines that matter are parsed: the client must not be what is measured.
        if b'"usage":{' in line:
            usage = json.loads(line[6:]).get("usage") or {}
            result["n_tokens"] = usage.get("completion_tokens", 0)
        elif b'"error"' in line[:40]:
            result["error"] = line.decode()[:300]
            return
        elif last is None:
            result["first_s"] = now - start
            last = now
        else:
            result["gaps_s"].append(now - last)
            last = now
    writer.close()
    result["end_s"] = time.perf_counter() - start


def client(port: int, bodies: list, begin, results) -> None:
    """Some of the streams, in a process of their own."""

    async def run() -> list:
        mine = [{"path": path, "gaps_s": []} for path, _ in bodies]
        await asyncio.gather(*(ask(port, body, result) for (_, body), result in zip(bodies, mine)))
        return mine

    begin.wait()
    results.put(asyncio.run(run()))


def make_bodies(args: argparse.Namespace, n_streams: int, seed: int) -> list:
    chance, bodies = random.Random(seed), []
    for i in range(n_streams):
        prompt = [chance.randrange(1000, 100_000) for _ in range(args.prompt)]
        body = {"model": "m", "max_tokens": args.tokens, "temperature": args.temperature, "seed": i, "stream": True}
        body["stream_options"] = {"include_usage": True}
        extra = json.loads(args.odd) if args.odd and i < args.n_odd else json.loads(args.all or "{}")
        if args.chat:
            words = " ".join(str(token % 1000) for token in prompt[: args.prompt // 2])
            bodies.append(("/v1/chat/completions", body | {"messages": [{"role": "user", "content": words}]} | extra))
        else:
            bodies.append(("/v1/completions", body | {"prompt": prompt} | extra))
    return bodies


def load(args: argparse.Namespace, port: int, n_streams: int, seed: int) -> dict:
    bodies = make_bodies(args, n_streams, seed)
    n_processes = min(args.processes, n_streams)
    begin, results = multiprocessing.Event(), multiprocessing.Queue()
    clients = [
        multiprocessing.Process(target=client, args=(port, bodies[i::n_processes], begin, results))
        for i in range(n_processes)
    ]
    for process in clients:
        process.start()
    time.sleep(0.5)
    start = time.perf_counter()
    begin.set()
    outcomes = [outcome for _ in clients for outcome in results.get(timeout=args.timeout)]
    seconds = time.perf_counter() - start
    for process in clients:
        process.join()
    return summary(outcomes, seconds)


def summary(outcomes: list, seconds: float) -> dict:
    good = [outcome for outcome in outcomes if "error" not in outcome and outcome.get("n_tokens")]
    firsts = sorted(outcome["first_s"] for outcome in good if "first_s" in outcome)
    gaps = sorted(gap for outcome in good for gap in outcome["gaps_s"])
    at = lambda values, q: values[min(len(values) - 1, int(q * len(values)))] if values else None  # noqa: E731
    return {
        "n_failed": len(outcomes) - len(good),
        "errors": sorted({outcome.get("error", "no usage came") for outcome in outcomes if outcome not in good})[:3],
        "tokens_per_s": sum(outcome["n_tokens"] for outcome in good) / seconds,
        "first_s": [at(firsts, 0.5), at(firsts, 1.0)],
        "gap_s": [at(gaps, 0.5), at(gaps, 0.99)],
    }


class Server:
    """`roci serve` on a free port of this machine, ended with the block."""

    def __init__(self, args: argparse.Namespace, model: Path) -> None:
        self.command = [args.roci, "serve", f"m={model}", "--port", str(PORT), "--log-level", "warn", *args.serve]
        self.timeout = args.timeout

    def __enter__(self) -> "Server":
        self.process = subprocess.Popen([str(part) for part in self.command])
        until = time.time() + self.timeout
        while time.time() < until and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=2).read()
                return self
            except OSError:
                time.sleep(0.1)
        raise SystemExit("load: error: the server did not get ready")

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def metrics(names: tuple) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return "\n".join(line for line in lines if line.startswith(names))


def make_model(args: argparse.Namespace) -> Path:
    """Random weights of a known shape with a real vocabulary, kept under --folder."""
    bare, whole = (args.folder / f"{args.synthetic}-{args.weights}{end}.gguf" for end in ("-bare", ""))
    if not whole.exists():
        command = [args.roci, "bench", "--synthetic", args.synthetic, "--weights", args.weights, "--save", bare]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
        add_vocabulary(bare, args.vocab, whole)
        bare.unlink()
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roci", type=Path, default=Path("target/release/roci"))
    parser.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--synthetic", help="a shape of `roci bench --synthetic` instead of a file")
    parser.add_argument("--weights", default="Q4_K_M")
    parser.add_argument("--vocab", type=Path, help="a GGUF file whose vocabulary random weights get")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"), help="where random models are kept")
    parser.add_argument("--streams", default="64", help="how many at once; several with commas")
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--chat", action="store_true", help="chat completions, with text instead of token ids")
    parser.add_argument("--all", help="JSON that every request gets")
    parser.add_argument("--odd", help="JSON that the first --n-odd requests get")
    parser.add_argument("--n-odd", type=int, default=1)
    parser.add_argument("--metrics", help="print what /metrics says at the end; names that begin like one of these, with commas")
    parser.add_argument("--rounds", type=int, default=2, help="the best counts; the first one warms up")
    parser.add_argument("--processes", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="the rest goes to `roci serve`")
    args = parser.parse_args()
    args.roci = args.roci.resolve()
    if not args.model and not (args.synthetic and args.vocab):
        parser.error("--model, or --synthetic with --vocab")
    n_failed = 0
    with Server(args, args.model or make_model(args)):
        print(f"{'streams':>7} {'tokens/s':>9} {'first p50':>10} {'last':>8} {'gap p50':>9} {'p99':>8}  failed")
        for n_streams in map(int, args.streams.split(",")):
            rounds = [load(args, PORT, n_streams, 1000 * n_streams + turn) for turn in range(args.rounds)]
            best = max(rounds, key=lambda result: result["tokens_per_s"])
            ms = lambda value: "-" if value is None else f"{value * 1000:.1f} ms"  # noqa: E731
            times = [ms(value) for value in (*best["first_s"], *best["gap_s"])]
            print(
                f"{n_streams:>7} {best['tokens_per_s']:>9.0f} {times[0]:>10} {times[1]:>8} {times[2]:>9} {times[3]:>8}"
                f"  {best['n_failed']} {' '.join(best['errors'])}",
                flush=True,
            )
            n_failed += best["n_failed"]
        if args.metrics:
            print(metrics(tuple(args.metrics.split(","))), flush=True)
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
