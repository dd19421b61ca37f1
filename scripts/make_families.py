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
from safetensors.torch import load_file, save_file

from family_configs import (
    ANSWERS, CONVERTER_KEYS, CONVERTER_NAMES, CONVERTER_TENSORS, DENSE, FAMILIES, FOREIGN, HEADLESS, NO_GGUF,
    RENAMED_CONFIGS, SMALL, WITHOUT_MTP,
)

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "crates/model/testdata/families"
EXPORTS = ROOT / "crates/model/testdata/exports"
N_TOKENS = 40

# Families that add one to the weights of their norms.
OFFSET_NORMS = ("gemma", "nemotron")
PLAIN_NORMS = ("nemotron_h", "gemma3n", "gemma4")
# Vectors that multiply something.
SCALES = ("scale", "per_expert_scale", "correct_output_scale")


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            leaf = name.rsplit(".", 1)[-1]
            is_norm = "norm" in name.lower() or ".ln" in name
            if leaf == "sinks":
                value = noise
            elif parameter.dim() == 1 and leaf == "weight" and is_norm:
                kind = model.config.model_type
                has_offset = kind.startswith(OFFSET_NORMS) and not kind.startswith(PLAIN_NORMS)
                value = 0.2 * noise + (0.0 if has_offset else 1.0)
            elif leaf in SCALES:
                value = 1.0 + 0.2 * noise
            elif parameter.dim() == 1 or "bias" in leaf:
                value = 0.2 * noise
            elif "embed" in name:
                value = noise
            else:
                fan_in = parameter.shape[-2] if leaf in TRANSPOSED else parameter.shape[-1]
                value = 1.5 * noise / fan_in**0.5
                if model.config.model_type == "phimoe" and "router" in name:
                    # Scores near each other, where its routing differs from that of others.
                    value = value[:1] + 0.01 * value
                if model.config.model_type == "bitnet":
                    # The converter makes them ternary, and leaves these as they are.
                    value = torch.sign(noise) * 0.25
            parameter.copy_(value.to(torch.bfloat16).float())
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                value = 1.0 + 0.2 * torch.randn(buffer.shape, generator=generator)
                buffer.copy_(value.to(torch.bfloat16).float())
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.copy_((0.2 * torch.randn(buffer.shape, generator=generator)).to(torch.bfloat16).float())


# gpt-oss keeps its experts as [in, out].
TRANSPOSED = set()


def build(name):
    config_class, settings = FAMILIES[name]
    config = config_class(**settings)
    config._attn_implementation = "eager"
    if name.endswith("-rerank"):
        model = tf.AutoModelForSequenceClassification.from_config(config)
    elif hasattr(config, "vision_config"):
        model = tf.AutoModelForImageTextToText.from_config(config)
    elif "bert" in config.model_type or name in HEADLESS:
        model = tf.AutoModel.from_config(config)
    elif config.model_type == "mistral4":
        # The only one without an entry among the automatic classes.
        model = tf.Mistral4ForCausalLM(config)
    else:
        model = tf.AutoModelForCausalLM.from_config(config)
    model = model.float().eval()
    TRANSPOSED.clear()
    if name == "gpt-oss":
        TRANSPOSED.update(("gate_up_proj", "down_proj"))
    randomize(model, zlib.crc32(name.encode()))
    if name in ANSWERS:
        # Small enough that no answer is certain.
        with torch.no_grad():
            model.get_input_embeddings().weight[list(ANSWERS[name].values())] *= 2.0**-4
    return model


def dense_layers(name):
    generator = torch.Generator().manual_seed(5)
    layers = [torch.nn.Linear(*widths, bias=False).requires_grad_(False) for widths in DENSE[name]]
    for layer in layers:
        noise = torch.randn(layer.weight.shape, generator=generator)
        layer.weight.copy_(noise.to(torch.bfloat16).float())
    return layers


def save_dense(name, folder):
    """As sentence-transformers writes its modules."""
    kind = "sentence_transformers.models."
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Dense", "Dense")]
    modules = [dict(idx=i, name=str(i), path=path, type=kind + name) for i, (path, name) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(dict(pooling_mode_mean_tokens=True)) + "\n")
    for i, layer in enumerate(dense_layers(name)):
        part = folder / f"{i + 2}_Dense"
        part.mkdir()
        settings = dict(
            in_features=layer.in_features, out_features=layer.out_features, bias=False,
            activation_function="torch.nn.modules.linear.Identity",
        )
        (part / "config.json").write_text(json.dumps(settings) + "\n")
        save_file({"linear.weight": layer.weight.contiguous()}, part / "model.safetensors")


