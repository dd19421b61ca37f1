#!/usr/bin/env python3
"""Ten thousand requests that are wrong, against a running `roci serve`: fuzzed JSON, huge numbers, deep nesting, wrong
types, cut bodies, broken HTTP, slow clients. None may be answered with 5xx, the server must stay alive and answer a
good request afterwards, and its memory must stay flat. Standard library only; seeded, so that a failure comes again.

  serve_malformed.py URL PID [N]
"""

import asyncio
import json
import random
import sys
from pathlib import Path
from urllib.parse import urlsplit

MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
GOOD = {
    "/v1/chat/completions": {
        "model": "m", "messages": MESSAGES, "max_tokens": 1, "temperature": 1, "top_p": 1, "n": 1, "stop": ["x"], "seed": 1,
        "logprobs": True, "top_logprobs": 1, "logit_bias": {"5": 1}, "presence_penalty": 0, "stream": False, "tools": TOOLS,
        "tool_choice": "none", "response_format": {"type": "text"}, "stream_options": {"include_usage": True},
        "max_completion_tokens": 1, "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low",
        "json_schema": {"type": "object"},
    },
    "/v1/completions": {"prompt": "a", "max_tokens": 1, "echo": True, "logprobs": 1, "n": 1, "suffix": "b", "stop": "x"},
    "/v1/embeddings": {"input": ["a"], "encoding_format": "float", "dimensions": 3},
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], "max_output_tokens": 1, "store": True,
        "tools": [{"type": "function", "name": "f", "parameters": {}}], "text": {"format": {"type": "text"}}, "metadata": {},
    },
    "/v1/messages": {
        "max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "system": "s",
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "stop_sequences": ["x"], "thinking": {"type": "disabled"},
    },
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/api/chat": {"messages": MESSAGES, "options": {"num_predict": 1, "top_k": 3, "stop": ["x"]}, "stream": False, "format": ""},
    "/api/generate": {"prompt": "a", "options": {"num_predict": 1}, "stream": False, "raw": True},
    "/api/embed": {"input": ["a"], "truncate": True, "dimensions": 3},
    "/api/show": {"model": "m"},
    "/tokenize": {"content": "a", "add_special": True, "with_pieces": True, "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2]},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 1, "stream": True, "input_extra": [{"filename": "f", "text": "a"}]},
    "/rerank": {"query": "a", "documents": ["a", "b"], "top_n": 1, "texts": ["c"], "return_text": True},
    "/v1/chat/completions/render": {"messages": MESSAGES, "tools": TOOLS},
    "/v1/completions/render": {"prompt": [1, 2]},
}
ODD = [
    None, True, False, 0, -1, 1, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -1e308, 0.5, 1e-300, "", "a", "\x00",
    "\ud83d\ude00" * 50, "<|im_start|>", "x" * 5000, [], {}, [[]], [None], [{}], {"": None}, {"type": "json_schema"}, [1] * 300,
    ["a"] * 300, {"a": {"b": {"c": [1, {"d": None}]}}}, "auto", "required", "json", {"type": "function"}, [0.5], "NaN",
]


def odd(chance: random.Random):
    if chance.random() < 0.05:
        value: object = "deep"
        for _ in range(chance.choice([20, 100, 200])):
            value = chance.choice([[value], {"a": value}])
        return value
    return chance.choice(ODD)


