"""What reads one call, whatever its syntax; and matching of marks that may be cut."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Protocol

from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.object_scanner import Step

SPACE = " \t\n\r"
LONGEST_NAME = 256  # characters of a name with what surrounds it; longer text is not a call


class CallReader(abc.ABC):
    """Reads one call as its text arrives.

    Attributes:
        name: the function's name, once it is read.
        id: the call's id, where the text has one.
        has_begun: whether it is certain that this is a call, and of which function.
        is_foreign: whether this is well-formed, but not a call.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.id: str | None = None
        self.has_begun = False
        self.is_foreign = False
        self._arguments: list[str] = []

    @abc.abstractmethod
    def read(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        """Reads on; returns where the text that was read ends, and why reading stopped there.

        INSIDE: more text is needed, and what is left of this one comes again before it (or, where
        `has_begun` or `is_foreign` has changed, reading goes on at once). END: the call ends there.
        BAD: no call goes on like that. `is_last`: nothing follows the text. Nothing may be read
        after END or BAD.
        """

    def finish(self) -> bool:
        """At the end of the text, inside a call: closes it if only its end is missing."""
        return False

    def take_arguments(self) -> str:
        """The JSON text of the arguments that was read since the last time."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text


class CallSyntax(Protocol):
    """How a call is written. It is data, and makes the reader of one call."""

    @property
    def marks(self) -> Sequence[str]:
        """The fixed texts of a call."""

    def reader(self, functions: Sequence[Function], first: str) -> CallReader:
        """A reader of the call that begins with the character `first`."""


def skip_space(text: str, position: int, skipped: str = SPACE) -> int:
    """The position of the first other character."""
    while position < len(text) and text[position] in skipped:
        position += 1
    return position


def has_mark(text: str, position: int, mark: str, *, is_last: bool) -> bool | None:
    """Whether the mark stands there; None where the text ends too early to tell."""
    if text.startswith(mark, position):
        return True
    is_cut = not is_last and len(text) - position < len(mark)
    return None if is_cut and mark.startswith(text[position:]) else False


def overlap(text: str, mark: str, position: int = 0) -> int:
    """Length of the longest suffix of text[position:] that is a proper prefix of the mark."""
    for length in range(min(len(mark) - 1, len(text) - position), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
