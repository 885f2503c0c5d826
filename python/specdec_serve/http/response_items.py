"""The items of a response's output: messages, reasoning and calls, as OpenAI has them."""

from __future__ import annotations

import abc
import collections
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from specdec_serve.http.answer_items import AnswerItems, Item, Written
from specdec_serve.http.tools.answer import AnswerReader
from specdec_serve.http.tools.events import CallBegins, Content, Event

Logprobs: TypeAlias = list[dict[str, Any]]


class OutputItem(Item):
    """An item with an id."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.id = f"{prefix}_{uuid.uuid4().hex}"

    def begins(self, index: int) -> list[Written]:
        """The item is added, and its part begins."""
        added = ("response.output_item.added", {"output_index": index, "item": self.json()})
        return [added, *self._opening(self._address(index))]

    def ends(self, index: int, status: str) -> list[Written]:
        """Text, part and item are done."""
        written = self._closing(self._address(index))
        self.status = status
        done = ("response.output_item.done", {"output_index": index, "item": self.json()})
        return [*written, done]

    @abc.abstractmethod
    def _opening(self, address: dict[str, Any]) -> list[Written]:
        """Events after the item's announcement; `address` has members that name the item."""

    @abc.abstractmethod
    def _closing(self, address: dict[str, Any]) -> list[Written]:
        """Events before the item's end."""

    def _address(self, index: int) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": index}


class MessageItem(OutputItem):
    """A message of one text."""

    def __init__(self) -> None:
        super().__init__("msg")
        self.text = ""
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

    def _opening(self, address: dict[str, Any]) -> list[Written]:
        self._is_new = False
        return [
            ("response.content_part.added", {**address, "content_index": 0, "part": self.part()})
        ]

    def add(self, text: str, index: int, logprobs: Sequence[dict[str, Any]] = ()) -> list[Written]:
        """More text, with the logprobs of its tokens."""
        self.text += text
        self.logprobs += logprobs
        address = self._address(index)
        members = {**address, "content_index": 0, "delta": text, "logprobs": [*logprobs]}
        return [("response.output_text.delta", members)]

    def _closing(self, address: dict[str, Any]) -> list[Written]:
        address = {**address, "content_index": 0}
        return [
            (
                "response.output_text.done",
                {**address, "text": self.text, "logprobs": self.logprobs},
            ),
            ("response.content_part.done", {**address, "part": self.part()}),
        ]


class ReasoningItem(OutputItem):
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

    def _opening(self, address: dict[str, Any]) -> list[Written]:
        members = {**address, "content_index": 0, "part": self._part()}
        return [("response.content_part.added", members)]

    def add(self, text: str, index: int) -> list[Written]:
        """More text."""
        self.text += text
        members = {**self._address(index), "content_index": 0, "delta": text}
        return [("response.reasoning_text.delta", members)]

    def _closing(self, address: dict[str, Any]) -> list[Written]:
        address = {**address, "content_index": 0}
        return [
            ("response.reasoning_text.done", {**address, "text": self.text}),
            ("response.content_part.done", {**address, "part": self._part()}),
        ]

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


class CallItem(OutputItem):
    """A call of a function."""

    def __init__(self, call_id: str, name: str) -> None:
        super().__init__("fc")
        self.arguments = ""
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

    def _opening(self, address: dict[str, Any]) -> list[Written]:
        return []  # arguments have no part of their own

    def add(self, text: str, index: int) -> list[Written]:
        """More of the arguments."""
        self.arguments += text
        members = {**self._address(index), "delta": text}
        return [("response.function_call_arguments.delta", members)]

    def _closing(self, address: dict[str, Any]) -> list[Written]:
        members = {**address, "name": self._name, "arguments": self.arguments}
        return [("response.function_call_arguments.done", members)]


class OutputItems(AnswerItems):
    """All items of a response; the last one may still grow.

    A message has the logprobs of its text's tokens, and of tokens without text that come while it
    is open.
    """

    def __init__(self, reader: AnswerReader | None) -> None:
        """`reader` finds calls and reasoning; None if there can be none."""
        super().__init__(reader)
        self._tokens = _TextOfTokens()
        self._num_ahead = 0  # held-back characters of a token whose logprobs were sent already
        # Number of characters and logprobs of tokens whose item is not known yet.
        self._waiting: list[tuple[int, dict[str, Any]]] = []

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
            written += self._take(self._events_of("", is_last=True))
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
        return self._take(self._events_of(text, is_last=False), text)

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
        if not isinstance(event, Content):
            self._num_ahead = 0
            del self._waiting[:-1]  # keeps the last: its token may also have text after the call
        return super()._add(event)

    def _say(self, text: str) -> list[Written]:
        """Adds to the open message, or to a new one, with the logprobs of the text's tokens.

        An empty text takes the logprobs of all waiting tokens.
        """
        message, written = self._continued(MessageItem)
        text = self._with_space(text)
        logprobs: Logprobs = []
        num_left = len(text) - self._num_ahead
        while self._waiting and (num_left > 0 or not text):
            num_chars, entry = self._waiting.pop(0)
            num_left -= num_chars
            logprobs.append(entry)
        self._num_ahead = max(0, -num_left)
        if text or logprobs:
            written += message.add(text, self._last, logprobs)
        return written

    def _think(self, text: str) -> list[Written]:
        item, written = self._continued(ReasoningItem)
        return written + item.add(text, self._last)

    def _call(self, event: CallBegins) -> Item:
        return CallItem(event.id, event.name)

    @property
    def _message(self) -> MessageItem | None:
        """The open message, if any."""
        item = self._open_item
        return item if isinstance(item, MessageItem) else None

    @property
    def _in_text(self) -> bool:
        return self._message is not None


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
