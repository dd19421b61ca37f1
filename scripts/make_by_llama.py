#!/usr/bin/env python3
"""Tiny random checkpoints of families that transformers lacks, and what llama.cpp computes from them.

    scripts/make_by_llama.py --convert LLAMA_CPP_SOURCE --libraries FOLDER [NAME...]

FOLDER holds llama.cpp's shared libraries (`libllama*.so`, `libggml*.so`), for example those of the npm package
`@node-llama-cpp/linux-x64` 3.22.1, which were built from llama.cpp v0.5.0. Needed besides are torch, safetensors and what
llama.cpp's converter needs. Writes, as `make_families.py` does, `crates/model/testdata/families/NAME/` (in the names of the
published checkpoints), `NAME.gguf` (by llama.cpp's converter, without a vocabulary) and `golden/NAME.safetensors`: logits that
llama.cpp computes on a CPU from the same weights in f32, with keys and values in f32. It rounds GELU's arguments to 16 bits.
"""

import argparse
import ctypes
import json
import sys
import tempfile
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import make_families

N_VOCAB, WIDTH, N_HEADS, N_KV_HEADS, HEAD_DIM, N_FF = 96, 32, 4, 2, 8, 64
GROK = dict(
    architectures=["Grok1ForCausalLM"], model_type="grok-1", hidden_size=WIDTH, intermediate_size=N_FF, num_hidden_layers=2,
    num_attention_heads=N_HEADS, num_key_value_heads=N_KV_HEADS, num_local_experts=4, num_experts=4, num_experts_per_tok=2,
    attn_output_multiplier=0.25, max_attn_value=30.0, attn_logit_softcapping=30.0, embedding_multiplier_scale=4.0,
    output_multiplier_scale=0.5, max_position_embeddings=256, rms_norm_eps=1e-5, vocab_size=N_VOCAB,
    tie_word_embeddings=True, dtype="bfloat16",
)
# With a dense block beside the experts, rope stretched by YaRN, and capped logits.
GROK_2 = dict(
    GROK, moe_intermediate_size=48, residual_moe=True, final_logit_softcapping=5.0, tie_word_embeddings=False,
    head_dim=HEAD_DIM, rope_type="yarn", scaling_factor=4.0, original_max_position_embeddings=64, extrapolation_factor=1.0,
    attn_factor=1.0, beta_fast=8.0, beta_slow=1.0,
)
PLAMO_2 = dict(
    architectures=["Plamo2ForCausalLM"], model_type="plamo2", hidden_size=WIDTH, intermediate_size=N_FF,
    num_hidden_layers=4, num_attention_heads=N_HEADS, num_key_value_heads=N_KV_HEADS, hidden_size_per_head=HEAD_DIM,
    mamba_d_state=16, mamba_d_conv=4, mamba_num_heads=6, mamba_step=2, mamba_enabled=True, rms_norm_eps=1e-6,
    max_position_embeddings=256, vocab_size=N_VOCAB, tie_word_embeddings=True, dtype="bfloat16",
)


class Maker:
    """Random tensors, rounded to bf16."""

    def __init__(self, name):
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        self.made = {}

    def take(self, name, *shape, scale=None, offset=0.0):
        scale = 1.5 / shape[-1] ** 0.5 if scale is None else scale
        self.made[name] = (scale * torch.randn(shape, generator=self.generator) + offset).to(torch.bfloat16)

    def vector(self, name, n, offset=1.0):
        self.take(name, n, scale=0.2, offset=offset)


