"""A small router for replicas of one model: it follows their KV events and sends each completion to the replica that has
computed most of its prompt, to the one with the fewest requests where none has. It stands for the gateways that do this in
earnest (llm-d, Dynamo) in our tests, and shows what they read. Needs pyzmq and msgspec.

  scripts/kv_router.py --port 8000 http://127.0.0.1:8081,tcp://127.0.0.1:5557,tcp://127.0.0.1:5558 ...
"""

import argparse
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kv_reader import Reader


def post(url: str, body: bytes) -> bytes:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return answer.read()


class Replica:
    def __init__(self, url: str, events: str, replay: str | None = None) -> None:
        self.url, self.reader, self.n_running, self.n_routed = url, Reader(events, replay), 0, 0


class Router:
    def __init__(self, replicas: list[Replica]) -> None:
        self.replicas, self.lock = replicas, threading.Lock()

    def tokens(self, path: str, body: bytes) -> list[int]:
        """As the model would read it."""
        shown = json.loads(post(f"{self.replicas[0].url}{path}/render", body))
        return shown["tokens"] if "tokens" in shown else shown["prompts"][0]["tokens"]

    def choose(self, tokens: list[int]) -> tuple[Replica, int]:
        with self.lock:
            ranked = [(-replica.reader.match(tokens), replica.n_running, replica.n_routed, i)
                      for i, replica in enumerate(self.replicas)]
            n_cached, _, _, best = min(ranked)
            replica = self.replicas[best]
            replica.n_running += 1
            replica.n_routed += 1
            return replica, -n_cached

    def forward(self, path: str, body: bytes) -> tuple[bytes, int]:
        """The answer, and which replica gave it."""
        replica, _ = self.choose(self.tokens(path, body))
        try:
            return post(replica.url + path, body), self.replicas.index(replica)
        finally:
            with self.lock:
                replica.n_running -= 1


def serve(router: Router, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer, replica = router.forward(self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.send_header("x-replica", str(replica))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("replicas", nargs="+", metavar="URL,EVENTS[,REPLAY]")
    args = parser.parse_args()
    router = Router([Replica(*text.split(",")) for text in args.replicas])
    serve(router, args.port).serve_forever()


if __name__ == "__main__":
    main()
