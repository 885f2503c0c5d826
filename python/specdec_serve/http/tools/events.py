"""What an answer's text turns out to be, piece by piece: content, or calls of tools."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Protocol, TypeAlias


@dataclasses.dataclass(frozen=True)
class Content:
    """Text of the message."""

    text: str


@dataclasses.dataclass(frozen=True)
class CallBegins:
    """A call, by its index in the message; its arguments follow."""

    index: int
    id: str
    name: str


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The next piece of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclasses.dataclass(frozen=True)
class CallFails:
    """A call that has begun is no valid JSON, or was cut; `text` is all that was written of it."""

    index: int
    text: str


Event: TypeAlias = Content | CallBegins | Arguments | CallFails


class ToolParser(Protocol):
    """Reads the text of one answer as it comes. No text makes it raise."""

    def feed(self, text: str) -> list[Event]:
        """What the next piece of the text adds. Text that may be the beginning of a call waits."""

    def finish(self) -> list[Event]:
        """What the end of the text adds."""

    @property
    def holds(self) -> bool:
        """Whether text waits of which it is not known yet what it is."""


def new_call_id() -> str:
    """An id as vLLM writes them."""
    return f"chatcmpl-tool-{uuid.uuid4().hex}"
