"""Trains a small byte-level BPE and encodes strings.json with it by Hugging Face's `tokenizers`.

`python by_tokenizers.py STRINGS.json > golden/small.json`. The vocabulary holds all 256 bytes, some 500 merges, one
token no merge makes (for families that ignore merges), three control tokens and two user-defined ones.
Each row is [parse, plain] as in the llama.cpp goldens.
"""
import json, sys

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

CORPUS = [
    "The engine reads a file, plans the memory, and answers one token after the other.",
    "You are a helpful assistant. I'm here, you're there; it's what they've said, don't you think?",
    "In the beginning there was the word, and the word was cut into pieces: the, then, there, these, those.",
    "for i in range(10):\n    print(i, end=' ')\n    if i == 3:\n        continue\n\n\nreturn None\n",
    "Numbers such as 1, 12, 123, 1234 and 2024-01-31 are cut in different ways. 3.14159 too.",
    "Der schöne Käfer läuft über die Straße. Été, garçon, naïve, coöperate, señor.",
    "Привет мир, это текст на русском языке. Ελληνικά κείμενο. 日本語のテキスト 中文分词测试 한국어 텍스트",
    "😀😀 👍🏽 ❤️ 👨‍👩‍👧‍👦 <html><body>text</body></html> https://example.com/path?query=value",
] * 3
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER = ["<tool>", "  \u3000"]
LOOSE = "Ġunmergeable"

trained = Tokenizer(models.BPE())
trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=760, initial_alphabet=alphabet, show_progress=False))
bpe = json.loads(trained.to_str())["model"]
tokens = [t for t, _ in sorted(bpe["vocab"].items(), key=lambda kv: kv[1])] + [LOOSE]
merges = [m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]]

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
split = lambda pattern: pre_tokenizers.Split(Regex(pattern), "isolated")
bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
FAMILIES = {
    "gpt-2": (gpt2, False),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]), False),
    "llama-bpe": (pre_tokenizers.Sequence([split(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL), bytes_only]), True),
    "qwen2": (pre_tokenizers.Sequence([split(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL), bytes_only]), False),
}
texts = json.load(open(sys.argv[1])) + ["unmergeable", " unmergeable", "an unmergeable word", "a<tool>b", "a  \u3000b", "   \u3000"]
families = {}
for name, (pre, ignore) in FAMILIES.items():
    pairs = [tuple(m.split(" ")) for m in merges]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=pairs, ignore_merges=ignore))
    tok.pre_tokenizer = pre
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in CONTROL])
    tok.add_tokens([AddedToken(t, normalized=False) for t in USER])
    rows = []
    for text in texts:
        tok.encode_special_tokens = False
        parse = tok.encode(text).ids
        tok.encode_special_tokens = True
        plain = tok.encode(text).ids
        rows.append([parse, None if parse == plain else plain])
    families[name] = rows
types = [1] * len(tokens) + [3] * len(CONTROL) + [4] * len(USER)
tokens += CONTROL + USER

dump = lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False)
print('{"tokens":%s,\n"types":%s,\n"merges":%s,\n"extra":%s,\n"families":{' % (dump(tokens), dump(types), dump(merges), dump(texts[-6:])))
print(",\n".join('"%s":[\n%s]' % (name, ",\n".join(map(dump, rows))) for name, rows in families.items()))
print("}}")