def grok(config, maker):
    n_ff = config.get("moe_intermediate_size", N_FF)
    is_second = "residual_moe" in config
    maker.take("model.embed_tokens.weight" if is_second else "transformer.in_out_embed.weight", N_VOCAB, WIDTH, scale=1.0)
    for i in range(config["num_hidden_layers"]):
        if is_second:
            at, attention = f"model.layers.{i}.", "self_attn."
            norms = ["pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"]
            projections, router = ["q_proj", "k_proj", "v_proj", "o_proj"], "block_sparse_moe.gate"
            expert = ["block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3", "block_sparse_moe.experts.{}.w2"]
        else:
            at, attention = f"transformer.decoder_layer.{i}.", "multi_head_attention."
            norms = ["rms_norm", "rms_norm_1", "rms_norm_2", "rms_norm_3"]
            projections, router = ["query", "key", "value", "linear"], "router"
            expert = ["moe.{}.linear", "moe.{}.linear_v", "moe.{}.linear_1"]
        for norm in norms:
            maker.vector(f"{at}{norm}.weight", WIDTH)
        rows = [N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM, WIDTH]
        for name, n in zip(projections, rows):
            maker.take(f"{at}{attention}{name}.weight", n, WIDTH)
        maker.take(f"{at}{router}.weight", config["num_local_experts"], WIDTH)
        for j in range(config["num_local_experts"]):
            gate, up, down = (at + name.format(j) + ".weight" for name in expert)
            maker.take(gate, n_ff, WIDTH)
            maker.take(up, n_ff, WIDTH)
            maker.take(down, WIDTH, n_ff)
        if is_second:
            for name, shape in (("gate", (N_FF, WIDTH)), ("up", (N_FF, WIDTH)), ("down", (WIDTH, N_FF))):
                maker.take(f"{at}mlp.{name}_proj.weight", *shape)
    maker.vector("model.norm.weight" if is_second else "transformer.rms_norm.weight", WIDTH)
    if is_second:
        maker.take("lm_head.weight", N_VOCAB, WIDTH)


def plamo2(config, maker):
    n_heads, state = config["mamba_num_heads"], config["mamba_d_state"]
    inner, rank = n_heads * HEAD_DIM, max(64, WIDTH // 16)
    maker.take("model.embed_tokens.weight", N_VOCAB, WIDTH, scale=1.0)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.layers.{i}."
        for name, offset in (("pre_mixer", 0), ("post_mixer", 0.5), ("pre_mlp", 0), ("post_mlp", 0.5)):
            maker.vector(f"{at}{name}_norm.weight", WIDTH, offset)
        if i % 2 == 1:
            n_rows = (N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM
            maker.take(f"{at}mixer.qkv_proj.weight", n_rows, WIDTH)
            maker.take(f"{at}mixer.o_proj.weight", WIDTH, N_HEADS * HEAD_DIM)
            maker.take(f"{at}mixer.q_weight", N_HEADS, HEAD_DIM, scale=0.2, offset=1.0)
            maker.take(f"{at}mixer.k_weight", N_KV_HEADS, HEAD_DIM, scale=0.2, offset=1.0)
        else:
            maker.take(f"{at}mixer.in_proj.weight", 2 * inner, WIDTH)
            maker.take(f"{at}mixer.conv1d.weight", inner, 1, config["mamba_d_conv"])
            maker.take(f"{at}mixer.bcdt_proj.weight", 2 * state + rank, inner)
            maker.take(f"{at}mixer.dt_proj.weight", n_heads, rank)
            maker.take(f"{at}mixer.dt_bias", n_heads, scale=0.5)
            maker.take(f"{at}mixer.A_log", n_heads, scale=0.5)
            maker.take(f"{at}mixer.D", n_heads, scale=0.5, offset=1.0)
            for name, n in (("dt", rank), ("B", state), ("C", state)):
                maker.vector(f"{at}mixer.{name}_norm_weight", n)
            maker.take(f"{at}mixer.out_proj.weight", WIDTH, inner)
        maker.take(f"{at}mlp.gate_up_proj.weight", 2 * N_FF, WIDTH)
        maker.take(f"{at}mlp.down_proj.weight", WIDTH, N_FF)
    maker.vector("model.norm.weight", WIDTH, 0.0)


FAMILIES = {"grok": (GROK, grok), "grok-2": (GROK_2, grok), "plamo2": (PLAMO_2, plamo2)}
# Published in parts for eight GPUs: nobody has a whole folder of it.
GGUF_ONLY = {"grok-2"}


class Blob(ctypes.Structure):
    """A struct of parameters, larger than any version's: callers pass it on the stack, where more does not matter."""

    _fields_ = [("words", ctypes.c_uint32 * 128)]


class LlamaBatch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)), ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


# Where llama_context_params (of llama-cpp-python 0.3.36's llama.h) has them, in 32-bit words: how many tokens there are room
# for in the context, a batch and a part of it, threads, whether attention is one kernel, and the types of keys and values.
SIZES, THREADS, FLASH, KV_TYPES = (0, 1, 2), (7, 8), 13, (26, 27)
F16, F32 = 1, 0


