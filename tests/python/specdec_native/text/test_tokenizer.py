"""Tokenizers: the fewest tokens of a text, files of checkpoints, special tokens."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.text.detokenizer import TextStream
from specdec_native.text.tokenizer import Tokenizer
from specdec_native.text.tokenizer_backends import TokenizerNotFoundError
from tiny_tokenizers import TEXTS, byte_level, pieces_of, save, sentencepiece_like

# -- how many tokens a text has at least


def made(
    make: Callable[[], tokenizers.Tokenizer], added: str = "", *, strips: bool = False, **parts: Any
) -> tokenizers.Tokenizer:
    tokenizer = make()
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    if added:
        tokenizer.add_tokens([tokenizers.AddedToken(added, lstrip=strips, rstrip=strips)])
    return tokenizer


def ascii_only(unk_token: str | None = None, *, fuse_unk: bool = False) -> tokenizers.Tokenizer:
    """Byte-level, without most of the bytes."""
    vocab = {token: i for i, token in enumerate(["?", *"abcdefgh", "ab", "\u0120"])}
    model = models.BPE(vocab, [("a", "b")], unk_token=unk_token, fuse_unk=fuse_unk)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


BOUNDED = {
    "byte_level": byte_level(),
    "sentencepiece_like": sentencepiece_like(),
    "long token": made(byte_level, "the longest of all the tokens"),
    "swallows spaces": made(byte_level, "<|end|>", strips=True),
    "composes": made(byte_level, normalizer=normalizers.NFC()),
    "compatible": made(
        byte_level, normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "drops bytes": ascii_only(),
    "unknown bytes": ascii_only("?"),
    "joins unknown bytes": ascii_only("?", fuse_unk=True),
}
UNBOUNDED = {
    "strips": made(byte_level, normalizer=normalizers.Strip()),
    "strips inside": made(
        byte_level, normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    ),
    "replaces": made(byte_level, normalizer=normalizers.Replace("aa", "b")),
    "replaces a pattern": made(
        byte_level, normalizer=normalizers.Replace(tokenizers.Regex("a+"), "b")
    ),
    "splits at spaces": made(byte_level, pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
    "removes": made(byte_level, pre_tokenizer=pre_tokenizers.Split("a", "removed")),
    "words": tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")),
    "composes what it drops": made(ascii_only, normalizer=normalizers.NFC()),
}
PIECES = (
    *(
        "a",
        "b",
        " ",
        "\n",
        "the world",
        "<|end|>",
        "   ",
        "\u2003",
        "\x04",
        "\x00",
        "\u00e9",
        "e\u0301",
    ),
    *(
        "\u1112\u1161\u11ab",
        "\u212a",
        "\U0001d400",
        "\U0001d7ce",
        "\uff21",
        "\U0001f600",
        "\U00040000",
    ),
    *("\u65e5", "\u0dd9\u0dcf\u0dca", "the longest of all the tokens", "<s>"),
)


@pytest.mark.parametrize("kind", BOUNDED)
def test_a_text_has_at_least_so_many_tokens(kind: str) -> None:
    tokenizer, rng = Tokenizer.wrap(BOUNDED[kind]), random.Random(3)
    texts = [piece * 40 for piece in PIECES]
    texts += ["".join(rng.choices(PIECES, k=rng.randrange(60))) for _ in range(200)]
    bounds = [tokenizer.fewest_tokens(text) for text in texts]
    counts = [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    assert [c for b, c in zip(bounds, counts, strict=True) if b > c] == []
    assert max(bounds) > 3


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_a_tokenizer_that_may_drop_text_has_no_bound(kind: str) -> None:
    assert Tokenizer.wrap(UNBOUNDED[kind]).fewest_tokens("ab" * 9999) == 0


def test_the_longest_token_is_the_bound() -> None:
    tokenizer = Tokenizer.wrap(BOUNDED["long token"])
    text = "the longest of all the tokens" * 50
    assert tokenizer.fewest_tokens(text) == len(tokenizer.encode(text)) == 50


# -- tokenizer files


def test_special_tokens_come_from_the_tokenizers_own_rules(tmp_path: Path) -> None:
    saved = save(sentencepiece_like(), tmp_path, eos_token={"content": "</s>"}, bos_token="<s>")
    tokenizer = Tokenizer.from_directory(saved)
    assert tokenizer.encode("the")[0] == tokenizer.bos_token_id == 1
    assert tokenizer.encode("the", add_special_tokens=False)[0] != 1
    assert tokenizer.eos_token_id == 2
    assert tokenizer.encode_batch(["the", "world"]) == [
        tokenizer.encode("the"),
        tokenizer.encode("world"),
    ]


def test_truncation_set_in_the_file_is_ignored(tmp_path: Path) -> None:
    raw = byte_level()
    raw.enable_truncation(2)
    raw.enable_padding(length=50)
    tokenizer = Tokenizer.from_directory(save(raw, tmp_path))
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


def test_a_missing_tokenizer_names_the_file_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFoundError, match="tokenizer.json is missing.*tokenizer="):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    save(byte_level(), tmp_path)
    (tmp_path / name).write_text("{")
    with pytest.raises(ValueError, match=name):
        Tokenizer.from_directory(tmp_path)


def test_other_formats_are_read_through_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    byte_level().model.save(str(tmp_path))  # vocab.json and merges.txt
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>", "unk_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_directory(tmp_path)
    ids = tokenizer.encode("hello wörld")
    assert ids == byte_level().encode("hello wörld").ids
    assert "".join(pieces_of(TextStream(tokenizer), ids)) == "hello wörld"
    assert tokenizer.eos_token_id == 1


NEW_TOKENS = ["<|new|>", "<|other|>", "<|im_start|>", "<plain>", "<image>", "[X]", "hello", "the"]
SPEECH = "hello the<|new|>a <|new|> b<|other|><|im_start|>user <plain> the<image>[X]hello</s> [PAD]"
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


def write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content))


def random_tokens(directory: Path, rng: random.Random) -> None:
    """A folder that names tokens in some of the places where transformers looks for them."""

    typed_texts = set()

    def some(share: float = 0.5) -> bool:
        return rng.random() < share

    def token(typed: bool, text: str = "") -> Any:
        text = text or rng.choice([*NEW_TOKENS, "</s>", "<s>"])
        if some():
            return text
        flags = {"content": text} | {flag: some(0.2) for flag in FLAGS}
        if not typed:
            return flags
        typed_texts.add(text)
        return {"__type": "AddedToken", **flags, "special": some(0.8)}

    def tokens(typed: bool) -> list[Any]:
        return [token(typed) for _ in range(rng.randrange(4))]

    raw = byte_level()
    for text in rng.sample(NEW_TOKENS, rng.randrange(4)):
        flags = {flag: some(0.2) for flag in FLAGS}
        raw.add_tokens([tokenizers.AddedToken(text, special=some(), **flags)])
    if some(0.2):
        raw.enable_padding(pad_token="[PAD]")
    size = raw.get_vocab_size()
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    names = ["eos_token", "bos_token", "pad_token", "unk_token", "image_token"]
    for name in names:
        if some(0.4):
            config[name] = token(typed=True) if some(0.9) else None
    if some():
        config["additional_special_tokens"] = tokens(typed=True)
    if some(0.3):
        config["extra_special_tokens"] = (
            tokens(typed=True) if some() else {"audio_token": token(typed=True)}
        )
    if some():
        texts = rng.sample(NEW_TOKENS, rng.randrange(4))
        ids = [raw.token_to_id(text) or size + i for i, text in enumerate(texts)]
        config["added_tokens_decoder"] = {
            str(i): {"content": text, "special": some(), **{flag: some(0.2) for flag in FLAGS}}
            for i, text in zip(ids, texts, strict=True)
        }
    if some():
        stated: dict[str, Any] = {name: token(typed=False) for name in names if some(0.4)}
        if some():
            stated["additional_special_tokens"] = [t for t in tokens(True) if isinstance(t, str)]
        if some(0.3):
            stated["extra_special_tokens"] = tokens(typed=False)
        write_json(directory / "special_tokens_map.json", stated)
    if some():
        # transformers overlooks that tokenizer_config.json makes one of these special with a type.
        texts = [t for t in rng.sample(NEW_TOKENS, rng.randrange(4)) if t not in typed_texts]
        write_json(directory / "added_tokens.json", {t: size + i for i, t in enumerate(texts)})
    save(raw, directory, **config)


@pytest.mark.parametrize("seed", range(60))
def test_special_tokens_are_those_of_transformers_wherever_they_are_named(
    seed: int, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    random_tokens(tmp_path, random.Random(seed))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_directory(tmp_path)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.special_tokens_map == theirs.special_tokens_map
    ids = ours.encode(SPEECH)
    assert ids == theirs.encode(SPEECH)
    for every in (ids, list(range(len(theirs)))):
        assert ours.decode(every, skip_special_tokens=True) == theirs.decode(
            every, skip_special_tokens=True
        )
    for name in ("eos", "bos", "pad"):
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"additional_special_tokens": ["<|new|>"]}},
        {"tokenizer_config": {"extra_special_tokens": {"new_token": "<|new|>"}}},
        {"tokenizer_config": {"eos_token": "<|new|>"}},
        {"tokenizer_config": {"pad_token": {"content": "<|new|>"}}},
        {"special_tokens_map": {"unk_token": "<|new|>"}},
        # transformers 5 refuses dicts here, and 4 took them.
        {"special_tokens_map": {"additional_special_tokens": [{"content": "<|new|>"}]}},
        {
            "added_tokens": {"<|new|>": 330},
            "special_tokens_map": {"eos_token": {"content": "<|new|>", "lstrip": False}},
        },
    ],
)
def test_a_token_that_a_file_names_is_one_id_and_no_text(
    files: dict[str, Any], tmp_path: Path
) -> None:
    save(byte_level(), tmp_path)
    for name, content in files.items():
        write_json(tmp_path / f"{name}.json", content)
    tokenizer = Tokenizer.from_directory(tmp_path)
    ids = tokenizer.encode("the<|new|>world")
    assert ids.count(byte_level().get_vocab_size()) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == "theworld"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config", {"eos_token": 3}, "tokenizer_config.json: eos_token: expected"),
        ("tokenizer_config", {"extra_special_tokens": "x"}, "extra_special_tokens: expected"),
        ("tokenizer_config", {"extra_special_tokens": [{}]}, "extra_special_tokens: expected"),
        ("special_tokens_map", {"pad_token": []}, "special_tokens_map.json: pad_token: expected"),
        ("tokenizer_config", {"eos_token": "\ud800"}, "a special token is refused"),
        ("added_tokens", {"<a>": "x"}, "added_tokens.json: '<a>': expected"),
    ],
)
def test_tokens_that_are_none_are_refused(
    name: str, content: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save(byte_level(), tmp_path)
    write_json(tmp_path / f"{name}.json", content)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.models
def test_encoding_and_chat_equal_transformers(smollm2: Path, prompts: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    ours = Tokenizer.from_directory(smollm2)
    for prompt in [*prompts, *TEXTS, "<|im_start|>user\nhi<|im_end|>"]:
        assert ours.encode(prompt) == theirs.encode(prompt)
        conversation = [{"role": "user", "content": prompt}]
        for add in (True, False):
            for tokenize in (True, False):
                options: dict[str, Any] = {"add_generation_prompt": add, "tokenize": tokenize}
                assert ours.apply_chat_template(
                    conversation, **options
                ) == theirs.apply_chat_template(conversation, return_dict=False, **options)
