#!/usr/bin/env python3
"""What plain requests lose beside requests of other adapters.

    bench/adapters.py MODEL.gguf [--roci PATH] [--adapters 8] [--rank 16] [--type f16|f32] [--tokens 128]
        [--rounds 5]

Makes random adapters that change every matrix of attention and of the feed-forward blocks, starts `roci serve` with them, and
decodes one plain answer beside as many others as there are adapters: first all plain, then each with an adapter of its own.
Needs gguf and numpy.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import gguf
import numpy as np

STEMS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

TYPES = {"f16": np.float16, "f32": np.float32}


def write_adapter(base, path, rank, dtype, seed):
    generator = np.random.default_rng(seed)
    architecture = str(bytes(base.fields["general.architecture"].parts[-1]), "utf-8")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for tensor in base.tensors:
        if not re.fullmatch(rf"blk\.\d+\.({'|'.join(STEMS)})\.weight", tensor.name):
            continue
        n_in, n_out = (int(n) for n in tensor.shape)
        for part, shape, size in (("lora_a", (rank, n_in), n_in), ("lora_b", (n_out, rank), 100 * rank)):
            numbers = generator.standard_normal(shape, dtype=np.float32) / np.float32(size**0.5)
            writer.add_tensor(f"{tensor.name}.{part}", numbers.astype(dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def complete(address, model, n_tokens, seed):
    """Seconds from the first piece of an answer to its last."""
    body = {"model": model, "prompt": f"Story {seed}: once upon a time", "max_tokens": n_tokens, "min_tokens": n_tokens}
    body.update(temperature=1, seed=seed, stream=True)
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode())
    times = []
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
    return times[-1] - times[0]


def round_of(address, others, n_tokens, seed):
    """Tokens a second of a plain answer beside the others."""
    # The others are longer, so that the plain answer never runs alone.
    threads = [
        threading.Thread(target=complete, args=(address, model, n_tokens * 2, 1000 * seed + i))
        for i, model in enumerate(others)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    seconds = complete(address, "base", n_tokens, seed)
    for thread in threads:
        thread.join()
    return (n_tokens - 1) / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--roci", default="target/release/roci")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--type", choices=TYPES, default="f16", help="of the numbers in the files")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    base = gguf.GGUFReader(arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        names = [f"adapter{i}" for i in range(arguments.adapters)]
        flags = []
        for i, name in enumerate(names):
            path = Path(folder) / f"{name}.gguf"
            write_adapter(base, path, arguments.rank, TYPES[arguments.type], i)
            flags += ["--lora", f"{name}={path}"]
        command = [arguments.roci, "serve", f"base={arguments.model}", "--port", "0", "--context", "1024", *flags]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            found = (re.search(r"listening on (\S+)", line) for line in server.stderr)
            address = next(match[1] for match in found if match)
            threading.Thread(target=server.stderr.read, daemon=True).start()
            plain, adapted = [], []
            for number in range(arguments.rounds + 1):
                # In turns, so that a machine that grows slower slows both; the first round wakes everything up.
                speeds = [round_of(address, others, arguments.tokens, number) for others in (["base"] * len(names), names)]
                if number > 0:
                    plain.append(speeds[0])
                    adapted.append(speeds[1])
            before, after = statistics.median(plain), statistics.median(adapted)
            print(f"beside {len(names)} plain requests: {before:.1f} tokens/s ({min(plain):.1f} to {max(plain):.1f})")
            print(f"beside {len(names)} adapters: {after:.1f} tokens/s ({min(adapted):.1f} to {max(adapted):.1f})")
            print(f"loss: {100 * (1 - after / before):.1f} %")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
