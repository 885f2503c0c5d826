"""Reads a JSON object character by character."""

from __future__ import annotations

import enum
import json
import re

_SPACE = " \t\n\r"
_SCALAR_BEGIN = "-0123456789tfn"
_SCALAR_CHARS = frozenset("-+.0123456789eEtrufalsn")
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SCALAR_PREFIX = re.compile(
    r"t(r(ue?)?)?|f(a(l(se?)?)?)?|n(u(ll?)?)?"
    r"|-?(0|[1-9][0-9]*)?|-?(0|[1-9][0-9]*)\.[0-9]*"
    r"|-?(0|[1-9][0-9]*)(\.[0-9]+)?[eE][-+]?[0-9]*"
)
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_HEX = frozenset("0123456789abcdefABCDEF")


class Step(enum.Enum):
    """The effect of a character."""

    INSIDE = 0  # the object goes on
    END = 1  # the object ends with it
    BAD = 2  # no JSON object goes on like that


class _Expected(enum.Enum):
    OBJECT = 0
    FIRST_KEY = 1
    KEY = 2
    COLON = 3
    FIRST_VALUE = 4
    VALUE = 5
    COMMA = 6


_MAY_CLOSE = (_Expected.COMMA, _Expected.FIRST_KEY, _Expected.FIRST_VALUE)


class ObjectScanner:
    """Checks one object and tells which member each character belongs to.

    Attributes:
        key: key of the current member.
        in_value: whether the last character belongs to that member's value.
        ends_value: whether it ends the value; known for strings, objects and lists.
    """

    def __init__(self) -> None:
        self.key: str | None = None
        self.in_value = False
        self.ends_value = False
        self._closers: list[str] = []  # closing brackets of the open objects and lists
        self._expected = _Expected.OBJECT
        self._scalar = ""
        self._in_string = False
        self._key_text: list[str] | None = None  # raw text of a member's key
        self._escape = 0  # characters left of an escape in a string; -1 after a backslash

    def take(self, char: str) -> Step:
        """Reads one character; nothing may follow END or BAD."""
        if self.ends_value:
            self.in_value = self.ends_value = False
        if self._in_string:
            return self._take_in_string(char)
        if self._scalar:
            if char in _SCALAR_CHARS:
                self._scalar += char
                return Step.INSIDE if _SCALAR_PREFIX.fullmatch(self._scalar) else Step.BAD
            if not _SCALAR.fullmatch(self._scalar):
                return Step.BAD
            self._scalar = ""
            self._expected = _Expected.COMMA
            if len(self._closers) == 1:
                self.in_value = False
        if char in _SPACE:
            return Step.INSIDE
        return self._take_mark(char)

    def plain_end(self, text: str, position: int) -> int:
        """The end of the characters that only continue the text of a value.

        The caller need not pass them to take().
        """
        if not self._in_string or self._escape or self._expected is _Expected.COLON:
            return position
        match = _PLAIN.match(text, position)
        return position if match is None else match.end()

    def _take_in_string(self, char: str) -> Step:
        if self._key_text is not None:
            self._key_text.append(char)
        if self._escape > 0:
            self._escape -= 1
            return Step.INSIDE if char in _HEX else Step.BAD
        if self._escape < 0:
            self._escape = 4 if char == "u" else 0
            return Step.INSIDE if char in '"\\/bfnrtu' else Step.BAD
        if char == "\\":
            self._escape = -1
        elif char == '"':
            self._end_string()
        elif char < " ":
            return Step.BAD
        return Step.INSIDE

    def _end_string(self) -> None:
        self._in_string = False
        if self._expected is not _Expected.COLON:
            self._end_value()
        elif self._key_text is not None:
            self.key = json.loads("".join(self._key_text))
            self._key_text = None

    def _take_mark(self, char: str) -> Step:
        expected = self._expected
        if expected in _MAY_CLOSE and char == self._closers[-1]:
            return self._close()
        if expected in (_Expected.VALUE, _Expected.FIRST_VALUE):
            return self._begin_value(char)
        if expected in (_Expected.KEY, _Expected.FIRST_KEY) and char == '"':
            self._in_string = True
            self._key_text = [char] if len(self._closers) == 1 else None
            self._expected = _Expected.COLON
        elif expected is _Expected.COLON and char == ":":
            self._expected = _Expected.VALUE
        elif expected is _Expected.COMMA and char == ",":
            in_object = self._closers[-1] == "}"
            self._expected = _Expected.KEY if in_object else _Expected.VALUE
        elif expected is _Expected.OBJECT and char == "{":
            return self._open("}", _Expected.FIRST_KEY)
        else:
            return Step.BAD
        return Step.INSIDE

    def _begin_value(self, char: str) -> Step:
        if len(self._closers) == 1:
            self.in_value = True
        if char == "{":
            return self._open("}", _Expected.FIRST_KEY)
        if char == "[":
            return self._open("]", _Expected.FIRST_VALUE)
        if char == '"':
            self._in_string = True
        elif char in _SCALAR_BEGIN:
            self._scalar = char
        else:
            return Step.BAD
        return Step.INSIDE

    def _open(self, closer: str, expected: _Expected) -> Step:
        self._closers.append(closer)
        self._expected = expected
        return Step.INSIDE

    def _close(self) -> Step:
        self._closers.pop()
        if not self._closers:
            return Step.END
        self._end_value()
        return Step.INSIDE

    def _end_value(self) -> None:
        self._expected = _Expected.COMMA
        self.ends_value = len(self._closers) == 1
