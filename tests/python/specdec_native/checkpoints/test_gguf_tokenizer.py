"""Tokenizers rebuilt from GGUF metadata cut text as the originals do."""

import json
import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import AutoTokenizer, GemmaTokenizer

from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_convert import convert_gguf
from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_splitters import SPLIT_RULES
from specdec_native.checkpoints.gguf_tokenizer import TokenType, build_tokenizer
from specdec_native.text.tokenizer import Tokenizer as TextTokenizer

ROOT = Path(__file__).parents[4]

TEXTS = [
    "",
    " ",
    "Hello, world! don't DON'T I'll WE'VE",
    "1234567 + 89 = 12.5% of 2024-06-01, x1y22z333",
    "def f(x):\n    return x ** 2\n\n\n\tif x:\n\t\tpass  \n",
    "  leading,   runs    of spaces   ",
    "\r\n\r\n a\tb\n \n  \n",
    "你好\uff0c世界\uff011234 日本語テキスト、カタカナ 한국어",
    "\U0001f600\U0001f469\u200d\U0001f469\u200d\U0001f467 emoji \U0001f1eb\U0001f1f7",
    "e\u0301 and \u00e9, \u212b \u00c5 \ufb01",
    "\u2167 \u00bd \u00b2\u00b3 \u0663\u0664\u0665",
    "a\u00a0b\u2003c\u2028d",
    "<|start|>user\nhi 12<|end|>\n<|start|>",
    "<tool>12</tool> <tool>",
    "\x00\x01\x7f",
]
SPECIAL = ["<|pad|>", "<|start|>", "<|end|>"]

# The cut of each family as its own tokenizer.json states it.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def with_regex(*patterns: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def byte_level_with_digits() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


# Longer ones, likewise; some cut numbers first.
CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CUTS: dict[str, tuple[str, ...]] = {
    "dbrx": (LLAMA3,),
    "glm4": (LLAMA3,),
    "falcon3": (LLAMA3,),
    "stablelm2": (QWEN2,),
    "gpt-4o": (CASES,),
    "tiny_aya": (r"\d{1,3}(?=(?:\d{3})*\b)", CASES),
    "qwen35": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "seed-coder": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
        r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "minicpm5": (r"\p{N}{1,3}", QWEN2.replace(r"\p{N}|", r"\p{N}+|")),
    "bailingmoe2": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
}
ORIGINALS: dict[str, tuple[Any, Any, bool]] = {  # name: (splitter, normalizer, ignore_merges)
    "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None, False),
    "smollm": (byte_level_with_digits(), None, False),
    "qwen2": (with_regex(QWEN2), normalizers.NFC(), False),
    "llama-bpe": (with_regex(LLAMA3), None, True),
}


def corpus() -> Iterator[str]:
    prompts = json.loads((ROOT / "tests/data/prompts.json").read_text())
    for kind in prompts.values():
        yield from kind
    yield from TEXTS * 20
    rng = random.Random(0)
    for _ in range(300):
        yield f"{rng.randint(0, 10**9)} {rng.randint(0, 99)}\n\n{rng.random()}"


def train(rule: str) -> Tokenizer:
    """A small tokenizer with the splitter that files naming `rule` come from."""
    splitter, normalizer, ignore_merges = ORIGINALS[rule]
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def metadata_of(tokenizer: Tokenizer, rule: str) -> dict[str, Any]:
    """The GGUF metadata a converter writes for `tokenizer`, padded with two unused tokens."""
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = [
        TokenType.CONTROL
        if token in SPECIAL
        else TokenType.USER_DEFINED
        if token == "<tool>"
        else TokenType.NORMAL
        for token in tokens
    ]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": [*tokens, "[PAD0]", "[PAD1]"],
        "tokenizer.ggml.token_type": [int(kind) for kind in [*kinds, 5, 5]],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.padding_token_id": 0,
    }


