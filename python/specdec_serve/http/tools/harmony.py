"""Answers of gpt-oss: messages on channels, in OpenAI's harmony format.

A message is `<|start|>assistant<|channel|>CHANNEL<|message|>TEXT<|end|>`; the prompt has written
the first `<|start|>assistant`. Reasoning is on the channel "analysis". Users see "final", and
"commentary" without a recipient. A call has a recipient in its header, before or after the channel,
such as `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from specdec_serve.http.tools.events import (
    Arguments,
    CallBegins,
    CallFails,
    Content,
    Event,
    MessageEnds,
    Reasoning,
    new_call_id,
)

START = "<|start|>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
CONSTRAIN = "<|constrain|>"
END = "<|end|>"
_ENDS = (END, "<|call|>", "<|return|>")
TAGS = (START, CHANNEL, MESSAGE, CONSTRAIN, *_ENDS)
EFFORTS = ("low", "medium", "high")  # of reasoning

_ANY_TAG = re.compile("|".join(map(re.escape, TAGS)))
_ROLE = "assistant"
_TO = "to="
# What may stand before the first tag of a header that the prompt, or <|start|>, has not begun.
_BEFORE_TAG = re.compile(rf"\s*(?:{_ROLE}(?=\s|$))?\s*(?:{_TO}\S*\s*)?")
_LONGEST_BEFORE_TAG = 200
_CHANNEL_NAME = re.compile(rf"{re.escape(CHANNEL)}\s*([^\s<]*)")
_RECIPIENT = re.compile(rf"(?:^|\s){_TO}([^\s<]+)")
_CONTENT_TYPE = re.compile(rf"{re.escape(CONSTRAIN)}\s*[^\s<]*")
_FUNCTIONS = "functions."


class HarmonyParser:
    """Turns messages into reasoning, content and calls.

    In malformed answers, text outside of messages is content, and a header without a message is one
    of the text after its channel.
    """

    def __init__(self, *, reads_calls: bool) -> None:
        """`reads_calls`: whether messages to functions are calls; else they are content."""
        self._reads_calls = reads_calls
        self._state: Callable[[str], None] = self._read_outside
        self._take: Callable[[str], None] = self._add_content
        self._tag = ""  # the incomplete tag so far
        self._held = ""  # text outside of messages that may turn out to be a header
        self._header = ""
        self._follows_message = False
        self._num_calls = 0
        self._call: list[str] | None = None  # the arguments so far of the current call
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        """The events of the next piece of text."""
        text = self._tag + text
        position = 0
        for tag in _ANY_TAG.finditer(text):
            self._read(text[position : tag.start()])
            self._read_tag(tag[0])
            position = tag.end()
        begin = text.rfind("<", position)
        if begin < 0 or not any(tag.startswith(text[begin:]) for tag in TAGS):
            begin = len(text)
        self._read(text[position:begin])
        self._tag = text[begin:]
        return self._take_events()

    def finish(self) -> list[Event]:
        """The events at the end of the text, which may end a message like a mark."""
        self._read(self._tag)
        self._tag = ""
        self._end_part()
        if self._events and isinstance(self._events[-1], MessageEnds):
            self._events.pop()  # it may be cut
        return self._take_events()

    @property
    def holds(self) -> bool:
        """Whether text waits that may be content."""
        return bool(self._tag or self._held)

    def _read(self, text: str) -> None:
        if text:
            self._state(text)

    # -- text, by where it stands

    def _read_outside(self, text: str) -> None:
        self._held += text
        if not _may_begin_header(self._held):
            self._release()

    def _read_header(self, text: str) -> None:
        self._header += text

    def _read_message(self, text: str) -> None:
        self._take(text)

    def _release(self) -> None:
        """Text outside of messages is a message of its own."""
        text, self._held = self._held, ""
        if self._follows_message and not text.strip():
            return
        self._take = self._add_content
        self._state = self._read_message
        self._take(text)

    # -- marks

    def _read_tag(self, tag: str) -> None:
        if tag in _ENDS:
            self._end_part()
        elif tag == START:
            self._end_part()
            self._state = self._read_header
        elif self._state == self._read_header:
            if tag == MESSAGE:
                self._begin_message()
            else:
                self._header += tag
        elif tag == CHANNEL or self._state == self._read_outside:  # the mark before is missing
            self._header, self._held = self._held, ""
            if self._state == self._read_message:
                self._end_part()
            self._state = self._read_header
            self._read_tag(tag)

    def _end_part(self) -> None:
        """Ends what has begun: a message, a header without one, or text that was held."""
        if self._state == self._read_header:
            self._end_header()
        elif self._state == self._read_outside and self._held:
            self._release()
        if self._state == self._read_message:
            if self._call is not None:
                self._end_call(self._call)
            else:
                self._events.append(MessageEnds())
            self._follows_message = True
        self._state = self._read_outside

    def _end_header(self) -> None:
        """A header without a message: the text after its channel is the message."""
        channel, recipient, rest = _parts_of(self._header)
        self._header = ""
        self._state = self._read_outside
        if rest and (recipient is None or not rest.isalnum()):  # else a cut header of a call
            self._begin(self._add_reasoning if channel == "analysis" else self._add_content)
            self._take(rest)

    def _begin_message(self) -> None:
        channel, recipient, _ = _parts_of(self._header)
        self._header = ""
        if recipient is not None and recipient.startswith(_FUNCTIONS):
            name = recipient.removeprefix(_FUNCTIONS)
            if self._reads_calls and name:
                self._begin_call(name)
            else:
                self._begin(self._add_content)
        # Tools that models know of themselves, such as "python", run nowhere here.
        elif channel == "analysis" or recipient is not None:
            self._begin(self._add_reasoning)
        else:
            self._begin(self._add_content)

    def _begin(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._state = self._read_message

    # -- messages

    def _add_content(self, text: str) -> None:
        if self._events and isinstance(last := self._events[-1], Content):
            text = last.text + text
            self._events.pop()
        self._events.append(Content(text))

    def _add_reasoning(self, text: str) -> None:
        if self._events and isinstance(last := self._events[-1], Reasoning):
            text = last.text + text
            self._events.pop()
        self._events.append(Reasoning(text))

    def _begin_call(self, name: str) -> None:
        self._call = []
        self._begin(self._add_arguments)
        self._events.append(CallBegins(self._num_calls, new_call_id(), name))
        self._num_calls += 1

    def _add_arguments(self, text: str) -> None:
        assert self._call is not None
        self._call.append(text)
        index = self._num_calls - 1
        if isinstance(last := self._events[-1] if self._events else None, Arguments):
            text = last.text + text
            self._events.pop()
        self._events.append(Arguments(index, text))

    def _end_call(self, arguments: list[str]) -> None:
        """The call fails where its arguments are cut or malformed; no arguments are {}."""
        text = "".join(arguments)
        if not text.strip():
            self._add_arguments("{}")
        else:
            try:
                json.loads(text)
            except (ValueError, RecursionError):
                self._events.append(CallFails(self._num_calls - 1, text))
        self._call = None

    def _take_events(self) -> list[Event]:
        events = self._events
        self._events = []
        return events


def _may_begin_header(text: str) -> bool:
    """Whether a text without marks may be the beginning of a header."""
    if len(text) > _LONGEST_BEFORE_TAG:
        return False
    if _BEFORE_TAG.fullmatch(text):
        return True
    last = text.rsplit(maxsplit=1)[-1]
    before = text.removesuffix(last)
    if not text.endswith(last) or _BEFORE_TAG.fullmatch(before) is None:
        return False
    return _TO.startswith(last) or (_ROLE.startswith(last) and not before.strip())


def _parts_of(header: str) -> tuple[str | None, str | None, str]:
    """Channel and recipient of a header, and the rest of its text without role and content type."""
    channel = recipient = None
    if found := _CHANNEL_NAME.search(header):
        channel = found[1]
        header = f"{header[: found.start()]} {header[found.end() :]}"
    if found := _RECIPIENT.search(header):
        recipient = found[1]
        header = f"{header[: found.start()]} {header[found.end() :]}"
    rest = _CONTENT_TYPE.sub("", header).strip()
    if rest == _ROLE or rest.startswith(f"{_ROLE} "):
        rest = rest.removeprefix(_ROLE).strip()
    return channel, recipient, rest
