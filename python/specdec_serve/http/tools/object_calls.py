"""What parsers have in common whose calls are JSON objects."""

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
    """Makes events of the objects and of the text around them.

    What is written of a call waits until it is known to be one. If it turns out to be none, it
    becomes content as it stands.
    """

    _SKIPPED = " \t\n\r"  # what is left out between a call and the text after it

    def __init__(self) -> None:
        self._state: Callable[[str, int], int] = self._read_text
        self._events: list[Event] = []
        self._num_calls = 0
        self._follows_call = False  # and nothing but skipped characters came since
        self._tag = ""  # what is there of a tag
        self._written: list[str] = []  # of the call being read, with its markup
        self._reader = CallReader()
        self._index: int | None = None  # of that call, once it has begun

    def feed(self, text: str) -> list[Event]:
        """What the next piece of the text adds."""
        position = 0
        while position < len(text):
            position = self._state(text, position)
        return self._take_events()

    def finish(self) -> list[Event]:
        """What the end of the text adds."""
        self._end()
        return self._take_events()

    @property
    def holds(self) -> bool:
        """Whether there is a part of a tag or of a call."""
        return bool(self._tag or self._written)

    @abc.abstractmethod
    def _read_text(self, text: str, position: int) -> int:
        """Reads from there what is outside of a call; returns where to go on."""

    @abc.abstractmethod
    def _end(self) -> None:
        """The text is at its end."""

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
        """Markup that belongs to the call that follows."""
        self._written.append(markup)

    def _take_call(self, char: str) -> Step:
        """Reads a character of a call. With BAD the call has failed, without the character.

        Of an object that is no call it goes on, with the character as content.
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
        """Reads characters of a call that cannot end it; returns where they end."""
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
        """The call is complete, and so is its markup."""
        self._flush()
        self._written.clear()
        self._reset()
        self._follows_call = True

    def _fail(self) -> None:
        """What was written is no call."""
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
    """Length of the longest end of the text that is a beginning of the tag, but not all of it."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
