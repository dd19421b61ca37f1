#!/usr/bin/env python3
"""Tiny random checkpoints with a layer that guesses the token after the next (MTP), and what torch computes from them.

    scripts/make_next_token.py --convert LLAMA_CPP_SOURCE [NAME...]

Transformers reads such checkpoints and drops the layer, so the reference is put together here, from transformers' own
layers in the order that the published code of these models has (DeepSeek-V3's report; vLLM's `deepseek_mtp.py` and
`qwen3_next_mtp.py`; llama.cpp's `graph_mtp` of qwen35 and qwen3next): the hidden state of token i after the last norm and the
embedding of token i + 1 each get a norm, `eh_proj` takes both to the width of the model, then comes one ordinary layer with
attention, a norm, and the output layer.

Writes `crates/model/testdata/next/NAME/`, `NAME.gguf` where llama.cpp's converter keeps the layer, and
`golden/NAME.safetensors`: the tokens, the layer's hidden states and its logits for all pairs of tokens, in f32.
"""

import argparse
import json
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import make_families
from family_configs import SMALL

OUT = make_families.ROOT / "crates/model/testdata/next"
N_TOKENS = 40
# llama.cpp's converter drops DeepSeek-V3's.
NAMES = {"qwen35": True, "qwen35moe": True, "qwen3next": True, "glm4moe": True, "deepseek3": False}


def rounded(shape, generator, scale, offset=0.0):
    return (scale * torch.randn(shape, generator=generator) + offset).to(torch.bfloat16).float()


def tensors_of_layer(model, index):
    """A layer as `save_pretrained` spells it, by what follows the layer's number."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
    start = f"model.layers.{index}."
    return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}


def make(name, source):
    model = make_families.build(name)
    donor = make_families.build(name)
    make_families.randomize(donor, zlib.crc32(f"{name}-next".encode()))
    config, base = model.config, model.model
    kinds = getattr(config, "layer_types", None)
    index = kinds.index("full_attention") if kinds else config.num_hidden_layers - 1
    layer, generator = donor.model.layers[index], torch.Generator().manual_seed(zlib.crc32(f"{name}-parts".encode()))
    is_qwen, width, n_layers = name.startswith("qwen"), config.hidden_size, config.num_hidden_layers

    norm_class = type(base.norm)
    norms = {}
    for part in ("enorm", "hnorm", "norm"):
        norms[part] = norm_class(width, eps=config.rms_norm_eps)
        norms[part].weight.data = rounded((width,), generator, 0.2, 0.0 if is_qwen else 1.0)
    eh_proj = rounded((width, 2 * width), generator, (2 * width) ** -0.5)
    # GLM's and DeepSeek's files have an embedding and an output layer of their own; in one of the two they are others here.
    embedding, output = base.embed_tokens.weight.data, model.lm_head.weight.data
    if name == "glm4moe":
        embedding, output = rounded(embedding.shape, generator, 1.0), rounded(output.shape, generator, 0.2)

    tokens = torch.randint(3, SMALL["vocab_size"], (1, N_TOKENS), generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        hidden = base(tokens, use_cache=False).last_hidden_state
        embedded = torch.nn.functional.embedding(tokens[:, 1:], embedding)
        joined = torch.cat([norms["enorm"](embedded), norms["hnorm"](hidden[:, :-1])], dim=-1)
        x = joined @ eh_proj.T
        n = N_TOKENS - 1
        positions = torch.arange(n)[None]
        mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
        angles = base.rotary_emb(x, positions)
        x = layer(x, attention_mask=mask, position_ids=positions, position_embeddings=angles)
        x = x[0] if isinstance(x, tuple) else x
        states = norms["norm"](x)
        logits = states @ output.T
    assert torch.isfinite(logits).all(), name
    golden = {"tokens": tokens[0].float(), "hidden": states[0], "logits": logits[0]}
    save_file({key: value.contiguous() for key, value in golden.items()}, OUT / "golden" / f"{name}.safetensors")

    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    own = {"eh_proj": eh_proj, **{part: norm.weight.data for part, norm in norms.items()}}
    if is_qwen:
        spelled = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "norm": "norm"}
        extra = {f"mtp.{spelled[key]}.weight": value for key, value in own.items()}
        place = "mtp.layers.0."
    else:
        place = f"model.layers.{n_layers}."
        spelled = {"norm": "shared_head.norm"}
        extra = {f"{place}{spelled.get(key, key)}.weight": value for key, value in own.items()}
        extra[f"{place}embed_tokens.weight"] = embedding
        extra[f"{place}shared_head.head.weight"] = output
    extra.update({place + key: value for key, value in tensors_of_layer(donor, index).items()})
    tensors.update({key: value.to(torch.bfloat16).contiguous().clone() for key, value in extra.items()})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    # Qwen3-Next's own configuration does not speak of the layer.
    if name != "qwen3next":
        settings["mtp_num_hidden_layers" if is_qwen else "num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    if source and NAMES[name]:
        run = make_families.convert(f"{name}-next", folder, OUT / f"{name}.gguf", source)
        if run.returncode != 0:
            sys.exit(f"{name}: converter: {run.stderr}")
    print(name, [file.stat().st_size for file in (folder / "model.safetensors", OUT / f"{name}.gguf") if file.exists()])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--convert", type=Path, help="llama.cpp's source folder, for its converter")
    arguments = parser.parse_args()
    (OUT / "golden").mkdir(parents=True, exist_ok=True)
    for name in arguments.names or NAMES:
        make(name, arguments.convert)


if __name__ == "__main__":
    main()
