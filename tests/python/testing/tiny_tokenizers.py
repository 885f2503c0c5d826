"""Tiny tokenizers of the kinds that checkpoints have, their files and texts for them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from specdec_native.text.detokenizer import TextStream

CORPUS = [
    "hello world, the quick brown fox",
    "über straße naïve café",
    "日本語 テキスト 😀 🎉 end",
] * 4

TEXTS = [
    "the world",
    "日本語 straße 😀🎉",
    " leading  spaces ",
    "a\nb\n\nc",
    "ünïcödé 🧑‍🚀 the end",
]


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2, Llama 3 and Qwen have it; bytes without a merge stay single tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=330,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<s>", "</s>"],
            show_progress=False,
        ),
    )
    return tokenizer


def sentencepiece_like() -> tokenizers.Tokenizer:
    """As Llama 2 and Mistral have it: a leading space that decoding strips, byte fallback."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁t", "he", "▁the", "▁w", "or", "▁wor", "ld"]
    merges = [
        ("▁", "t"),
        ("h", "e"),
        ("▁t", "he"),
        ("▁", "w"),
        ("o", "r"),
        ("▁w", "or"),
        ("l", "d"),
    ]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def save(tokenizer: tokenizers.Tokenizer, directory: Path, **config: Any) -> Path:
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def pieces_of(stream: TextStream, ids: Sequence[int]) -> list[str]:
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]
