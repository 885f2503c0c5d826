"""A GGUF in several files is opened by any of them, and its parts are checked."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.torch import load_file

from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_convert import convert_gguf
from specdec_native.checkpoints.gguf_file import GgufFile

COUNT = 3


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "home"))


def part_name(number: int) -> str:
    return f"model-{number:05d}-of-{COUNT:05d}.gguf"


def write_split(
    directory: Path,
    changes: Mapping[int, Mapping[str, Any]] | None = None,
    tensors: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> list[Path]:
    """The parts of a Llama, as llama-gguf-split writes them; `changes` of metadata by part."""
    tensors = tensors or llama_tensors()
    names = [list(tensors)[part::COUNT] for part in range(COUNT)]
    parts = []
    for part in range(COUNT):
        metadata = dict(LLAMA_METADATA) if part == 0 else {}
        metadata |= {
            "split.no": part, "split.count": COUNT, "split.tensors.count": len(tensors),
        }  # fmt: skip
        metadata |= (changes or {}).get(part, {})
        own = {name: tensors[name] for name in names[part]}
        parts.append(write_gguf(directory / part_name(part + 1), "llama", metadata, own))
    return parts


def convert(source: Path, directory: Path) -> dict[str, npt.NDArray[Any]]:
    directory.mkdir()
    convert_gguf(source, directory)
    tensors = load_file(directory / "model.safetensors")
    return {name: tensor.numpy() for name, tensor in tensors.items()}


@pytest.mark.parametrize("named", range(COUNT))
def test_any_part_opens_the_whole(named: int, tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", "llama", LLAMA_METADATA, llama_tensors())
    expected = convert(whole, tmp_path / "expected")
    found = convert(write_split(tmp_path)[named], tmp_path / "found")
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        assert np.array_equal(found[name], values)
    config = (tmp_path / "found" / "config.json").read_bytes()
    assert config == (tmp_path / "expected" / "config.json").read_bytes()


@pytest.mark.parametrize("missing", range(COUNT))
def test_the_missing_part_is_named(missing: int, tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    parts[missing].unlink()
    with pytest.raises(CheckpointError, match="this part of a GGUF in 3 is missing") as raised:
        GgufFile(parts[(missing + 1) % COUNT])
    assert raised.value.file == str(parts[missing])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({0: {"split.count": 4}}, "00001-of-.*split.count is 4, but by its name there are 3"),
        ({2: {"split.count": 2}}, "00003-of-.*split.count is 2"),
        ({1: {"split.no": 2}}, "00002-of-.*split.no is 2, but its name is that of part 2"),
        ({0: {"split.tensors.count": 12}}, "split.tensors.count is 12, but the 3 parts have 11"),
    ],
)
def test_parts_that_disagree_are_refused(
    changes: dict[int, dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        GgufFile(write_split(tmp_path, changes)[0])


def test_a_part_of_another_split_is_refused(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    shutil.copy(parts[1], parts[2])
    with pytest.raises(CheckpointError, match="00003-of-.*split.no is 1"):
        GgufFile(parts[0])


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    write_gguf(parts[2], "llama", {"split.no": 2, "split.count": COUNT}, llama_tensors())
    with pytest.raises(CheckpointError, match="00003-of-.*token_embd.weight is in an earlier part"):
        GgufFile(parts[0])


def test_a_part_under_another_name_is_refused(tmp_path: Path) -> None:
    renamed = write_split(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match="split.count is 3, but by its name there are 1"):
        GgufFile(renamed)


def test_a_truncated_part_is_named(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    parts[1].write_bytes(parts[1].read_bytes()[:2000])
    with pytest.raises(CheckpointError, match="truncated") as raised:
        GgufFile(parts[0])
    assert raised.value.file == str(parts[1])


def test_a_directory_with_one_split_model_resolves_to_it(tmp_path: Path) -> None:
    directory = tmp_path / "repository"
    directory.mkdir()
    parts = write_split(directory)
    (directory / "mmproj-model-f16.gguf").write_bytes(b"GGUF")
    found = hub.resolve_model(directory)
    assert all(hub.resolve_model(part) == found for part in parts)
    write_gguf(directory / "other.gguf", "llama", LLAMA_METADATA, llama_tensors())
    with pytest.raises(CheckpointError, match="2 GGUF models.*model-00001-of-00003.gguf, other"):
        hub.resolve_model(directory)


def test_a_change_of_any_part_is_converted_anew(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    before = hub.resolve_model(parts[0])
    write_split(tmp_path, tensors=llama_tensors(seed=1))
    assert hub.resolve_model(parts[0]) != before


def test_pieces_that_were_cut_anywhere_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "repository"
    directory.mkdir()
    whole = write_gguf(directory / "m.gguf", "llama", LLAMA_METADATA, llama_tensors())
    content = whole.read_bytes()
    whole.unlink()
    pieces = [directory / f"m.gguf-split-{letter}" for letter in "ab"]
    for piece, part in zip(pieces, (content[:5000], content[5000:]), strict=True):
        piece.write_bytes(part)
    for path in (directory, *pieces):
        with pytest.raises(CheckpointError, match=r"cat m.gguf-split-\* > m.gguf"):
            hub.resolve_model(path)
