#!/usr/bin/env python3
"""Tiny rerankers with vocabularies of their own, and the scores transformers gives to questions and texts.

    scripts/make_rerankers.py

Needs torch, transformers and tokenizers. Writes `crates/app/testdata/rerankers/NAME/` (config.json, model.safetensors
in bf16, tokenizer.json) for BERT (WordPiece, two token types) and XLM-RoBERTa (Unigram), and `scores.json` beside them:
the ids of every pair as the tokenizer joins it, and the scores in f32.
"""

import json
import shutil
import zlib
from pathlib import Path

import tokenizers as tk
import torch
import transformers as tf
from make_families import randomize
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = Path(__file__).resolve().parent.parent / "crates/app/testdata/rerankers"

QUERY = "What does the giant panda eat?"
DOCUMENTS = [
    "The giant panda is a bear species endemic to China. It eats bamboo, and little else.",
    "Paris is the capital of France.",
    "Pandas, like all bears, CAN eat meat; they rarely do (about 1 % of what they eat).",
    "eat",
    "Naïve café-goers ate bread: 3 loaves!",
]
SHAPE = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_labels=1,
)


def word_piece() -> tf.PreTrainedTokenizerFast:
    tokenizer = tk.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=180, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator([QUERY, *DOCUMENTS], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def unigram() -> tf.PreTrainedTokenizerFast:
    tokenizer = tk.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tk.Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=specials, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([QUERY, *DOCUMENTS], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>", sep_token="</s>")
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, cls_token="<s>", **names)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    scores = {"query": QUERY, "documents": DOCUMENTS}
    for name, tokenizer, config in [
        ("bert", word_piece(), tf.BertConfig(**SHAPE, type_vocab_size=2, max_position_embeddings=128, pad_token_id=0)),
        (
            "xlm-roberta",
            unigram(),
            tf.XLMRobertaConfig(
                **SHAPE, type_vocab_size=1, max_position_embeddings=130, pad_token_id=1, bos_token_id=0, eos_token_id=2
            ),
        ),
    ]:
        config.vocab_size = len(tokenizer)
        model = tf.AutoModelForSequenceClassification.from_config(config).float().eval()
        randomize(model, zlib.crc32(name.encode()))
        pairs = [tokenizer(QUERY, document, return_token_type_ids=True) for document in DOCUMENTS]
        found = []
        for pair in pairs:
            ids = torch.tensor([pair["input_ids"]])
            types = torch.tensor([pair["token_type_ids"]]) if name == "bert" else None
            with torch.no_grad():
                found.append(model(ids, token_type_ids=types).logits[0, 0].item())
        scores[name] = {"ids": [pair["input_ids"] for pair in pairs], "scores": found}
        model.to(torch.bfloat16).save_pretrained(OUT / name)
        tokenizer.backend_tokenizer.save(str(OUT / name / "tokenizer.json"))
    (OUT / "scores.json").write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
