"""The corpus of suffix decoding: texts that drafts may come from before any answer is there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec_native.checkpoints.text_files import read_text
from specdec_native.common.checks import shown
from specdec_native.speculation.token_map import Encode

KEY = "suffix_corpus"
_MOST_BYTES = 256 << 20
_FORMS = 'a file or a folder of texts (.jsonl: objects with "text", or messages)'


def parse_suffix_corpus(value: Any) -> tuple[Path, ...]:
    """The files of a corpus, in order of their paths. Raises ValueError where there are none."""
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"{KEY} must be {_FORMS}, got {shown(value)}")
    path = Path(value).expanduser()
    if not path.exists():
        raise ValueError(f"{KEY}: there is no {os.fspath(value)!r}; give {_FORMS}")
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if _is_text(path, f))
    if not files:
        raise ValueError(f"{KEY}: there are no files in {os.fspath(value)!r}; give {_FORMS}")
    size = sum(file.stat().st_size for file in files)
    if size > _MOST_BYTES:
        raise ValueError(
            f"{KEY}: {os.fspath(value)!r} has {size >> 20} MiB of text, and at most "
            f"{_MOST_BYTES >> 20} are read; give less"
        )
    return tuple(files)


def read_suffix_corpus(files: tuple[Path, ...], encode: Encode) -> list[list[int]]:
    """The token ids of every text. Raises ValueError or CheckpointError naming a bad file."""
    return [list(encode(text)) for file in files for text in _texts(file) if text]


def _is_text(root: Path, file: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    return file.is_file() and not hidden


def _texts(file: Path) -> Iterator[str]:
    text = read_text(file)
    if file.suffix.lower() != ".jsonl":
        yield text
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield from _texts_of_line(line, f"{file}:{number}")


def _texts_of_line(line: str, where: str) -> list[str]:
    """The texts of a JSON line: a string, {"text"} or {"messages": [{"content"}]}."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{KEY}: {where} is not JSON: {error}") from None
    found: list[Any] = [value]
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        found = [m.get("content") if isinstance(m, dict) else m for m in value["messages"]]
    elif isinstance(value, dict):
        found = [value.get("text")]
    if not all(isinstance(text, str) for text in found):
        raise ValueError(
            f'{KEY}: {where} must be a string, or an object with "text" or with "messages" that '
            'have "content"'
        )
    return found
