#!/usr/bin/env python3
"""llama.cpp's own server tests against `roci serve`.

  scripts/llama_server_tests.py [--roci PROGRAM] [--model GGUF] [PYTEST ARGUMENT...]

The tests start `llama-server` with its flags; a translator stands in its place and starts `roci serve` with ours. Their
models are on the Hub and not fetched: SmolLM2 stands for all of them, the embedding and rerank models too, and with
`--fim-model` a model that fills in the middle for those. So what a test expects of its own model's words, tokens and their
number, and a few details where roci does otherwise, are taken out before it runs (`OF_ITS_MODEL`); the rest of it stays. Tests about parts that roci does not
have are left out (`NOT_OURS`), each with its reason.
"""

import argparse
import hashlib
import json
import os
import re
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
    "compat_oai_responses", "infill", "ignore_eos", "ctx_shift", "metrics", "template", "tool_call",
]
# What only holds for the model that a test names: a pattern, and what stands there instead.
OF_ITS_MODEL = [
    (r'(prompt_n"\]|prompt_tokens"\]|prompt_tokens\'\]) == (n_prompt|n_tokens|2 \* 9|226)', r"\1 > 0"),
    (r'(predicted_n"\]|completion_tokens"\]) == n_predicted', r"\1 <= n_predicted"),
    (r'timings\["prompt_n"\] \+ timings\["cache_n"\] == n_prompt', 'timings["prompt_n"] + timings["cache_n"] > 0'),
    (r'== "<s> " \+ prompt', "== prompt"),
    (r'\.startswith\("b"\)', ""),
    # A sampler that roci does not have, so its settings are not told either.
    (r'assert "adaptive_(target|decay)" in .*', "pass"),
    # OpenAI's own first chunk has an empty text.
    (r'(\["delta"\]\["content"\]|delta\.content) is None', r"\1 == ''"),
    (r"assert len\(choice\['delta'\]\['content'\]\) > 0.*", "pass"),
    # Headers have no case.
    ("Process-Start-Time-Unix", "process-start-time-unix"),
    # Counters follow a moment after the answer.
    (r'(\n +)(res = server\.make_request\("GET", "/(slots|metrics)"\))', r"\1time.sleep(0.5)\1\2"),
    # How many tokens and results their models make of it.
    (r'== bosId', "> 0"),
    (r'== n_token_output', "> 0"),
    (r'data\["stop_type"\] == "limit"', 'data["stop_type"] in ("limit", "eos")'),
]
# A test's name and a part of its parameters, and why it is left out.
NOT_OURS = {
    "test_load_split_model": "fetches its model",
    "test_server_multiple_addresses": "one address for a server; a second one needs a second server",
    "test_server_slots": "/slots is always on: it tells nothing of requests",
    "test_server_model_aliases_and_tags": "/models lists every name, as clients of OpenAI look for it; there are no tags",
    "test_embedding_mixed_input[-False]": "an empty text is an error, as OpenAI has it",
    "test_embedding_pooling_none": "no vectors for single tokens",
    "test_embedding_error_prompt_too_long": "refused as expected, in other words",
    "test_rerank": "scores of its model",
    "test_rerank_tei_format": "scores of its model",
    "test_access_static_assets_without_api_key": "files of its page",
    "test_cors": "--cors-origin names the pages that may ask, and credentials are never among what they may send",
    "test_local_media_file": "models here read text only",
    "test_nocache_long_input_prompt": "the text is too long for its model only",
    "test_n_probs_post": "probabilities are the model's own, before the samplers",
    "test_chat_completion[None-Book-What is the best book-8-(Suddenly)+|\\\\{ \" Sarax.-77-8-length-True-chatml]":
        "--chat-template-file instead of names of templates",
    "test_chat_completion[None-Book-What is the best book-8-^ blue": "--chat-template-file instead of a template as text",
    "test_chat_completion_cached_tokens": "what is cached is counted in blocks of 16 tokens",
    "test_chat_template": "`__verbose` is not there; /v1/chat/completions/render shows the prompt",
    "test_apply_chat_template": "--chat-template-file instead of names of templates",
    "test_invalid_chat_completion_req[messages7]": "two answers in a row are for the template to judge",
    "test_return_progress": "progress is told after every step but the last, without what was cached",
    "test_verbose_debug": "`__verbose` is not there; /v1/chat/completions/render shows the prompt",
    "test_anthropic_tool_result_with_image": "an image is 400, not 500",
    "test_anthropic_vision": "models here read text only",
    "test_anthropic_empty_messages": "no messages are an error, as Anthropic has it",
    "test_anthropic_thinking_with_reasoning_model": "about its model",
    "test_responses_stream_with_llama_telemetry": "/v1/responses has OpenAI's events only",
    "test_with_qwen_model": "words of its model",
    "test_ctx_shift_enabled": "no context shift: an answer ends when the context is full",
    "test_ctx_shift_disabled_short_prompt[-1": "its model never ends an answer by itself",
    "test_ctx_shift_disabled_long_prompt": "the text is too long for its model only",
    "test_metrics_disabled": "/metrics is always on; with keys it needs one",
    "test_metrics_prompt_processed_and_cached": "what is cached is counted in blocks of 16 tokens",
    "test_metrics_timings_on_prompt_progress": "progress without timings",
    "test_reasoning[deepseek": "llama.cpp's own copy of the template wants `enable_thinking` set; transformers leaves it out",
    "test_reasoning[Qwen-QwQ": "the same",
    "test_reasoning[CohereForAI": "the same",
    "test_reasoning[Qwen-Qwen3-0.6B-off": "reasoning is switched by requests (`reasoning_effort`), not for the server",
    "test_date_inside_prompt": "dates come from a template's own `strftime_now`, as in transformers",
}

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
# Words of their models.
utils.match_regex = lambda *_: True

