"""Calls as Python writes them: f(a=1, b="x")."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import ClassVar

from specdec_serve.http.tools.call_reader import LONGEST_NAME, CallReader, skip_space
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.literal_scanner import LiteralScanner, json_text
from specdec_serve.http.tools.object_scanner import Step

_NAME = re.compile(r"([^\W\d][\w.\-]*)\s*\(")
_NAME_SO_FAR = re.compile(r"[^\W\d][\w.\-]*\s*")
_KEY = re.compile(r"([^\W\d]\w*)\s*=(?!=)")
_KEY_SO_FAR = re.compile(r"[^\W\d]\w*\s*=?")


@dataclasses.dataclass(frozen=True)
class PythonCalls:
    """A call has arguments by name, whose values are literals. It is never run."""

    marks: ClassVar[tuple[str, ...]] = ()

    def reader(self, functions: Sequence[Function], first: str) -> CallReader:
        """A reader of one call."""
        return _PythonReader()


class _PythonReader(CallReader):
    def __init__(self) -> None:
        super().__init__()
        self._keys: set[str] = set()
        self._value: LiteralScanner | None = None
        self._follows_value = False

    def read(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        """Reads on, from the name through keys and values to the closing parenthesis."""
        if self.name is None:
            found = _NAME.match(text, position)
            if found is None:
                return _unfinished(_NAME_SO_FAR, text, position, is_last=is_last)
            self.name = found[1]
            position = found.end()
        step = Step.END
        while step is Step.END:
            if self._value is not None:
                position, step = self._value.read(text, position, is_last=is_last)
                self._arguments.append(self._value.take())
                if step is not Step.END:
                    break
                self._value = None
                self._follows_value = True
            position = skip_space(text, position)
            if text.startswith(")", position):
                self.has_begun = True
                self._arguments.append("}" if self._keys else "{}")
                return position + 1, Step.END
            position, step = self._read_key(text, position, is_last=is_last)
        return position, step

    def _read_key(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        """Reads what stands before a value: a comma, perhaps, and its key."""
        if position == len(text):
            return position, Step.INSIDE
        if self._follows_value:
            self._follows_value = False
            return (position + 1, Step.END) if text[position] == "," else (position, Step.BAD)
        found = _KEY.match(text, position)
        if found is None or (found.end() == len(text) and not is_last):
            return _unfinished(_KEY_SO_FAR, text, position, is_last=is_last)
        key = found[1]
        if key in self._keys:
            return position, Step.BAD
        self.has_begun = True
        self._arguments.append(f"{', ' if self._keys else '{'}{json_text(key)}: ")
        self._keys.add(key)
        self._value = LiteralScanner()
        return found.end(), Step.END


def _unfinished(
    so_far: re.Pattern[str], text: str, position: int, *, is_last: bool
) -> tuple[int, Step]:
    """More text is needed if what there is may be a beginning."""
    is_short = len(text) - position <= LONGEST_NAME
    may_go_on = not is_last and is_short and so_far.fullmatch(text, position)
    return position, Step.INSIDE if may_go_on else Step.BAD
