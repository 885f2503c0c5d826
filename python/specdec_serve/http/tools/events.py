"""Events of an answer's text: pieces of content, of reasoning or of tool calls."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Protocol, TypeAlias


@dataclasses.dataclass(frozen=True)
class Content:
    """Text of the message."""

    text: str


@dataclasses.dataclass(frozen=True)
class Reasoning:
    """Text that the model thinks with."""

    text: str


@dataclasses.dataclass(frozen=True)
class MessageEnds:
    """What was said or thought so far is a message, and what follows is another."""


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
    """A call is malformed JSON or was cut after it had begun; `text` is all of its text."""

    index: int
    text: str


Event: TypeAlias = Content | Reasoning | MessageEnds | CallBegins | Arguments | CallFails


class AnswerParser(Protocol):
    """Reads the text of one answer as it arrives. Never raises, whatever the text."""

    def feed(self, text: str) -> list[Event]:
        """The events of the next piece of text. Text whose kind is unknown is held back."""

    def finish(self) -> list[Event]:
        """The events at the end of the text."""

    @property
    def holds(self) -> bool:
        """Whether text waits of which it is not known yet what it is."""


def new_call_id() -> str:
    """A call id in vLLM's form."""
    return f"chatcmpl-tool-{uuid.uuid4().hex}"
