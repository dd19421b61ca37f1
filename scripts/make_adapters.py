#!/usr/bin/env python3
"""Tiny random adapters for some of the families' checkpoints, with what PEFT computes from them.

    scripts/make_adapters.py --convert LLAMA_CPP_SOURCE [NAME...]

Needs what make_families.py needs, and peft. The bases are the checkpoints in `crates/model/testdata/families`. Writes
`crates/model/testdata/adapters/NAME/` (as `save_pretrained` leaves it), `NAME.gguf` (by llama.cpp's converter, where it
knows the kind) and `golden/NAME.safetensors`: the tokens, and the logits of every one of them with the adapter, in f32.

Weights are rounded to bf16 before anything is computed, so that both forms hold exactly the weights of the golden numbers,
but for adapters called f32, whose numbers are those of that type and lie outside the range of f16.
"""

import argparse
import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import torch
import transformers as tf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
BASES = ROOT / "crates/model/testdata/families"
OUT = ROOT / "crates/model/testdata/adapters"
N_TOKENS = 40
VOCABULARY = 96
# Of the mixture whose experts are named one by one.
N_EXPERTS = 6

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
MAMBA = ["in_proj", "out_proj"]
DELTA = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
ADAPTERS = {
    "llama-lora": dict(r=4, lora_alpha=8, target_modules=LINEARS),
    "llama-f32": dict(r=4, lora_alpha=8, target_modules=LINEARS),
    "llama-other": dict(r=3, lora_alpha=4, target_modules=["q_proj", "v_proj"]),
    "llama-rslora": dict(r=4, lora_alpha=3, use_rslora=True, target_modules=LINEARS),
    "llama-dora": dict(r=4, lora_alpha=6, use_dora=True, target_modules=LINEARS),
    "qwen2-lora": dict(
        r=4,
        lora_alpha=8,
        target_modules=LINEARS,
        rank_pattern={"down_proj": 2, "layers.1.self_attn.q_proj": 6},
        alpha_pattern={"k_proj": 3},
    ),
    "qwen2-rslora": dict(r=5, lora_alpha=3, use_rslora=True, target_modules=["k_proj", "o_proj", "up_proj"]),
    "qwen2-dora": dict(r=4, lora_alpha=6, use_dora=True, target_modules=LINEARS),
    "phi3-lora": dict(r=4, lora_alpha=8, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "phi3-dora": dict(r=4, lora_alpha=8, use_dora=True, target_modules=["qkv_proj", "gate_up_proj"]),
    "gpt2-lora": dict(r=4, lora_alpha=8, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"]),
    "gptneox-lora": dict(r=4, lora_alpha=8, target_modules=["query_key_value", "dense"]),
    # Experts, which are parameters and no modules.
    "qwen3moe-experts": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], target_parameters=EXPERTS),
    "gpt-oss-experts": dict(r=3, lora_alpha=6, target_modules=["k_proj", "o_proj"], target_parameters=EXPERTS),
    "qwen2moe-lora": dict(r=4, lora_alpha=8, target_modules=LINEARS, target_parameters=EXPERTS[1:]),
    # Recurrent layers. PEFT leaves out_proj of some alone, and transformers passes Jamba's dt_proj by.
    "mamba2-lora": dict(r=4, lora_alpha=8, target_modules=["in_proj"]),
    "falcon-h1-lora": dict(r=4, lora_alpha=8, target_modules=["in_proj", *LINEARS]),
    "nemotron_h-lora": dict(r=4, lora_alpha=8, target_modules=["in_proj", "q_proj", "up_proj", "down_proj"]),
    "granitehybrid-lora": dict(r=4, lora_alpha=8, target_modules=[*MAMBA, "input_linear", "output_linear", "q_proj"]),
    "jamba-lora": dict(r=4, lora_alpha=8, target_modules=[*MAMBA, "x_proj", *LINEARS]),
    "lfm2-lora": dict(r=4, lora_alpha=8, target_modules=[*MAMBA, "w1", "w2", "w3", "q_proj"]),
    "qwen3next-lora": dict(
        r=4, lora_alpha=8, target_modules=["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj", "o_proj"]
    ),
    "qwen35-lora": dict(r=4, lora_alpha=8, target_modules=[*DELTA, *LINEARS]),
    "qwen35-dora": dict(r=4, lora_alpha=8, use_dora=True, target_modules=[*DELTA, "q_proj", "v_proj"]),
    "kimi-linear-lora": dict(
        r=4, lora_alpha=8, target_modules=["b_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj", "o_proj"]
    ),
}
# llama.cpp's adapters have no magnitudes and one alpha for all tensors, and its converter takes the matrices of gpt2 the
# wrong way round, knows no parameters, stops at some hybrids, and leaves the rows of Granite's queries in another order than
# in its models.
NO_GGUF = ("dora", "qwen2-lora", "rslora", "gpt2-lora", "experts", "qwen2moe-lora", "falcon-h1-lora", "qwen3next-lora")
NO_GGUF += ("qwen35-lora", "kimi-linear-lora", "granitehybrid-lora")


