"""The items of a response's output: messages, reasoning and calls, as they grow.

The result does not depend on how an answer is split into steps: a whole answer is one step.
"""

from __future__ import annotations

import abc
import collections
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

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
    def opening(self, address: dict[str, Any]) -> list[Written]:
        """Events after the item's announcement, before its first content."""

    @abc.abstractmethod
    def closing(self, address: dict[str, Any]) -> list[Written]:
        """Events before the item's end."""


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
        """The message; without a part while it is empty."""
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": [] if self._is_new else [self.part()],
        }

    def opening(self, address: dict[str, Any]) -> list[Written]:
        """The part begins."""
        self._is_new = False
        return [
            ("response.content_part.added", {**address, "content_index": 0, "part": self.part()})
        ]

    def add(self, text: str, logprobs: Logprobs, address: dict[str, Any]) -> list[Written]:
        """More text."""
        self.text += text
        self.logprobs += logprobs
        members = {**address, "content_index": 0, "delta": text, "logprobs": logprobs}
        return [("response.output_text.delta", members)]

    def closing(self, address: dict[str, Any]) -> list[Written]:
        """The text and its part end."""
        address = {**address, "content_index": 0}
        return [
            (
                "response.output_text.done",
                {**address, "text": self.text, "logprobs": self.logprobs},
            ),
            ("response.content_part.done", {**address, "part": self.part()}),
        ]


class ReasoningItem(Item):
    """What the model thinks, in one text."""

    def __init__(self) -> None:
        super().__init__("rs")
        self.text = ""

    def json(self) -> dict[str, Any]:
        """The reasoning; without a part while it is empty."""
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            "summary": [],
            "content": [self._part()] if self.text else [],
            "encrypted_content": None,
        }

    def opening(self, address: dict[str, Any]) -> list[Written]:
        """The part begins."""
        members = {**address, "content_index": 0, "part": self._part()}
        return [("response.content_part.added", members)]

    def add(self, text: str, address: dict[str, Any]) -> list[Written]:
        """More text."""
        self.text += text
        members = {**address, "content_index": 0, "delta": text}
        return [("response.reasoning_text.delta", members)]

    def closing(self, address: dict[str, Any]) -> list[Written]:
        """The text and its part end."""
        address = {**address, "content_index": 0}
        return [
            ("response.reasoning_text.done", {**address, "text": self.text}),
            ("response.content_part.done", {**address, "part": self._part()}),
        ]

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


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

    def opening(self, address: dict[str, Any]) -> list[Written]:
        """Nothing: arguments have no part of their own."""
        return []

    def add(self, arguments: str, address: dict[str, Any]) -> list[Written]:
        """More of the arguments."""
        self.arguments += arguments
        return [("response.function_call_arguments.delta", {**address, "delta": arguments})]

    def closing(self, address: dict[str, Any]) -> list[Written]:
        """The arguments end."""
        members = {**address, "name": self._name, "arguments": self.arguments}
        return [("response.function_call_arguments.done", members)]


