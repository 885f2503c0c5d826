"""Calls as Gemma writes them: call:f{a:1,b:<escape>x<escape>}."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from specdec_serve.http.tools.call_reader import LONGEST_NAME, CallReader
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.literal_scanner import LiteralScanner
from specdec_serve.http.tools.object_scanner import Step
from specdec_serve.http.tools.value_types import ParameterTypes, json_of

_BEGIN = "call:"  # models leave the word out at times
_NAME = re.compile(r"(?:call)?:\s*([\w.\-/]+)\s*(?={)")
_NAME_SO_FAR = re.compile(r"(?:call)?:\s*[\w.\-/]*\s*")


@dataclasses.dataclass(frozen=True)
class GemmaCalls:
    """A call has arguments almost as in JSON: keys are bare, and strings stand between `quote`.

    Bare values are numbers, booleans and null; others are strings.
    """

    quote: str

    @property
    def marks(self) -> Sequence[str]:
        """The fixed texts of a call."""
        return (self.quote,)

    def reader(self, functions: Sequence[Function], first: str) -> CallReader:
        """A reader of one call."""
        return _GemmaReader(self.quote, ParameterTypes(functions))


class _GemmaReader(CallReader):
    def __init__(self, quote: str, types: ParameterTypes) -> None:
        super().__init__()
        self._types = types
        self._scanner = LiteralScanner(quote, self._json_of_bare)

    def read(self, text: str, position: int, *, is_last: bool) -> tuple[int, Step]:
        """Reads on: the name, and its arguments."""
        if not self.has_begun:
            found = _NAME.match(text, position)
            if found is None:
                rest = text[position : position + LONGEST_NAME + 1]
                may_go_on = _BEGIN.startswith(rest) or _NAME_SO_FAR.fullmatch(rest)
                is_unclear = may_go_on and not is_last and len(rest) <= LONGEST_NAME
                return position, Step.INSIDE if is_unclear else Step.BAD
            self.name = found[1]
            self.has_begun = True
            position = found.end()
        position, step = self._scanner.read(text, position, is_last=is_last)
        self._arguments.append(self._scanner.take())
        return position, step

    def _json_of_bare(self, key: str | None, text: str) -> str:
        assert self.name is not None
        return json_of(text, frozenset() if key is None else self._types.of(self.name, key))