def library(libraries):
    """llama.cpp's, out of a folder."""
    found = {path.name.split(".")[0]: path for path in sorted(libraries.glob("*.so"))}
    for name in ("libggml-base", "libggml"):
        ctypes.CDLL(str(found[name]), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(found["libggml"])).ggml_backend_load_all_from_path(str(libraries).encode())
    llama = ctypes.CDLL(str(found["libllama"]))
    for name, result in (
        ("llama_model_default_params", Blob), ("llama_context_default_params", Blob),
        ("llama_model_load_from_file", ctypes.c_void_p), ("llama_init_from_model", ctypes.c_void_p),
        ("llama_batch_init", LlamaBatch), ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float)),
    ):
        getattr(llama, name).restype = result
    return llama


def compute(libraries, gguf, tokens):
    """Logits of all tokens by llama.cpp."""
    llama = library(libraries)
    model = llama.llama_model_load_from_file(str(gguf).encode(), llama.llama_model_default_params())
    assert model, f"llama.cpp cannot load {gguf}"
    params = llama.llama_context_default_params()
    assert [params.words[i] for i in KV_TYPES] == [F16, F16], "llama_context_params has changed"
    for i in SIZES:
        params.words[i] = 256
    for i in THREADS:
        # Others would spin.
        params.words[i] = 1
    params.words[FLASH] = 0
    for i in KV_TYPES:
        params.words[i] = F32
    context = llama.llama_init_from_model(ctypes.c_void_p(model), params)
    assert context, "llama.cpp makes no context"
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama.llama_decode(ctypes.c_void_p(context), batch) == 0
    rows = (llama.llama_get_logits_ith(ctypes.c_void_p(context), i)[:N_VOCAB] for i in range(len(tokens)))
    return torch.tensor(list(rows))


# llama.cpp asks the first layer how many heads a model has, and rotates nothing where that is a Mamba layer without any (up
# to v0.5.0). Which layers attend it sees by the heads of keys, so for it all layers have the others' number.
SAME_HEADS = """
import gguf
def add_head_count(self, count, add=gguf.GGUFWriter.add_head_count):
    add(self, max(count) if isinstance(count, list) else count)
gguf.GGUFWriter.add_head_count = add_head_count
convert.main()
"""


def convert(name, folder, gguf, source, in_f32):
    """As `make_families.convert`, of weights that were widened where they are to stay f32, and are for llama.cpp to run."""
    with tempfile.TemporaryDirectory() as copy:
        tensors = load_file(folder / "model.safetensors")
        if in_f32:
            tensors = {key: value.float() for key, value in tensors.items()}
        save_file(tensors, Path(copy) / "model.safetensors", metadata={"format": "pt"})
        (Path(copy) / "config.json").write_text((folder / "config.json").read_text())
        kind = make_families.CONVERT
        if in_f32:
            make_families.CONVERT = kind.replace('"bf16"', '"f32"').replace("convert.main()\n", SAME_HEADS)
        try:
            run = make_families.convert(name, Path(copy), gguf, source)
        finally:
            make_families.CONVERT = kind
    if run.returncode != 0:
        sys.exit(f"{name}: converter: {run.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--convert", type=Path, required=True, help="llama.cpp's source folder, for its converter")
    parser.add_argument("--libraries", type=Path, required=True, help="folder of llama.cpp's shared libraries")
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(3, N_VOCAB, (make_families.N_TOKENS,), generator=generator)
    for name in args.names or FAMILIES:
        config, make = FAMILIES[name]
        maker = Maker(name)
        make(config, maker)
        out = make_families.OUT
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) if name in GGUF_ONLY else out / name
            folder.mkdir(exist_ok=True)
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            save_file(maker.made, folder / "model.safetensors", metadata={"format": "pt"})
            convert(name, folder, Path(scratch) / "f32.gguf", args.convert, in_f32=True)
            logits = compute(args.libraries, Path(scratch) / "f32.gguf", tokens.tolist())
            convert(name, folder, out / f"{name}.gguf", args.convert, in_f32=False)
        assert torch.isfinite(logits).all()
        save_file(dict(logits=logits.contiguous(), tokens=tokens.float()), out / "golden" / f"{name}.safetensors")
        print(name, logits.std().item(), (out / f"{name}.gguf").stat().st_size)


if __name__ == "__main__":
    main()
