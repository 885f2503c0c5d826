"""Recognises what a directory holds."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.torch_convert import torch_files

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class CheckpointKind(Enum):
    """The forms of weights a directory can hold."""

    SAFETENSORS = "safetensors"
    TORCH = "torch"
    GGUF = "gguf"


def checkpoint_kind(directory: Path) -> CheckpointKind | None:
    """How `directory` holds a model, the form that needs no conversion first; None: it does not.

    Raises CheckpointError if an index names a file that is missing.
    """
    if (directory / "config.json").is_file():
        if _has_safetensors(directory):
            return CheckpointKind.SAFETENSORS
        if torch_files(directory):
            return CheckpointKind.TORCH
    return CheckpointKind.GGUF if gguf_files(directory) else None


def gguf_files(directory: Path) -> list[Path]:
    """The GGUF files of `directory`, by name."""
    return sorted(directory.glob("*.gguf"))


def _has_safetensors(directory: Path) -> bool:
    index = directory / INDEX_FILE
    if not index.is_file():
        return (directory / SINGLE_FILE).is_file()
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise CheckpointError(f"the index is malformed: {fault}", index) from fault
    for name in sorted(names):
        if not (directory / name).is_file():
            raise CheckpointError("the index names this file, but it is missing", directory / name)
    return True