def make(name, source):
    base = BASES / name.rsplit("-", 1)[0]
    model = tf.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[name])).eval()
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" not in key:
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if "magnitude" in key:
                value = parameter * (1 + 0.2 * noise)
            else:
                value = 0.8 * noise / parameter.shape[-1] ** 0.5
            if name.endswith("f32"):
                parameter.copy_(value * (1e6 if "lora_A" in key else 1e-6))
            else:
                parameter.copy_(value.to(torch.bfloat16).float())
    tokens = torch.randint(3, VOCABULARY, (1, N_TOKENS), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logits = model(tokens).logits[0].float()
        plain = tf.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)(tokens).logits[0].float()
    assert torch.isfinite(logits).all() and (logits - plain).norm() > 0.1 * plain.norm(), name
    folder = OUT / name
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    weights = folder / "adapter_model.safetensors"
    if not name.endswith("f32"):
        save_file({key: value.to(torch.bfloat16) for key, value in load_file(weights).items()}, weights)
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace(str(base), base.name))
    golden = {"logits": logits.contiguous(), "tokens": tokens[0].float()}
    save_file(golden, OUT / "golden" / f"{name}.safetensors")
    if not name.endswith(NO_GGUF):
        command = [sys.executable, source / "convert_lora_to_gguf.py", "--base", base, "--outtype", "f32"]
        subprocess.run([*command, "--outfile", OUT / f"{name}.gguf", folder], check=True)
    print(name, float((logits - plain).norm() / plain.norm()))


def name_each_expert(whole, name, source):
    """The same numbers as PEFT wrote them when experts were modules of their own: one pair for each matrix of each."""
    folder, config = OUT / name, json.loads((OUT / whole / "adapter_config.json").read_text())
    tensors = {}
    for key, value in load_file(OUT / whole / "adapter_model.safetensors").items():
        if ".experts" not in key:
            tensors[key] = value
            continue
        module, part = key.split(".experts")[0] + ".experts", key.split(".lora_")[1]
        n_experts, rank = N_EXPERTS, config["r"]
        kinds = ["gate_proj", "up_proj"] if ".base_layer" in key else ["down_proj"]
        for expert in range(n_experts):
            if part.startswith("A"):
                found = [value[expert * rank :][:rank]] * len(kinds)
            else:
                found = value.reshape(len(value), rank, n_experts)[:, :, expert].chunk(len(kinds))
            for kind, tensor in zip(kinds, found):
                tensors[f"{module}.{expert}.{kind}.lora_{part}"] = tensor.clone().contiguous()
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config.update(target_parameters=None, target_modules=["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))
    shutil.copy(OUT / "golden" / f"{whole}.safetensors", OUT / "golden" / f"{name}.safetensors")
    command = [sys.executable, source / "convert_lora_to_gguf.py", "--base", BASES / "qwen3moe", "--outtype", "f32"]
    subprocess.run([*command, "--outfile", OUT / f"{name}.gguf", folder], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convert", type=Path, required=True, help="llama.cpp's source")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    (OUT / "golden").mkdir(parents=True, exist_ok=True)
    for name in arguments.names or ADAPTERS:
        if name in ADAPTERS:
            make(name, arguments.convert)
    if not arguments.names or "qwen3moe-each" in arguments.names:
        name_each_expert("qwen3moe-experts", "qwen3moe-each", arguments.convert)


if __name__ == "__main__":
    main()
