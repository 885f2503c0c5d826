"""What a run found, as JSON and as a page."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from specdec_lab.conformance.rows import Row, Verdict

_PLURALS = {
    Verdict.HOLDS: "hold",
    Verdict.BROKEN: "broken",
    Verdict.FALLS_SHORT: "fall short",
    Verdict.NOT_ASKED: "could not be asked",
}


@dataclasses.dataclass(frozen=True)
class Report:
    """The rows of a run.

    Attributes:
        target: the URL or the model that was asked.
        model: the model's name in requests.
        plain: where plain answers came from; None for nowhere.
        command: the command line.
        version: of this package.
        seconds: how long it took.
    """

    target: str
    model: str
    plain: str | None
    command: str
    version: str
    seconds: float
    rows: Sequence[Row]
    when: datetime.datetime

    @property
    def num_broken(self) -> int:
        """Rows that do not hold."""
        return sum(row.verdict is Verdict.BROKEN for row in self.rows)

    @property
    def summary(self) -> str:
        """One line."""
        counts = collections.Counter(row.verdict for row in self.rows)
        return ", ".join(f"{counts[verdict]} {word}" for verdict, word in _PLURALS.items())

    @property
    def subjects(self) -> list[tuple[str, list[Row]]]:
        """The rows of each subject, in order."""
        groups = itertools.groupby(self.rows, key=lambda row: row.subject)
        return [(subject, list(rows)) for subject, rows in groups]

    def as_json(self) -> dict[str, Any]:
        """The report for a file."""
        return {
            "target": self.target,
            "model": self.model,
            "plain": self.plain,
            "command": self.command,
            "version": self.version,
            "when": self.when.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 1),
            "summary": self.summary,
            "rows": [row.as_json() for row in self.rows],
        }

    def as_page(self) -> str:
        """A page of HTML that needs nothing else."""
        text = (Path(__file__).parent / "report.html").read_text(encoding="utf-8")
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        return environment.from_string(text).render(report=self, Verdict=Verdict)
