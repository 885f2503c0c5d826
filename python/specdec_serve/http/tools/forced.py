"""Parsers of calls that a grammar forces: "required", or of one named function."""

from __future__ import annotations

import json

from specdec_serve.http.tools.events import (
    Arguments,
    CallBegins,
    CallFails,
    Event,
    new_call_id,
)
from specdec_serve.http.tools.object_calls import ObjectCallParser
from specdec_serve.http.tools.object_scanner import Step

_SPACE = " \t\n\r"


class RequiredParser(ObjectCallParser):
    """A JSON list of calls, each with a name and parameters."""

    def __init__(self) -> None:
        super().__init__()
        self._separator = "["

    def _read_text(self, text: str, position: int) -> int:
        for i in range(position, len(text)):
            char = text[i]
            if char == self._separator:
                self._separator = ""
            elif char == "{" and not self._separator:
                self._state = self._read_call
                return i
            elif char == "]" and self._separator == ",":
                self._written.clear()
                self._state = self._read_rest
                return i + 1
            elif char not in _SPACE:
                self._fail()
                self._state = self._read_rest
                return i
            self._hold(char)
        return len(text)

    def _read_call(self, text: str, position: int) -> int:
        i = self._take_plain(text, position)
        while i < len(text):
            step = self._take_call(text[i])
            if step is Step.BAD or self._is_foreign:
                if step is not Step.BAD:
                    self._fail()
                self._state = self._read_rest
                return i + (step is not Step.BAD)
            if step is Step.END:
                self._complete()
                self._separator = ","
                self._state = self._read_text
                return i + 1
            i = self._take_plain(text, i + 1)
        return len(text)

    def _read_rest(self, text: str, position: int) -> int:
        self._add_content(text[position:])
        return len(text)

    def _end(self) -> None:
        if self._state == self._read_call or self._num_calls == 0:
            self._fail()


class NamedParser:
    """The whole text is the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._written: list[str] = []

    def feed(self, text: str) -> list[Event]:
        """The events of the next piece of text."""
        has_begun = bool(self._written)
        if not has_begun:
            text = text.lstrip(_SPACE)
        if not text:
            return []
        self._written.append(text)
        arguments = Arguments(0, text)
        return [arguments] if has_begun else [CallBegins(0, new_call_id(), self._name), arguments]

    def finish(self) -> list[Event]:
        """The call fails where its arguments were cut."""
        text = "".join(self._written)
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return [CallFails(0, text)] if text else []
        return []

    @property
    def holds(self) -> bool:
        """Nothing is held back."""
        return False
