#!/usr/bin/env python3
"""Tiny rerankers with vocabularies of their own, and the scores transformers gives to questions and texts.

    scripts/make_rerankers.py

Needs torch, transformers and tokenizers. Writes `crates/app/testdata/rerankers/NAME/` (config.json, model.safetensors
in bf16, tokenizer.json) for BERT (WordPiece, two token types), XLM-RoBERTa (Unigram) and Qwen3 (byte-level BPE; scored by
how likely it answers "yes"), and `scores.json` beside them: the ids of every pair as the tokenizer joins it, and the
scores in f32. Also an embedder of Gemma 3's kind with the modules and prompts of sentence-transformers, and its vectors.
"""

import json
import shutil
import zlib
from pathlib import Path

import tokenizers as tk
import torch
import transformers as tf
from make_families import dense_layers, randomize, save_dense
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


# The recipe on the model card of Qwen3-Reranker.
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"


def byte_pairs() -> tf.PreTrainedTokenizerFast:
    tokenizer = tk.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([QUERY, *DOCUMENTS, PREFIX, TASK, *["yes", "no"] * 50], trainer)
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|endoftext|>", eos_token="<|endoftext|>")


def yes_or_no(scores: dict) -> None:
    name, tokenizer = "qwen3-reranker", byte_pairs()
    settings = {key: value for key, value in SHAPE.items() if key != "num_labels"}
    config = tf.Qwen3Config(
        **settings, num_key_value_heads=2, head_dim=16, use_sliding_window=False, tie_word_embeddings=True,
        vocab_size=len(tokenizer), max_position_embeddings=512, bos_token_id=0, eos_token_id=0,
    )
    config._attn_implementation = "eager"
    model = tf.AutoModelForCausalLM.from_config(config).float().eval()
    randomize(model, zlib.crc32(name.encode()))
    # Small enough that no answer is certain.
    answers = [tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no")]
    assert None not in answers
    with torch.no_grad():
        model.get_input_embeddings().weight[answers] *= 2.0**-4
    texts = [f"{PREFIX}<Instruct>: {TASK}\n<Query>: {QUERY}\n<Document>: {document}{SUFFIX}" for document in DOCUMENTS]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    with torch.no_grad():
        logits = [model(torch.tensor([pair])).logits[0, -1, answers] for pair in ids]
    scores[name] = {"ids": ids, "scores": [pair.softmax(-1)[0].item() for pair in logits]}
    model.to(torch.bfloat16).save_pretrained(OUT / name)
    tokenizer.backend_tokenizer.save(str(OUT / name / "tokenizer.json"))


def embedder(scores: dict) -> None:
    name, tokenizer = "gemma-embedding", unigram()
    settings = {key: value for key, value in SHAPE.items() if key != "num_labels"}
    config = tf.Gemma3TextConfig(
        **settings, num_key_value_heads=2, head_dim=16, sliding_window=8, query_pre_attn_scalar=16,
        use_bidirectional_attention=True, vocab_size=len(tokenizer), max_position_embeddings=128,
    )
    config._attn_implementation = "eager"
    model = tf.AutoModel.from_config(config).float().eval()
    randomize(model, zlib.crc32(name.encode()))
    layers = dense_layers("gemma-embedding-dense")
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    vectors = {}
    for prompt, text in [("query", QUERY), *(("document", document) for document in DOCUMENTS)]:
        ids = tokenizer(prompts[prompt] + text)["input_ids"]
        with torch.no_grad():
            vector = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        for layer in layers:
            vector = layer(vector)
        vectors[text] = torch.nn.functional.normalize(vector, dim=-1).tolist()
    scores[name] = {"vectors": vectors}
    model.to(torch.bfloat16).save_pretrained(OUT / name)
    tokenizer.backend_tokenizer.save(str(OUT / name / "tokenizer.json"))
    save_dense("gemma-embedding-dense", OUT / name)
    sentences = dict(prompts=prompts, default_prompt_name=None, similarity_fn_name="cosine")
    (OUT / name / "config_sentence_transformers.json").write_text(json.dumps(sentences, indent=2) + "\n")


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
    yes_or_no(scores)
    embedder(scores)
    (OUT / "scores.json").write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
