"""Reads answers with tool calls into OpenAI's messages and deltas."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from specdec_serve.http.chunks import dumps
from specdec_serve.http.tools.events import (
    Arguments,
    CallBegins,
    CallFails,
    Content,
    Event,
    ToolParser,
)
from specdec_serve.http.tools.request import ToolUse


@dataclasses.dataclass(frozen=True)
class ToolAnswer:
    """A whole answer; `calls` are OpenAI's. `has_calls`: whether any call is well-formed."""

    content: str | None
    calls: list[dict[str, Any]]
    has_calls: bool


class AnswerReader:
    """Reads one choice, whole or as it is written.

    A stream sends a call as it is written. If the call turns out to be malformed, or is cut, the
    arguments sent so far stay, and the rest becomes content. A whole answer does the same.
    """

    def __init__(self, parser: ToolParser, tools: ToolUse) -> None:
        self._parser = parser
        self._tools = tools
        self._calls: set[int] = set()
        self._has_begun_call = False
        self._space: str | None = ""  # leading white space; None once there is text

    @classmethod
    def of(cls, tools: ToolUse, parser: str | None) -> AnswerReader | None:
        """A reader; None where no calls are read. `parser`: name of the parser for "auto"."""
        made = tools.make_parser(parser)
        return None if made is None else cls(made, tools)

    def read_whole(self, text: str) -> ToolAnswer:
        """Reads a whole text at once."""
        content = ""
        calls: dict[int, dict[str, Any]] = {}
        for event in self.read_shown(text, is_last=True):
            match event:
                case Content():
                    content += event.text
                case CallBegins():
                    function = {"name": event.name, "arguments": ""}
                    calls[event.index] = {"id": event.id, "type": "function", "function": function}
                case Arguments():
                    calls[event.index]["function"]["arguments"] += event.text
        is_null = calls and not content and not self._tools.is_forced
        return ToolAnswer(None if is_null else content, list(calls.values()), self.has_calls)

    @property
    def holds(self) -> bool:
        """Whether text is held back because its kind is not known yet."""
        return self._parser.holds

    @property
    def has_calls(self) -> bool:
        """Whether there is a well-formed call so far."""
        return bool(self._calls)

    def read_shown(self, text: str, *, is_last: bool) -> list[Event]:
        """Like read(), but leading white space waits for content, and is dropped without any."""
        shown: list[Event] = []
        for event in self.read(text, is_last=is_last):
            if self._space is not None and isinstance(event, Content):
                if not event.text.strip():
                    self._space += event.text
                    continue
                if self._space:
                    shown.append(Content(self._space))
                self._space = None
            shown.append(event)
        if is_last and self._space and not self._has_begun_call:
            shown.append(Content(self._space))
        return shown

    def read(self, text: str, *, is_last: bool) -> list[Event]:
        """The events of the next piece of text."""
        events = self._parser.feed(text)
        if is_last:
            events += self._parser.finish()
        events = list(_kept(events, self._tools))
        for event in events:
            if isinstance(event, CallBegins):
                self._calls.add(event.index)
                self._has_begun_call = True
            elif isinstance(event, CallFails):
                self._calls.discard(event.index)
        return events


def _kept(events: Iterable[Event], tools: ToolUse) -> Iterator[Event]:
    """The events that a request allows: only calls if required, and one call if not parallel."""
    for event in events:
        if isinstance(event, Content):
            is_kept = not tools.is_forced
        else:
            is_kept = tools.parallel or event.index == 0
        if is_kept:
            yield event


def deltas_of(events: Iterable[Event]) -> list[str]:
    """The events as a chat's deltas in JSON, one per event."""
    deltas = []
    for event in events:
        match event:
            case Content():
                deltas.append(f'{{"content":{dumps(event.text)}}}')
            case CallBegins():
                function = f'{{"name":{dumps(event.name)},"arguments":""}}'
                deltas.append(
                    f'{{"tool_calls":[{{"index":{event.index},"id":{dumps(event.id)},'
                    f'"type":"function","function":{function}}}]}}'
                )
            case Arguments():
                function = f'{{"arguments":{dumps(event.text)}}}'
                deltas.append(f'{{"tool_calls":[{{"index":{event.index},"function":{function}}}]}}')
    return deltas
