"""Heads are written whole or not at all."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specdec_lab.training.errors import TrainingError
from specdec_lab.training.export import write_head
from specdec_lab.training.heads.base import HeadFiles
from specdec_native.speculation.drafter_options import TOKEN_MAP_FILE

SHARED = torch.linspace(0.1, 1.7, 12).reshape(3, 4)
FILES = HeadFiles(
    {"draft_vocab_size": 3},
    {"a": SHARED, "b": SHARED.T, "d2t": torch.arange(3) + 2**40, "t2d": torch.ones(5).bool()},
)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_written(tmp_path: Path, dtype: str) -> None:
    directory = write_head(FILES, tmp_path / "new" / "head", dtype)
    stored = load_file(directory / "model.safetensors")
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors"]
    expected = SHARED.to(getattr(torch, dtype))
    assert torch.equal(stored["a"], expected)
    assert torch.equal(stored["b"], expected.T)
    assert torch.equal(stored["d2t"], FILES.tensors["d2t"])
    assert torch.equal(stored["t2d"], FILES.tensors["t2d"])
    config = json.loads((directory / "config.json").read_text())
    assert config == {"draft_vocab_size": 3, "torch_dtype": dtype}


def test_tokens_that_a_reader_has_to_be_told(tmp_path: Path) -> None:
    write_head(HeadFiles({}, {}, torch.tensor([3, 7, 8])), tmp_path)
    assert json.loads((tmp_path / TOKEN_MAP_FILE).read_text()) == [3, 7, 8]


def test_files_are_as_private_as_the_umask_says(tmp_path: Path) -> None:
    """safetensors makes files that nobody else may read."""
    (tmp_path / ".model.safetensors.part").touch(mode=0o600)  # of a process that was killed
    before = os.umask(0o027)
    try:
        write_head(FILES, tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


def test_a_write_that_fails_leaves_the_head_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_head(FILES, tmp_path / "head")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingError, match=r"model\.safetensors: .*the disk is full"):
        write_head(HeadFiles({}, {"a": torch.zeros(5)}), directory)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "head").write_text("")
    with pytest.raises(TrainingError, match="head"):
        write_head(FILES, tmp_path / "head")
