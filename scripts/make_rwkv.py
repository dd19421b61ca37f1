#!/usr/bin/env python3
"""A tiny random checkpoint of RWKV 7, and what RWKV's own code computes from it.

    scripts/make_rwkv.py --convert LLAMA_CPP_SOURCE

Transformers has no RWKV 7, so the reference is the author's PyPI package `rwkv` (0.8.32; `RWKV_x070`, on the CPU in f32);
needed besides are torch, safetensors and what llama.cpp's converter needs. Writes, as `make_families.py` does for the
other families, `crates/model/testdata/families/rwkv7/` (in the layout of flash-linear-attention's checkpoints),
`rwkv7.gguf` (by llama.cpp's converter, without a vocabulary) and `golden/rwkv7.safetensors`.
"""

import argparse
import json
import os
import sys
import tempfile
import zlib
from pathlib import Path

import torch
from safetensors.torch import save_file

import make_families

os.environ.update(RWKV_V7_ON="1", RWKV_JIT_ON="0", RWKV_CUDA_ON="0")

NAME = "rwkv7"
N_VOCAB, WIDTH, N_HEADS, N_LAYERS, N_FF = 96, 32, 4, 3, 80
# Of the products through a few columns: decay, rate, values, gate.
RANKS = dict(w=8, a=12, v=4, g=16)
CONFIG = dict(
    architectures=["RWKV7ForCausalLM"], model_type="rwkv7", hidden_size=WIDTH, num_hidden_layers=N_LAYERS,
    head_dim=WIDTH // N_HEADS, num_heads=N_HEADS, intermediate_size=N_FF, decay_low_rank_dim=RANKS["w"],
    a_low_rank_dim=RANKS["a"], v_low_rank_dim=RANKS["v"], gate_low_rank_dim=RANKS["g"], hidden_act="sqrelu",
    norm_eps=1e-5, norm_bias=True, norm_first=True, vocab_size=N_VOCAB, max_position_embeddings=2048,
    bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, dtype="bfloat16",
)


def tensors():
    """In the layout of flash-linear-attention, rounded to bf16."""
    generator = torch.Generator().manual_seed(zlib.crc32(NAME.encode()))
    made = {}

    def take(name, *shape, scale=None, offset=0.0):
        scale = 1.5 / shape[-1] ** 0.5 if scale is None else scale
        made[name] = (scale * torch.randn(shape, generator=generator) + offset).to(torch.bfloat16)

    def norm(name):
        take(f"{name}.weight", WIDTH, scale=0.2, offset=1.0)
        take(f"{name}.bias", WIDTH, scale=0.2)

    take("model.embeddings.weight", N_VOCAB, WIDTH, scale=1.0)
    for i in range(N_LAYERS):
        at = f"model.layers.{i}."
        for name in (["pre_norm"] if i == 0 else []) + ["attn_norm", "ffn_norm", "attn.g_norm"]:
            norm(at + name)
        for name in "rwkvag":
            take(f"{at}attn.x_{name}", 1, 1, WIDTH, scale=0.3, offset=0.5)
        take(f"{at}ffn.x_k", WIDTH, scale=0.3, offset=0.5)
        take(f"{at}attn.k_k", WIDTH, scale=0.2, offset=0.8)
        take(f"{at}attn.k_a", WIDTH, scale=0.2, offset=1.0)
        take(f"{at}attn.r_k", N_HEADS, WIDTH // N_HEADS, scale=0.5)
        for name in "rkvo":
            take(f"{at}attn.{name}_proj.weight", WIDTH, WIDTH)
        for name, rank in RANKS.items():
            if name == "v" and i == 0:
                continue
            take(f"{at}attn.{name}_lora.lora.0.weight", rank, WIDTH)
            take(f"{at}attn.{name}_lora.lora.2.weight", WIDTH, rank)
            if name != "g":
                take(f"{at}attn.{name}_lora.lora.2.bias", WIDTH, scale=0.5)
        take(f"{at}ffn.key.weight", N_FF, WIDTH)
        take(f"{at}ffn.value.weight", WIDTH, N_FF)
    norm("model.norm")
    take("lm_head.weight", N_VOCAB, WIDTH)
    return made


def as_published(made):
    """In the names and the order of the author's own checkpoints."""
    names = {
        "model.embeddings": "emb", "model.norm": "ln_out", "lm_head": "head", "model.layers.": "blocks.", "pre_norm": "ln0",
        "attn_norm": "ln1", "ffn_norm": "ln2", "attn.g_norm": "att.ln_x", "attn.": "att.", "r_proj": "receptance",
        "k_proj": "key", "v_proj": "value", "o_proj": "output",
    }
    out = {}
    for name, value in made.items():
        for old, new in names.items():
            name = name.replace(old, new)
        if "_lora.lora.0" in name:
            name, value = name.replace("_lora.lora.0.weight", "1"), value.t()
        elif "_lora.lora.2.weight" in name:
            name, value = name.replace("_lora.lora.2.weight", "2"), value.t()
        elif "_lora.lora.2.bias" in name:
            name = name.replace("_lora.lora.2.bias", "0")
        out[name] = value.float().contiguous()
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convert", type=Path, required=True, help="llama.cpp's source folder, for its converter")
    args = parser.parse_args()
    from rwkv.model import RWKV

    made = tensors()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(as_published(made), f"{folder}/tiny.pth")
        model = RWKV(f"{folder}/tiny", "cpu fp32")
        generator = torch.Generator().manual_seed(7)
        tokens = torch.randint(3, N_VOCAB, (make_families.N_TOKENS,), generator=generator)
        # Token by token, and all at once: its two ways must agree.
        logits, state = [], None
        for token in tokens.tolist():
            row, state = model.forward([token], state)
            logits.append(row.float())
        logits = torch.stack(logits)
        whole = model.forward(tokens.tolist(), None, full_output=True)[0].float()
    assert torch.isfinite(logits).all()
    assert (logits - whole).norm() < 1e-5 * logits.norm(), (logits - whole).norm() / logits.norm()
    out = make_families.OUT
    save_file(dict(logits=logits.contiguous(), tokens=tokens.float()), out / "golden" / f"{NAME}.safetensors")
    folder = out / NAME
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    run = make_families.convert(NAME, folder, out / f"{NAME}.gguf", args.convert)
    if run.returncode != 0:
        sys.exit(f"converter: {run.stderr}")
    print(NAME, [(out / file).stat().st_size for file in (f"{NAME}/model.safetensors", f"{NAME}.gguf")])


if __name__ == "__main__":
    main()
