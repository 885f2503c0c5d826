"""Logprobs as JSON: where tokens stand in the text, and numbers that JSON does not have."""

import itertools
import json
import math
from typing import Any

import pytest
from tokenizers import normalizers

from specdec_native.requests.logprobs import FlatLogprobs
from specdec_native.text.detokenizer import TextStream
from specdec_native.text.tokenizer import Tokenizer
from specdec_serve.http.logprobs import (
    CompletionLogprobs,
    TokenNames,
    chat_logprobs,
    prompt_logprobs_json,
)
from tiny_tokenizers import byte_level, sentencepiece_like

TOKENIZERS = {"bytes": byte_level, "sentencepiece": sentencepiece_like}
TEXTS = ["hello world the end", "über 日本 😀!", "  two spaces", "end"]


def pieces_of(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    """What each token adds to the text, with the spaces that decoding strips at the beginning."""
    stream = TextStream(tokenizer)
    pieces = []
    for token in token_ids:
        piece, alone = stream.push(token), tokenizer.token_text(token)
        pieces.append(piece if "\ufffd" in alone else alone)
    return pieces


def flat(tokenizer: Tokenizer, token_ids: list[int], context: int = 0) -> FlatLogprobs:
    """Logprobs of the tokens from `context` on; of a prompt, whose first token has none, at 0."""
    logprobs = FlatLogprobs()
    for i, piece in enumerate(pieces_of(tokenizer, token_ids)):
        if i == 0 == context:
            logprobs.append(None)
        elif i >= context:
            logprobs.append_fast([token_ids[i]] * 2, [-0.5] * 2, [1, 1], [piece] * 2)
    return logprobs


def lengths_of(tokenizer: Tokenizer, token_ids: list[int], context: int) -> list[int]:
    """How many characters the tokens from `context` on add."""
    ends = [
        len(tokenizer.decode(token_ids[: i + 1]).rstrip("\ufffd")) for i in range(len(token_ids))
    ]
    # Half a character makes a decoder with byte fallback forget whole ones before it.
    rising = [*itertools.accumulate(ends, max)]
    return [b - a for a, b in itertools.pairwise(rising)][context - 1 :]


def check_offsets(shown: dict[str, Any], text: str) -> None:
    """Every token stands where its offset says, and nothing lies between two tokens."""
    offsets, tokens = shown["text_offset"], shown["tokens"]
    assert len(offsets) == len(tokens) == len(shown["token_logprobs"])
    ends = [*offsets[1:], len(text)]
    for begin, end, token in zip(offsets, ends, tokens, strict=True):
        assert text[begin:end] in (token, token.lstrip(" "))


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("specials", [True, False])
def test_offsets_point_into_the_text(kind: str, text: str, size: int, specials: bool) -> None:
    tokenizer = Tokenizer.wrap(TOKENIZERS[kind]())
    token_ids = tokenizer.encode(text, add_special_tokens=specials)
    split = max(1, len(token_ids) // 2)
    while "\ufffd" in tokenizer.decode(token_ids[:split]):  # prompts end with whole characters
        split += 1
    prompt = tokenizer.decode(token_ids[:split])
    rest = flat(tokenizer, token_ids, split)
    lengths = lengths_of(tokenizer, token_ids, split)
    writer = CompletionLogprobs(TokenNames(tokenizer))
    written = [
        writer.with_prompt(
            prompt,
            token_ids[:split],
            flat(tokenizer, token_ids[:split]),
            token_ids=token_ids[split : split + size],
            logprobs=rest[:size],
            text_lengths=lengths[:size],
        )
    ]
    for begin in range(size, len(rest), size):
        part = slice(begin, begin + size)
        written.append(writer.piece(token_ids[split:][part], rest[part], lengths[part]))
    shown: dict[str, Any] = {}
    for piece in map(json.loads, written):
        for name, values in piece.items():
            shown.setdefault(name, []).extend(values)
    check_offsets(shown, tokenizer.decode(token_ids))
    assert shown["token_logprobs"] == [None] + [-0.5] * (len(token_ids) - 1)


def test_a_special_token_before_the_prompts_text_takes_no_room() -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    begin = 0
    hello = tokenizer.encode("hello")
    writer = CompletionLogprobs(TokenNames(tokenizer))
    prompt = FlatLogprobs()
    prompt.append(None)
    for token in hello:
        prompt.append_fast([token], [-1.0], [1], [tokenizer.token_text(token)])
    shown = json.loads(
        writer.with_prompt(
            "hello", [begin, *hello], prompt, token_ids=[], logprobs=None, text_lengths=[]
        )
    )
    assert shown["text_offset"][:2] == [0, 0]
    assert shown["tokens"][0] == "<s>"


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("cafe\u0301 the end", {"caf": 0, "é": 3, " the": 5, " end": 9}),
        ("e\u0301e\u0301 x", {"x": 5}),
        ("a\u0323\u0302 hello", {"hello": 4}),
    ],
)
def test_offsets_in_a_prompt_that_its_tokenizer_writes_otherwise(
    text: str, offsets: dict[str, int]
) -> None:
    raw = byte_level()
    raw.normalizer = normalizers.NFC()
    tokenizer = Tokenizer.wrap(raw)
    ids = tokenizer.encode(text)
    written = CompletionLogprobs(TokenNames(tokenizer)).with_prompt(
        text, ids, flat(tokenizer, ids), token_ids=[], logprobs=None, text_lengths=[]
    )
    shown = json.loads(written)
    found = dict(zip(shown["tokens"], shown["text_offset"], strict=True))
    assert offsets.items() <= found.items()


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", ["😀😀", "über 日本 😀!", "🧑‍🚀 the end", "é\x80\u0100"])
def test_the_bytes_of_tokens_add_up_to_the_text(kind: str, text: str) -> None:
    tokenizer = Tokenizer.wrap(TOKENIZERS[kind]())
    token_ids = tokenizer.encode("x" + text, add_special_tokens=False)
    rest, lengths = flat(tokenizer, token_ids, 1), lengths_of(tokenizer, token_ids, 1)
    for as_token_ids in (False, True):
        names = TokenNames(tokenizer, as_token_ids=as_token_ids)
        entries = json.loads(chat_logprobs(names, rest, 1, lengths))
        tops = [entry["top_logprobs"][0] for entry in entries["content"]]
        for each in (entries["content"], tops):
            joined = b"".join(bytes(entry["bytes"]) for entry in each)
            assert ("x" + text).encode().endswith(joined) and len(joined) >= len(text.encode())
            assert all(entry["bytes"] for entry in each)


