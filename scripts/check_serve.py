#!/usr/bin/env python3
"""`roci serve` under other people's eyes: openai's and anthropic's own test suites, their clients and Ollama's and
LangChain in real use, schemathesis on /openapi.json, spans by OpenTelemetry's definitions, KV events by vLLM's and a router
that follows them, ten thousand wrong requests;
with --soak, load for so long with engines killed, clients that leave or read slowly, and models that take turns.

  scripts/check_serve.py [--roci PROGRAM] [--model GGUF] [--soak SECONDS] [PART...]

Parts: openai, anthropic, clients, schema, traces, kv, malformed, soak. Everything is fetched from PyPI by scripts/fetch.py.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import fetch  # noqa: E402

PACKAGES = [
    "openai[aiohttp]==3.49.0", "anthropic[aiohttp]==2.8.0", "ollama==0.6.3", "langchain-openai==1.7.3", "schemathesis==4.32.5",
    "pytest==9.2.0", "pytest-asyncio==1.4.1.post1", "pytest-xdist==3.8.0", "pytest-timeout==2.4.0", "respx==0.23.1",
    "http-snapshot[httpx]==0.1.9", "time-machine==3.6.0", "dirty-equals==0.11", "nest-asyncio==1.6.0", "rich==15.0.0", "inline-snapshot==0.36.1",
    "opentelemetry-proto==1.45.2", "pyzmq==27.3.0", "msgspec==0.22.0",
]
# What openai's suite asks besides creating: it expects objects under names of its own, as its mock server has them.
NOT_OURS = (
    "chat and (retrieve or update or list or delete)",
    "(TestResponses or TestAsyncResponses) and (retrieve or delete or cancel or compact)",
    "InputItems",
)
OPENAI = ["chat", "test_completions.py", "test_embeddings.py", "test_models.py", "test_responses.py", "responses"]


class Server:
    """`roci serve` on a free port."""

    def __init__(self, roci: Path, model: Path, *arguments: str) -> None:
        command = [roci, "serve", f"smollm2={model}", "--port", "0", "--log-level", "warn", *arguments]
        # Its store is its own: what is sent here may make, copy and delete models.
        self.home = tempfile.TemporaryDirectory()
        env = {**os.environ, "ROCI_HOME": self.home.name}
        self.process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True, env=env)
        self.url = ""
        for line in self.process.stderr:
            if line.startswith("listening on "):
                self.url = line.split()[-1]
                break
            print(line, end="", file=sys.stderr)
        if not self.url:
            raise SystemExit(f"roci ended with {self.process.wait()}")

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        rest = self.process.communicate(timeout=60)[1]
        self.home.cleanup()
        if self.process.returncode != 0:
            raise SystemExit(f"roci ended with {self.process.returncode}: {rest[-2000:]}")


def suite(python: Path, source: Path, url: str, tests: list[str], leave: str) -> bool:
    """A client's own tests, loose and strict, synchronous and not."""
    names = [f"tests/api_resources/{name}" for name in tests]
    command = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--timeout", "300", "--no-header", *names]
    if leave:
        command += ["-k", f"not ({leave})"]
    env = {**os.environ, "TEST_API_BASE_URL": url, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([str(part) for part in command], cwd=source, env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    print("\n".join(line for line in lines if line.startswith(("FAILED", "ERROR")) or " passed" in line))
    if done.returncode != 0:
        print(done.stdout[-3000:], done.stderr[-1000:])
    return done.returncode == 0


def schema(python: Path, url: str, n_examples: int) -> bool:
    """Requests made from the description, good and bad: none may be answered with 5xx."""
    command = [
        python.parent / "schemathesis", "run", f"{url}/openapi.json", "--checks", "not_a_server_error", "--max-examples", str(n_examples),
        # The coverage phase ends in a SystemError of CPython 3.11's own parser.
        "--phases", "examples,fuzzing", "--workers", "2", "--seed", "1", "--request-timeout", "120",
        "--suppress-health-check", "all",
    ]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True)
    print(done.stdout[-1500:])
    if done.returncode != 0:
        print(done.stdout[-6000:], done.stderr[-1000:])
    return done.returncode == 0


def script_for(server: Server, python: Path, name: str, *more: object):
    return lambda: subprocess.run([python, HERE / name, server.url, *map(str, more)]).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    parser.add_argument("--roci", type=Path, default=target / "debug/roci")
    parser.add_argument("--model", type=Path, default=os.environ.get("ROCI_SMOLLM2"))
    parser.add_argument("--soak", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--malformed", type=int, default=10_000, metavar="N")
    parser.add_argument("--short", action="store_true", help="fewer random requests, one HTTP library of the asynchronous clients")
    parser.add_argument("parts", nargs="*")
    args = parser.parse_args()
    parts = args.parts or ["openai", "anthropic", "clients", "schema", "traces", "kv", "malformed"] + (["soak"] if args.soak else [])
    model = args.model or fetch.smollm2()
    python = fetch.python(PACKAGES)
    failed = []

    def part(name: str, run) -> None:
        if name not in parts:
            return
        start = time.monotonic()
        print(f"--- {name}", flush=True)
        if not run():
            failed.append(name)
        print(f"{name}: {'FAILED' if name in failed else 'ok'}, {time.monotonic() - start:.0f} s", flush=True)

    if {"openai", "anthropic", "schema"} & set(parts):
        # Short answers; ids that only a mock server knows are passed over; strict clients want plain numbers.
        short = ["--default-max-tokens", "4", "--unknown-responses", "ignore", "--no-base64", "--context", "256"]
        with Server(args.roci, model, *short) as server:
            others = ["aiohttp"] if args.short else []
            leave = " or ".join(f"({words})" for words in [*NOT_OURS, *others])
            part("openai", lambda: suite(python, fetch.sdk("openai"), f"{server.url}/v1", OPENAI, leave))
            part("schema", lambda: schema(python, server.url, 12 if args.short else 25))
            tests = ["test_messages.py"]
            part("anthropic", lambda: suite(python, fetch.sdk("anthropic"), server.url, tests, " or ".join(others)))
    if "clients" in parts:
        with Server(args.roci, model, "--context", "4096", "--read-timeout", "10") as server:
            part("clients", script_for(server, python, "serve_clients.py"))
    soak = [python, HERE / "serve_soak.py", args.roci, model, str(args.soak or 600)]
    part("soak", lambda: subprocess.run(soak).returncode == 0)
    part("traces", lambda: subprocess.run([python, HERE / "serve_traces.py", args.roci, model]).returncode == 0)
    part("kv", lambda: subprocess.run([python, HERE / "serve_kv_events.py", args.roci, model]).returncode == 0)
    if "malformed" in parts:
        small = ["--context", "128", "--kv-tokens", "512", "--max-running", "16", "--read-timeout", "5"]
        with Server(args.roci, model, *small) as server:
            part("malformed", script_for(server, python, "serve_malformed.py", server.process.pid, args.malformed))
    print("failed: " + ", ".join(failed) if failed else "all parts ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