class OutputItems:
    """All items of a response; the last one may still grow.

    A message has the logprobs of its text's tokens, and of tokens without text that come while it
    is open. White space around calls and reasoning makes no message.
    """

    def __init__(self, reader: AnswerReader | None) -> None:
        """`reader` finds calls and reasoning; None if there can be none."""
        self._reader = reader
        self._tokens = _TextOfTokens()
        self._items: list[Item] = []
        self._is_open = False
        self._space = ""  # white space before the next message, if one follows
        self._num_ahead = 0  # held-back characters of a token whose logprobs were sent already
        # Number of characters and logprobs of tokens whose item is not known yet.
        self._waiting: list[tuple[int, dict[str, Any]]] = []

    def json(self) -> list[dict[str, Any]]:
        """The items as they are now."""
        return [item.json() for item in self._items]

    @property
    def reasoning(self) -> str:
        """The text of all reasoning so far."""
        return "".join(item.text for item in self._items if isinstance(item, ReasoningItem))

    def add(
        self, text: str, logprobs: Logprobs, text_lengths: Sequence[int] | None, *, is_last: bool
    ) -> list[Written]:
        """Adds a step's text and tokens; `text_lengths` are the characters that each token added.

        Without logprobs, tokens do not matter.
        """
        written: list[Written] = []
        if logprobs or self._tokens.has_any:
            for piece, entry in self._tokens.add(
                text, logprobs, text_lengths or (), is_last=is_last
            ):
                written += self._read(piece, entry)
        else:
            written += self._read(text, None)
        if is_last and self._reader is not None:
            written += self._take(self._reader.read("", is_last=True))
            if not self._space:
                self._waiting = [token for token in self._waiting if token[0] == 0]
            if isinstance(self._open_item, CallItem):  # others end with the answer's status
                written += self._close("completed")
        return written

    def end(self, status: str) -> list[Written]:
        """Ends the last item with `status`. An answer without items gets an empty message."""
        written: list[Written] = []
        if not self._items or (self._message is not None and self._waiting):
            written += self._say("")
        return written + self._close(status)

    def _read(self, text: str, entry: dict[str, Any] | None) -> list[Written]:
        """Reads the text of one token, or any text where there are no logprobs."""
        if entry is not None:
            self._waiting.append((len(text), entry))
        if self._reader is None:
            return self._take([Content(text)] if text else [], text)
        return self._take(self._reader.read(text, is_last=False), text)

    def _take(self, events: Sequence[Event], text: str = "") -> list[Written]:
        written: list[Written] = []
        for event in events:
            written += self._add(event)
        if self._reader is not None and self._reader.holds:
            return written  # the reader decides later
        self._num_ahead = 0
        is_passed_over = not isinstance(events[-1], Content) if events else bool(text)
        if is_passed_over:
            self._waiting.clear()
        elif self._waiting and self._message is not None:
            written += self._say("")
        return written

    def _add(self, event: Event) -> list[Written]:
        if isinstance(event, Content):
            if self._message is None and not event.text.strip():
                self._space += event.text
                return []
            return self._say(event.text)
        self._space = ""
        self._num_ahead = 0
        del self._waiting[:-1]  # keeps the last: its token may also have text after the call
        match event:
            case CallBegins():
                return self._close("completed") + self._open(CallItem(event.id, event.name))
            case Reasoning():
                return self._think(event.text)
            case Arguments():
                call = self._items[-1]
                assert isinstance(call, CallItem)
                return call.add(event.text, self._address)
            case MessageEnds() | CallFails():
                return self._close("completed" if event == MessageEnds() else "incomplete")

    def _think(self, text: str) -> list[Written]:
        """Adds to the open reasoning, or to a new one."""
        written: list[Written] = []
        if not isinstance(self._open_item, ReasoningItem):
            written += self._close("completed") + self._open(ReasoningItem())
        item = self._items[-1]
        assert isinstance(item, ReasoningItem)
        return written + item.add(text, self._address)

    def _say(self, text: str) -> list[Written]:
        """Adds to the open message, or to a new one, with the logprobs of the text's tokens.

        An empty text takes the logprobs of all waiting tokens.
        """
        written: list[Written] = []
        if self._message is None:
            written += self._close("completed") + self._open(MessageItem())
        message = self._message
        assert message is not None
        text, self._space = self._space + text, ""
        logprobs: Logprobs = []
        num_left = len(text) - self._num_ahead
        while self._waiting and (num_left > 0 or not text):
            num_chars, entry = self._waiting.pop(0)
            num_left -= num_chars
            logprobs.append(entry)
        self._num_ahead = max(0, -num_left)
        if text or logprobs:
            written += message.add(text, logprobs, self._address)
        return written

    @property
    def _message(self) -> MessageItem | None:
        """The open message, if any."""
        item = self._open_item
        return item if isinstance(item, MessageItem) else None

    @property
    def _open_item(self) -> Item | None:
        return self._items[-1] if self._is_open else None

    @property
    def _address(self) -> dict[str, Any]:
        return {"item_id": self._items[-1].id, "output_index": len(self._items) - 1}

    def _open(self, item: Item) -> list[Written]:
        self._items.append(item)
        self._is_open = True
        index = len(self._items) - 1
        added = ("response.output_item.added", {"output_index": index, "item": item.json()})
        return [added, *item.opening(self._address)]

    def _close(self, status: str) -> list[Written]:
        if not self._is_open:
            return []
        self._is_open = False
        item = self._items[-1]
        written = item.closing(self._address)
        item.status = status
        index = len(self._items) - 1
        return [
            *written,
            ("response.output_item.done", {"output_index": index, "item": item.json()}),
        ]


class _TextOfTokens:
    """Splits an answer's text at its tokens' ends, however many tokens come at once."""

    def __init__(self) -> None:
        self.has_any = False  # whether there were tokens
        self._text = ""  # not taken yet
        self._tokens: collections.deque[tuple[int, dict[str, Any]]] = collections.deque()

    def add(
        self, text: str, logprobs: Logprobs, text_lengths: Sequence[int], *, is_last: bool
    ) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Yields text and logprobs of each token whose text has arrived.

        Because of stop strings, text may arrive later than its token, or never.
        """
        self.has_any |= bool(logprobs)
        self._text += text
        self._tokens.extend(zip(text_lengths, logprobs, strict=True))
        while self._tokens:
            num_chars, entry = self._tokens[0]
            if num_chars > len(self._text) and not is_last:
                return
            self._tokens.popleft()
            yield self._take(num_chars), entry
        if is_last and self._text:
            yield self._take(len(self._text)), None

    def _take(self, num_chars: int) -> str:
        text, self._text = self._text[:num_chars], self._text[num_chars:]
        return text
