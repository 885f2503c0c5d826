"""Reads a literal that is almost JSON, as Python or Gemma writes it, and writes it as JSON."""

from __future__ import annotations

import ast
import enum
import json
import re
from collections.abc import Callable

from specdec_serve.http.tools.call_reader import has_mark, overlap, skip_space
from specdec_serve.http.tools.object_scanner import Step

json_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode

_DEEPEST = 64  # brackets in each other
_LONGEST_BARE = 1024  # characters of a text without quotes
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_JSON_BRACKETS = {"{": "{", "[": "[", "(": "[", "}": "}", "]": "]", ")": "]"}
_WORD_END = re.compile(r"[,:{}\[\]()\"'=]")
_BARE_KEY_END = re.compile(r"[,:{}\[\]]")
_BARE_END = re.compile(r"[,}\]]")
_WORDS = {
    **{word: word for word in ("true", "false", "null")},
    **{"True": "true", "False": "false", "None": "null"},
}
_NUMBER = re.compile(
    r"([-+]?)(?:0(?=[0-9]))*((?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
)
_STRING_STOPS = {
    quote: re.compile(rf"\\|{quote}") for quote in ("'", '"', "'''", '"""')
}  # what is not text of a string
_ESCAPE = re.compile(
    r"\\(?:[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^{}]{1,80}\}|.)",
    re.DOTALL,
)
_LONGEST_ESCAPE = 84
_WHOLE_ESCAPE = re.compile(
    r"[0-7]{3}|[0-7]{1,2}[^0-7]|x..|u.{4}|U.{8}|N\{[^{}]*[{}]|N[^{]|[^0-7xuUN]", re.DOTALL
)


class _Expected(enum.Enum):
    VALUE = 0
    KEY = 1
    COLON = 2
    MEMBER = 3  # the value behind a colon
    COMMA = 4


