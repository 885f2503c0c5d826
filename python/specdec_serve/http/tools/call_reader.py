"""Reads the JSON object of one call: {"name": ..., "arguments": ...}."""

from __future__ import annotations

import json

from specdec_serve.http.tools.object_scanner import ObjectScanner, Step

_ARGUMENTS = ("arguments", "parameters")


class CallReader:
    """One object that may be a call, character by character.

    A call has a "name" and "arguments" or "parameters", in any order. Other members are skipped.

    Attributes:
        name: the name, once it is read.
        is_foreign: whether the object is not a call, though it may be valid JSON.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_foreign = False
        self._scanner = ObjectScanner()
        self._name_text: list[str] = []
        self._arguments: list[str] = []
        self._arguments_key: str | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it is known to be a call: its name is read, and its arguments begin."""
        return self.name is not None and self._arguments_key is not None

    def take(self, char: str) -> Step:
        """Reads one character; nothing may follow END or BAD."""
        scanner = self._scanner
        was_in_value = scanner.in_value and not scanner.ends_value
        step = scanner.take(char)
        if step is Step.END:
            self.is_foreign |= not self.has_begun
        elif step is Step.INSIDE and scanner.in_value:
            if not was_in_value:
                self._begin_member(char)
            self._take_value(char)
        return step

    def take_plain(self, text: str, position: int) -> int:
        """Reads text inside a value several characters at a time; returns their end."""
        end = self._scanner.plain_end(text, position)
        if end == position or self._scanner.key == "name":
            return position
        if self._scanner.key == self._arguments_key and not self.is_foreign:
            self._arguments.append(text[position:end])
        return end

    def take_arguments(self) -> str:
        """The arguments' text that was read since the last call."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _begin_member(self, char: str) -> None:
        key = self._scanner.key
        if key == "name":
            self.is_foreign |= char != '"' or bool(self._name_text)
        elif key in _ARGUMENTS:
            self.is_foreign |= self._arguments_key is not None
            self._arguments_key = key

    def _take_value(self, char: str) -> None:
        if self.is_foreign:
            return
        if self._scanner.key == self._arguments_key:
            self._arguments.append(char)
        elif self._scanner.key == "name":
            self._name_text.append(char)
            if self._scanner.ends_value:
                self.name = json.loads("".join(self._name_text))
                self.is_foreign |= not self.name
