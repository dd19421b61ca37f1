"""A reader of KV events that rebuilds what a server's prefix cache holds. The message classes have the fields of vLLM's own
(vllm/distributed/kv_events.py, 0.32): msgspec refuses whatever does not fit them. Needs pyzmq and msgspec.

  scripts/kv_reader.py tcp://127.0.0.1:5557 [tcp://127.0.0.1:5558]     prints batches as they come
"""

import sys
import threading
import time
from typing import Any

import msgspec
import zmq

Hash = bytes | int


class Event(msgspec.Struct, omit_defaults=True, tag=True, forbid_unknown_fields=True):
    """What every event is: a map whose `type` is the name of its class."""


class BlockStored(Event):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(Event):
    block_hashes: list[Hash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, forbid_unknown_fields=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


DECODER = msgspec.msgpack.Decoder(type=Batch)
END = (-1).to_bytes(8, "big", signed=True)


class Cache:
    """What a server has computed, as its events tell."""

    def __init__(self) -> None:
        # A block is known by what comes before it, its adapter and its tokens.
        self.blocks: dict[Hash, tuple[Hash | None, str | None, tuple[int, ...]]] = {}
        self.after: dict[tuple[Hash | None, str | None, tuple[int, ...]], Hash] = {}
        self.block_size = 16
        self.n_removed = 0

    def apply(self, event: Event) -> None:
        match event:
            case BlockStored():
                self.block_size, size = event.block_size, event.block_size
                assert len(event.token_ids) == size * len(event.block_hashes), event
                parent = event.parent_block_hash
                for i, name in enumerate(event.block_hashes):
                    key = (parent, event.lora_name, tuple(event.token_ids[i * size : (i + 1) * size]))
                    self.blocks[name], self.after[key] = key, name
                    parent = name
            case BlockRemoved():
                self.n_removed += len(event.block_hashes)
                for name in event.block_hashes:
                    key = self.blocks.pop(name, None)
                    if key is not None and self.after.get(key) == name:
                        del self.after[key]
            case AllBlocksCleared():
                self.blocks.clear()
                self.after.clear()

    def match(self, tokens: list[int], adapter: str | None = None) -> int:
        """How many of these tokens, from the first on, are there for this adapter."""
        parent, n = None, 0
        while n + self.block_size <= len(tokens):
            found = self.after.get((parent, adapter, tuple(tokens[n : n + self.block_size])))
            if found is None:
                break
            parent, n = found, n + self.block_size
        return n


class Reader(threading.Thread):
    """Follows one server. With a replay address, what was published before it came, or missed, is asked for."""

    def __init__(self, address: str, replay: str | None = None, topic: str = "") -> None:
        super().__init__(daemon=True)
        self.cache, self.lock = Cache(), threading.Lock()
        self.last, self.n_batches, self.n_replayed, self.error = -1, 0, 0, None
        self.topics: set[str] = set()
        self.is_over = False
        context = zmq.Context.instance()
        self.socket = context.socket(zmq.SUB)
        self.socket.connect(address)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.again = None
        if replay:
            self.again = context.socket(zmq.DEALER)
            self.again.connect(replay)
        self.start()

    def take(self, topic: bytes, number: int, payload: bytes) -> None:
        batch = DECODER.decode(payload)
        with self.lock:
            self.topics.add(topic.decode())
            self.n_batches += 1
            for event in batch.events:
                self.cache.apply(event)
            self.last = number

    def catch_up(self) -> None:
        if self.again is None:
            return
        self.again.send_multipart([b"", (self.last + 1).to_bytes(8, "big")])
        while self.again.poll(5000):
            _, topic, number, payload = self.again.recv_multipart()
            if number == END:
                return
            self.n_replayed += 1
            self.take(topic, int.from_bytes(number, "big"), payload)
        raise TimeoutError("the replay does not end")

    def run(self) -> None:
        try:
            self.catch_up()
            while not self.is_over:
                if not self.socket.poll(100):
                    continue
                topic, number, payload = self.socket.recv_multipart()
                number = int.from_bytes(number, "big")
                if number > self.last + 1:
                    self.catch_up()
                # Those that the replay brought too are known.
                if number > self.last:
                    self.take(topic, number, payload)
        except Exception as error:  # noqa: BLE001: the thread's owner asks for it
            self.error = error

    def match(self, tokens: list[int], adapter: str | None = None) -> int:
        with self.lock:
            return self.cache.match(tokens, adapter)

    def __len__(self) -> int:
        with self.lock:
            return len(self.cache.blocks)


def main() -> None:
    reader = Reader(*sys.argv[1:3])
    while reader.error is None:
        time.sleep(1)
        print(f"batch {reader.last}: {len(reader)} blocks, {', '.join(sorted(reader.topics))}", flush=True)
    raise SystemExit(str(reader.error))


if __name__ == "__main__":
    main()
