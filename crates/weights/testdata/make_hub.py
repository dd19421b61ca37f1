"""Makes model folders of safetensors, a GGUF model in parts and a GGUF file of version 1, with other people's writers:

    pip install gguf==0.19.0 safetensors==0.6.2 && python make_hub.py
    pip install gguf==0.2.1 && python make_hub.py --v1     (in a venv of its own: the first release wrote version 1)
"""

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def write_v1():
    import gguf

    path = HERE / "old_v1.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("old")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("a.float", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_array("a.strings", ["one", "", "three"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_tensor("matrix", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("halves", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_parts():
    import gguf

    path = HERE / "parts.gguf"
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=2)
    writer.add_uint32("llama.block_count", 1)
    for i in range(5):
        writer.add_tensor(f"tensor.{i}", np.full((2, 3), i, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def save(path, tensors):
    from safetensors import serialize

    names = {"f4": "float32", "f2": "float16", "i4": "int32", "i8": "int64", "f8": "float64", "u1": "uint8"}
    flat = {}
    for name, array in tensors.items():
        kind = "bfloat16" if name.endswith("bf16") else names[array.dtype.str[1:]]
        flat[name] = {"dtype": kind, "shape": list(array.shape), "data": array.tobytes()}
    path.write_bytes(serialize(flat, None))


def write_folders():
    rng = np.random.default_rng(6)
    one = HERE / "hub_one"
    one.mkdir(exist_ok=True)
    tensors = {"model.embed_tokens.weight": rng.standard_normal((7, 5)).astype(np.float32),
               "model.norm.weight": np.arange(5, dtype=np.float16),
               "half.bf16": np.array([[0x3F80, 0xC000, 0x3F00]], dtype=np.uint16),
               "positions": np.arange(4, dtype=np.int64), "scalar": np.array(2.5, dtype=np.float32),
               "empty": np.zeros((0, 3), dtype=np.float32), "mask": np.zeros(3, dtype=np.uint8)}
    save(one / "model.safetensors", tensors)
    (one / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 5}))
    (one / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    (one / "tokenizer_config.json").write_text(json.dumps({"chat_template": "from the tokenizer", "bos_token": "<s>"}))
    (one / "tokenizer.json").write_text("{}")

    many = HERE / "hub_many"
    many.mkdir(exist_ok=True)
    shards = {"model-00001-of-00002.safetensors": ["a", "c"], "model-00002-of-00002.safetensors": ["b"]}
    for file, names in shards.items():
        save(many / file, {name: np.full((2, 2), ord(name), dtype=np.float32) for name in names})
    weight_map = {name: file for file, names in shards.items() for name in names}
    (many / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (many / "config.json").write_text("\ufeff" + json.dumps({"model_type": "llama"}))
    (many / "chat_template.jinja").write_text("from the file\n")


if sys.argv[1:] == ["--v1"]:
    write_v1()
else:
    write_parts()
    write_folders()
