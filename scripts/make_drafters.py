#!/usr/bin/env python3
"""Tiny random drafters for the two tiny Gemma 4 checkpoints, and what transformers computes from the pairs.

    scripts/make_drafters.py --convert LLAMA_CPP_SOURCE [NAME...]

A drafter (`gemma4_assistant`, `gemma4_unified_assistant`) has queries only: it reads the keys and values of the model that it
drafts for, `crates/model/testdata/families/NAME/`, with that model's embedding and last hidden state. That of `gemma4` has
the output layer with centroids, as E2B and E4B have it; that of `gemma4-moe` has a plain one. Needs what make_families.py needs.

For texts of several lengths, three tokens are drafted one after the other. The last token of a text is not computed yet: its
row stands at its position and reads the keys and values before it. Of layers with a window these are the last `window - 1`,
which is what transformers' cache keeps (checked here) and what the model itself would see at that position.

Writes `crates/model/testdata/drafters/NAME/`, `NAME.gguf` (by llama.cpp's converter, which drops the centroids) and
`golden/NAME.safetensors`, in f32: the tokens, the lengths, and of each drafted token its logits (with `plain_logits`, those
of the whole vocabulary), the hidden state that the next is drafted from, and the token itself.
"""

import argparse
import json
import shutil
import sys
import zlib
from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

import make_families
from family_configs import SMALL, rope

OUT = make_families.ROOT / "crates/model/testdata/drafters"
N_TOKENS = 48
LENGTHS = [3, 11, 12, 13, 14, 17, 18, 33, 48]
N_DRAFTED = 3
CENTROIDS = dict(use_ordered_embeddings=True, num_centroids=12, centroid_intermediate_top_k=3)
# name: classes, heads of keys in layers with a window and without, the output layer
NAMES = {
    "gemma4": (tf.Gemma4AssistantConfig, tf.Gemma4AssistantForCausalLM, 2, 2, CENTROIDS),
    "gemma4-moe": (tf.Gemma4UnifiedAssistantConfig, tf.Gemma4UnifiedAssistantForCausalLM, 4, 1, {}),
}


def build(name, target):
    config_class, model_class, n_kv_heads, n_full_kv_heads, output = NAMES[name]
    text = tf.Gemma4TextConfig(
        vocab_size=SMALL["vocab_size"], hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], num_attention_heads=4,
        num_key_value_heads=n_kv_heads, num_global_key_value_heads=n_full_kv_heads, head_dim=8, global_head_dim=16,
        attention_k_eq_v=n_kv_heads != n_full_kv_heads, sliding_window=target.config.sliding_window,
        max_position_embeddings=128, hidden_size_per_layer_input=0, vocab_size_per_layer_input=0,
        num_kv_shared_layers=3, tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        rope_parameters=dict(
            sliding_attention=rope(), full_attention=rope(1000000.0, "proportional", partial_rotary_factor=0.25),
        ),
    )
    config = config_class(text_config=text, backbone_hidden_size=target.config.hidden_size, **output)
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    make_families.randomize(model, zlib.crc32(f"{name}-drafter".encode()))
    if output:
        order = torch.randperm(SMALL["vocab_size"], generator=torch.Generator().manual_seed(3))
        model.masked_embedding.token_ordering.copy_(order)
    return model


def golden(name, target, drafter):
    tokens = torch.randint(3, SMALL["vocab_size"], (1, N_TOKENS), generator=torch.Generator().manual_seed(13))
    window = target.config.sliding_window
    found = {"logits": [], "plain_logits": [], "hidden": [], "drafted": []}
    for n in LENGTHS:
        cache = tf.DynamicCache(config=target.config)
        with torch.no_grad():
            output = target.model(tokens[:, : n - 1], past_key_values=cache, return_shared_kv_states=True)
        states = dict(output.shared_kv_states)
        states["sliding_attention"] = tuple(part[:, :, -(window - 1) :] for part in states["sliding_attention"])
        kinds = target.config.layer_types[: len(cache.layers)]
        for kind, (keys, values) in states.items():
            kept = cache.layers[len(kinds) - 1 - kinds[::-1].index(kind)]
            assert torch.equal(kept.keys, keys) and torch.equal(kept.values, values), (name, kind)
        hidden, token = output.last_hidden_state[:, -1:], tokens[:, n - 1 : n]
        for _ in range(N_DRAFTED):
            with torch.no_grad():
                embedded = target.get_input_embeddings()(token)
                output = drafter(
                    inputs_embeds=torch.cat([embedded, hidden], dim=-1), position_ids=torch.tensor([[n - 1]]),
                    shared_kv_states=states,
                )
                # Of what the output layer reads, with every centroid chosen.
                plain = read_by_output_layer(drafter)
            hidden, token = output.last_hidden_state, output.logits.argmax(-1)
            found["logits"].append(output.logits[0, 0])
            found["plain_logits"].append(plain[0, 0] @ drafter.lm_head.weight.T)
            found["hidden"].append(hidden[0, 0])
            found["drafted"].append(token[0, 0].float())
    found = {key: torch.stack(rows).detach().contiguous() for key, rows in found.items()}
    assert all(torch.isfinite(rows).all() for rows in found.values()), name
    return {"tokens": tokens[0].float(), "lengths": torch.tensor(LENGTHS).float(), **found}


def read_by_output_layer(drafter):
    return drafter.seen[0]


def make(name, source):
    target = make_families.build(name)
    stored = load_file(make_families.OUT / name / "model.safetensors")
    assert all(torch.equal(stored[key].float(), value) for key, value in target.state_dict().items() if key in stored)
    drafter = build(name, target)
    drafter.seen = [None]
    drafter.post_projection.register_forward_pre_hook(lambda _, inputs: drafter.seen.__setitem__(0, inputs[0]))
    save_file(golden(name, target, drafter), OUT / "golden" / f"{name}.safetensors")

    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    drafter.to(torch.bfloat16).save_pretrained(folder)
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    if source:
        run = make_families.convert(f"{name}-drafter", folder, OUT / f"{name}.gguf", source)
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
