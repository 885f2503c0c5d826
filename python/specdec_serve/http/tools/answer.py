"""Reads answers with reasoning and tool calls into OpenAI's messages and deltas."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.text.reasoning import ReasoningStart
from specdec_serve.http.chunks import dumps
from specdec_serve.http.tools.events import (
    AnswerParser,
    Arguments,
    CallBegins,
    CallFails,
    Content,
    Event,
    MessageEnds,
    Reasoning,
)
from specdec_serve.http.tools.parsers import AnswerFormat
from specdec_serve.http.tools.request import ToolUse, is_forced_in_syntax, reads_calls


@dataclasses.dataclass(frozen=True)
class WholeAnswer:
    """A whole answer; `calls` are OpenAI's. `has_calls`: whether any call is well-formed."""

    content: str | None
    reasoning: str | None = None
    calls: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    has_calls: bool = False


class AnswerReader:
    """Reads one choice, whole or as it is written.

    A stream sends a call as it is written. If the call turns out to be malformed, or is cut, the
    arguments sent so far stay, and the rest becomes content. A whole answer does the same.

    Attributes:
        thoughts: the reasoning so far, whether or not it is shown.
    """

    def __init__(
        self, parser: AnswerParser, tools: ToolUse | None, *, shows_reasoning: bool = True
    ) -> None:
        self._parser = parser
        self._is_forced = tools is not None and tools.is_forced
        self._is_parallel = tools is None or tools.parallel
        self._shows_reasoning = shows_reasoning
        self.thoughts = ""
        self._calls: set[int] = set()
        self._has_begun_call = False
        self._space: str | None = ""  # leading white space; None once there is text
        self._shown: set[type[Event]] = set()  # kinds of text so far
        self._ended: set[type[Event]] = set()  # those whose next text belongs to another message

    @classmethod
    def of(
        cls,
        tools: ToolUse | None,
        form: AnswerFormat,
        params: SamplingParams,
        *,
        shows_reasoning: bool = True,
    ) -> AnswerReader | None:
        """A reader of an answer; None where the text is all content.

        `form` is that of the model's answers, `params` are those of the request that was made.
        """
        reads = reads_calls(tools) or is_forced_in_syntax(tools, params)
        parser = form.parser(
            tools.functions if tools is not None and reads else None,
            params.reasoning_start or ReasoningStart.OPTIONAL,
            forced=None if tools is None or reads else tools.forced_parser(),
        )
        return None if parser is None else cls(parser, tools, shows_reasoning=shows_reasoning)

    def read_whole(self, text: str) -> WholeAnswer:
        """Reads a whole text at once."""
        content = reasoning = ""
        calls: dict[int, dict[str, Any]] = {}
        for event in self.read_shown(text, is_last=True):
            match event:
                case Content():
                    content += event.text
                case Reasoning():
                    reasoning += event.text
                case CallBegins():
                    function = {"name": event.name, "arguments": ""}
                    calls[event.index] = {"id": event.id, "type": "function", "function": function}
                case Arguments():
                    calls[event.index]["function"]["arguments"] += event.text
        is_null = (calls or reasoning) and not content and not self._is_forced
        return WholeAnswer(
            None if is_null else content, reasoning or None, list(calls.values()), self.has_calls
        )

    @property
    def holds(self) -> bool:
        """Whether text is held back because its kind is not known yet."""
        return self._parser.holds

    @property
    def has_calls(self) -> bool:
        """Whether there is a well-formed call so far."""
        return bool(self._calls)

    def read_shown(self, text: str, *, is_last: bool) -> list[Event]:
        """Like read(), for one message of all: a line break stands between the texts of several.

        Leading white space waits for content, and is dropped without any.
        """
        shown: list[Event] = []
        for event in self.read(text, is_last=is_last):
            if isinstance(event, MessageEnds):
                self._ended |= self._shown
                continue
            if self._space is not None and isinstance(event, Content):
                if not event.text.strip():
                    self._space += event.text
                    continue
                event = Content(self._space + event.text)  # noqa: PLW2901
                self._space = None
            if isinstance(event, (Content, Reasoning)):
                kind = type(event)
                if kind in self._ended:
                    event = kind("\n" + event.text)  # noqa: PLW2901
                    self._ended.discard(kind)
                self._shown.add(kind)
            shown.append(event)
        if is_last and self._space and not self._has_begun_call:
            shown.append(Content(self._space))
        return shown

    def read(self, text: str, *, is_last: bool) -> list[Event]:
        """The events of the next piece of text."""
        events = self._parser.feed(text)
        if is_last:
            events += self._parser.finish()
        self.thoughts += "".join(event.text for event in events if isinstance(event, Reasoning))
        events = [event for event in events if self._keeps(event)]
        for event in events:
            if isinstance(event, CallBegins):
                self._calls.add(event.index)
                self._has_begun_call = True
            elif isinstance(event, CallFails):
                self._calls.discard(event.index)
        return events

    def _keeps(self, event: Event) -> bool:
        """Whether the request allows it: only calls if required, one call if not parallel."""
        match event:
            case Content():
                return not self._is_forced
            case Reasoning():
                return self._shows_reasoning
            case MessageEnds():
                return True
            case _:
                return self._is_parallel or event.index == 0


def deltas_of(events: Iterable[Event]) -> list[str]:
    """The events as a chat's deltas in JSON, one per event."""
    deltas = []
    for event in events:
        match event:
            case Content():
                deltas.append(f'{{"content":{dumps(event.text)}}}')
            case Reasoning():
                text = dumps(event.text)
                deltas.append(f'{{"reasoning":{text},"reasoning_content":{text}}}')
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
