"""The items of an answer as they grow: texts, reasoning and calls, one after the other.

An API says what its items are and which events of a stream tell of them: `response_items.py` and
`message_blocks.py`. The result does not depend on how an answer is split into steps: a whole answer
is one step.
"""

from __future__ import annotations

import abc
from typing import Any, TypeAlias, TypeVar

from specdec_serve.http.tools.answer import AnswerReader
from specdec_serve.http.tools.events import (
    Arguments,
    CallBegins,
    CallFails,
    Content,
    Event,
    MessageEnds,
    Reasoning,
)

Written: TypeAlias = tuple[str, dict[str, Any]]  # an event of the stream: type and members


class Item(abc.ABC):
    """One item; `index` is its place in the answer.

    Attributes:
        status: in_progress, then completed, or incomplete where the item was cut or malformed.
    """

    def __init__(self) -> None:
        self.status = "in_progress"

    @abc.abstractmethod
    def json(self) -> dict[str, Any]:
        """The item as it is now."""

    @abc.abstractmethod
    def begins(self, index: int) -> list[Written]:
        """The events that announce the item, before its first content."""

    @abc.abstractmethod
    def add(self, text: str, index: int) -> list[Written]:
        """Adds text, or text of a call's arguments; returns the events for it."""

    @abc.abstractmethod
    def ends(self, index: int, status: str) -> list[Written]:
        """Sets the status; returns the events that end the item."""


ItemT = TypeVar("ItemT", bound=Item)


class AnswerItems(abc.ABC):
    """All items of an answer; the last one may still grow.

    White space around calls and reasoning makes no item of its own.
    """

    def __init__(self, reader: AnswerReader | None) -> None:
        """`reader` finds calls and reasoning; None if there can be none."""
        self._reader = reader
        self._items: list[Item] = []
        self._is_open = False
        self._space = ""  # white space before the next text, if one follows

    def json(self) -> list[dict[str, Any]]:
        """The items as they are now."""
        return [item.json() for item in self._items]

    @property
    @abc.abstractmethod
    def _in_text(self) -> bool:
        """Whether the open item is a text."""

    @abc.abstractmethod
    def _say(self, text: str) -> list[Written]:
        """Adds `text`, and white space that waits, to the open text or to a new one."""

    @abc.abstractmethod
    def _think(self, text: str) -> list[Written]:
        """Adds to the open reasoning, or to a new one."""

    @abc.abstractmethod
    def _call(self, event: CallBegins) -> Item:
        """The item of a call."""

    def _events_of(self, text: str, *, is_last: bool) -> list[Event]:
        """The events of the next piece of the answer's text."""
        if self._reader is None:
            return [Content(text)] if text else []
        return self._reader.read(text, is_last=is_last)

    def _add(self, event: Event) -> list[Written]:
        """Adds what an event tells; returns the events of the stream."""
        if isinstance(event, Content):
            if not self._in_text and not event.text.strip():
                self._space += event.text
                return []
            return self._say(event.text)
        self._space = ""
        match event:
            case CallBegins():
                return self._close("completed") + self._open(self._call(event))
            case Reasoning():
                return self._think(event.text)
            case Arguments():
                return self._items[-1].add(event.text, self._last)
            case MessageEnds() | CallFails():
                return self._close("completed" if event == MessageEnds() else "incomplete")

    def _with_space(self, text: str) -> str:
        """The text behind the white space that waited for it."""
        text, self._space = self._space + text, ""
        return text

    def _continued(self, kind: type[ItemT]) -> tuple[ItemT, list[Written]]:
        """The open item if it is of this kind, else a new one, with the events of the change."""
        item = self._open_item
        if isinstance(item, kind):
            return item, []
        made = kind()
        return made, self._close("completed") + self._open(made)

    @property
    def _open_item(self) -> Item | None:
        return self._items[-1] if self._is_open else None

    @property
    def _last(self) -> int:
        """The index of the last item."""
        return len(self._items) - 1

    def _open(self, item: Item) -> list[Written]:
        self._items.append(item)
        self._is_open = True
        return item.begins(self._last)

    def _close(self, status: str) -> list[Written]:
        if not self._is_open:
            return []
        self._is_open = False
        return self._items[-1].ends(self._last, status)