def rebuild(path: Path, metadata: dict[str, Any]) -> Tokenizer:
    source = write_gguf(path, "llama", LLAMA_METADATA | metadata, {})
    return build_tokenizer(GgufFile(source))


@pytest.mark.parametrize("rule", ORIGINALS)
def test_byte_level_tokenizer_equals_the_original(rule: str, tmp_path: Path) -> None:
    original = train(rule)
    rebuilt = rebuild(tmp_path / "model.gguf", metadata_of(original, rule))
    assert rebuilt.get_vocab() == original.get_vocab()
    for text in [*TEXTS, *list(corpus())[-300:]]:
        expected = original.encode(text, add_special_tokens=False).ids
        assert rebuilt.encode(text).ids == expected, text
        for skip in (False, True):
            assert rebuilt.decode(expected, skip_special_tokens=skip) == original.decode(
                expected, skip_special_tokens=skip
            )


@pytest.mark.parametrize("rule", CUTS)
def test_text_is_cut_as_the_rule_that_is_named_cuts_it(rule: str) -> None:
    expected = with_regex(*CUTS[rule])
    found = SPLIT_RULES[rule].pre_tokenizer()
    for text in [*TEXTS, "HelloWorld'S aB cD/\n EF'll", *list(corpus())[-50:]]:
        assert found.pre_tokenize_str(text) == expected.pre_tokenize_str(text), text


def test_rules_say_how_words_and_texts_begin() -> None:
    whole_words = {name for name, rule in SPLIT_RULES.items() if rule.whole_words_first}
    beginning = {name for name, rule in SPLIT_RULES.items() if rule.begins}
    assert whole_words - beginning == {"glm4", "glm5", "minicpm5"}
    assert beginning == {
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "tekken",
    }  # fmt: skip
    composing = {name for name, rule in SPLIT_RULES.items() if rule.composes}
    assert composing == {"qwen2", "deepseek-r1-qwen", "command-r"}


def test_smollm_takes_digits_one_by_one(tmp_path: Path) -> None:
    tokenizer = rebuild(tmp_path / "model.gguf", metadata_of(train("smollm"), "smollm"))
    tokens = tokenizer.encode("in 1024 and 365").tokens
    assert [token for token in tokens if token.isdigit()] == list("1024365")


def test_llama3_takes_a_word_that_no_merge_makes(tmp_path: Path) -> None:
    metadata = metadata_of(train("gpt-2"), "gpt-2")
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("[PAD0]")] = "qzjxw"
    metadata["tokenizer.ggml.token_type"][-2] = int(TokenType.NORMAL)
    merging = rebuild(tmp_path / "merging.gguf", metadata)
    whole = rebuild(tmp_path / "whole.gguf", metadata | {"tokenizer.ggml.pre": "llama-bpe"})
    assert whole.encode("qzjxw").tokens == ["qzjxw"]
    assert len(merging.encode("qzjxw").tokens) > 1


