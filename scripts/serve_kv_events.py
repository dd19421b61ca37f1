"""`roci serve --kv-events` under a reader with vLLM's message classes: the cache it rebuilds is the server's, through
evictions, a replay, adapters, and an engine that dies; then two replicas behind a router that follows them. Run by
scripts/check_serve.py; every function is one check.

  scripts/serve_kv_events.py ROCI MODEL
"""

import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from kv_reader import Reader
from kv_router import Replica, Router, post, serve

BLOCK = 16


class Server:
    """`roci serve` with KV events, all on free ports."""

    def __init__(self, roci: str, model: str, *arguments: str) -> None:
        any_port = "tcp://127.0.0.1:0"
        command = [roci, "serve", f"m={model}", "--port", "0", "--context", "512", "--kv-events", any_port]
        self.log = tempfile.NamedTemporaryFile("r", suffix=".log")
        with open(self.log.name, "w") as log:
            self.process = subprocess.Popen([*command, "--kv-events-replay", any_port, *arguments], stderr=log)
        self.url = self.find(r"listening on (\S+)")
        self.events = self.find(r"KV events at (\S+)")
        self.replay = self.find(r"KV events are repeated at (\S+)")

    def find(self, pattern: str) -> str:
        for _ in range(1200):
            found = re.search(pattern, re.sub(r"\x1b\[[0-9;]*m", "", Path(self.log.name).read_text()))
            if found:
                return found[1]
            assert self.process.poll() is None, Path(self.log.name).read_text()
            time.sleep(0.05)
        raise TimeoutError(pattern)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{") or line.startswith(name + " "))

    def engine(self) -> int:
        found = subprocess.run(["pgrep", "-P", str(self.process.pid), "-f", "engine"], capture_output=True, text=True)
        return int(found.stdout.split()[0])

    def complete(self, prompt: str, n: int = 4, model: str = "m") -> dict:
        return complete(self.url, prompt, n, model)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, Path(self.log.name).read_text()[-3000:]


def complete(url: str, prompt: str, n: int = 4, model: str = "m") -> dict:
    body = {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}
    return json.loads(post(f"{url}/v1/completions", json.dumps(body).encode()))


def tokens(server: Server, prompt: str) -> list[int]:
    shown = json.loads(post(f"{server.url}/v1/completions/render", json.dumps({"prompt": prompt}).encode()))
    return shown["prompts"][0]["tokens"]


def text(topic: str, n: int = 12) -> str:
    return f"Here is what everybody should know about {topic}. " + f"The {topic} is a thing of many sides, they say. " * n


def until(what: str, holds) -> None:
    for _ in range(400):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError(f"it never came to this: {what}")


def cached(answer: dict) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def check_cache_is_rebuilt(server: Server) -> None:
    reader = Reader(server.events, server.replay)
    prompt = text("sea")
    ids = tokens(server, prompt)
    assert cached(server.complete(prompt)) == 0
    full = len(ids) // BLOCK * BLOCK
    until("the prompt's blocks are told", lambda: reader.match(ids) == full)
    # The server reuses what the reader believes is there; the last token is always computed.
    longer = prompt + "And one more thing."
    assert cached(server.complete(longer)) == reader.match(tokens(server, longer)[: len(ids)]) == full
    assert reader.match(tokens(server, text("moon"))) == 0
    assert reader.error is None, reader.error
    print(f"  {len(reader)} blocks in {reader.n_batches} batches, topic {reader.topics}")


def check_evictions(server: Server) -> None:
    """More prompts than the pool holds: old ones leave, and what the reader believes is what the server finds."""
    reader = Reader(server.events, server.replay)
    topics = "bread iron winter music bees gold rain wool salt tea glass corn silk snow coal milk".split()
    prompts = [text(topic) for topic in topics]
    for prompt in prompts:
        server.complete(prompt, 1)
    blocks = server.metric("roci_kv_blocks")
    until("all events are here", lambda: reader.match(tokens(server, prompts[-1])) > 0)
    assert len(reader) <= blocks, (len(reader), blocks)
    assert reader.cache.n_removed > 0, "nothing was evicted"
    found = []
    for prompt in [prompts[-1], prompts[0], prompts[-2], prompts[1]]:
        ids = tokens(server, prompt)
        believed = min(reader.match(ids), (len(ids) - 1) // BLOCK * BLOCK)
        found.append((believed, cached(server.complete(prompt, 1))))
        time.sleep(0.3)
    assert all(believed == real for believed, real in found), found
    assert any(real == 0 for _, real in found) and any(real > 0 for _, real in found), found
    print(f"  {len(reader)} of {blocks:.0f} blocks, {reader.cache.n_removed} removed, cached (believed, found): {found}")


def check_replay(server: Server) -> None:
    """A reader that comes late knows what one knows that was there from the first."""
    early = Reader(server.events, server.replay)
    server.complete(text("replay"))
    late = Reader(server.events, server.replay)
    until("both know the same", lambda: len(late) and late.cache.blocks == early.cache.blocks)
    assert late.n_replayed > 0
    without = Reader(server.events)
    time.sleep(0.3)
    server.complete(text("replay without"))
    until("what is new is told without a replay", lambda: len(without) > 0)
    assert len(without) < len(late)


def check_death(server: Server) -> None:
    """The cache of an engine that dies is gone, and the next one's is told."""
    reader = Reader(server.events, server.replay)
    prompt = text("death")
    ids = tokens(server, prompt)
    server.complete(prompt)
    until("it is told", lambda: reader.match(ids) > 0)
    os.kill(server.engine(), signal.SIGKILL)
    until("nothing is left", lambda: len(reader) == 0)
    assert cached(server.complete(prompt)) == 0
    until("it is told again", lambda: reader.match(ids) > 0)
    assert reader.error is None, reader.error


def check_slow_reader(server: Server) -> None:
    """One that connects and never reads does not hold anything up."""
    import socket

    host, port = server.events.removeprefix("tcp://").split(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
    deaf = []
    for _ in range(8):
        peer = socket.create_connection((host, int(port)))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.sendall(greeting[:64] + b"\x04" + bytes([len(ready)]) + ready + b"\x00\x01\x01")
        deaf.append(peer)
    start = time.monotonic()
    for i in range(10):
        server.complete(text(f"slow reader {i}"), 1)
    print(f"  ten prompts in {time.monotonic() - start:.1f} s beside eight readers that do not read")
    for peer in deaf:
        peer.close()


def write_adapter(folder: Path, seed: int) -> None:
    """An adapter of SmolLM2-135M's first layer as PEFT writes it."""
    chance = random.Random(seed)
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for part, shape in [("lora_A", [2, 576]), ("lora_B", [576, 2])]:
        numbers = struct.pack("<1152f", *(chance.gauss(0, 0.1) for _ in range(1152)))
        name = f"base_model.model.model.layers.0.self_attn.o_proj.{part}.weight"
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def check_adapters(roci: str, model: str) -> None:
    """The same prompt for a model and two adapters: blocks of their own, under each one's name."""
    with tempfile.TemporaryDirectory() as folder:
        names = ["one", "two"]
        for seed, name in enumerate(names):
            write_adapter(Path(folder) / name, seed)
        arguments = [part for name in names for part in ("--lora", f"{name}={folder}/{name}")]
        with Server(roci, model, *arguments) as server:
            reader = Reader(server.events, server.replay)
            prompt = text("adapters")
            ids = tokens(server, prompt)
            full = len(ids) // BLOCK * BLOCK
            for i, name in enumerate(["m", *names]):
                assert cached(server.complete(prompt, 1, name)) == 0, f"{name} reuses what another one computed"
                adapter = None if name == "m" else name
                until(f"the blocks of {name} are told", lambda: reader.match(ids, adapter) == full)
                assert len(reader) == (i + 1) * full // BLOCK, "hashes of different adapters are different"
                assert cached(server.complete(prompt, 1, name)) > 0
            assert reader.error is None, reader.error
            print(f"  {len(reader)} blocks of {{m, one, two}}")


def check_two_replicas(roci: str, model: str) -> None:
    """Conversations go back to the replica that knows them, whatever the order they come in."""
    with Server(roci, model) as a, Server(roci, model) as b:
        router = Router([Replica(server.url, server.events, server.replay) for server in (a, b)])
        http = serve(router, 0)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_address[1]}"
        topics = ["sea", "moon", "bread", "iron", "winter", "music"]
        home, hits, possible = {}, 0, 0
        for turn in range(3):
            for topic in topics if turn % 2 == 0 else reversed(topics):
                prompt = text(topic, 6 + 3 * turn)
                body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()
                request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request) as answer:
                    replica, usage = int(answer.headers["x-replica"]), json.load(answer)["usage"]
                if turn > 0:
                    assert replica == home[topic], f"{topic} went to {replica}, its beginning is at {home[topic]}"
                    hits += usage["prompt_tokens_details"]["cached_tokens"]
                    possible += before[topic] // BLOCK * BLOCK
                home[topic] = replica
                before = {**(before if turn or topic != topics[0] else {}), topic: usage["prompt_tokens"]}
                time.sleep(0.1)
        counted = [server.metric("vllm:prefix_cache_hits_total") for server in (a, b)]
        routed = [replica.n_routed for replica in router.replicas]
        assert sorted(set(home.values())) == [0, 1], home
        print(f"  routed {routed}, prefix hits of the replicas {counted}, {hits} of {possible} possible tokens")
        assert hits == sum(counted) and hits >= 0.9 * possible, (hits, counted, possible)
        http.shutdown()


def main() -> None:
    roci, model = sys.argv[1:3]
    with Server(roci, model, "--kv-tokens", "2048") as server:
        for check in [check_cache_is_rebuilt, check_evictions, check_replay, check_death, check_slow_reader]:
            print(check.__name__, flush=True)
            check(server)
    for check in [check_adapters, check_two_replicas]:
        print(check.__name__, flush=True)
        check(roci, model)


if __name__ == "__main__":
    main()