def golden(name, model):
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(3, SMALL["vocab_size"], (1, N_TOKENS), generator=generator)
    # Tokens of this one see each other; transformers has it as a model whose tokens do not.
    sight = dict(attention_mask=torch.zeros(1, 1, N_TOKENS, N_TOKENS)) if name == "llama-embed" else {}
    with torch.no_grad():
        output = model(tokens, **sight)
    if name in ANSWERS:
        tensors = {"score": output.logits[0, -1, [ANSWERS[name]["yes"], ANSWERS[name]["no"]]].float().softmax(-1)}
    elif name in DENSE:
        vector = output.last_hidden_state[0].float().mean(0)
        for layer in dense_layers(name):
            vector = layer(vector)
        tensors = {"vector": torch.nn.functional.normalize(vector, dim=-1)}
    elif name.endswith("-rerank"):
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
import json
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
sys.path.insert(1, sys.argv[1] + "/gguf-py")
import convert_hf_to_gguf as convert
def without_vocabulary(self):
    writer = getattr(self, "impl", self).gguf_writer
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(self.hparams["vocab_size"])
find = convert.get_model_class
def find_without_vocabulary(*args, **kwargs):
    found = find(*args, **kwargs)
    # Mistral 3 is one of two classes inside of its own.
    for one in [found, *(inner for inner in vars(found).values() if isinstance(inner, type))]:
        one.set_vocab = without_vocabulary
    return found
convert.get_model_class = find_without_vocabulary
# Transformers drops keys that it does not know (any more) when it reads a configuration.
load = convert.ModelBase.load_hparams
def load_whole(folder, is_mistral_format):
    whole = {**load(folder, is_mistral_format), **json.loads((Path(folder) / "config.json").read_text())}
    return {key: value for key, value in whole.items() if value != "dropped"}
convert.ModelBase.load_hparams = staticmethod(load_whole)
names = ["--outfile", sys.argv[3], "--outtype", "bf16", "--model-name", sys.argv[4]]
sys.argv = ["convert", sys.argv[2], *names, *sys.argv[5:]]
convert.main()
"""


def vocabulary(name):
    """A tokenizer.json with a word for every token."""
    ids = {str(i): i for i in range(SMALL["vocab_size"])}
    for word, i in ANSWERS.get(name, {}).items():
        del ids[str(i)]
        ids[word] = i
    words = dict(unk_token="0", continuing_subword_prefix="##", max_input_chars_per_word=9)
    return json.dumps({"model": {"type": "WordPiece", "vocab": ids, **words}, "added_tokens": []})


def convert(name, folder, gguf, source):
    """The GGUF form, by llama.cpp's converter from a copy with what it asks for besides the weights."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        (Path(copy) / "tokenizer.json").write_text(vocabulary(name))
        if name in ANSWERS:
            kind = dict(tokenizer_class="PreTrainedTokenizerFast")
            (Path(copy) / "tokenizer_config.json").write_text(json.dumps(kind))
        if name in CONVERTER_KEYS:
            config = json.loads((folder / "config.json").read_text())
            config.update(CONVERTER_KEYS[name](config))
            (Path(copy) / "config.json").write_text(json.dumps(config))
        if name in CONVERTER_NAMES:
            tensors = load_file(folder / "model.safetensors")
            for old, new in CONVERTER_NAMES[name]:
                tensors = {key.replace(old, new): value for key, value in tensors.items()}
            save_file(tensors, Path(copy) / "model.safetensors", metadata={"format": "pt"})
        if name in CONVERTER_TENSORS:
            tensors = CONVERTER_TENSORS[name](load_file(folder / "model.safetensors"))
            save_file(tensors, Path(copy) / "model.safetensors", metadata={"format": "pt"})
        return subprocess.run(
            [sys.executable, "-c", CONVERT, str(source), copy, str(gguf), name, *(["--no-mtp"] * (name in WITHOUT_MTP)),
             *(["--sentence-transformers-dense-modules"] * (name in DENSE))],
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
        if hasattr(model.config, "vision_config"):
            tensors = load_file(folder / "model.safetensors")
            texts = {key: value for key, value in tensors.items() if "visual" not in key}
            save_file(texts, folder / "model.safetensors", metadata={"format": "pt"})
        if name in FOREIGN:
            config = json.loads((folder / "config.json").read_text())
            tensors, changes = FOREIGN[name](load_file(folder / "model.safetensors"), config)
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            config = {key: value for key, value in {**config, **changes}.items() if value is not None}
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for extra in folder.iterdir():
            if extra.name not in ("config.json", "model.safetensors"):
                extra.unlink()
        if name in RENAMED_CONFIGS:
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, **RENAMED_CONFIGS[name]}, indent=2) + "\n")
        if name in DENSE:
            save_dense(name, folder)
        if name in ANSWERS:
            (folder / "tokenizer.json").write_text(vocabulary(name) + "\n")
        if args.convert and name not in NO_GGUF:
            gguf = OUT / f"{name}.gguf"
            run = convert(name, folder, gguf, args.convert)
            # It writes Jina's adapters beside the model; the one asked for has no tensors.
            (OUT / f"lora-none-{name}.gguf").unlink(missing_ok=True)
            if run.returncode != 0:
                failed.append(name)
                print(f"{name}: converter: {run.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        sizes = [f.stat().st_size for f in (folder / "model.safetensors", OUT / f"{name}.gguf") if f.exists()]
        print(name, json.loads((folder / "config.json").read_text())["architectures"], sizes)
    if failed:
        sys.exit(f"no GGUF form of {', '.join(failed)}")


if __name__ == "__main__":
    main()
