"""Calls whose parameters stand between tags, untyped: <parameter=a>1</parameter>."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence

from specdec_serve.http.tools.call_reader import (
    LONGEST_NAME,
    CallReader,
    has_mark,
    overlap,
    skip_space,
)
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.literal_scanner import json_text
from specdec_serve.http.tools.object_scanner import Step
from specdec_serve.http.tools.value_types import TEXT, ParameterTypes, json_of

_NAME = re.compile(r"\s*([\w.\-:/]+)\s*")


@dataclasses.dataclass(frozen=True)
class XmlCalls:
    """A call is `begin`, the name, `name_end`, its parameters and `end`.

    A parameter is `key_begin`, its key, `key_end`, `value_begin`, its value and `value_end`; the
    last one may be missing. The schema's type of a parameter says what its value is: a string stays
    as it is, other values are JSON, and strings where they are not.

    Attributes:
        name_end: "": the name ends where a tag begins.
        trims: whether a line break behind the beginning and before the end of a value belongs to
            the tags.
        is_wrapped: whether models write a value on lines of its own.
        text_key_end: what stands for `key_end` where the value is a string, whatever its schema
            says; "": nothing does.
    """

    begin: str
    name_end: str
    key_begin: str
    key_end: str
    value_begin: str
    value_end: str
    end: str
    trims: bool = False
    is_wrapped: bool = False
    text_key_end: str = ""

    @property
    def marks(self) -> Sequence[str]:
        """The fixed texts of a call."""
        return (
            *(self.begin, self.name_end, self.key_begin, self.key_end),
            *(self.value_begin, self.value_end, self.end, self.text_key_end),
        )

    def reader(self, functions: Sequence[Function], first: str) -> CallReader:
        """A reader of one call."""
        return _XmlReader(self, ParameterTypes(functions))

    @property
    def value_ends(self) -> tuple[str, ...]:
        """What ends a value, with its own mark or without."""
        return (self.value_end, self.key_begin, self.end)

    @functools.cached_property
    def value_ends_pattern(self) -> re.Pattern[str]:
        """Any of `value_ends`."""
        return re.compile("|".join(map(re.escape, self.value_ends)))

    @functools.cached_property
    def key_ends_pattern(self) -> re.Pattern[str]:
        """What ends a key."""
        return re.compile("|".join(map(re.escape, filter(None, (self.key_end, self.text_key_end)))))


class _XmlReader(CallReader):
    def __init__(self, syntax: XmlCalls, types: ParameterTypes) -> None:
        super().__init__()
        self._syntax = syntax
        self._types = types
        self._num_parameters = 0
        self._value: list[str] | None = None  # pieces of the current parameter's value
        self._value_types: frozenset[str] = frozenset()
        self._value_begins = False  # nothing of the value is read yet

    def read(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        """Reads on, from the name through parameters to the end."""
        if self.name is None:
            position, step = self._read_name(text, position, is_last=is_last)
            if step is not Step.END:
                return position, step
        while True:
            if self._value is not None:
                position, step = self._read_value(text, position, is_last=is_last)
                if step is not Step.END:
                    return position, step
            position = skip_space(text, position)
            if position == len(text):
                return position, Step.INSIDE
            has_end = has_mark(text, position, self._syntax.end, is_last=is_last)
            if has_end or (is_last and self._syntax.end.startswith(text[position:])):
                self.has_begun = True
                self._close()
                return min(position + len(self._syntax.end), len(text)), Step.END
            position, step = self._read_key(text, position, is_last=is_last)
            if step is Step.BAD and has_end is None:
                step = Step.INSIDE
            if step is not Step.END:
                return position, step

    def finish(self) -> bool:
        """Closes a call whose parameters are complete."""
        if not self.has_begun or self._value is not None:
            return False
        self._close()
        return True

    def _close(self) -> None:
        self._arguments.append("}" if self._num_parameters else "{}")

    def _read_name(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        syntax = self._syntax
        has_begin = has_mark(text, position, syntax.begin, is_last=is_last)
        if not has_begin:
            return position, Step.INSIDE if has_begin is None else Step.BAD
        start = position + len(syntax.begin)
        end = text.find(syntax.name_end or "<", start, start + LONGEST_NAME)
        if end < 0:
            is_too_long = is_last or len(text) >= start + LONGEST_NAME
            return position, Step.BAD if is_too_long else Step.INSIDE
        name = _NAME.fullmatch(text, start, end)
        if name is None:
            return position, Step.BAD
        self.name = name[1]
        self.has_begun = bool(syntax.begin)
        return end + len(syntax.name_end), Step.END

    def _read_key(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        """The tags and the key before a value."""
        syntax = self._syntax
        has_key = has_mark(text, position, syntax.key_begin, is_last=is_last)
        if not has_key:
            return position, Step.INSIDE if has_key is None else Step.BAD
        start = position + len(syntax.key_begin)
        found = syntax.key_ends_pattern.search(text, start, start + LONGEST_NAME)
        if found is None:
            is_too_long = is_last or len(text) >= start + LONGEST_NAME
            return position, Step.BAD if is_too_long else Step.INSIDE
        begin = skip_space(text, found.end()) if syntax.value_begin else found.end()
        has_value = has_mark(text, begin, syntax.value_begin, is_last=is_last)
        if not has_value:
            return position, Step.INSIDE if has_value is None else Step.BAD
        key = text[start : found.start()].strip()
        self.has_begun = True
        self._begin_value(key, is_text=found[0] == syntax.text_key_end)
        return begin + len(syntax.value_begin), Step.END

    def _begin_value(self, key: str, *, is_text: bool) -> None:
        assert self.name is not None
        self._arguments.append(f"{', ' if self._num_parameters else '{'}{json_text(key)}: ")
        self._num_parameters += 1
        self._value = []
        self._value_begins = True
        self._value_types = TEXT if is_text else self._types.of(self.name, key)
        if self._value_types == TEXT:
            self._arguments.append('"')

    def _read_value(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        syntax = self._syntax
        assert self._value is not None
        if self._value_begins and position < len(text):
            position += syntax.trims and text[position] == "\n"
            self._value_begins = False
        found = syntax.value_ends_pattern.search(text, position)
        if found is not None:
            end = found.start()
        else:
            end = len(text)
            if not is_last:
                end -= max(overlap(text, mark, position) for mark in syntax.value_ends)
        may_be_cut = found is not None or not is_last
        has_break = syntax.trims and may_be_cut and text.endswith("\n", position, end)
        piece = text[position : end - has_break]
        if self._value_types == TEXT:
            self._arguments.append(json_text(piece)[1:-1])
        else:
            self._value.append(piece)
        if found is None:
            return end - has_break, Step.INSIDE
        if self._value_types == TEXT:
            self._arguments.append('"')
        else:
            self._arguments.append(json_of("".join(self._value), self._value_types))
        self._value = None
        is_own = found[0] == syntax.value_end
        return (found.end() if is_own else found.start()), Step.END
