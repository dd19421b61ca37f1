#!/usr/bin/env python3
"""What an engine in a process of its own adds to one request, in microseconds: two servers of a model that takes no time to
compute, one of them with --in-process, are asked in turns, hundreds of times, and the differences of neighbouring requests are
averaged with their 95 % confidence interval. What is added does not depend on the model, so this holds for large ones too, and
little else is left that could vary.

  chrt -r 50 bench/engine_process_paired.py [--roci PROGRAM] [--pairs 400] [--tokens 64]
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VOCABULARY = HERE.parent / "crates/text/testdata/json/digits.json"
N_VOCAB, WIDTH = 430, 64


def write_model(folder: Path) -> Path:
    """A llama of two layers with random weights."""
    chance = random.Random(5)
    shapes = {"model.embed_tokens": (N_VOCAB, WIDTH), "model.norm": (WIDTH,), "lm_head": (N_VOCAB, WIDTH)}
    for layer in range(2):
        for name, shape in {
            "input_layernorm": (WIDTH,), "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (32, WIDTH),
            "self_attn.v_proj": (32, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH), "post_attention_layernorm": (WIDTH,),
            "mlp.gate_proj": (96, WIDTH), "mlp.up_proj": (96, WIDTH), "mlp.down_proj": (WIDTH, 96),
        }.items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        start = len(data)
        data += struct.pack(f"<{n}f", *(chance.uniform(-0.4, 0.4) for _ in range(n)))
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {"model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "vocab_size": N_VOCAB, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(VOCABULARY.read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}))
    return folder


class Server:
    def __init__(self, roci: Path, model: Path, *arguments: str) -> None:
        self.log = tempfile.NamedTemporaryFile("r", suffix=".log")
        command = [roci, "serve", f"m={model}", "--port", "0", "--log-level", "warn", "--device", "cpu", "-t", "1", *arguments]
        with open(self.log.name, "w") as log:
            self.process = subprocess.Popen([str(part) for part in command], stderr=log)
        while not (found := re.search(r"listening on http://(\S+)", Path(self.log.name).read_text())):
            assert self.process.poll() is None, Path(self.log.name).read_text()
            time.sleep(0.05)
        self.connection = http.client.HTTPConnection(found[1].rstrip("/"), timeout=60)

    def ask(self, n_tokens: int) -> float:
        """Microseconds until the answer is whole."""
        body = json.dumps({"prompt": "12 34", "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True})
        start = time.perf_counter()
        self.connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = json.loads(self.connection.getresponse().read())
        took = 1e6 * (time.perf_counter() - start)
        assert answer["usage"]["completion_tokens"] == n_tokens, answer
        return took

    def passing_us(self) -> float:
        """Processor time of the server and its children, without the threads that compute."""
        pid, total = self.process.pid, 0.0
        children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
        for process in [str(pid), *children]:
            for task in Path(f"/proc/{process}/task").iterdir():
                name = (task / "comm").read_text().strip()
                is_passing = not name.startswith(("engine", "ops-")) or name == "engine" and process == str(pid) and children
                if is_passing or name == "engine-life":
                    total += int((task / "schedstat").read_text().split()[0]) / 1000
        return total

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def compare(process: Server, thread: Server, n_pairs: int, n_tokens: int) -> None:
    before = process.passing_us(), thread.passing_us()
    pairs = []
    for i in range(n_pairs):
        first, second = (process, thread) if i % 2 == 0 else (thread, process)
        took = {first: first.ask(n_tokens), second: second.ask(n_tokens)}
        pairs.append((took[process], took[thread]))
    passing = [(after - was) / n_pairs for after, was in zip((process.passing_us(), thread.passing_us()), before)]
    # One pair in ten, where something else ran, counts for nothing at either end.
    differences = sorted(one - other for one, other in pairs)
    kept = differences[n_pairs // 10:-(n_pairs // 10)]
    mean, half = statistics.mean(kept), 1.96 * statistics.stdev(kept) / len(kept) ** 0.5
    medians = [statistics.median(times) for times in zip(*pairs)]
    print(f"| {n_tokens} | {medians[0]:.0f} / {medians[1]:.0f} | {mean:+.0f} +- {half:.0f} | {statistics.median(differences):+.0f} "
          f"| {passing[0]:.0f} / {passing[1]:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    parser.add_argument("--roci", type=Path, default=target / "release/roci")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder))
        process, thread = Server(args.roci, model), Server(args.roci, model, "--in-process")
        try:
            for server in (process, thread):
                for _ in range(20):
                    server.ask(4)
            print("| tokens | us a request, process / thread | mean difference, 95 % | median difference "
                  "| processor time beside computing, process / thread |\n|---|---|---|---|---|")
            for n_tokens in (1, args.tokens):
                compare(process, thread, args.pairs, n_tokens)
        finally:
            process.end()
            thread.end()


if __name__ == "__main__":
    main()
