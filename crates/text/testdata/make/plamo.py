"""A small vocabulary of PLaMo 2's kind, and what llama.cpp makes of strings.json with it: `python plamo.py LIBRARIES STRINGS.json
> golden/plamo2.json`.

Needs gguf, and torch and the rest for `scripts/make_by_llama.py`, whose way to llama.cpp's libraries (a folder) it takes.
Pieces are parts of the texts, with random scores. Rows as in by_llama_cpp.py.
"""
import ctypes, json, random, sys, tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "scripts"))
import gguf
import make_by_llama as by_llama

# Where llama_model_params has its flags, in bytes, the first of them `vocab_only`.
FLAGS = 72

texts = json.load(open(sys.argv[2]))
generator = random.Random(2)
control = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", "<|plamo:op|>"]
tokens = [(text, 0.0, 2 if i == 0 else 3) for i, text in enumerate(control)]
tokens += [(f"<0x{i:02X}>", 0.0, 6) for i in range(256)]
letters = sorted({c for text in texts for c in text if c != "\0"})
pieces = set(generator.sample(letters, len(letters) * 3 // 4))
while len(pieces) < 1500:
    text = generator.choice(texts)
    if len(text) > 1 and "\0" not in text:
        start = generator.randrange(len(text) - 1)
        pieces.add(text[start:start + generator.randint(2, 9)])
# Names that llama.cpp takes for control tokens, whatever their type.
pieces = sorted(pieces - set(control) - {"</s>", "<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<eos>"})
generator.shuffle(pieces)
tokens += [(piece, -generator.uniform(2, 15), 1) for piece in pieces]
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "plamo2")
    writer.add_tokenizer_model("plamo2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _, _ in tokens])
    writer.add_token_scores([score for _, score, _ in tokens])
    writer.add_token_types([kind for _, _, kind in tokens])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    llama = by_llama.library(Path(sys.argv[1]))
    params = llama.llama_model_default_params()
    flags = ctypes.cast(ctypes.pointer(params), ctypes.POINTER(ctypes.c_uint8))
    assert flags[FLAGS:FLAGS + 3] == [0, 0, 1], "llama_model_params has changed"
    flags[FLAGS] = 1
    model = llama.llama_model_load_from_file(path.encode(), params)
    assert model, "llama.cpp cannot load the vocabulary"
    llama.llama_model_get_vocab.restype = ctypes.c_void_p
    vocab = ctypes.c_void_p(llama.llama_model_get_vocab(ctypes.c_void_p(model)))


def ids(text, parse):
    raw = text.encode()
    out = (ctypes.c_int * (len(raw) + 8))()
    n = llama.llama_tokenize(vocab, raw, len(raw), out, len(out), False, parse)
    assert n >= 0
    return list(out[:n])


rows = []
for text in texts:
    parse, plain = ids(text, True), ids(text, False)
    rows.append([parse, None if parse == plain else plain])
print('{\n"tokens": %s,\n"scores": %s,\n"types": %s,\n"rows": [' % tuple(json.dumps([t[i] for t in tokens]) for i in range(3)))
print(",\n".join(json.dumps(row, separators=(",", ":")) for row in rows))
print("]\n}")
