#!/usr/bin/env python3
"""llama.cpp's own server tests against `roci serve`.

  scripts/llama_server_tests.py [--roci PROGRAM] [--model GGUF] [PYTEST ARGUMENT...]

The tests start `llama-server` with its flags; a translator stands in its place and starts `roci serve` with ours. Their
models are on the hub and not fetched: SmolLM2 stands for all of them, the embedding and rerank models too. What a test
then expects of its own model's words or tokens cannot hold, and neither can what is about parts that roci does not have
(slots on disk, a router, MCP, images). Tests named in `NOT_OURS` are left out. docs/developer/testing.md says which of the
others pass, and why the rest fail.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import fetch  # noqa: E402

FILES = [
    "basic", "tokenize", "embedding", "rerank", "security", "completion", "chat_completion", "compat_anthropic",
    "compat_oai_responses", "infill", "ignore_eos",
]
# A part of a test's name, and why it is left out.
NOT_OURS: dict[str, str] = {}

PLUGIN = '''
import sys, types
for name in ("wget", "filelock"):
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
class FileLock:
    def __init__(self, *_): pass
    def __enter__(self): return self
    def __exit__(self, *_): return None
sys.modules["filelock"].FileLock = FileLock
import utils
utils.ServerPreset.load_all = staticmethod(lambda: None)
'''
# Flags of llama-server with a value, and ours; None: no counterpart.
VALUES = {
    "--port": "--port", "--host": "--host", "--temp": "--default-temperature", "--n-predict": "--default-max-tokens",
    "--threads": "--threads", "--batch-size": "--prefill-chunk", "--seed": None, "--hf-repo": None, "--hf-file": None,
    "--ubatch-size": None, "--n-gpu-layers": "--gpu-layers", "--pooling": None, "--tags": None, "-ctk": None, "-ctv": None,
    "-fa": None, "--slot-save-path": None, "--reasoning-format": None, "--reasoning": None, "--cache-ram": None,
    "--model-url": None, "--model": None,
}


def serve(arguments: list[str]) -> None:
    """Becomes `roci serve` with what these flags of llama-server mean."""
    roci, model = os.environ["TRIED_ROCI"], os.environ["TRIED_MODEL"]
    ours, n_ctx, n_slots, is_unified = [], 0, 1, False
    names = ["model"]
    rest = iter(arguments)
    for flag in rest:
        if flag == "--kv-unified":
            is_unified = True
        elif flag == "--ctx-size":
            n_ctx = int(next(rest))
        elif flag == "--parallel":
            n_slots = int(next(rest))
        elif flag == "--alias":
            names = next(rest).split(",")
        elif flag == "--no-ui":
            ours.append("--no-web")
        elif flag == "--api-key":
            keys = Path(tempfile.mkstemp(prefix="keys-")[1])
            keys.write_text(f"test {hashlib.sha256(next(rest).encode()).hexdigest()}\n")
            ours += ["--api-key-file", str(keys)]
        elif flag in VALUES:
            value = next(rest)
            ours += [VALUES[flag], value] if VALUES[flag] else []
        elif flag in ("--no-slots", "--slots", "--no-jinja", "--jinja", "--cont-batching", "--offline", "--metrics", "--verbose",
                      "--embedding", "--reranking"):
            pass
        else:
            sys.exit(f"{flag} has no counterpart")
    if n_ctx:
        # Slots share llama-server's context evenly.
        ours += ["--context", str(max(16, n_ctx // (1 if is_unified else n_slots)))]
    ours += ["--max-running", str(n_slots), "--cors-origin", "*", "--log-level", "warn"]
    for name in names:
        ours += ["--served-model-name", name]
    os.execv(roci, [roci, "serve", model, *ours])


def main() -> int:
    if len(sys.argv) > 1 and os.environ.get("TRIED_ROCI"):
        serve(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    parser.add_argument("--roci", type=Path, default=target / "debug/roci")
    parser.add_argument("--model", type=Path, default=os.environ.get("ROCI_SMOLLM2"))
    args, more = parser.parse_known_args()
    python = os.environ.get("ROCI_PYTHON") or fetch.python(["pytest", "requests", "openai", "numpy", "aiohttp"])
    model = args.model or fetch.smollm2()
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(folder) / "tests"
        shutil.copytree(fetch.llama_cpp() / "tools/server/tests", tests)
        (tests / "roci_plugin.py").write_text(PLUGIN)
        program = Path(folder) / "llama-server"
        program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{Path(__file__).resolve()}' \"$@\"\n")
        program.chmod(0o755)
        env = {
            **os.environ, "LLAMA_SERVER_BIN_PATH": str(program), "TRIED_ROCI": str(args.roci.resolve()),
            "TRIED_MODEL": str(model), "PYTHONPATH": str(tests), "PORT": os.environ.get("PORT", "18080"),
        }
        command = [python, "-m", "pytest", "-q", "-p", "roci_plugin", "-p", "no:cacheprovider", "--no-header", "--tb=line", "-rfE"]
        if NOT_OURS:
            command += ["-k", f"not ({' or '.join(NOT_OURS)})"]
        command += more or [f"unit/test_{name}.py" for name in FILES]
        return subprocess.run([str(part) for part in command], cwd=tests, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
