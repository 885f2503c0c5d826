"""Reads the small files of a checkpoint. Every fault is a CheckpointError that names the file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec_native.checkpoints.errors import CheckpointError

_MAX_BYTES = 100_000_000


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that the system refuses, as too long, is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_bytes(file: Path) -> bytes:
    """The content of a file."""
    with _typed_errors(file):
        _check_size(file)
        return file.read_bytes()


def read_text(file: Path) -> str:
    """The text of a file in UTF-8."""
    with _typed_errors(file):
        _check_size(file)
        return file.read_text(encoding="utf-8")


def _check_size(file: Path) -> None:
    if file.stat().st_size > _MAX_BYTES:
        raise CheckpointError(f"is larger than {_MAX_BYTES} bytes", file)


@contextlib.contextmanager
def _typed_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise CheckpointError(f"cannot be read ({fault.strerror})", file) from fault
    except UnicodeDecodeError as fault:
        raise CheckpointError(f"is not UTF-8 ({fault})", file) from fault


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(read_text(file))
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as fault:
        raise CheckpointError(f"not valid JSON ({fault})", file) from fault
    if not isinstance(content, dict):
        raise CheckpointError("expected a JSON object", file)
    return content
