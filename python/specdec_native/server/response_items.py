"""The items of a response's output: messages and calls of functions, as they grow."""

from __future__ import annotations

import abc
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from specdec_native.server.tools.events import Arguments, CallBegins, CallFails, Content, Event

Written: TypeAlias = tuple[str, dict[str, Any]]  # the type of an event of the stream, its members
Logprobs: TypeAlias = list[dict[str, Any]]


class Item(abc.ABC):
    """One item. Its `status` is OpenAI's."""

    def __init__(self, prefix: str) -> None:
        self.id = f"{prefix}_{uuid.uuid4().hex}"
        self.status = "in_progress"

    @abc.abstractmethod
    def json(self) -> dict[str, Any]:
        """The item as it is now."""

    @abc.abstractmethod
    def opening(self, place: dict[str, Any]) -> list[Written]:
        """What follows the item's announcement, before anything is in it."""

    @abc.abstractmethod
    def closing(self, place: dict[str, Any]) -> list[Written]:
        """What comes before the item's end."""


class MessageItem(Item):
    """A message of one text."""

    def __init__(self, text: str = "") -> None:
        super().__init__("msg")
        self.text = text
        self.logprobs: Logprobs = []
        self._is_new = True

    def part(self) -> dict[str, Any]:
        """The one content part."""
        return {
            "type": "output_text",
            "annotations": [],
            "text": self.text,
            "logprobs": list(self.logprobs),
        }

    def json(self) -> dict[str, Any]:
        """The message; without its part before anything is in it."""
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": [] if self._is_new else [self.part()],
        }

    def opening(self, place: dict[str, Any]) -> list[Written]:
        """The part begins."""
        self._is_new = False
        return [("response.content_part.added", {**place, "content_index": 0, "part": self.part()})]

    def add(self, text: str, logprobs: Logprobs, place: dict[str, Any]) -> list[Written]:
        """More text."""
        self.text += text
        self.logprobs += logprobs
        members = {**place, "content_index": 0, "delta": text, "logprobs": logprobs}
        return [("response.output_text.delta", members)]

    def closing(self, place: dict[str, Any]) -> list[Written]:
        """The text and its part end."""
        place = {**place, "content_index": 0}
        return [
            (
                "response.output_text.done",
                {**place, "text": self.text, "logprobs": self.logprobs},
            ),
            ("response.content_part.done", {**place, "part": self.part()}),
        ]


class CallItem(Item):
    """A call of a function."""

    def __init__(self, call_id: str, name: str, arguments: str = "") -> None:
        super().__init__("fc")
        self.arguments = arguments
        self._call_id = call_id
        self._name = name

    def json(self) -> dict[str, Any]:
        """The call."""
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.arguments,
        }

    def opening(self, place: dict[str, Any]) -> list[Written]:
        """Nothing: arguments have no part of their own."""
        return []

    def add(self, arguments: str, place: dict[str, Any]) -> list[Written]:
        """More of the arguments."""
        self.arguments += arguments
        return [("response.function_call_arguments.delta", {**place, "delta": arguments})]

    def closing(self, place: dict[str, Any]) -> list[Written]:
        """The arguments end."""
        members = {**place, "name": self._name, "arguments": self.arguments}
        return [("response.function_call_arguments.done", members)]


class OutputItems:
    """All items of a response; the last one may still grow."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._is_open = False

    @classmethod
    def whole(
        cls, text: str | None, logprobs: Logprobs, calls: Sequence[dict[str, Any]]
    ) -> OutputItems:
        """Those of a whole answer; `calls` are a chat's."""
        output = cls()
        if text or not calls:
            output._add(Content(text or ""), logprobs)
        for i, call in enumerate(calls):
            output._add(CallBegins(i, call["id"], call["function"]["name"]), [])
            output._add(Arguments(i, call["function"]["arguments"]), [])
        return output

    def json(self) -> list[dict[str, Any]]:
        """The items as they are now."""
        return [item.json() for item in self._items]

    def add(self, events: Iterable[Event], logprobs: Logprobs) -> list[Written]:
        """Takes what a step has brought; its logprobs belong to its text, if there is any."""
        written: list[Written] = []
        for event in events:
            written += self._add(event, logprobs)
            if isinstance(event, Content):
                logprobs = []
        return written

    def end(self, status: str) -> list[Written]:
        """Ends the last item with that status. An answer without any has an empty message."""
        written = [] if self._items else self._open(MessageItem())
        return written + self._close(status)

    def _add(self, event: Event, logprobs: Logprobs) -> list[Written]:
        written: list[Written] = []
        match event:
            case Content():
                if not self._is_open or not isinstance(self._items[-1], MessageItem):
                    written += self._close("completed") + self._open(MessageItem())
                message = self._items[-1]
                assert isinstance(message, MessageItem)
                written += message.add(event.text, logprobs, self._place)
            case CallBegins():
                written += self._close("completed")
                written += self._open(CallItem(event.id, event.name))
            case Arguments():
                call = self._items[-1]
                assert isinstance(call, CallItem)
                written += call.add(event.text, self._place)
            case CallFails():
                written += self._close("incomplete")
        return written

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1].id, "output_index": len(self._items) - 1}

    def _open(self, item: Item) -> list[Written]:
        self._items.append(item)
        self._is_open = True
        index = len(self._items) - 1
        added = ("response.output_item.added", {"output_index": index, "item": item.json()})
        return [added, *item.opening(self._place)]

    def _close(self, status: str) -> list[Written]:
        if not self._is_open:
            return []
        self._is_open = False
        item = self._items[-1]
        written = item.closing(self._place)
        item.status = status
        index = len(self._items) - 1
        return [
            *written,
            ("response.output_item.done", {"output_index": index, "item": item.json()}),
        ]
