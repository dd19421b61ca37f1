#!/usr/bin/env python3
"""How long a long prompt takes that is computed, and that comes back from where it was kept.

    bench/kept.py MODEL.gguf [--roci PATH] [--tokens 30000] [--runs 3] [--no-host]

Starts `roci serve` with a KV pool for one context, and prints the seconds to the first token (1) computed, (2) from host
memory, after a second prompt of the same length has pushed it out, (3) from disk in a new server, (4) the same with the
files dropped from the page cache, where that is possible. What comes back is followed by a few new tokens each time, so
that nothing but the kept prefix is reused. (2) computes a second prompt: --no-host leaves it out.
"""

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path


def post(address, path, body):
    request = urllib.request.Request(f"{address}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@contextlib.contextmanager
def server(roci, model, n_tokens, flags):
    """A server on a port of its own; ends as an operator would end it."""
    command = [roci, "serve", model, "--port", "0", "--device", "cpu", "--context", str(n_tokens + 512),
               "--kv-tokens", str(n_tokens + 512), "--step-deadline", "3600", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        for line in process.stderr:
            if found := re.search(r"http://[\d.:]+", line):
                break
        else:
            raise SystemExit("the server did not start")
        # The rest must not fill the pipe.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[0], process
    finally:
        process.terminate()
        process.wait()


def ask(address, model, prompt, suffix):
    """Seconds to one token, and how many tokens of the prompt were cached."""
    start = time.perf_counter()
    body = {"model": model, "prompt": prompt + suffix, "max_tokens": 1, "temperature": 0}
    usage = post(address, "/v1/completions", body)["usage"]
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return time.perf_counter() - start, usage["prompt_tokens"], cached


def wait_for_disk(folder, n_tokens):
    """Until the idle server has written what it computed."""
    size, since = -1, time.time()
    while time.time() - since < 120:
        now = sum(file.stat().st_size for file in Path(folder).rglob("*.kv"))
        if now == size and now > 0:
            return now
        size = now
        time.sleep(2)
    return size


def drop_pages(folder):
    for file in Path(folder).rglob("*.kv"):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--roci", default="target/release/roci")
    parser.add_argument("--tokens", type=int, default=30000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-host", action="store_true")
    args = parser.parse_args()
    generator = random.Random(1)
    # Ids need no tokenizer and cannot merge.
    prompts = [[generator.randrange(1000, 20000) for _ in range(args.tokens)] for _ in range(2)]
    suffix = lambda: [generator.randrange(1000, 20000) for _ in range(8)]
    name = Path(args.model).stem
    results = {}

    def show(what, seconds, n_prompt, cached):
        ratio = f", {results['computed'] / seconds:.1f} times as fast" if "computed" in results else ""
        results.setdefault(what, seconds)
        print(f"{what:24} {seconds:9.2f} s to the first token, {cached} of {n_prompt} tokens cached{ratio}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        disk = ["--kv-disk", "64G", "--kv-disk-path", folder]
        with server(args.roci, args.model, args.tokens, disk) as (address, _):
            show("computed", *ask(address, name, prompts[0], suffix()))
            print(f"{wait_for_disk(folder, args.tokens) / 2**20:.0f} MiB on disk", flush=True)
        for _ in range(args.runs):
            with server(args.roci, args.model, args.tokens, disk) as (address, _):
                show("disk, after a restart", *ask(address, name, prompts[0], suffix()))
            drop_pages(folder)
            with server(args.roci, args.model, args.tokens, disk) as (address, _):
                show("disk, no page cache", *ask(address, name, prompts[0], suffix()))
        if not args.no_host:
            # The first prompt comes from the disk, which saves computing it again.
            with server(args.roci, args.model, args.tokens, [*disk, "--kv-host", "16G"]) as (address, _):
                ask(address, name, prompts[0], suffix())
                show("another prompt, computed", *ask(address, name, prompts[1], suffix()))
                for _ in range(args.runs):
                    show("host memory", *ask(address, name, prompts[0], suffix()))
                    ask(address, name, prompts[1], suffix())


if __name__ == "__main__":
    main()
