"""Small `tokenizer.json` files of the kinds people publish, and what Hugging Face's `tokenizers` makes of strings.json.

`python json_kinds.py` in this folder writes `../json/NAME.json` and `../golden/json.json`. Needs tokenizers, sentencepiece
and protobuf. A row is [parse, plain] as in the other goldens; `ends` are the first texts with the tokens that the file
puts around them, `decoded` the texts of the rows without special tokens.
"""
import io, json
from pathlib import Path

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent.parent
TEXTS = json.loads((HERE / "strings.json").read_text())
SIZE = 420
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACE = "\u2581"


def split(numbers):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT % numbers), "isolated"), SPLIT_BYTES])


def byte_level(pre, ignore_merges=False, normalizer=None, bos=None):
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer = Tokenizer.from_str(trained.to_str())
    tokenizer.model.ignore_merges = ignore_merges
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|begin|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    if bos:
        around = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", tokenizer.token_to_id("<|begin|>"))])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), around])
    return tokenizer


def sentence_piece(texts, **settings):
    """SentencePiece's own model: pieces, scores, and its table of normalisations."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=out, minloglevel=2, hard_vocab_limit=False, **settings
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(out.getvalue())
    return proto


def characters(prefix):
    """BPE over characters with bytes for the rest: pieces by SentencePiece, merges as the field extracts them."""
    lines = [line for text in TEXTS for line in text.split("\n") if line.strip()]
    proto = sentence_piece(lines, model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
                           remove_extra_whitespaces=False, character_coverage=0.98)
    pieces = [piece.piece for piece in proto.pieces]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for i, piece in enumerate(pieces):
        if proto.pieces[i].type != 1:
            continue
        pairs = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        pairs = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
        merges += [(proto.pieces[i].score, pair) for pair in sorted(pairs, key=lambda p: (vocab[p[0]], vocab[p[1]]))]
    merges = [pair for _, pair in sorted(merges, key=lambda row: -row[0])]
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    replace = normalizers.Replace(" ", SPACE)
    tail = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
    elif prefix == "always":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
    else:
        tokenizer.normalizer = replace
    tokenizer.decoder = decoders.Sequence(tail + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", vocab["<s>"])])
    return tokenizer


def unigram():
    lines = [line for text in TEXTS for line in text.split("\n") if line.strip()]
    proto = sentence_piece(lines, model_type="unigram", vocab_size=500, normalization_rule_name="nmt_nfkc",
                           character_coverage=0.98)
    tokenizer = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap), normalizers.Replace(Regex(" {2,}"), " "),
    ])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>")])
    ids = [(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", ids)
    return tokenizer


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    ids = [(t, tokenizer.token_to_id(t)) for t in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    return tokenizer


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
KINDS = {
    "gpt2": lambda: byte_level(GPT2),
    "digits": lambda: byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2])),
    "llama3": lambda: byte_level(split(r"\p{N}{1,3}"), ignore_merges=True, bos=True),
    "qwen2": lambda: byte_level(split(r"\p{N}"), normalizer=normalizers.NFC()),
    "llama2": lambda: characters("always"),
    "mistral": lambda: characters("first"),
    "gemma": lambda: characters(None),
    "unigram": unigram,
    "wordpiece": word_piece,
}


def main():
    out = {}
    (HERE / "json").mkdir(exist_ok=True)
    for name, make in KINDS.items():
        path = HERE / "json" / f"{name}.json"
        path.write_text(make().to_str())
        tokenizer = Tokenizer.from_file(str(path))
        rows, decoded = [], []
        for text in TEXTS:
            tokenizer.encode_special_tokens = False
            parse = tokenizer.encode(text, add_special_tokens=False).ids
            tokenizer.encode_special_tokens = True
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            rows.append([parse, None if parse == plain else plain])
            decoded.append(tokenizer.decode(parse, skip_special_tokens=True))
        tokenizer.encode_special_tokens = False
        out[name] = dict(rows=rows, ends=[tokenizer.encode(text).ids for text in TEXTS[:20]], decoded=decoded)
        print(name, tokenizer.get_vocab_size(), path.stat().st_size)
    golden = {"by": f"tokenizers {tokenizers.__version__}", "kinds": out}
    (HERE / "golden/json.json").write_text(json.dumps(golden, separators=(",", ":"), ensure_ascii=False))


if __name__ == "__main__":
    main()
