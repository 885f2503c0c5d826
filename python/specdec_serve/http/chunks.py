"""Writes the events of a stream; the part that all chunks share is prepared once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specdec_serve.http.errors import ApiError

DONE = b"data: [DONE]\n\n"


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def dumps(value: Any) -> str:
    """JSON without spaces; NaN and infinity must not occur. Fast for strings and None."""
    return "null" if value is None else _encode(value)


class ChunkWriter:
    """Chunks of one answer, which differ in their choices only.

    Choices are written by callers, as JSON.
    """

    def __init__(self, head: Mapping[str, Any]) -> None:
        """`head` are the members before the choices: id, object, created, model."""
        self._before = f'data: {dumps(dict(head))[:-1]},"choices":['

    def chunk(self, choices: str, rest: str = "") -> bytes:
        """One event; `rest` are further members, such as ',"usage":null'."""
        return f"{self._before}{choices}]{rest}}}\n\n".encode()


def error_event(error: ApiError) -> bytes:
    """An error as an event of a stream that has begun."""
    return f"data: {dumps(error.body())}\n\n".encode()


def named_event(kind: str, members: Mapping[str, Any]) -> bytes:
    """An event of a stream whose events have names."""
    return f"event: {kind}\ndata: {dumps({'type': kind, **members})}\n\n".encode()
