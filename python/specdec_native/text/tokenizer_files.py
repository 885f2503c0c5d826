"""Reads the tokenizer files of a checkpoint. Every fault is a CheckpointError."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.text_files import read_bytes, read_json_object, read_text


def raise_typed(error: BaseException, source: str | Path, what: str) -> NoReturn:
    """Turns any error of a tokenizer library into a CheckpointError. A panic in Rust is a
    BaseException, which `except Exception` would not catch."""
    is_panic = type(error).__name__ == "PanicException"
    if isinstance(error, CheckpointError) or not (is_panic or isinstance(error, Exception)):
        raise error
    raise CheckpointError(f"{what} ({type(error).__name__}: {error!s:.300})", source) from error


@contextlib.contextmanager
def typed_errors(source: str | Path, what: str) -> Iterator[None]:
    """Calls raise_typed for errors of the block."""
    try:
        yield
    except BaseException as error:
        raise_typed(error, source, what)


def optional_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is no file."""
    return read_json_object(path) if path.is_file() else {}


def check_charsmaps(file: Path) -> None:
    """Refuses a charsmap whose stated length is longer than its data: the tokenizers library
    allocates the stated length, up to 4 GiB, and ends the process where that fails."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if key != "precompiled_charsmap" or not isinstance(value, str):
                continue
            with typed_errors(file, "precompiled_charsmap: not base64"):
                charsmap = base64.b64decode(value)
            trie_bytes = int.from_bytes(charsmap[:4], "little")
            if len(charsmap) < 4 or trie_bytes > len(charsmap) - 4:
                raise CheckpointError(
                    f"precompiled_charsmap: {len(charsmap)} bytes cannot hold a trie of "
                    f"{trie_bytes}",
                    file,
                )

    content = read_bytes(file)
    # Most files have none, and parsing takes long; a key may be written with escapes, though.
    if b"charsmap" in content or b"\\u00" in content:
        with typed_errors(file, "not valid JSON"):
            json.loads(content, object_pairs_hook=check)


def named_templates(value: Any, source: str | Path) -> dict[str, str]:
    """A template, or the older list of {"name", "template"}, or a mapping of names."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    named = value
    if isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
        named = {entry.get("name"): entry.get("template") for entry in value}
    if not isinstance(named, Mapping) or not all(
        isinstance(text, str) for pair in named.items() for text in pair
    ):
        raise CheckpointError(
            'chat_template: expected text, {"<name>": "<text>", ...} or a list of '
            '{"name": "<name>", "template": "<text>"}',
            source,
        )
    return dict(named)


def chat_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Template names to Jinja source."""
    templates = named_templates(config.get("chat_template"), path / "tokenizer_config.json")
    if (path / "chat_template.jinja").is_file():
        templates["default"] = read_text(path / "chat_template.jinja")
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = read_text(file)
    return templates
