#!/usr/bin/env python3
"""Tiny random checkpoints of every model family, with what transformers computes from them.

    scripts/make_families.py --convert LLAMA_CPP_SOURCE [NAME...]

Needs torch, transformers, safetensors, gguf and sentencepiece, and llama.cpp's source for its converter. Writes
`crates/model/testdata/families/NAME/` (config.json and model.safetensors, as `save_pretrained` leaves them),
`NAME.gguf` (by llama.cpp's converter, without a vocabulary) and `golden/NAME.safetensors`: the tokens, and the logits
or the hidden states of every one of them, in f32.

Weights are rounded to bf16 before anything is computed, so that both forms hold exactly the weights of the golden
numbers. Norms, biases and gates are random too: a forgotten one shows.

`gpt-oss-mxfp4` goes to `crates/model/testdata/exports/`, folder and GGUF only: experts of random blocks, as the published
checkpoints keep them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "crates/model/testdata/families"
EXPORTS = ROOT / "crates/model/testdata/exports"
N_TOKENS = 40

SMALL = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)


def small(**more):
    return {**SMALL, **more}


def rope(theta=10000.0, kind="default", **more):
    return dict(rope_theta=theta, rope_type=kind, **more)


def encoder(**more):
    return {key: value for key, value in small(**more).items() if key != "num_key_value_heads"}


# Two positions are kept for padding.
XLM = dict(type_vocab_size=1, pad_token_id=1, bos_token_id=0, max_position_embeddings=130)
LONG = [1.0 + 0.3 * i for i in range(4)]
SHORT = [1.0 + 0.05 * i for i in range(4)]
YARN = dict(factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)

# name: (configuration class, what differs from SMALL). The model class follows from `architectures`.
FAMILIES = {
    "llama": (tf.LlamaConfig, small(rope_parameters=rope(5000.0))),
    "llama3": (
        tf.LlamaConfig,
        small(
            tie_word_embeddings=True,
            rope_parameters=rope(
                5000.0,
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
    ),
    "llama-linear": (tf.LlamaConfig, small(rope_parameters=rope(10000.0, "linear", factor=4.0))),
    "mistral": (tf.MistralConfig, small(sliding_window=None, head_dim=16)),
    "mixtral": (
        tf.MixtralConfig,
        small(num_local_experts=4, num_experts_per_tok=2, intermediate_size=32, sliding_window=None),
    ),
    "granite": (
        tf.GraniteConfig,
        small(
            embedding_multiplier=6.0,
            residual_multiplier=0.4,
            attention_multiplier=0.11,
            logits_scaling=3.0,
            tie_word_embeddings=True,
        ),
    ),
    "qwen2": (tf.Qwen2Config, small(use_sliding_window=False)),
    "qwen2-yarn": (tf.Qwen2Config, small(use_sliding_window=False, rope_parameters=rope(10000.0, "yarn", **YARN))),
    "qwen2moe": (
        tf.Qwen2MoeConfig,
        small(
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=48,
            norm_topk_prob=False,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            use_sliding_window=False,
        ),
    ),
    "qwen3": (tf.Qwen3Config, small(head_dim=16, use_sliding_window=False, tie_word_embeddings=True)),
    "qwen3moe": (
        tf.Qwen3MoeConfig,
        small(
            head_dim=16,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            use_sliding_window=False,
        ),
    ),
    "gemma": (tf.GemmaConfig, small(head_dim=16, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True)),
    "gemma2": (
        tf.Gemma2Config,
        small(
            head_dim=16,
            sliding_window=12,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=4.0,
            final_logit_softcapping=3.0,
            tie_word_embeddings=True,
        ),
    ),
    "gemma3": (
        tf.Gemma3TextConfig,
        small(
            head_dim=16,
            num_hidden_layers=6,
            intermediate_size=64,
            sliding_window=12,
            query_pre_attn_scalar=16,
            tie_word_embeddings=True,
            rope_parameters={
                "full_attention": rope(1000000.0, "linear", factor=8.0),
                "sliding_attention": rope(10000.0),
            },
        ),
    ),
    "phi3": (tf.Phi3Config, small(sliding_window=None, rope_parameters=rope(10000.0))),
    "phi3-longrope": (
        tf.Phi3Config,
        small(
            sliding_window=None,
            original_max_position_embeddings=32,
            rope_parameters=rope(
                10000.0,
                "longrope",
                long_factor=LONG,
                short_factor=SHORT,
                original_max_position_embeddings=32,
                factor=4.0,
            ),
        ),
    ),
    "olmo2": (tf.Olmo2Config, small()),
    "stablelm": (
        tf.StableLmConfig,
        small(
            num_attention_heads=2,
            num_key_value_heads=1,
            use_qkv_bias=True,
            rope_parameters=dict(rope_theta=10000.0, rope_type="default", partial_rotary_factor=0.25),
        ),
    ),
    "glm4": (
        tf.Glm4Config,
        small(
            head_dim=16,
            attention_bias=True,
            rope_parameters=dict(rope_theta=10000.0, rope_type="default", partial_rotary_factor=0.5),
        ),
    ),
    "deepseek2": (
        tf.DeepseekV2Config,
        small(
            num_key_value_heads=4,
            num_hidden_layers=2,
            kv_lora_rank=32,
            q_lora_rank=48,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=16,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_shared_experts=2,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            routed_scaling_factor=2.0,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            norm_topk_prob=False,
        ),
    ),
    "deepseek3": (
        tf.DeepseekV3Config,
        small(
            num_key_value_heads=4,
            num_hidden_layers=2,
            kv_lora_rank=32,
            q_lora_rank=48,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=16,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_shared_experts=1,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            routed_scaling_factor=2.5,
            n_group=4,
            topk_group=2,
            norm_topk_prob=True,
            rope_parameters=rope(10000.0, "yarn", mscale=1.0, mscale_all_dim=1.0, **YARN),
        ),
    ),
    "gpt-oss": (
        tf.GptOssConfig,
        small(
            head_dim=16,
            intermediate_size=32,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=12,
            rope_parameters=rope(10000.0, "yarn", truncate=False, **YARN),
        ),
    ),
    "bert": (tf.BertConfig, encoder(type_vocab_size=2)),
    "nomic-bert": (tf.NomicBertConfig, encoder(type_vocab_size=2, max_position_embeddings=2048)),
    "xlm-roberta": (tf.XLMRobertaConfig, encoder(**XLM)),
    "bert-rerank": (tf.BertConfig, encoder(type_vocab_size=2, num_labels=1)),
    "xlm-roberta-rerank": (tf.XLMRobertaConfig, encoder(num_labels=1, **XLM)),
}
# llama.cpp's converter drops the pooler of BERT, without which the score is another.
NO_GGUF = {"bert-rerank"}


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            leaf = name.rsplit(".", 1)[-1]
            is_norm = "norm" in name.lower()
            if leaf == "sinks":
                value = noise
            elif parameter.dim() == 1 and leaf == "weight" and is_norm:
                value = 0.2 * noise + (0.0 if "gemma" in model.config.model_type else 1.0)
            elif parameter.dim() == 1 or "bias" in leaf:
                value = 0.2 * noise
            elif "embed" in name:
                value = noise
            else:
                fan_in = parameter.shape[-2] if leaf in TRANSPOSED else parameter.shape[-1]
                value = 1.5 * noise / fan_in**0.5
            parameter.copy_(value.to(torch.bfloat16).float())
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_((0.2 * torch.randn(buffer.shape, generator=generator)).to(torch.bfloat16).float())


# gpt-oss keeps its experts as [in, out].
TRANSPOSED = set()


def build(name):
    config_class, settings = FAMILIES[name]
    config = config_class(**settings)
    config._attn_implementation = "eager"
    if name.endswith("-rerank"):
        model = tf.AutoModelForSequenceClassification.from_config(config)
    elif "bert" in config.model_type or "roberta" in config.model_type:
        model = tf.AutoModel.from_config(config)
    else:
        model = tf.AutoModelForCausalLM.from_config(config)
    model = model.float().eval()
    TRANSPOSED.clear()
    if name == "gpt-oss":
        TRANSPOSED.update(("gate_up_proj", "down_proj"))
    randomize(model, zlib.crc32(name.encode()))
    return model


def golden(name, model):
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(3, SMALL["vocab_size"], (1, N_TOKENS), generator=generator)
    with torch.no_grad():
        output = model(tokens)
    if name.endswith("-rerank"):
        tensors = {"score": output.logits[0].float()}
    elif hasattr(output, "logits"):
        tensors = {"logits": output.logits[0].float()}
    else:
        tensors = {"hidden": output.last_hidden_state[0].float()}
    for tensor in tensors.values():
        assert torch.isfinite(tensor).all(), name
    tensors["tokens"] = tokens[0].float()
    return {key: value.contiguous() for key, value in tensors.items()}


CONVERT = """
import sys
sys.path.insert(0, sys.argv[1])
sys.path.insert(1, sys.argv[1] + "/gguf-py")
import convert_hf_to_gguf as convert
def without_vocabulary(self):
    self.gguf_writer.add_tokenizer_model("no_vocab")
    self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])
