"""Calls that are JSON objects: {"name": ..., "arguments": ...}."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import ClassVar

from specdec_serve.http.tools.call_reader import CallReader
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.object_scanner import ObjectScanner, Step

_ARGUMENTS = ("arguments", "parameters")


@dataclasses.dataclass(frozen=True)
class ObjectCalls:
    """A call is an object with a "name" and "arguments" or "parameters", in any order.

    Other members are skipped. Arguments may be a string that contains the JSON.

    Attributes:
        key: which of the two names of the arguments models write.
    """

    key: str = "arguments"

    marks: ClassVar[tuple[str, ...]] = ()

    def reader(self, functions: Sequence[Function], first: str) -> CallReader:
        """A reader of one object."""
        return ObjectReader()


class ObjectReader(CallReader):
    """Reads one object, which may turn out not to be a call."""

    def __init__(self) -> None:
        super().__init__()
        self._scanner = ObjectScanner()
        self._name_text: list[str] = []
        self._arguments_key: str | None = None
        self._quoted: list[str] | None = None  # arguments that are a string

    def read(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        """Reads on; `is_last` changes nothing: every character is clear by itself."""
        while position < len(text):
            end = self._read_plain(text, position)
            if end > position:
                position = end
                continue
            known = (self.has_begun, self.is_foreign)
            step = self._take(text[position])
            if step is Step.BAD:
                return position, step
            position += 1
            if step is Step.END or known != (self.has_begun, self.is_foreign):
                return position, step
        return position, Step.INSIDE

    def _take(self, char: str) -> Step:
        scanner = self._scanner
        was_in_value = scanner.in_value and not scanner.ends_value
        step = scanner.take(char)
        if step is Step.END:
            self.is_foreign |= not self.has_begun
        elif step is Step.INSIDE and scanner.in_value:
            if not was_in_value:
                self._begin_member(char)
            self._take_value(char)
        self.has_begun = self.name is not None and self._arguments_key is not None
        return step

    def _read_plain(self, text: str, position: int) -> int:
        """Reads text inside a value several characters at a time; returns their end."""
        end = self._scanner.plain_end(text, position)
        if end == position or self._scanner.key == "name":
            return position
        if self._scanner.key == self._arguments_key and not self.is_foreign:
            self._add(text[position:end])
        return end

    def _begin_member(self, char: str) -> None:
        key = self._scanner.key
        if key == "name":
            self.is_foreign |= char != '"' or bool(self._name_text)
        elif key in _ARGUMENTS:
            self.is_foreign |= self._arguments_key is not None
            self._arguments_key = key
            self._quoted = [] if char == '"' else None

    def _take_value(self, char: str) -> None:
        if self.is_foreign:
            return
        if self._scanner.key == self._arguments_key:
            self._add(char)
            if self._quoted is not None and self._scanner.ends_value:
                self._arguments.append(_unquoted("".join(self._quoted)))
        elif self._scanner.key == "name":
            self._name_text.append(char)
            if self._scanner.ends_value:
                self.name = json.loads("".join(self._name_text))
                self.is_foreign |= not self.name

    def _add(self, text: str) -> None:
        (self._arguments if self._quoted is None else self._quoted).append(text)


def _unquoted(text: str) -> str:
    """The arguments that a JSON string contains; the string where it does not contain an object."""
    inner: str = json.loads(text)
    try:
        is_object = isinstance(json.loads(inner), dict)
    except (ValueError, RecursionError):
        is_object = False
    return inner if is_object else text
