"""Reads answers with calls: what stands around calls, and between them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Literal

from specdec_serve.http.tools.call_reader import (
    SPACE,
    CallReader,
    CallSyntax,
    has_mark,
    overlap,
    skip_space,
)
from specdec_serve.http.tools.events import (
    Arguments,
    CallBegins,
    CallFails,
    Content,
    Event,
    new_call_id,
)
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.object_scanner import Step


@dataclasses.dataclass(frozen=True)
class Frame:
    """What stands around calls.

    Attributes:
        marks: the marks that calls may stand between, with "" where the end has none.
        bare: how a call begins that has no mark before it; "": every call has one.
        bare_at_start: whether such a call has to be the first text of the answer.
        lists: whether calls may stand in brackets, with commas between them.
        repeats: whether several calls may stand between marks without brackets. A call is then
            complete by itself; without, the mark at the end completes it.
        skipped: characters that are dropped between a call and the text after it.
    """

    marks: tuple[tuple[str, str], ...] = ()
    bare: str = ""
    bare_at_start: bool = False
    lists: Literal["never", "maybe", "always"] = "never"
    repeats: bool = False
    skipped: str = SPACE


class CallParser:
    """Turns calls and the text around them into events.

    The text of a possible call is held back until it is known to be a call. If it is none, it
    becomes content unchanged. The mark at the end may be missing at the end of the text.
    """

    def __init__(
        self,
        frame: Frame,
        syntax: CallSyntax,
        functions: Sequence[Function] = (),
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._frame = frame
        self._syntax = syntax
        self._functions = functions
        self._new_id = new_id
        self._begins = [begin for begin, _ in frame.marks]
        if frame.bare and not frame.bare_at_start:
            self._begins.append(frame.bare)
        longest_first = sorted(self._begins, key=len, reverse=True)
        self._begin = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._ends = dict(frame.marks)
        self._end = ""  # the mark at the end of the current call

        self._text = ""  # what was fed and not read yet is text[position:]
        self._position = 0
        self._is_last = False
        self._state: Callable[[], bool] = (
            self._read_start if frame.bare_at_start else self._read_text
        )
        self._events: list[Event] = []
        self._ids: set[str] = set()
        self._follows_call = False  # only skipped characters came since the last call
        self._in_list = False
        self._is_bare = (
            False  # the call that begins has no mark before it, and nothing is read of it
        )
        self._written: list[str] = []  # text of the current call, with its marks
        self._reader: CallReader | None = None
        self._index: int | None = None  # index of the current call, once it has begun

    def feed(self, text: str) -> list[Event]:
        """The events of the next piece of text."""
        self._text = self._text[self._position :] + text
        self._position = 0
        while self._state():
            pass
        return self._take_events()

    def finish(self) -> list[Event]:
        """The events at the end of the text."""
        self._is_last = True
        while self._state():
            pass
        is_complete = self._state in (self._read_comma, self._read_end)
        if self._state == self._read_call:
            assert self._reader is not None
            is_complete = self._reader.finish()
        if is_complete:
            self._complete()
        elif self._state not in (self._read_text, self._read_between, self._read_next):
            self._hold_to(len(self._text))
            self._fail()
        return self._take_events()

    @property
    def holds(self) -> bool:
        """Whether a part of a mark or call is held back."""
        return bool(self._written or self._position < len(self._text))

    # -- states: each reads on, and returns whether there is more to read without further text

    def _read_start(self) -> bool:
        """At the start of the answer, where a call may begin without a mark."""
        self._hold_space()
        if self._position == len(self._text):
            return False
        has_begin = [self._has(begin) for begin in self._begins]
        if None in has_begin and True not in has_begin:
            return False
        if True not in has_begin and self._has(self._frame.bare):
            self._state = self._read_begin
        else:
            self._release()
            self._state = self._read_text
        return True

    def _read_text(self) -> bool:
        """Outside of calls."""
        text, start = self._text, self._position
        found = self._begin.search(text, start)
        if found is None:
            cut = max((overlap(text, begin, start) for begin in self._begins), default=0)
            self._read_content(len(text) - (0 if self._is_last else cut))
            return False
        self._read_content(found.start())
        mark = found[0]
        if any(len(begin) > len(mark) and self._has(begin) is None for begin in self._begins):
            return False  # it may become a longer mark
        if mark in self._ends:
            self._hold_to(found.end())
            self._end = self._ends[mark]
        else:
            self._is_bare = True
            self._end = next(iter(self._ends.values()), "")
        self._state = self._read_begin
        return True

    def _read_begin(self) -> bool:
        """Before a call, and perhaps the bracket before it."""
        self._hold_space()
        if self._position == len(self._text):
            return False
        if self._frame.lists != "never" and not self._in_list:
            if self._text[self._position] == "[":
                self._hold_to(self._position + 1)
                self._in_list = True
                return True
            if self._frame.lists == "always":
                return self._fail()
        self._reader = self._syntax.reader(self._functions, self._text[self._position])
        self._state = self._read_call
        return True

    def _read_call(self) -> bool:
        reader = self._reader
        assert reader is not None
        known = (reader.has_begun, reader.is_foreign)
        end, step = reader.read(self._text, self._position, is_last=self._is_last)
        if step is Step.BAD and end == self._position and self._is_bare:
            end += 1  # not even the beginning is good, and it is not to be found again
        self._is_bare = False
        self._hold_to(end)
        if reader.is_foreign:
            self._release()
        elif reader.has_begun and self._index is None:
            self._begin_call(reader)
        if step is Step.BAD or (step is Step.END and reader.is_foreign):
            return self._fail()
        if step is Step.INSIDE:
            return known != (reader.has_begun, reader.is_foreign)
        if self._in_list:
            self._state = self._read_comma
        elif self._end and not self._frame.repeats:
            self._state = self._read_end
        else:
            self._complete()
        return True

    def _read_comma(self) -> bool:
        """After a call of a list: another one, or the list's end."""
        self._hold_space()
        if self._position == len(self._text):
            return False
        char = self._text[self._position]
        if char not in ",]":
            return self._fail()
        self._position += 1
        self._complete()
        if char == ",":
            self._state = self._read_next
        return True

    def _read_next(self) -> bool:
        """After a comma. A list may end there, too."""
        self._hold_space()
        if self._position == len(self._text):
            return False
        if self._text[self._position] == "]":
            self._position += 1
            self._written.clear()
            self._state = self._read_between
        else:
            self._in_list = True
            self._state = self._read_begin
        return True

    def _read_end(self) -> bool:
        """After a call that its mark completes."""
        self._hold_space()
        if self._position == len(self._text):
            return False
        has_end = self._has_end()
        if has_end:
            self._complete()
        elif has_end is False:
            return self._fail()
        return has_end is not None

    def _read_between(self) -> bool:
        """After a complete call: the mark at its end, another call, or text."""
        self._position = skip_space(self._text, self._position, self._frame.skipped)
        if self._position == len(self._text):
            return False
        has_end = self._has_end()
        if has_end is None:
            return False
        repeats = self._frame.repeats and not has_end
        self._state = self._read_begin if repeats else self._read_text
        return True

    # -- parts of states

    def _has(self, mark: str) -> bool | None:
        return has_mark(self._text, self._position, mark, is_last=self._is_last)

    def _has_end(self) -> bool | None:
        """Reads the mark at the end, of which a part will do at the end of the text."""
        has_end = self._has(self._end) if self._end else False
        if has_end is False and self._end and self._is_last:
            has_end = self._end.startswith(self._text[self._position :])
        if has_end:
            self._position = min(self._position + len(self._end), len(self._text))
        return has_end

    def _hold_to(self, end: int) -> None:
        """Holds the text before `end` back, until it is known what it is."""
        if end > self._position:
            self._written.append(self._text[self._position : end])
            self._position = end

    def _hold_space(self) -> None:
        self._hold_to(skip_space(self._text, self._position))

    def _read_content(self, end: int) -> None:
        self._add_content(self._text[self._position : end])
        self._position = end

    def _add_content(self, text: str) -> None:
        if self._follows_call:
            text = text.lstrip(self._frame.skipped)
        if not text:
            return
        self._follows_call = False
        if self._events and isinstance(last := self._events[-1], Content):
            text = last.text + text
            self._events.pop()
        self._events.append(Content(text))

    def _begin_call(self, reader: CallReader) -> None:
        assert reader.name is not None
        call_id = reader.id
        if call_id is None or call_id in self._ids:
            call_id = self._new_id()
        self._index = len(self._ids)
        self._ids.add(call_id)
        self._events.append(CallBegins(self._index, call_id, reader.name))

    def _complete(self) -> None:
        """The call and the marks around it are complete."""
        self._flush()
        self._written.clear()
        self._reset(self._read_between)
        self._follows_call = True

    def _fail(self) -> bool:
        """The text is not a call. Reading goes on outside of calls."""
        self._release()
        self._reset(self._read_text)
        return True

    def _release(self) -> None:
        self._flush()
        text = "".join(self._written)
        self._written.clear()
        if self._index is None:
            self._follows_call = self._follows_call and not text
            self._add_content(text)
        else:
            self._events.append(CallFails(self._index, text))
            self._index = None

    def _reset(self, state: Callable[[], bool]) -> None:
        self._state = state
        self._reader = self._index = None
        self._in_list = False

    def _flush(self) -> None:
        if self._index is None or self._reader is None:
            return
        if text := self._reader.take_arguments():
            self._events.append(Arguments(self._index, text))

    def _take_events(self) -> list[Event]:
        self._flush()
        events = self._events
        self._events = []
        return events
