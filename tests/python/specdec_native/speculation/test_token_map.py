"""speculative_token_map: lists, files and counted texts."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specdec_native.speculation.token_map import (
    LikelyTokens,
    parse_token_map,
    read_token_map,
)
from speculative_configs import parse

IDS = [7, 0, 300, 12]


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def read(value: Any) -> list[int]:
    parsed = parse_token_map(value)
    assert parsed is not None and not isinstance(parsed, LikelyTokens)
    return read_token_map(parsed, encode)


def test_a_list_or_an_array_is_taken_as_it_is() -> None:
    for value in (IDS, tuple(IDS), np.array(IDS), torch.tensor(IDS), [np.int32(i) for i in IDS]):
        assert read(value) == IDS


def test_likely_tokens_need_no_text() -> None:
    assert parse_token_map("auto") == LikelyTokens()
    assert parse_token_map({"size": 300}) == LikelyTokens(300)
    assert parse_token_map("all") is None


@pytest.mark.parametrize("name", ["ids.json", "ids.npy", "ids.pt", "list.pt", "ids.txt"])
def test_files_of_ids_are_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name == "ids.json":
        file.write_text(json.dumps(IDS))
    elif name == "ids.npy":
        np.save(file, np.array(IDS))
    elif name == "ids.txt":
        file.write_text("7 0\n300\t12\n")
    else:
        torch.save(IDS if name == "list.pt" else torch.tensor(IDS), file)
    assert read(file) == IDS
    assert read(str(file)) == IDS


def test_the_most_frequent_tokens_of_texts_are_counted(tmp_path: Path) -> None:
    texts = ["the cat sat on the mat", "a rat sat on a hat"]
    files = [tmp_path / f"{i}.md" for i in range(2)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    counts = Counter("".join(texts))
    found = read({"text": files, "size": 4})
    assert found == sorted(found) and len(found) == 4
    least = min(counts[chr(token)] for token in found)
    assert all(count <= least for c, count in counts.items() if ord(c) not in found)
    assert read({"text": str(files[0])}) == sorted(set(encode(texts[0])))


def test_of_equally_frequent_tokens_the_lowest_are_taken(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("dcbaa")
    assert read({"text": tmp_path / "text", "size": 3}) == encode("abc")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "speculative_token_map is empty"),
        ([1, -1], r"speculative_token_map\[1\] must be in \[0, "),
        ([1.5], r"speculative_token_map\[0\] must be an integer"),
        ([True], r"speculative_token_map\[0\] must be an integer"),
        ([2**31], r"speculative_token_map\[0\]"),
        (3, "must be a list of token ids, a file"),
        ("missing.json", "there is no file 'missing.json'"),
        ({}, "must be a list of token ids, a file"),
        ({"text": "missing"}, "there is no file 'missing'"),
        ({"text": []}, '"text" must be a path or a list of paths'),
        ({"text": [3]}, "a path must be a string"),
        ({"text": __file__, "size": 0}, '"size" must be'),
        ({"text": __file__, "top": 3}, "must be a list of token ids, a file"),
    ],
)
def test_a_wrong_value_says_what_to_give(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(method="eagle", model="org/head", speculative_token_map=value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ids.json", b"{", "ids.json.* cannot be read as token ids"),
        ("ids.json", b'{"a": 1}', "ids.json must be a list"),
        ("ids.json", b"[1, -2]", r"ids.json\[1\] must be in"),
        ("ids.json", b"[]", "ids.json is empty"),
        ("ids.npy", b"text", "ids.npy.* cannot be read as token ids"),
        ("ids.pt", b"text", "ids.pt.* cannot be read as token ids"),
        ("ids.txt", b"1 two", "ids.txt.* cannot be read as token ids"),
        ("ids.csv", b"1,2", "of an unknown kind.*text to count"),
    ],
)
def test_a_file_that_holds_no_ids_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)


def test_a_text_without_tokens_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match=r"no tokens in .*empty\.txt"):
        read({"text": tmp_path / "empty.txt"})


def test_the_core_receives_the_map() -> None:
    options = parse(method="medusa", model="org/head", speculative_token_map=IDS)
    core = options.to_core(lambda name, *_: Path(name), encode)
    assert core.drafters[0].speculative_token_map == IDS
    assert core.drafters[0].method == "medusa"