def spoil(value: object, chance: random.Random) -> object:
    """One part of a good request put wrong."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        spoilt = dict(value)
        match chance.randrange(6):
            case 0:
                del spoilt[key]
            case 1:
                spoilt[chance.choice(["model", "x", "stream", "role", "content", "n", "max_tokens"])] = odd(chance)
            case 2 | 3:
                spoilt[key] = spoil(value[key], chance)
            case _:
                spoilt[key] = odd(chance)
        return spoilt
    if isinstance(value, list) and value and chance.random() < 0.7:
        spoilt_list = list(value)
        spoilt_list[chance.randrange(len(value))] = spoil(chance.choice(value), chance)
        return spoilt_list
    return odd(chance)


def payload(chance: random.Random) -> tuple[str, bytes]:
    path = chance.choice(list(GOOD))
    body: object = GOOD[path]
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        body = spoil(body, chance)
    data = bytearray(json.dumps(body, allow_nan=True).encode("utf-8", "surrogatepass"))
    match chance.randrange(12):
        case 0 if data:
            del data[chance.randrange(len(data)) :]
        case 1 if data:
            for _ in range(chance.randrange(1, 8)):
                data[chance.randrange(len(data))] = chance.randrange(256)
        case 2:
            data = bytearray(chance.randbytes(chance.randrange(200)))
        case 3:
            n = chance.choice([50, 200, 2000, 100_000])
            data = bytearray(b'{"messages":' + b"[" * n + (b"]" * n + b"}" if chance.random() < 0.5 else b""))
    return path, bytes(data)


async def send(host: str, port: int, chance: random.Random) -> int | None:
    """The status of one wrong request; `None` where the server just hung up."""
    path, data = payload(chance)
    length, method, version, headers = len(data), "POST", "HTTP/1.1", ""
    kind = chance.randrange(40)
    match kind:
        case 0:
            length = chance.choice([0, len(data) + 50, 10**20, -1])
        case 1:
            method = chance.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "X", "HEAD"])
        case 2:
            path = chance.choice(["/", "/v1", "/v1/models/" + "a" * 3000, "/%ff%00", "/v1/responses/..%2f", "//", "/metrics?x=1"])
        case 3:
            headers = "X-Long: " + "a" * chance.choice([1000, 100_000]) + "\r\n"
        case 4:
            headers = "Content-Type: text/plain\r\nX-Request-Id: \x7f\r\n"
        case 5:
            headers = "Transfer-Encoding: chunked\r\n"
        case 6:
            version = chance.choice(["HTTP/9.9", "HTTP/1.0", "FTP"])
    head = f"{method} {path} {version}\r\nHost: x\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection(host, port)
    try:
        raw = head.encode("utf-8") + data
        if kind == 7:
            raw = raw[: chance.randrange(len(raw))]
        writer.write(raw)
        await writer.drain()
        if kind in (0, 7):
            # The rest never comes: the client is gone.
            await asyncio.sleep(chance.random() * 0.02)
            return None
        line = await asyncio.wait_for(reader.readline(), 120)
        return int(line.split(b" ")[1]) if line.startswith(b"HTTP/") else None
    except (ConnectionError, OSError):
        return None
    finally:
        writer.close()


async def slow(host: str, port: int, seconds: float) -> None:
    """A client that sends a byte now and then."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
        for byte in b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{" + b" " * 1000:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(seconds)
        writer.close()
    except (ConnectionError, OSError):
        pass


def resident(pid: int) -> float:
    """MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


async def good(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    data = json.dumps({"messages": MESSAGES, "max_tokens": 2}).encode()
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode())
    writer.write(data)
    line = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    return b" 200 " in line


async def main() -> int:
    where, pid = urlsplit(sys.argv[1]), int(sys.argv[2])
    n_requests = int(sys.argv[3]) if len(sys.argv) > 3 else 10_000
    host, port = where.hostname or "127.0.0.1", where.port or 80
    drips = [asyncio.create_task(slow(host, port, 0.3)) for _ in range(20)]
    seen: dict = {}
    bad: list[str] = []
    memory = []
    lanes = asyncio.Semaphore(16)

    async def one(i: int) -> None:
        async with lanes:
            status = await send(host, port, random.Random(i))
            seen[status] = seen.get(status, 0) + 1
            if status is not None and status >= 500:
                bad.append(f"request {i}: {status}: {payload(random.Random(i))}"[:400])

    for first in range(0, n_requests, n_requests // 10 or 1):
        await asyncio.gather(*(one(i) for i in range(first, min(first + (n_requests // 10 or 1), n_requests))))
        memory.append(resident(pid))
    for drip in drips:
        drip.cancel()
    print(f"statuses {dict(sorted(seen.items(), key=lambda item: str(item[0])))}")
    print(f"resident MiB after each tenth: {[round(value) for value in memory]}")
    for line in bad[:10]:
        print(line)
    is_alive = await good(host, port)
    # The pool of keys and values is touched little by little; past the first tenths nothing may grow.
    grown = memory[-1] - memory[len(memory) // 2]
    is_flat = grown < 32
    print(f"a good request afterwards: {'ok' if is_alive else 'FAILED'}; grown by {grown:.1f} MiB in the second half")
    return 0 if is_alive and is_flat and not bad else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