def test_begin_token_is_added_exactly_when_the_file_asks(tmp_path: Path) -> None:
    metadata = metadata_of(train("gpt-2"), "gpt-2")
    without = rebuild(tmp_path / "without.gguf", metadata)
    metadata["tokenizer.ggml.add_bos_token"] = True
    with_bos = rebuild(tmp_path / "with.gguf", metadata)
    ids = without.encode("hello").ids
    assert with_bos.encode("hello").ids == [1, *ids]
    assert with_bos.encode("hello", add_special_tokens=False).ids == ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.pre": "viking-7"}, r"tokenizer.ggml.pre is 'viking-7'.*tokenizer=<a dir"),
        ({"tokenizer.ggml.model": "rwkv"}, r"tokenizer.ggml.model is 'rwkv'.*tokenizer=<a dir"),
    ],
)
def test_unknown_tokenizer_is_named_where_text_is_needed(
    change: dict[str, Any], message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = metadata_of(train("gpt-2"), "gpt-2") | change
    with pytest.raises(CheckpointError, match=message):
        rebuild(tmp_path / "model.gguf", metadata)
    source = write_gguf(
        tmp_path / "whole.gguf", "llama", LLAMA_METADATA | metadata, llama_tensors()
    )
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    with caplog.at_level(logging.WARNING):
        convert_gguf(source, directory)
    assert re.search(message, caplog.text)
    assert (directory / "model.safetensors").is_file()
    with pytest.raises(ValueError, match=message):
        TextTokenizer.from_directory(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.merges": ["a"]}, "'a' is not two tokens"),
        ({"tokenizer.ggml.merges": ["a zzz"]}, "is not made of tokens"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type has 1 entries"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "bos_token_id is 1000000"),
    ],
)
def test_malformed_vocabulary_is_a_checkpoint_error(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    metadata = metadata_of(train("gpt-2"), "gpt-2") | {"tokenizer.ggml.add_bos_token": True}
    with pytest.raises(CheckpointError, match=message):
        rebuild(tmp_path / "model.gguf", metadata | change)


PIECES = ["▁", "h", "e", "l", "o", "t", "r", "w", "d", "ll", "he", "lo", "hell", "▁h",
          "▁he", "▁hell", "▁hello", "or", "wor", "▁w", "▁wor", "ld", "▁t", "▁the", "th", "▁▁",
          "▁▁▁▁", "1", "2", "12"]  # fmt: skip


def sentencepiece_metadata() -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<custom>"]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    kinds += [TokenType.BYTE] * 256 + [TokenType.USER_DEFINED]
    scores = [0.0] * len(tokens)
    # As in real vocabularies: multi-letter pieces from the best merge down, then single letters.
    ordered = sorted(PIECES, key=lambda piece: (len(piece) == 1, len(piece), piece))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens + ordered,
        "tokenizer.ggml.token_type": [int(k) for k in kinds] + [1] * len(ordered),
        "tokenizer.ggml.scores": scores + [-float(rank) for rank in range(len(ordered))],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


def sentencepiece_reference(text: str, metadata: dict[str, Any], prefix: str) -> list[int]:
    """SentencePiece BPE by its definition: merge the best neighbours, leftmost first, till none."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    ids = {token: i for i, token in enumerate(tokens)}
    pieces = list((prefix + text).replace(" ", "▁"))
    while True:
        best: tuple[float, int] | None = None
        for i in range(len(pieces) - 1):
            merged = pieces[i] + pieces[i + 1]
            if merged in PIECES and (best is None or scores[ids[merged]] > best[0]):
                best = (scores[ids[merged]], i)
        if best is None:
            break
        at = best[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    result: list[int] = []
    for piece in pieces:
        known = piece in PIECES
        result += [ids[piece]] if known else [ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
    return result


@pytest.mark.parametrize("add_prefix", [True, False])
def test_sentencepiece_merges_as_scores_say(add_prefix: bool, tmp_path: Path) -> None:
    metadata = sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": add_prefix}
    tokenizer = rebuild(tmp_path / "model.gguf", metadata)
    rng = random.Random(1)
    texts = ["hello world", "the  hell    hello", "1212 world\n", "你好 \U0001f600", "\tdoor"]
    texts += ["".join(rng.choices("helotrwd 12é", k=rng.randint(1, 25))) for _ in range(500)]
    for text in texts:
        expected = sentencepiece_reference(text, metadata, "▁" if add_prefix else "")
        assert tokenizer.encode(text).ids == expected, text
        assert tokenizer.decode(expected) == text


def test_sentencepiece_adds_its_begin_token_and_takes_custom_tokens_whole(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata()
    del metadata["tokenizer.ggml.add_bos_token"]  # which files of this kind rely on
    tokenizer = rebuild(tmp_path / "model.gguf", metadata)
    tokens = tokenizer.encode("he<custom></s>").tokens
    assert tokens == ["<s>", "▁he", "<custom>", "</s>"]


def gemma4_metadata() -> dict[str, Any]:
    """A vocabulary like Gemma 4's, whose files call <eos> and runs of newlines ordinary tokens."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=1500, limit_alphabet=80, show_progress=False)
    trained.train_from_iterator([*corpus(), "\n\n\n\n" * 20], trainer)
    model = json.loads(trained.to_str())["model"]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokens = [*special, "<|tool_response>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [TokenType.CONTROL] * 5 + [TokenType.USER_DEFINED] + [TokenType.BYTE] * 256
    kinds[1] = TokenType.NORMAL
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens + pieces,
        "tokenizer.ggml.token_type": [int(k) for k in kinds] + [1] * len(pieces),
        "tokenizer.ggml.scores": [-1000.0] * (len(tokens) + len(pieces)),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 4,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": False,
    }


def test_gemma4_merges_as_the_original_does(tmp_path: Path) -> None:
    metadata = gemma4_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    merges: Any = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    original = GemmaTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    original.add_tokens([AddedToken("<|tool_response>", normalized=False)])
    assert any(" " not in token and "▁" in token[1:] for token in tokens)  # words are not cut
    # Old files say that there is no begin token, and there is one.
    said = {"tokenizer.ggml.add_bos_token": False}
    rebuilt = rebuild(tmp_path / "model.gguf", metadata | said)
    texts = [*TEXTS, "a<eos>b <|tool_response>\n\n\n\n\nx  y", *list(corpus())[-300:]]
    for text in texts:
        expected = original(text, add_special_tokens=False).input_ids
        assert rebuilt.encode(text).ids == [2, *expected], text
        assert rebuilt.decode(expected, skip_special_tokens=False) == original.decode(expected)


def test_ends_that_files_of_gemma4_do_not_name(tmp_path: Path) -> None:
    metadata = gemma4_metadata() | {"tokenizer.ggml.suppress_tokens": [7, 8]}
    source = write_gguf(
        tmp_path / "model.gguf", "llama", LLAMA_METADATA | metadata, llama_tensors()
    )
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    convert_gguf(source, directory)
    generation = json.loads((directory / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [4, 1, 5]
    assert generation["suppress_tokens"] == [7, 8]


def test_checkpoint_carries_tokenizer_template_and_special_tokens(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"
    original = train("qwen2")
    metadata = metadata_of(original, "qwen2") | {"tokenizer.chat_template": template}
    source = write_gguf(
        tmp_path / "model.gguf", "llama", LLAMA_METADATA | metadata, llama_tensors()
    )
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    convert_gguf(source, directory)

    tokenizer = AutoTokenizer.from_pretrained(directory)

    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.pad_token == "<|pad|>"
    assert tokenizer.model_max_length == 128
    for text in TEXTS:
        assert tokenizer(text).input_ids == original.encode(text).ids
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert prompt == "<|start|>hi<|end|>"
    assert (directory / "chat_template.jinja").read_text() == template
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert config["chat_template"] == template


def test_tokenizer_json_inside_the_file_is_used_as_it_is(tmp_path: Path) -> None:
    original = train("qwen2")
    metadata = metadata_of(original, "unheard-of")
    metadata["tokenizer.huggingface.json"] = original.to_str()
    source = write_gguf(
        tmp_path / "model.gguf", "llama", LLAMA_METADATA | metadata, llama_tensors()
    )
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    convert_gguf(source, directory)
    assert (directory / "tokenizer.json").read_text() == original.to_str()


def test_file_without_vocabulary_converts_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, llama_tensors())
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    with caplog.at_level(logging.WARNING):
        convert_gguf(source, directory)
    assert "holds no tokenizer" in caplog.text
    assert (directory / "model.safetensors").is_file()
    assert not (directory / "tokenizer.json").exists()