def test_tokens_of_one_text_share_the_entry_of_the_likeliest() -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    logprobs = FlatLogprobs()
    logprobs.append_fast([9, 7, 8], [-3.0, -1.0, -2.0], [3, 1, 2], ["", "a", ""])
    shown = json.loads(CompletionLogprobs(TokenNames(tokenizer)).piece([9], logprobs, [1]))
    assert shown["token_logprobs"] == [-3.0]
    assert shown["top_logprobs"] == [{"": -2.0, "a": -1.0}]


@pytest.mark.parametrize("value", [-math.inf, -1e30, math.nan])
def test_numbers_that_json_does_not_have(value: float) -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    names = TokenNames(tokenizer)
    logprobs = FlatLogprobs()
    logprobs.append_fast([5, 6], [value, -0.25], [9, 1], ["x", "\u2028é"])
    shown = json.loads(CompletionLogprobs(names).piece([5], logprobs, [1]))
    assert shown["token_logprobs"] == [-9999.0]
    assert shown["top_logprobs"] == [{"x": -9999.0, "\u2028é": -0.25}]
    (entry,) = json.loads(chat_logprobs(names, logprobs, 1, None))["content"]
    assert entry["logprob"] == -9999.0
    assert entry["top_logprobs"] == [
        {"token": "\u2028é", "logprob": -0.25, "bytes": list(tokenizer.token_bytes(6))}
    ]
    assert json.loads(prompt_logprobs_json(logprobs)) == [
        {
            "5": {"logprob": -9999.0, "rank": 9, "decoded_token": "x"},
            "6": {"logprob": -0.25, "rank": 1, "decoded_token": "\u2028é"},
        }
    ]


def test_a_float_is_written_the_same_everywhere() -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    value = -0.1 - 2**-54
    logprobs = FlatLogprobs()
    logprobs.append_fast([5, 5], [value, value], [1, 1], ["x", "x"])
    shown = json.loads(CompletionLogprobs(TokenNames(tokenizer)).piece([5], logprobs, [1]))
    assert shown["token_logprobs"][0] == max(shown["top_logprobs"][0].values()) == value
