"""Calls that name the function first, and give its arguments as a JSON object."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence

from specdec_serve.http.tools.call_reader import LONGEST_NAME, CallReader, has_mark, skip_space
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.object_reader import ObjectReader
from specdec_serve.http.tools.object_scanner import ObjectScanner, Step


@dataclasses.dataclass(frozen=True)
class NamedCalls:
    """A call is `begin`, a header with the name, a mark, the arguments and `end`.

    A call that begins with its object has the name inside of it.

    Attributes:
        header: a regular expression with the group "name" and perhaps "id".
        id_begin: the mark between the header and an id, which may be missing.
        header_ends: marks that may end the header; "{" belongs to the arguments. Models that write
            the first one have a token of it where there are others.
        before_name: what models write before the name.
        after_name: a regular expression of what they write behind it.
    """

    header: str
    header_ends: tuple[str, ...]
    begin: str = ""
    id_begin: str = ""
    end: str = ""
    before_name: str = ""
    after_name: str = ""

    @property
    def marks(self) -> Sequence[str]:
        """The fixed texts of a call."""
        return (self.begin, self.id_begin, *self.header_ends, self.end)

    def reader(self, functions: Sequence[Function], first: str) -> CallReader:
        """A reader of one call."""
        is_object = first == "{" and not self.begin.startswith("{")
        return ObjectReader() if is_object else _NamedReader(self)

    @functools.cached_property
    def header_pattern(self) -> re.Pattern[str]:
        """The header, perhaps with an id behind it."""
        call_id = rf"(?:{re.escape(self.id_begin)}\s*(?P<id>\w+)\s*)?" if self.id_begin else ""
        return re.compile(self.header + call_id)

    @functools.cached_property
    def ends_pattern(self) -> re.Pattern[str]:
        """Any of `header_ends`."""
        return re.compile("|".join(map(re.escape, self.header_ends)))


class _NamedReader(CallReader):
    def __init__(self, syntax: NamedCalls) -> None:
        super().__init__()
        self._syntax = syntax
        self._scanner: ObjectScanner | None = None
        self._is_complete = False  # the arguments are

    def read(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        """Reads on, from one of the three parts of the call to the next."""
        if not self.has_begun:
            position, step = self._read_header(text, position, is_last=is_last)
            if step is not Step.END:
                return position, step
        if not self._is_complete:
            position, step = self._read_arguments(text, position, is_last=is_last)
            if step is not Step.END:
                return position, step
        return self._read_end(text, position, is_last=is_last)

    def finish(self) -> bool:
        """Closes a call whose arguments are complete."""
        return self._is_complete

    def _read_header(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        syntax = self._syntax
        has_begin = has_mark(text, position, syntax.begin, is_last=is_last)
        if not has_begin:
            return position, Step.INSIDE if has_begin is None else Step.BAD
        start = position + len(syntax.begin)
        found = syntax.ends_pattern.search(text, start, start + LONGEST_NAME)
        if found is None:
            is_too_long = is_last or len(text) >= start + LONGEST_NAME
            return position, Step.BAD if is_too_long else Step.INSIDE
        header = syntax.header_pattern.fullmatch(text, start, found.start())
        if header is None:
            return position, Step.BAD
        self.name = header["name"]
        self.id = header.groupdict().get("id")
        self.has_begun = True
        return found.start() if found[0] == "{" else found.end(), Step.END

    def _read_arguments(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        if self._scanner is None:
            position = skip_space(text, position)
            if position == len(text):
                return position, Step.INSIDE
            end = self._syntax.end
            has_end = has_mark(text, position, end, is_last=is_last) if end else False
            if has_end is None:
                return position, Step.INSIDE
            if has_end:
                self._arguments.append("{}")
                self._is_complete = True
                return position, Step.END
            self._scanner = ObjectScanner()
        begin = position
        step = Step.INSIDE
        while position < len(text) and step is Step.INSIDE:
            end_of_plain = self._scanner.plain_end(text, position)
            if end_of_plain > position:
                position = end_of_plain
                continue
            step = self._scanner.take(text[position])
            position += step is not Step.BAD
        self._arguments.append(text[begin:position])
        self._is_complete = step is Step.END
        return position, step

    def _read_end(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        if not self._syntax.end:
            return position, Step.END
        position = skip_space(text, position)
        if position == len(text):
            return position, Step.INSIDE
        has_end = has_mark(text, position, self._syntax.end, is_last=is_last)
        if has_end is None:
            return position, Step.INSIDE
        if has_end:
            return position + len(self._syntax.end), Step.END
        is_cut = is_last and self._syntax.end.startswith(text[position:])
        return (len(text), Step.END) if is_cut else (position, Step.BAD)
