#!/usr/bin/env python3
"""Spans of `roci serve`, read with OpenTelemetry's own message definitions from PyPI. The collector is a stand-in: it
takes posts and keeps them. Run by scripts/check_serve.py.

  serve_traces.py PROGRAM MODEL
"""

import base64
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

POSTS: list[tuple[str, bytes]] = []
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class StandIn(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        POSTS.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


def with_bytes(value: object) -> object:
    """OTLP's JSON writes ids in hex, where protobuf's own reader expects base64."""
    if isinstance(value, list):
        return [with_bytes(item) for item in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {k: base64.b64encode(bytes.fromhex(v)).decode() if k in ids else with_bytes(v) for k, v in value.items()}


def main() -> int:
    collector = HTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    command = [sys.argv[1], "serve", sys.argv[2], "--port", "0", "--context", "256", "--otlp-endpoint", endpoint]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    url = next(line.split()[-1] for line in server.stderr if line.startswith("listening on "))
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "n": 2}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)).read()
    # What waits is sent before it ends.
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=60)
    assert {path for path, _ in POSTS} == {"/v1/traces"}, POSTS
    spans = []
    for _, data in POSTS:
        # An unknown field or a wrong type is an error here.
        message = json_format.ParseDict(with_bytes(json.loads(data)), ExportTraceServiceRequest())
        for resource in message.resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            assert names["service.name"] == "roci", names
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    [request] = [span for span in spans if span.kind == span.SPAN_KIND_SERVER]
    answers = [span for span in spans if span.kind == span.SPAN_KIND_INTERNAL]
    assert request.parent_span_id.hex() == PARENT and len(answers) == 2, spans
    for span in answers:
        values = {item.key: item.value for item in span.attributes}
        assert span.parent_span_id == request.span_id and span.end_time_unix_nano > span.start_time_unix_nano
        assert values["gen_ai.usage.output_tokens"].int_value == 3, values
    print(f"{len(spans)} spans as OpenTelemetry defines them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
