#!/usr/bin/env python3
"""Makes golden data with llama.cpp: what f32 arithmetic says about a model's packed weights, token by token.

  scripts/make_golden.py MODEL.gguf GOLDEN.json OUT.json --build FOLDER [--follow] [--runs N]

MODEL is the packed file turned into F32 (`llama-quantize --allow-requantize PACKED MODEL F32`), GOLDEN a file of
crates/model/testdata whose prompts are taken. The run has f32 keys and values and no flash attention. Without --follow
it is greedy; with it the tokens are GOLDEN's own, computed in one batch, which large models need. FOLDER holds
libllama.so (bench/peers.py builds it). Run with `$(scripts/fetch.py python numpy typing_extensions)`.
"""

import argparse
import json
import os
import sys
import types
from pathlib import Path

import fetch
import numpy as np

N_STEPS = 64
N_TOP_STEPS = 16


def bindings(build: Path):
    """llama-cpp-python's ctypes module, without the package around it, which would ask for more packages."""
    os.environ["LLAMA_CPP_LIB_PATH"] = str(build)
    package = types.ModuleType("llama_cpp")
    package.__path__ = [str(fetch.llama_cpp_python() / "llama_cpp")]
    sys.modules["llama_cpp"] = package
    import llama_cpp.llama_cpp as api

    return api


class Model:
    def __init__(self, api, path: str):
        self.api = api
        self.silence = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self.silence, None)
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        if not self.model:
            sys.exit(f"make_golden.py: error: llama.cpp does not open {path}")
        self.vocab = api.llama_model_get_vocab(self.model)
        self.n_vocab = api.llama_vocab_n_tokens(self.vocab)
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 2
        params.type_k = params.type_v = 0  # f32
        params.flash_attn_type = 0
        self.context = api.llama_init_from_model(self.model, params)

    def forget(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def logprobs(self, tokens: list[int], start: int, wanted: range) -> list[np.ndarray]:
        """Runs the tokens and gives the log-probabilities behind those whose index is wanted."""
        batch = self.api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i in wanted
        if self.api.llama_decode(self.context, batch) != 0:
            sys.exit("make_golden.py: error: llama_decode failed")
        rows = []
        for i in wanted:
            row = self.api.llama_get_logits_ith(self.context, i)
            row = np.ctypeslib.as_array(row, (self.n_vocab,)).astype(np.float64)
            row -= row.max()
            rows.append(row - np.log(np.exp(row).sum()))
        self.api.llama_batch_free(batch)
        return rows

    def greedy(self, prompt: list[int]):
        out, rows = [], []
        row = self.logprobs(prompt, 0, range(len(prompt) - 1, len(prompt)))[0]
        for step in range(N_STEPS):
            rows.append(row)
            out.append(int(row.argmax()))
            if self.api.llama_vocab_is_eog(self.vocab, out[-1]):
                break
            row = self.logprobs(out[-1:], len(prompt) + step, range(1))[0]
        return out, rows

    def follow(self, prompt: list[int], out: list[int]):
        tokens = prompt + out[:-1]
        return out, self.logprobs(tokens, 0, range(len(prompt) - 1, len(tokens)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("golden", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--runs", type=int, default=6)
    args = parser.parse_args()
    golden = json.loads(args.golden.read_text())
    model = Model(bindings(args.build.resolve()), args.model)
    runs = []
    for run in golden["runs"][: args.runs]:
        model.forget()
        prompt = run["prompt_ids"]
        out, rows = model.follow(prompt, run["out_ids"]) if args.follow else model.greedy(prompt)
        best = [[[int(t), round(float(row[t]), 4)] for t in np.argsort(-row)[:10]] for row in rows[:N_TOP_STEPS]]
        runs.append({"user": run["user"], "prompt_ids": prompt, "out_ids": out, "top10": best})
        print(f"{run['user']!r}: {len(out)} tokens", file=sys.stderr)
    head = {key: golden[key] for key in ("engine", "model_sha256")}
    whole = {**head, "args": ["F32 weights", "f32 KV", "no flash attention"], "runs": runs}
    args.out.write_text(json.dumps(whole, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
