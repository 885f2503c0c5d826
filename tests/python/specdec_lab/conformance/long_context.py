"""A tiny model whose context holds the questions."""

import json
from pathlib import Path

from tiny_text_model import add_byte_text

_MAX_POSITIONS = 4096


def make_long(checkpoint: Path, directory: Path) -> Path:
    """A copy with a tokenizer of bytes and 4,096 positions."""
    add_byte_text(checkpoint, directory)
    file = directory / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "max_position_embeddings": _MAX_POSITIONS}))
    return directory
