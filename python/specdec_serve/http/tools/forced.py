"""Parsers of calls that a grammar forces: "required", or of one named function."""

from __future__ import annotations

import json

from specdec_serve.http.tools.call_parser import CallParser, Frame
from specdec_serve.http.tools.call_reader import SPACE
from specdec_serve.http.tools.events import (
    AnswerParser,
    Arguments,
    CallBegins,
    CallFails,
    Event,
    new_call_id,
)
from specdec_serve.http.tools.object_reader import ObjectCalls

_REQUIRED = Frame(bare="[", bare_at_start=True, lists="always")


def required_parser() -> AnswerParser:
    """A parser of a JSON list of calls, each with a name and parameters."""
    return CallParser(_REQUIRED, ObjectCalls())


class NamedParser:
    """The whole text is the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._written: list[str] = []

    def feed(self, text: str) -> list[Event]:
        """The events of the next piece of text."""
        has_begun = bool(self._written)
        if not has_begun:
            text = text.lstrip(SPACE)
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
