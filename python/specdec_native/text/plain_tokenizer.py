"""Tokenizers for pieces of a text, in which nothing is special."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import tokenizers


def plain_tokenizer(source: str, tokens: Iterable[str] = ()) -> tokenizers.Tokenizer:
    """A tokenizer to which special tokens, and added tokens of the texts `tokens`, are plain text.

    `source` is the text of a tokenizer.json that without_prefix_space() has written.
    """
    tokenizer = tokenizers.Tokenizer.from_str(source)
    chosen = set(tokens)
    added = [t for t in tokenizer.get_added_tokens_decoder().values() if t.content in chosen]
    for token in added:
        token.special = True
    tokenizer.add_special_tokens(added)
    tokenizer.encode_special_tokens = True
    return tokenizer


def without_prefix_space(source: str) -> str:
    """A tokenizer.json that tokenizes pieces of a text: nothing is put before them."""
    config = json.loads(source)

    def visit(part: Any) -> Any:
        if isinstance(part, list):
            visited = [visit(item) for item in part]
            return [item for item in visited if item is not None]
        if not isinstance(part, dict):
            return part
        if part.get("type") == "Prepend":
            return None
        changed = {key: visit(value) for key, value in part.items()}
        if part.get("type") == "Metaspace":
            changed["prepend_scheme"] = "never"
            changed.pop("add_prefix_space", None)
        if part.get("type") == "ByteLevel" and "add_prefix_space" in part:
            changed["add_prefix_space"] = False
        return changed

    for key in ("normalizer", "pre_tokenizer"):
        config[key] = visit(config.get(key))
    config["post_processor"] = None
    config["truncation"] = config["padding"] = None
    return json.dumps(config)
