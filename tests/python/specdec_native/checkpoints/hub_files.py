"""Caches and checkpoints of tests of the hub."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file


def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empties the caches of converted checkpoints and of the hub; where the first will be."""
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "home"


def unreachable(*_: Any, **__: Any) -> Any:
    raise ConnectionError("no route to host")


def files_below(directory: Path) -> list[str]:
    return sorted(str(f.relative_to(directory)) for f in directory.rglob("*") if f.is_file())


def make_checkpoint(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    save_file({"a": torch.ones(2)}, directory / "model.safetensors")
    return directory
