"""An answer that may hold calls, as OpenAI's messages and deltas have them."""

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
    """A whole answer; `calls` are OpenAI's. `has_calls` says whether one is not malformed."""

    content: str | None
    calls: list[dict[str, Any]]
    has_calls: bool


class AnswerReader:
    """Reads one choice, whole or as it is written.

    In a stream a call goes out as it is written: one that turns out to be malformed, or is cut,
    keeps what was sent of its arguments, and the rest of it is content. So it is in a whole answer.
    """

    def __init__(self, parser: ToolParser, tools: ToolUse) -> None:
        self._parser = parser
        self._tools = tools
        self._calls: set[int] = set()
        self._has_begun_call = False
        self._space: str | None = ""  # what the content begins with; None once there is more

    @classmethod
    def of(cls, tools: ToolUse, parser: str | None) -> AnswerReader | None:
        """None where no calls are read. `parser` is the name of the one for "auto"."""
        made = tools.make_parser(parser)
        return None if made is None else cls(made, tools)

    def read_whole(self, text: str) -> ToolAnswer:
        """Reads a whole text instead."""
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
        """Whether text waits of which it is not known yet what it is."""
        return self._parser.holds

    @property
    def has_calls(self) -> bool:
        """Whether there is a call so far that is not malformed."""
        return bool(self._calls)

    def read_shown(self, text: str, *, is_last: bool) -> list[Event]:
        """Like read, but space waits for the content it begins; beside calls alone it is none."""
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
        """What the next piece of the text adds."""
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
    """Those of a request: calls alone where they are required, and one where one is asked for."""
    for event in events:
        if isinstance(event, Content):
            is_kept = not tools.is_forced
        else:
            is_kept = tools.parallel or event.index == 0
        if is_kept:
            yield event


def deltas_of(events: Iterable[Event]) -> list[str]:
    """The events as deltas of a chat, one each, as JSON."""
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
