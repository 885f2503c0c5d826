"""The base class of parsers whose calls are JSON objects."""

from __future__ import annotations

import abc
from collections.abc import Callable

from specdec_serve.http.tools.call_reader import CallReader
from specdec_serve.http.tools.events import (
    Arguments,
    CallBegins,
    CallFails,
    Content,
    Event,
    new_call_id,
)
from specdec_serve.http.tools.object_scanner import Step


class ObjectCallParser(abc.ABC):
    """Turns objects and the text around them into events.

    The text of a possible call is held back until it is known to be a call. Otherwise it becomes
    content unchanged.
    """

    _SKIPPED = " \t\n\r"  # dropped between a call and the text after it

    def __init__(self) -> None:
        self._state: Callable[[str, int], int] = self._read_text
        self._events: list[Event] = []
        self._num_calls = 0
        self._follows_call = False  # only skipped characters came since the last call
        self._tag = ""  # the incomplete tag so far
        self._written: list[str] = []  # text of the current call, with its markup
        self._reader = CallReader()
        self._index: int | None = None  # index of the current call, once it has begun

    def feed(self, text: str) -> list[Event]:
        """The events of the next piece of text."""
        position = 0
        while position < len(text):
            position = self._state(text, position)
        return self._take_events()

    def finish(self) -> list[Event]:
        """The events at the end of the text."""
        self._end()
        return self._take_events()

    @property
    def holds(self) -> bool:
        """Whether a part of a tag or call is held back."""
        return bool(self._tag or self._written)

    @abc.abstractmethod
    def _read_text(self, text: str, position: int) -> int:
        """Reads text outside of calls from `position`; returns the position to continue at."""

    @abc.abstractmethod
    def _end(self) -> None:
        """Called at the end of the text."""

    def _add_content(self, text: str) -> None:
        if self._follows_call:
            text = text.lstrip(self._SKIPPED)
        if not text:
            return
        self._follows_call = False
        if self._events and isinstance(last := self._events[-1], Content):
            text = last.text + text
            self._events.pop()
        self._events.append(Content(text))

    def _hold(self, markup: str) -> None:
        """Holds back markup of the following call."""
        self._written.append(markup)

    def _take_call(self, char: str) -> Step:
        """Reads a character of a call. BAD: the call has failed before this character.

        If the object turns out not to be a call, reading continues and the character is content.
        """
        reader = self._reader
        step = reader.take(char)
        if step is Step.BAD:
            self._fail()
            return step
        self._written.append(char)
        if reader.is_foreign:
            self._release()
        elif reader.has_begun and self._index is None:
            assert reader.name is not None
            self._index = self._num_calls
            self._num_calls += 1
            self._events.append(CallBegins(self._index, new_call_id(), reader.name))
        return step

    def _take_plain(self, text: str, position: int) -> int:
        """Reads characters of a call that cannot end it; returns the position after them."""
        end = self._reader.take_plain(text, position)
        if end > position:
            self._written.append(text[position:end])
            if self._reader.is_foreign:
                self._release()
        return end

    @property
    def _is_foreign(self) -> bool:
        return self._reader.is_foreign

    def _complete(self) -> None:
        """Called when the call and its markup are complete."""
        self._flush()
        self._written.clear()
        self._reset()
        self._follows_call = True

    def _fail(self) -> None:
        """Called when the text turns out not to be a call."""
        self._release()
        self._reset()

    def _release(self) -> None:
        self._flush()
        text = "".join(self._written)
        self._written.clear()
        if self._index is None:
            self._follows_call = False
            self._add_content(text)
        else:
            self._events.append(CallFails(self._index, text))
            self._index = None

    def _reset(self) -> None:
        self._reader = CallReader()
        self._index = None

    def _flush(self) -> None:
        if self._index is not None and (text := self._reader.take_arguments()):
            self._events.append(Arguments(self._index, text))

    def _take_events(self) -> list[Event]:
        self._flush()
        events = self._events
        self._events = []
        return events


def overlap(text: str, tag: str) -> int:
    """Length of the longest suffix of the text that is a proper prefix of the tag."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