find = convert.get_model_class
def find_without_vocabulary(*args, **kwargs):
    found = find(*args, **kwargs)
    found.set_vocab = without_vocabulary
    return found
convert.get_model_class = find_without_vocabulary
sys.argv = ["convert", sys.argv[2], "--outfile", sys.argv[3], "--outtype", "bf16", "--model-name", sys.argv[4]]
convert.main()
"""


def convert(name, folder, gguf, source):
    """The GGUF form, by llama.cpp's converter from a copy with what it asks for besides the weights."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        vocabulary = {str(i): i for i in range(SMALL["vocab_size"])}
        tokenizer = {"model": {"type": "WordPiece", "vocab": vocabulary}, "added_tokens": []}
        (Path(copy) / "tokenizer.json").write_text(json.dumps(tokenizer))
        if name == "nomic-bert":
            # The converter reads the keys of the model's own code, transformers writes its own.
            config = json.loads((folder / "config.json").read_text())
            config.update(
                n_positions=8192, max_trained_positions=2048, activation_function="swiglu", causal=False,
                qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False, prenorm=False, rotary_emb_fraction=1.0,
                rotary_emb_interleaved=False, rotary_emb_scale_base=None, rotary_emb_base=10000.0,
                n_embd=config["hidden_size"], n_inner=config["intermediate_size"], n_layer=config["num_hidden_layers"],
                n_head=config["num_attention_heads"], layer_norm_epsilon=config["layer_norm_eps"],
            )
            (Path(copy) / "config.json").write_text(json.dumps(config))
        return subprocess.run(
            [sys.executable, "-c", CONVERT, str(source), copy, str(gguf), name],
            capture_output=True, text=True, env={**os.environ, "NO_LOCAL_GGUF": "1"},
        )