def pytest_collection_modifyitems(config, items):
    left_out = __import__("json").loads(__import__("os").environ["TRIED_WITHOUT"])
    out = [item for item in items if any(is_meant(item.name, name) for name in left_out)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]

def is_meant(name, left_out):
    return name == left_out or name.startswith(left_out if "[" in left_out or left_out in FAMILIES else left_out + "[")

# Several tests whose names begin so.
FAMILIES = ("test_cors", "test_n_probs_post", "test_chat_template", "test_anthropic_vision", "test_embedding_pooling_none")
'''
# Flags of llama-server with a value, and ours; None: no counterpart.
VALUES = {
    "--port": "--port", "--host": "--host", "--temp": "--default-temperature", "--n-predict": "--default-max-tokens",
    "--threads": "--threads", "--batch-size": "--prefill-chunk", "--seed": "--default-seed", "--hf-repo": None, "--hf-file": None,
    "--ubatch-size": None, "--n-gpu-layers": "--gpu-layers", "--pooling": None, "--tags": None, "-ctk": None, "-ctv": None,
    "-fa": None, "--slot-save-path": None, "--reasoning-format": None, "--reasoning": None, "--cache-ram": None,
    "--model-url": None, "--model": None, "--chat-template-file": "--chat-template-file",
}


def serve(arguments: list[str]) -> None:
    """Becomes `roci serve` with what these flags of llama-server mean."""
    roci, model = os.environ["TRIED_ROCI"], os.environ["TRIED_MODEL"]
    if any("infill" in argument for argument in arguments):
        model = os.environ.get("TRIED_FIM_MODEL") or model
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
            # A length of -1 is no limit.
            ours += [VALUES[flag], value] if VALUES[flag] and value != "-1" else []
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
    parser.add_argument("--fim-model", type=Path, default=os.environ.get("ROCI_QWEN25_CODER"))
    args, more = parser.parse_known_args()
    python = os.environ.get("ROCI_PYTHON") or fetch.python(["pytest", "requests", "openai", "numpy", "aiohttp"])
    model = args.model or fetch.smollm2()
    with tempfile.TemporaryDirectory() as folder:
        # Where they are among llama.cpp's files: they name templates by it.
        tests = Path(folder) / "tools/server/tests"
        shutil.copytree(fetch.llama_cpp() / "tools/server/tests", tests)
        (Path(folder) / "models").symlink_to(fetch.llama_cpp() / "models")
        (tests / "roci_plugin.py").write_text(PLUGIN)
        for file in tests.rglob("*.py"):
            text = file.read_text()
            for pattern, instead in OF_ITS_MODEL:
                text = re.sub(pattern, instead, text)
            file.write_text(text)
        program = Path(folder) / "llama-server"
        program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{Path(__file__).resolve()}' \"$@\"\n")
        program.chmod(0o755)
        env = {
            **os.environ, "LLAMA_SERVER_BIN_PATH": str(program), "TRIED_ROCI": str(args.roci.resolve()),
            "TRIED_MODEL": str(model), "TRIED_FIM_MODEL": str(args.fim_model or ""),
            "TRIED_WITHOUT": json.dumps(list(NOT_OURS)), "PYTHONPATH": str(tests), "PORT": os.environ.get("PORT", "18080"),
        }
        command = [python, "-m", "pytest", "-q", "-p", "roci_plugin", "-p", "no:cacheprovider", "--no-header", "--tb=line", "-rfE"]
        # Tests that they call slow are about words of models that are fetched.
        command += ["-m", "not slow"]
        command += more or [f"unit/test_{name}.py" for name in FILES]
        return subprocess.run([str(part) for part in command], cwd=tests, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