class LiteralScanner:
    """Reads one literal: strings, numbers, words, objects and lists in each other.

    Attributes:
        key: the key of the outermost object's current member.
    """

    def __init__(
        self, quote: str = "", bare: Callable[[str | None, str], str] | None = None
    ) -> None:
        """Python's literals, with tuples as lists.

        `quote`: the mark around strings that have no escapes, in place of Python's quotes. `bare`:
        makes JSON of other texts, given the outermost key (None within other brackets) and the
        text; without it there may be numbers, booleans and None alone.
        """
        self.key: str | None = None
        self._quotes = (quote,) if quote else ("'", '"')
        self._has_escapes = not quote
        self._bare = bare
        self._expected = _Expected.VALUE
        self._closers: list[str] = []
        self._quote = ""  # the mark at the end of the current string
        self._follows_comma = False
        self._key_text: list[str] = []  # the JSON of the current string, if it is a key
        self._written: list[str] = []

    def take(self) -> str:
        """The JSON that was written since the last time."""
        text = "".join(self._written)
        self._written.clear()
        return text

    def read(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        """Reads on, as CallReader.read() does.

        A number or word ends where another character follows, or the text ends.
        """
        step = Step.INSIDE
        while step is Step.INSIDE:
            before, expected, quote = position, self._expected, self._quote
            if self._quote:
                position, step = self._read_string(text, position, is_last=is_last)
            else:
                position = skip_space(text, position)
                if position < len(text):
                    position, step = self._read_mark(text, position, is_last=is_last)
            if (before, expected, quote) == (position, self._expected, self._quote):
                break
        return position, step

    # -- marks, and what stands between them

    def _read_mark(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        char = text[position]
        expected = self._expected
        is_open = expected in (_Expected.COLON, _Expected.MEMBER)
        if self._closers and char == self._closers[-1] and not is_open:
            self._follows_comma = False
            self._closers.pop()
            self._write(_JSON_BRACKETS[char])
            self._expected = _Expected.COMMA
            return position + 1, Step.INSIDE if self._closers else Step.END
        if char in _CLOSERS and expected in (_Expected.VALUE, _Expected.MEMBER):
            return self._open(char, position)
        if expected not in (_Expected.COMMA, _Expected.COLON):
            return self._read_scalar(text, position, is_last=is_last)
        if char != (":" if expected is _Expected.COLON else ","):
            return position, Step.BAD
        if expected is _Expected.COLON:
            self._write(": ")
            self._expected = _Expected.MEMBER
        else:
            self._follows_comma = True
            in_object = self._closers[-1] == "}"
            self._expected = _Expected.KEY if in_object else _Expected.VALUE
        return position + 1, Step.INSIDE

    def _open(self, char: str, position: int) -> tuple[int, Step]:
        if len(self._closers) == _DEEPEST:
            return position, Step.BAD
        self._closers.append(_CLOSERS[char])
        self._write(_JSON_BRACKETS[char])
        self._expected = _Expected.KEY if char == "{" else _Expected.VALUE
        return position + 1, Step.INSIDE

    def _write(self, written: str) -> None:
        """A piece of JSON, after the comma that may have come before."""
        if self._follows_comma:
            written = ", " + written
            self._follows_comma = False
        self._written.append(written)

    def _end_value(self) -> Step:
        is_key = self._expected is _Expected.KEY
        self._expected = _Expected.COLON if is_key else _Expected.COMMA
        return Step.INSIDE if self._closers else Step.END

    def _read_scalar(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        """Where a key or a value begins that has no brackets."""
        for quote in self._quotes:
            has_quote = has_mark(text, position, quote, is_last=is_last)
            if has_quote is None:
                return position, Step.INSIDE
            if has_quote:
                return self._begin_string(text, position, quote, is_last=is_last)
        is_key = self._expected is _Expected.KEY
        stops = _WORD_END if self._bare is None else _BARE_KEY_END if is_key else _BARE_END
        found = stops.search(text, position, position + _LONGEST_BARE)
        if found is None and not is_last:
            is_too_long = len(text) >= position + _LONGEST_BARE
            return position, Step.BAD if is_too_long else Step.INSIDE
        end = len(text) if found is None else found.start()
        bare = text[position:end].strip()
        written = self._json_of_key(bare) if is_key else self._json_of_bare(bare)
        if written is None:
            return position, Step.BAD
        self._write(written)
        return end, self._end_value()

    def _json_of_key(self, bare: str) -> str | None:
        if len(self._closers) == 1:
            self.key = bare
        return json_text(bare) if bare else None

    def _json_of_bare(self, bare: str) -> str | None:
        if self._bare is not None:
            return self._bare(self.key if len(self._closers) == 1 else None, bare)
        return _WORDS.get(bare) or _json_of_number(bare)

    # -- strings

    def _begin_string(
        self, text: str, position: int, quote: str, *, is_last: bool
    ) -> tuple[int, Step]:
        if self._has_escapes:
            is_triple = has_mark(text, position, quote * 3, is_last=is_last)
            if is_triple is None:
                return position, Step.INSIDE
            quote *= 3 if is_triple else 1
        self._quote = quote
        self._add('"')
        return position + len(quote), Step.INSIDE

    def _read_string(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        if self._has_escapes:
            stop = _STRING_STOPS[self._quote].search(text, position)
            end = -1 if stop is None else stop.start()
            if stop is not None and stop[0] == "\\":
                if end == position:
                    return self._read_escape(text, position, is_last=is_last)
                self._add(json_text(text[position:end])[1:-1])
                return end, Step.INSIDE
        else:
            end = text.find(self._quote, position)
        if end < 0:
            end = len(text) - (0 if is_last else overlap(text, self._quote, position))
            self._add(json_text(text[position:end])[1:-1])
            return end, Step.INSIDE
        self._add(json_text(text[position:end])[1:-1] + '"')
        end += len(self._quote)
        self._quote = ""
        if self._expected is _Expected.KEY:
            if len(self._closers) == 1:
                self.key = json.loads("".join(self._key_text))
            self._key_text.clear()
        return end, self._end_value()

    def _read_escape(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        rest = text[position + 1 : position + 1 + _LONGEST_ESCAPE]
        if _WHOLE_ESCAPE.match(rest) is None and len(rest) < _LONGEST_ESCAPE:
            return position, Step.BAD if is_last else Step.INSIDE
        found = _ESCAPE.match(text, position)
        assert found is not None
        self._add(_json_of_escape(found[0]))
        return found.end(), Step.INSIDE

    def _add(self, written: str) -> None:
        """A piece of the JSON of a string."""
        self._write(written)
        if self._expected is _Expected.KEY and len(self._closers) == 1:
            self._key_text.append(written)


def _json_of_number(text: str) -> str | None:
    """A number as Python writes it; leading zeros are dropped, and others than decimal refused."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    try:
        return found[1].strip("+") + json_text(ast.literal_eval(found[2]))
    except (ValueError, SyntaxError):  # infinity, too many digits, 1__0
        return None


def _json_of_escape(escape: str) -> str:
    """An escape in a Python string, as part of one in JSON."""
    kind = escape[1]
    is_known = kind in "\n\\'\"abfnrtv01234567" or (kind in "xuUN" and len(escape) > 2)
    try:
        char = ast.literal_eval(f'"{escape}"') if is_known else escape
    except (ValueError, SyntaxError):
        char = escape
    return json.dumps(char)[1:-1]
