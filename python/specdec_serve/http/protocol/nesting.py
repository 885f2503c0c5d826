"""Limits the nesting of clients' JSON."""

from __future__ import annotations

from typing import Any

from specdec_serve.http.errors import bad_request

_DEEPEST = 128  # levels of schemas and tools; deeper ones would overflow recursive readers


def check_nesting(value: Any, field: str) -> None:
    """Raises ApiError for objects and lists that are nested too deeply."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEEPEST + 1):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise bad_request(
        f"{field} is nested too deeply; objects and lists may be in {_DEEPEST} others", field
    )
