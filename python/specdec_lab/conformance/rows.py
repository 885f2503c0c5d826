"""Rows of the report: what was asked, how often, and what did not hold."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

_MOST_EXAMPLES = 3


class Verdict(enum.Enum):
    """What a row says."""

    HOLDS = "holds"
    BROKEN = "broken"
    FALLS_SHORT = "falls short"
    NOT_ASKED = "could not be asked"


@dataclasses.dataclass(frozen=True)
class Example:
    """A case that did not hold: the request, and what was wrong with its answer."""

    request: Mapping[str, Any]
    what: str


@dataclasses.dataclass
class Row:
    """One promise, or one wish, with the cases that were tried.

    Attributes:
        subject: the experiment that asks.
        name: the promise, in a few words.
        reports: public reports of servers where it did not hold, such as "vllm#41758".
        is_promised: whether OpenAI's API promises it, so that every server that takes the request
            has to keep it. Equal answers and speed are wishes: a server may promise them, or say
            that it does not.
        num_cases, num_broken: how many were tried, and how many of them did not hold.
        examples: the first that did not.
        missing: why it could not be asked; None if nothing is missing.
        note: a figure that belongs to the verdict.
    """

    subject: str
    name: str
    reports: tuple[str, ...] = ()
    is_promised: bool = True
    num_cases: int = 0
    num_broken: int = 0
    examples: list[Example] = dataclasses.field(default_factory=list)
    missing: str | None = None
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """Not holding if any case did not, whatever else could not be asked."""
        if self.num_broken:
            return Verdict.BROKEN if self.is_promised else Verdict.FALLS_SHORT
        return Verdict.HOLDS if self.num_cases else Verdict.NOT_ASKED

    @property
    def detail(self) -> str:
        """What a reader wants to know beside the verdict."""
        if self.num_broken:
            return self.examples[0].what
        if self.verdict is Verdict.NOT_ASKED:
            return self.missing or "no case came up"
        return self.note

    def add(self, difference: str | None, request: Mapping[str, Any]) -> None:
        """Counts a case; `difference` says what was wrong with it, None that it held."""
        self.num_cases += 1
        if difference is not None:
            self.num_broken += 1
            if len(self.examples) < _MOST_EXAMPLES:
                self.examples.append(Example(dict(request), difference))

    def as_json(self) -> dict[str, Any]:
        """The row for a file."""
        return {
            "subject": self.subject,
            "name": self.name,
            "is_promised": self.is_promised,
            "verdict": self.verdict.value,
            "num_cases": self.num_cases,
            "num_broken": self.num_broken,
            "detail": self.detail,
            "reports": list(self.reports),
            "examples": [dataclasses.asdict(example) for example in self.examples],
        }