def pack(name, source):
    """A gpt-oss whose experts are MXFP4 blocks and scales, [experts, outputs, groups, 16] and [experts, outputs, groups]."""
    settings = dict(FAMILIES["gpt-oss"][1], hidden_size=64)
    config = tf.GptOssConfig(**settings)
    TRANSPOSED.update(("gate_up_proj", "down_proj"))
    model = tf.AutoModelForCausalLM.from_config(config).float()
    randomize(model, zlib.crc32(name.encode()))
    generator = torch.Generator().manual_seed(11)
    tensors = {}
    for key, value in model.to(torch.bfloat16).state_dict().items():
        if key.endswith(("gate_up_proj", "down_proj")):
            n, n_in, n_out = value.shape
            random = lambda low, high, *shape: torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)
            tensors[f"{key}_blocks"] = random(0, 256, n, n_out, n_in // 32, 16)
            tensors[f"{key}_scales"] = random(120, 126, n, n_out, n_in // 32)
        else:
            tensors[key] = value.contiguous()
    folder = EXPORTS / name
    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = ["GptOssForCausalLM"]
    config.quantization_config = {"quant_method": "mxfp4"}
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    run = convert(name, folder, EXPORTS / f"{name}.gguf", source)
    if run.returncode != 0:
        sys.exit(f"{name}: converter: {run.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--convert", type=Path, help="llama.cpp's source folder, for its converter")
    args = parser.parse_args()
    (OUT / "golden").mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.names or [*FAMILIES, "gpt-oss-mxfp4"]:
        if name == "gpt-oss-mxfp4":
            if args.convert:
                pack(name, args.convert)
            continue
        model = build(name)
        save_file(golden(name, model), OUT / "golden" / f"{name}.safetensors")
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(folder)
        for extra in folder.iterdir():
            if extra.name not in ("config.json", "model.safetensors"):
                extra.unlink()
        if args.convert and name not in NO_GGUF:
            gguf = OUT / f"{name}.gguf"
            run = convert(name, folder, gguf, args.convert)
            if run.returncode != 0:
                failed.append(name)
                print(f"{name}: converter: {run.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        sizes = [f.stat().st_size for f in (folder / "model.safetensors", OUT / f"{name}.gguf") if f.exists()]
        print(name, json.loads((folder / "config.json").read_text())["architectures"], sizes)
    if failed:
        sys.exit(f"no GGUF form of {', '.join(failed)}")


if __name__ == "__main__":
    main()
