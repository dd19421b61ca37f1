"""Tokenizes strings.json with llama.cpp: `python by_llama_cpp.py VOCAB.gguf STRINGS.json > golden/NAME.json`.

Needs PyPI's llama-cpp-python. Each row is [parse, plain]: the ids with special tokens read, and the ids without
(null where they are the same). `ends` are the tokens that end an answer; `add` what add_special puts around "".
"""
import ctypes, json, sys

import llama_cpp as L

quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, ctypes.c_void_p())
L.llama_backend_init()
params = L.llama_model_default_params()
params.vocab_only = True
model = L.llama_model_load_from_file(sys.argv[1].encode(), params)
vocab = L.llama_model_get_vocab(model)


def ids(text, add, parse):
    raw = text.encode()
    out = (ctypes.c_int * (len(raw) + 8))()
    n = L.llama_tokenize(vocab, raw, len(raw), out, len(out), add, parse)
    assert n >= 0
    return list(out[:n])


rows = []
for text in json.load(open(sys.argv[2])):
    parse, plain = ids(text, False, True), ids(text, False, False)
    rows.append([parse, None if parse == plain else plain])
n_vocab = L.llama_vocab_n_tokens(vocab)
ends = [i for i in range(n_vocab) if L.llama_vocab_is_eog(vocab, i)]
print('{\n"n_vocab": %d,\n"ends": %s,\n"add": %s,\n"rows": [' % (n_vocab, json.dumps(ends), json.dumps(ids("", True, True))))
print(",\n".join(json.dumps(row, separators=(",", ":")) for row in rows))
print("]\n}")
