"""What the examination of a head finds, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

SCHEMA = 1
"""Version of the report's JSON; raised when a field changes its meaning."""

SOUND, FAULTY, UNASKED = 0, 1, 2
"""Exit status: nothing wrong was found; something was; the question could not be put."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        is_fault: whether it is wrong; else it is only worth knowing.
        subject: what it is about: a tensor, a key, "drafts".
        text: what is the matter, in a sentence.
        remedy: what mends it; empty where nothing known does.
        is_final: whether other readings are not tried, since none can mend this.
    """

    is_fault: bool
    subject: str
    text: str
    remedy: str = ""
    is_final: bool = False


def fault(subject: str, text: str, remedy: str = "", *, is_final: bool = False) -> Finding:
    """Something wrong."""
    return Finding(True, subject, text, remedy, is_final)


def note(subject: str, text: str) -> Finding:
    """Something worth knowing."""
    return Finding(False, subject, text)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One reading of the head, measured.

    Attributes:
        round: 0 for the head as it stands; then 1, 2, ... with the readings before it confirmed.
        reading: the reading's name; empty for the head as it stands.
        label: what is read otherwise.
        share: of the answers' tokens, those that came from drafts; None where the engine refused.
        tokens_per_step: tokens that a step emits.
        by_depth: the share of first, second, ... drafts that were kept.
        gain: by how much the share is above that of the round before, and the ends of its interval
            of 99%; all of it where the engine refused the head of the round before.
        confirmed: the gain in other answers, where it is found again.
        refused: why the engine refuses this head; empty where it does not.
    """

    round: int
    reading: str
    label: str
    share: float | None = None
    tokens_per_step: float | None = None
    by_depth: tuple[float, ...] = ()
    gain: tuple[float, float, float] | None = None
    confirmed: tuple[float, float, float] | None = None
    refused: str = ""


@dataclasses.dataclass
class Report:
    """What `specdec-native doctor` found.

    Attributes:
        model: the target as the user named it.
        head: the head as the user named it; None for a layer of the target's own checkpoint.
        method: the method that it drafts by.
        num_prompts, max_tokens: of each measurement.
        depth: drafts of each step.
        trials: the head as it stands and every reading that was tried.
        findings: what is wrong, and what is worth knowing.
        seconds: how long it took.
        written: the folder of the mended head; None where none was written.
        schema: SCHEMA.
    """

    model: str
    head: str | None
    method: str
    num_prompts: int
    max_tokens: int
    depth: int
    trials: list[Trial] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    written: str | None = None
    schema: int = SCHEMA

    @property
    def status(self) -> int:
        """The exit status."""
        return FAULTY if any(finding.is_fault for finding in self.findings) else SOUND

    def as_json(self) -> Mapping[str, Any]:
        """The report with its verdict, for --json."""
        return {**dataclasses.asdict(self), "sound": self.status == SOUND}
